"""Logistic sigmoid."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from iossim.ir.op import Array, Op, Role, require
from iossim.ir.ops.broadcasting import one_input, widen
from iossim.ir.types import TensorType


@dataclass(frozen=True)
class Sigmoid(Op):
    """``1 / (1 + exp(-x))``, element by element; counted as its four operations."""

    kind: ClassVar[str] = "sigmoid"
    onnx_types: ClassVar[tuple[str, ...]] = ("Sigmoid",)
    role: ClassVar[Role] = Role.ACTIVATION
    flops_per_element: ClassVar[int] = 4

    def infer(self, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
        x = one_input(inputs)
        require(x.dtype.is_floating or x.dtype.bytes == 1, f"takes floating-point numbers, not {x.dtype}")
        return (x,)

    def evaluate(self, inputs: Sequence[Array]) -> tuple[Array, ...]:
        return (logistic(widen(inputs[0])).astype(inputs[0].dtype, copy=False),)


def logistic(x: Array) -> Array:
    """``1 / (1 + exp(-x))`` of an array of any shape, in its own type."""
    small = np.exp(-np.abs(x))  # of a non-positive number only, so that nothing overflows
    result: Array = np.where(x >= 0, 1 / (1 + small), small / (1 + small))
    return result
