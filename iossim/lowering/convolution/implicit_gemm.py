"""Convolution as a matrix product of pixels by filters that gathers its operand on the fly.

Rows are output pixels, columns filters, the inner dimension is channels x window. A convolution with a 1x1 kernel is a
matrix product, and has small tiles too; kernels larger than that have none below 128x32 in cuDNN. Launch records of
cuDNN's forward convolutions show no split of the inner dimension, so there is none here: with few output tiles the
device stays partly idle, which is what concurrent groups fill.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from iossim.lowering.convolution.shape import ConvolutionShape
from iossim.lowering.kernel import Candidate, WorkClass
from iossim.lowering.matrix_product import (
    TILE_32X32,
    TILE_32X128,
    TILE_64X64,
    TILE_128X32,
    TILE_128X64,
    TILE_128X128,
    Product,
    product_kernel,
)

_WINDOW_TILES = (TILE_128X128, TILE_128X64, TILE_128X32, TILE_64X64)
_POINTWISE_TILES = (*_WINDOW_TILES, TILE_32X128, TILE_32X32)


def implicit_gemm(shape: ConvolutionShape) -> Iterator[Candidate]:
    """Every tile; grouped convolutions are one product a group, in one launch."""
    pointwise = math.prod(shape.kernel) == 1
    product = Product(
        shape.pixels,
        shape.filters // shape.groups,
        shape.channels // shape.groups * math.prod(shape.kernel),
        shape.input_bytes,
        shape.weight_bytes,
        shape.output_bytes,
        shape.element_bytes,
        shape.precision,
        shape.groups,
    )
    for tile in _POINTWISE_TILES if pointwise else _WINDOW_TILES:
        kernel = product_kernel(product, tile, WorkClass.IMPLICIT_GEMM, extra_flops=shape.epilogue_flops)
        yield Candidate(kernel.name, (kernel,))
