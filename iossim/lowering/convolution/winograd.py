"""Winograd convolution (Lavin and Gray, 2016): fewer multiplications for small kernels at stride 1.

*Fused*, 3x3 only: one kernel transforms, multiplies and transforms back; F(2x2, 3x3), 16 products for 4 outputs. A
block of cuDNN's kernel holds 32 filters by 32 tiles; the tiles form a box of images x rows x columns, of which the
library has several shapes (they are part of the kernel names: ``tile148``, ``tile244`` and so on).

*Non-fused*, 3x3 and 5x5: transforms of data, filter and output as kernels of their own around one batched matrix
product; F(4x4, 3x3) with 36 products for 16 outputs, F(9x9, 5x5) with 169 for 81. The filter is transformed in every
call. Both compute in fp32, also where tf32 is allowed.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from iossim.ir.types import Precision
from iossim.lowering.convolution.shape import FP32_STORED, ConvolutionShape
from iossim.lowering.kernel import Candidate, Kernel, WorkClass, ceil_div
from iossim.lowering.matrix_product import (
    TILE_32X32,
    TILE_32X128,
    TILE_64X64,
    TILE_128X32,
    TILE_128X64,
    Product,
    product_kernel,
    stream_kernel,
)

#: Boxes of 32 tiles, as images x rows x columns.
_FUSED_BOXES = ((1, 4, 8), (2, 4, 4), (2, 2, 8), (4, 1, 8), (4, 2, 4), (4, 4, 2))
_FUSED_FILTERS = 32
#: Output edge of a non-fused tile, by kernel edge.
_OUTPUT_EDGE = {3: 4, 5: 9}
_GEMM_TILES = (TILE_128X64, TILE_64X64, TILE_32X128, TILE_128X32, TILE_32X32)


def winograd(shape: ConvolutionShape) -> Iterator[Candidate]:
    """Fused and non-fused candidates, none where the algorithm does not apply."""
    if shape.precision not in FP32_STORED or not shape.is_dense_unit_stride or len(shape.kernel) != 2:
        return
    if shape.kernel == (3, 3):
        yield Candidate("winograd_fused", (_fused(shape),))
    if shape.kernel[0] == shape.kernel[1] and shape.kernel[0] in _OUTPUT_EDGE:
        yield from _non_fused(shape, _OUTPUT_EDGE[shape.kernel[0]])


def _fused(shape: ConvolutionShape) -> Kernel:
    rows, columns = (ceil_div(size, 2) for size in shape.output_size)
    boxes = min(
        ceil_div(shape.batch, images) * ceil_div(rows, box_rows) * ceil_div(columns, box_columns)
        for images, box_rows, box_columns in _FUSED_BOXES
    )
    blocks = boxes * ceil_div(shape.filters, _FUSED_FILTERS)
    channels = ceil_div(shape.channels, 8) * 8
    products = 2 * 16 * 32 * _FUSED_FILTERS * channels
    # A block reads 9 weights of each filter, and the pixels under its tiles with a border of one: about 6 a tile.
    loaded = blocks * channels * (9 * _FUSED_FILTERS + 6 * 32) * shape.element_bytes
    return Kernel(
        "winograd_fused",
        WorkClass.WINOGRAD_FUSED,
        blocks,
        256,
        126,
        49_152,
        blocks * products,
        shape.input_bytes,
        shape.weight_bytes,
        shape.output_bytes,
        loaded + shape.output_bytes,
    )


def _non_fused(shape: ConvolutionShape, edge: int) -> Iterator[Candidate]:
    taps = (edge + shape.kernel[0] - 1) ** 2
    count = shape.batch * math.prod(ceil_div(size, edge) for size in shape.output_size)
    size = shape.element_bytes
    data, filters, output = (
        taps * elements * size
        for elements in (count * shape.channels, shape.filters * shape.channels, count * shape.filters)
    )
    transform_data = stream_kernel(
        "winograd_transform_data",
        data // size,
        2 * data // size,
        activation_bytes=shape.input_bytes,
        bytes_written=data,
    )
    transform_filter = stream_kernel(
        "winograd_transform_filter",
        filters // size,
        2 * filters // size,
        activation_bytes=0,
        weight_bytes=shape.weight_bytes,
        bytes_written=filters,
    )
    transform_output = stream_kernel(
        "winograd_transform_output",
        output // size,
        2 * output // size + shape.epilogue_flops,
        activation_bytes=output,
        bytes_written=shape.output_bytes,
    )
    product = Product(
        count, shape.filters, shape.channels, data + filters, 0, output, size, Precision.FP32, taps
    )  # fmt: skip
    for tile in _GEMM_TILES:
        gemm = product_kernel(product, tile, WorkClass.WINOGRAD_GEMM)
        yield Candidate(
            f"winograd_nonfused_{tile}",
            (transform_data, transform_filter, gemm, transform_output),
            data + filters + output,
        )
