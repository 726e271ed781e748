"""Matrix product with NumPy's rules for vectors and stacks of matrices."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from iossim.ir.op import Array, Op, require
from iossim.ir.ops.broadcasting import broadcast_shapes, widen
from iossim.ir.ops.stacked_product import folded_shapes
from iossim.ir.types import TensorType


@dataclass(frozen=True)
class MatMul(Op):
    """``a [..., M, K] @ b [..., K, N]``, the leading dimensions broadcast.

    A vector stands for a matrix of one row on the left, of one column on the right; that row or column is then
    dropped from the output.
    """

    kind: ClassVar[str] = "matmul"
    onnx_types: ClassVar[tuple[str, ...]] = ("MatMul",)
    has_epilogue: ClassVar[bool] = True

    def infer(self, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
        require(len(inputs) == 2, f"takes two inputs, not {len(inputs)}")
        a, b = inputs
        require(a.dtype == b.dtype, f"its inputs {a} and {b} differ in element type")
        require(bool(a.shape) and bool(b.shape), f"multiplies matrices, not {a} and {b}")
        inner = b.shape[-2] if len(b.shape) > 1 else b.shape[0]
        require(a.shape[-1] == inner, f"its inputs {a} and {b} do not multiply: {a.shape[-1]} is not {inner}")
        return (TensorType(self._output(a.shape, b.shape), a.dtype),)

    def multiply_adds(self, inputs: Sequence[TensorType], outputs: Sequence[TensorType]) -> int:
        return outputs[0].elements * inputs[0].shape[-1]

    def evaluate(self, inputs: Sequence[Array]) -> tuple[Array, ...]:
        a, b = inputs
        rows, columns = folded_shapes(a.shape, b.shape)
        y = widen(a).reshape(rows) @ widen(b).reshape(columns)
        return (y.astype(a.dtype, copy=False).reshape(self._output(a.shape, b.shape)),)

    @staticmethod
    def _output(a: tuple[int, ...], b: tuple[int, ...]) -> tuple[int, ...]:
        stack = broadcast_shapes([TensorType(a[:-2]), TensorType(b[:-2])])
        return (*stack, *a[-2:-1], *(b[-1:] if len(b) > 1 else ()))
