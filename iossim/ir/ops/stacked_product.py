"""Batched matrix products as the fewest calls of a library, without copying the data.

A library (BLAS) computes ``count`` products ``[rows, inner] @ [inner, columns]``. Rows, and likewise columns, are
evenly strided in their operand and in the output, where rows or columns are contiguous. So leading axes of only one
operand become rows, or columns, if their strides allow it; those of both become separate products.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import product, zip_longest
from typing import NamedTuple


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
    """The library calls for ``a [..., M, K] @ b [..., K, N]``; vectors as in :class:`~iossim.ir.ops.matmul.MatMul`."""
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
