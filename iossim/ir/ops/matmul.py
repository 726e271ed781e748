"""Matrix products: batched ones, and a single one with optional transposition and scaling.

Batched ones are the fewest calls of a library (BLAS) without copying the data. It computes ``count`` products
``[rows, inner] @ [inner, columns]``. Rows, and likewise columns, are evenly strided in their operand and in the output,
where rows or columns are contiguous. So leading axes of only one operand become rows, or columns, if their strides
allow it; those of both become separate products.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import product, zip_longest
from typing import NamedTuple

import numpy as np

from iossim.ir.op import Array, Op, broadcast, broadcast_shapes, require
from iossim.ir.types import TensorType


class MatMul(Op, kind="matmul", onnx_types="MatMul", has_epilogue=True):
    """``a [..., M, K] @ b [..., K, N]``, the leading dimensions broadcast.

    A vector on the left is a matrix of one row, on the right of one column; that row or column is then
    dropped from the output.
    """

    def output(self, a: TensorType, b: TensorType) -> TensorType:
        require(a.dtype == b.dtype, f"its inputs {a} and {b} differ in element type")
        require(bool(a.shape) and bool(b.shape), f"multiplies matrices, not {a} and {b}")
        inner = b.shape[-2] if len(b.shape) > 1 else b.shape[0]
        require(a.shape[-1] == inner, f"its inputs {a} and {b} do not multiply: {a.shape[-1]} is not {inner}")
        return TensorType(self._shape(a.shape, b.shape), a.dtype)

    def multiply_adds(self, inputs: Sequence[TensorType], outputs: Sequence[TensorType]) -> int:
        return outputs[0].elements * inputs[0].shape[-1]

    def compute(self, a: Array, b: Array) -> Array:
        rows, columns = folded_shapes(a.shape, b.shape)
        y: Array = np.matmul(a.reshape(rows), b.reshape(columns))
        return y.reshape(self._shape(a.shape, b.shape))

    @staticmethod
    def _shape(a: tuple[int, ...], b: tuple[int, ...]) -> tuple[int, ...]:
        stack = broadcast_shapes([TensorType(a[:-2]), TensorType(b[:-2])])
        return (*stack, *a[-2:-1], *(b[-1:] if len(b) > 1 else ()))


@dataclass(frozen=True)
class Gemm(
    Op,
    kind="gemm",
    onnx_types="Gemm",
    onnx_names="alpha beta trans_a=transA trans_b=transB",
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

    def output(self, a: TensorType, b: TensorType, c: TensorType | None = None) -> TensorType:
        require(len(a.shape) == 2 and len(b.shape) == 2, f"multiplies matrices, not {a} and {b}")
        require(a.dtype == b.dtype, f"its inputs {a} and {b} differ in element type")
        rows, inner = a.shape[::-1] if self.trans_a else a.shape
        inner_b, columns = b.shape[::-1] if self.trans_b else b.shape
        require(inner == inner_b, f"its inputs {a} and {b} do not multiply: {inner} is not {inner_b}")
        y = TensorType((rows, columns), a.dtype)
        require(c is None or broadcast([y, c]) == y, f"its bias {c} does not broadcast to {y}")
        return y

    @property
    def sums_images(self) -> bool:
        return self.trans_a and not self.trans_b and self.beta == 1

    def multiply_adds(self, inputs: Sequence[TensorType], outputs: Sequence[TensorType]) -> int:
        return outputs[0].elements * inputs[0].shape[0 if self.trans_a else 1]

    def flops(self, inputs: Sequence[TensorType], outputs: Sequence[TensorType]) -> int:
        return super().flops(inputs, outputs) + outputs[0].elements * len(inputs[2:])

    def compute(self, a: Array, b: Array, c: Array | None = None) -> Array:
        y: Array = (a.T if self.trans_a else a) @ (b.T if self.trans_b else b)
        if self.alpha != 1:
            y = y * y.dtype.type(self.alpha)
        if c is not None:
            y = y + (c if self.beta == 1 else c * y.dtype.type(self.beta))
        return y


@dataclass(frozen=True, slots=True)
class StackedProduct:
    """``count`` products ``[rows, inner] @ [inner, columns]``."""

    count: int
    rows: int
    inner: int
    columns: int
    #: Whether the rows, not the columns, are contiguous in the output.
    rows_are_neighbours: bool
    #: Whether the inner dimension is the contiguous one of ``b``, which has no columns of its own.
    columns_are_vectors: bool


class _Axis(NamedTuple):
    """Adjacent axes of the output present in the same operands; ``place`` counts from 1, outermost."""

    place: int
    size: int
    in_a: bool
    in_b: bool


#: The one row, or the one column, of an operand without axes of its own.
_SINGLE = _Axis(0, 1, False, False)


def stacked_product(a: Sequence[int], b: Sequence[int]) -> StackedProduct:
    """The library calls for ``a [..., M, K] @ b [..., K, N]``; vectors as in :class:`MatMul`."""
    leading, m, inner, n = _parts(a, b)
    axes = _axes([*leading, (m, 1)])
    rows = axes[-1:] if m > 1 else [_SINGLE, *(axis for axis in axes if not axis.in_b)]
    if n > 1:  # columns of several matrices have no common stride
        pairs = [(row, _Axis(len(axes) + 1, n, False, True)) for row in rows]
    else:
        columns = [_SINGLE, *(axis for axis in axes if not axis.in_a)]
        pairs = [pair for pair in product(rows, columns) if _SINGLE in pair or axes[-1] in pair]
    row, column = max(pairs, key=lambda pair: (pair[0].size * pair[1].size, pair))
    outputs = math.prod(axis.size for axis in axes) * n
    count = outputs // (row.size * column.size)
    return StackedProduct(count, row.size, inner, column.size, row.place >= column.place, n == 1)


def folded_shapes(a: Sequence[int], b: Sequence[int]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Shapes of the operands whose product has the same elements in the same order, in fewer products.

    The last leading axes, as far as ``b`` has none of them, become rows.
    """
    leading, m, inner, n = _parts(a, b)
    while leading and leading[-1][1] == 1:
        m *= leading.pop()[0]
    return (*(size for size, _ in leading), m, inner), (*(size for _, size in leading), inner, n)


def _parts(a: Sequence[int], b: Sequence[int]) -> tuple[list[tuple[int, int]], int, int, int]:
    """The leading axes with their sizes in either operand, then M, K and N."""
    (*before_a, m, inner), (*before_b, _, n) = (a if len(a) > 1 else (1, *a)), (b if len(b) > 1 else (*b, 1))
    leading = list(zip_longest(reversed(before_a), reversed(before_b), fillvalue=1))
    return leading[::-1], m, inner, n


def _axes(sizes: Iterable[tuple[int, int]]) -> list[_Axis]:
    axes: list[_Axis] = []
    for in_a, in_b in sizes:
        size = max(in_a, in_b)
        if size == 1:
            continue
        axis = _Axis(len(axes) + 1, size, in_a > 1, in_b > 1)
        if axes and axes[-1][2:] == axis[2:]:
            axes[-1] = axes[-1]._replace(size=axes[-1].size * size)
        else:
            axes.append(axis)
    return axes
