"""An op kind: determinants of square matrices."""

from dataclasses import dataclass

import numpy as np

from iossim.ir.op import Array, Op, require
from iossim.ir.types import TensorType


@dataclass(frozen=True)
class Determinant(Op, kind="determinant", onnx_types="Det", priced_as="foreign"):
    """The determinant of each matrix of the last two dimensions."""

    def output(self, x: TensorType) -> TensorType:
        require(len(x.shape) >= 2 and x.shape[-1] == x.shape[-2], f"takes square matrices, not {x}")
        return TensorType(x.shape[:-2], x.dtype)

    def compute(self, x: Array) -> Array:
        return np.asarray(np.linalg.det(x))
