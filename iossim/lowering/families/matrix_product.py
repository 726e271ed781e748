"""Dense layers and matrix products: cuBLAS.

cuBLAS stores matrices by columns, so the columns of a product here are the rows of its tiles: recorded grids of dense
layers have ``ceil(columns / tile rows)`` by ``ceil(rows / tile columns)`` blocks.
"""

from __future__ import annotations

import math

from iossim.ir.ops.gemm import Gemm
from iossim.lowering.kernel import Candidate, WorkClass
from iossim.lowering.matrix_product import (
    SINCE_VOLTA,
    TILE_32X32,
    TILE_32X128,
    TILE_64X32,
    TILE_64X64,
    TILE_64X128,
    TILE_128X32,
    TILE_128X64,
    TILE_128X128,
    Product,
    split_products,
)
from iossim.lowering.step import Step, lowers

#: Tiles, and where kernels for them are.
_TILES = {
    TILE_128X128: SINCE_VOLTA,
    TILE_128X64: SINCE_VOLTA,
    TILE_64X128: SINCE_VOLTA,
    TILE_64X64: None,
    TILE_128X32: None,
    TILE_32X128: None,
    TILE_64X32: SINCE_VOLTA,
    TILE_32X32: SINCE_VOLTA,
}


@lowers("gemm", "matmul", has_epilogue=True)
def matrix_product(step: Step) -> list[Candidate]:
    """Every tile and split; leading dimensions of a stacked product are one batched launch."""
    y = step.outputs[0]
    first = step.operands[0].type
    trans_a = isinstance(step.op, Gemm) and step.op.trans_a
    inner = first.shape[-2] if trans_a and len(first.shape) > 1 else first.shape[-1]
    columns = y.shape[-1] if y.shape else 1
    rows = y.shape[-2] if len(y.shape) > 1 else 1
    count = math.prod(y.shape[:-2])
    product = Product(
        columns,
        rows,
        inner,
        step.activation_bytes,
        step.weight_bytes,
        step.bytes_written,
        y.dtype.bytes,
        step.precision,
        count,
        # By columns, the inner dimension is the contiguous one of what stands transposed.
        rows_are_strided=isinstance(step.op, Gemm) and step.op.trans_b,
        columns_are_strided=not trans_a,
    )
    extra = max(0, step.flops - 2 * y.elements * inner)
    return [
        Candidate(
            kernels[0].name,
            kernels,
            kernels[1].activation_bytes if len(kernels) > 1 else 0,
            architectures=architectures,
        )
        for tile, architectures in _TILES.items()
        for kernels in split_products(product, tile, WorkClass.GEMM, extra)
    ]
