"""Matrix product with NumPy's rules for vectors and stacks of matrices."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np

from iossim.ir.op import Array, OnnxNode, Op, require
from iossim.ir.ops.broadcasting import broadcast, widen
from iossim.ir.types import TensorType


@dataclass(frozen=True)
class MatMul(Op):
    """``a [..., M, K] @ b [..., K, N]``, the leading dimensions broadcast.

    A vector stands for a matrix of one row on the left, of one column on the right; that row or column is then
    dropped from the output.
    """

    kind: ClassVar[str] = "matmul"
    onnx_types: ClassVar[tuple[str, ...]] = ("MatMul",)

    def infer(self, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
        require(len(inputs) == 2, f"takes two inputs, not {len(inputs)}")
        a, b = inputs
        require(a.dtype == b.dtype, f"its inputs {a} and {b} differ in element type")
        require(bool(a.shape) and bool(b.shape), f"multiplies matrices, not {a} and {b}")
        inner = b.shape[-2] if len(b.shape) > 1 else b.shape[0]
        require(a.shape[-1] == inner, f"its inputs {a} and {b} do not multiply: {a.shape[-1]} is not {inner}")
        stack = broadcast([TensorType(a.shape[:-2], a.dtype), TensorType(b.shape[:-2], b.dtype)])
        rows = a.shape[-2:-1]
        columns = b.shape[-1:] if len(b.shape) > 1 else ()
        return (TensorType((*stack.shape, *rows, *columns), a.dtype),)

    def multiply_adds(self, inputs: Sequence[TensorType], outputs: Sequence[TensorType]) -> int:
        return outputs[0].elements * inputs[0].shape[-1]

    def evaluate(self, inputs: Sequence[Array]) -> tuple[Array, ...]:
        y = np.asarray(widen(inputs[0]) @ widen(inputs[1]))
        return (y.astype(inputs[0].dtype, copy=False),)

    @classmethod
    def from_onnx(cls, node: OnnxNode) -> tuple[Self, tuple[str, ...]]:
        return cls(), node.inputs

    def to_onnx(self) -> tuple[str, dict[str, Any]]:
        return "MatMul", {}
