"""Rectified linear unit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from iossim.ir.op import Array, Op, Role
from iossim.ir.ops.broadcasting import one_input
from iossim.ir.types import TensorType


@dataclass(frozen=True)
class Relu(Op):
    """``max(x, 0)``, element by element."""

    kind: ClassVar[str] = "relu"
    onnx_types: ClassVar[tuple[str, ...]] = ("Relu",)
    role: ClassVar[Role] = Role.ACTIVATION
    flops_per_element: ClassVar[int] = 1

    def infer(self, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
        return (one_input(inputs),)

    def evaluate(self, inputs: Sequence[Array]) -> tuple[Array, ...]:
        (x,) = inputs
        return (np.maximum(x, x.dtype.type(0)),)
