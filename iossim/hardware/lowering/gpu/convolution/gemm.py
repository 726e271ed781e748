"""Convolution as a matrix product of pixels by filters, over channels x window (Chetlur et al., 2014, cuDNN).

Most kernels gather the windows with a table of offsets that a small kernel computes first (IMPLICIT_PRECOMP_GEMM);
their tiles are 128x32 or larger. Two compute each offset on demand (IMPLICIT_GEMM), more slowly but without that
launch: one with 32x32 tiles, for few pixels and 1x1 kernels, and one with 64x256. Launch records show no split inner
dimension.

cuDNN's GEMM writes the windows of all outputs one after another, then multiplies them image by image in one launch,
since the outputs of an image are contiguous (NCHW). No library chooses it: it was never the fastest.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

from iossim.hardware.lowering.gpu.matrix_product import OFFSETS_KERNEL, TILE, Product, Tile, product_kernel
from iossim.hardware.lowering.kernel import Candidate, WorkClass
from iossim.hardware.lowering.step import ConvolutionShape
from iossim.ir.types import DType

_TILES = (TILE["128x128"], TILE["128x64"], TILE["128x32"])
#: Tiles of 64 threads with 4x4 outputs, and of 256 with 8x8, used by no other product.
_IMPLICIT_TILES = (Tile(32, 32, 64, 64, 4_352), Tile(64, 256, 256, 122, 20_608))


def implicit_gemm(shape: ConvolutionShape) -> Iterator[Candidate]:
    """Candidates with every tile; a grouped convolution is one product per group, in one launch."""
    yield from by_table(shape)
    yield from without_table(shape)


def by_table(shape: ConvolutionShape) -> Iterator[Candidate]:
    """Candidates of IMPLICIT_PRECOMP_GEMM."""
    for tile in _TILES:
        of_tile = implicit_product(shape), tile, WorkClass.IMPLICIT_PRECOMP_GEMM
        kernel = product_kernel(*of_tile, extra_flops=shape.epilogue_flops, name="implicit_gemm")
        yield Candidate(kernel.name, (OFFSETS_KERNEL, kernel), offset_table_bytes(shape))


def without_table(shape: ConvolutionShape) -> Iterator[Candidate]:
    """Candidates of IMPLICIT_GEMM."""
    product, extra_flops = implicit_product(shape), shape.epilogue_flops
    for tile in _IMPLICIT_TILES:
        of_tile = product, tile, WorkClass.IMPLICIT_GEMM
        kernel = product_kernel(*of_tile, extra_flops=extra_flops, name="implicit_convolve")
        yield Candidate(kernel.name, (replace(kernel, tile=""),))


def implicit_product(shape: ConvolutionShape) -> Product:
    """The product of every group."""
    filters = shape.filters // shape.groups
    inner = shape.channels // shape.groups * math.prod(shape.kernel)
    moved = shape.input_bytes, shape.weight_bytes, shape.output_bytes
    return Product(shape.pixels, filters, inner, *moved, shape.element_bytes, shape.precision, shape.groups)


def offset_table_bytes(shape: ConvolutionShape) -> int:
    """Bytes of an offset for each element of a window (assumed: logs only show that there is a small table)."""
    return DType.INT32.bytes * shape.channels // shape.groups * math.prod(shape.kernel)
