"""Matrix products: batched ones, and a single one with optional transposition and scaling."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from iossim.ir.op import Array, Op, broadcast, broadcast_shapes, require
from iossim.ir.ops.stacked_product import folded_shapes
from iossim.ir.types import TensorType


class MatMul(Op, kind="matmul", onnx_types="MatMul", has_epilogue=True):
    """``a [..., M, K] @ b [..., K, N]``, the leading dimensions broadcast.

    A vector on the left is a matrix of one row, on the right of one column; that row or column is then
    dropped from the output.
    """

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

    def compute(self, *inputs: Array) -> Array:
        a, b = inputs
        rows, columns = folded_shapes(a.shape, b.shape)
        y: Array = np.matmul(a.reshape(rows), b.reshape(columns))
        return y.reshape(self._output(a.shape, b.shape))

    @staticmethod
    def _output(a: tuple[int, ...], b: tuple[int, ...]) -> tuple[int, ...]:
        stack = broadcast_shapes([TensorType(a[:-2]), TensorType(b[:-2])])
        return (*stack, *a[-2:-1], *(b[-1:] if len(b) > 1 else ()))


@dataclass(frozen=True)
class Gemm(
    Op,
    kind="gemm",
    onnx_types="Gemm",
    onnx_names="alpha beta trans_a=transA trans_b=transB",
    onnx_inputs=3,
    has_epilogue=True,
    may_accumulate=True,
):
    """``alpha * a @ b + beta * c``: ``a [M, K]``, ``b [K, N]`` and, if present, ``c`` that broadcasts to ``[M, N]``.

    ``trans_a`` and ``trans_b``: ``a`` is given as ``[K, M]``, ``b`` as ``[N, K]``.
    """

    alpha: float = 1.0
    beta: float = 1.0
    trans_a: bool = False
    trans_b: bool = False

    def infer(self, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
        require(len(inputs) in (2, 3), f"needs two matrices and maybe a bias, not {len(inputs)} inputs")
        a, b = inputs[0], inputs[1]
        require(len(a.shape) == 2 and len(b.shape) == 2, f"multiplies matrices, not {a} and {b}")
        require(a.dtype == b.dtype, f"its inputs {a} and {b} differ in element type")
        rows, inner = a.shape[::-1] if self.trans_a else a.shape
        inner_b, columns = b.shape[::-1] if self.trans_b else b.shape
        require(inner == inner_b, f"its inputs {a} and {b} do not multiply: {inner} is not {inner_b}")
        y = TensorType((rows, columns), a.dtype)
        if len(inputs) == 3:
            c = inputs[2]
            require(broadcast([y, c]) == y, f"its bias {c} does not broadcast to {y}")
        return (y,)

    @property
    def sums_images(self) -> bool:
        return self.trans_a and not self.trans_b and self.beta == 1

    def multiply_adds(self, inputs: Sequence[TensorType], outputs: Sequence[TensorType]) -> int:
        return outputs[0].elements * inputs[0].shape[0 if self.trans_a else 1]

    def flops(self, inputs: Sequence[TensorType], outputs: Sequence[TensorType]) -> int:
        bias = outputs[0].elements if len(inputs) == 3 else 0
        return 2 * self.multiply_adds(inputs, outputs) + bias

    def compute(self, *inputs: Array) -> Array:
        a, b, *bias = inputs
        y: Array = (a.T if self.trans_a else a) @ (b.T if self.trans_b else b)
        if self.alpha != 1:
            y = y * y.dtype.type(self.alpha)
        for c in bias:
            y = y + (c if self.beta == 1 else c * y.dtype.type(self.beta))
        return y
