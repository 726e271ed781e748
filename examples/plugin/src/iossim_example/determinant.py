"""Determinants of square matrices, by elimination."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from iossim.ir.op import Array, Op, require
from iossim.ir.types import TensorType


@dataclass(frozen=True)
class Determinant(Op):
    """The determinant of each matrix of the last two dimensions."""

    kind: ClassVar[str] = "determinant"
    onnx_types: ClassVar[tuple[str, ...]] = ("Det",)
    #: One kernel that reads the matrices and writes a number for each, as an op that only ONNX knows.
    priced_as: ClassVar[str] = "foreign"

    def output(self, x: TensorType) -> TensorType:
        require(len(x.shape) >= 2 and x.shape[-1] == x.shape[-2], f"takes square matrices, not {x}")
        return TensorType(x.shape[:-2], x.dtype)

    def evaluate(self, inputs: Sequence[Array]) -> tuple[Array, ...]:
        return (np.asarray(np.linalg.det(inputs[0]), dtype=inputs[0].dtype),)

    def flops(self, inputs: Sequence[TensorType], outputs: Sequence[TensorType]) -> int:
        """Two thirds of n cubed for each matrix."""
        return outputs[0].elements * (2 * inputs[0].shape[-1] ** 3 // 3)
