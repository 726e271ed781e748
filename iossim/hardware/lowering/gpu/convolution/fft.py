"""Convolution in the frequency domain (Mathieu et al., 2014): of whole images, or over tiles of 32x32 pixels.

A square of T by T reals transforms to T (T/2 + 1) complex numbers; each frequency is one complex matrix product. The
output of a tile is 32 less the kernel's overhang. Pays for kernels of 5 and more with many channels.

Recordings of cuDNN on five GPUs show one kernel that transforms images and filters alike (``fft2d_r2c_32x32``), and a
product of complex numbers (``maxwell_gcgemm_64x64``: 256 threads a block; ``32x32``: 64; since Volta ``64x32``).

Whole images are transformed in a square that is a power of two, up to 256. Recordings have squares of 16 and 32, with
a kernel that turns the filter round before. The workspace holds everything twice, so that the frequencies of larger
squares are taken to be transposed before and after the product; no data set has measured that.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from iossim.hardware.lowering.convolution_shape import FP32_STORED, ConvolutionShape
from iossim.hardware.lowering.gpu.convolution import workspace
from iossim.hardware.lowering.gpu.convolution.transformed import Direction, Domain, convolved
from iossim.hardware.lowering.gpu.matrix_product import SINCE_VOLTA, TILE
from iossim.hardware.lowering.kernel import Candidate, WorkClass

_LARGEST_KERNEL = 16

#: Recorded blocks of the complex products, and where kernels for them are; registers are those of real products.
FFT_TILES = {
    "": (replace(TILE["64x64"], threads=256), None),
    "_64x32": (TILE["64x32"], SINCE_VOLTA),
    "_32x32": (replace(TILE["32x32"], threads=64), None),
}


def has_transform(shape: ConvolutionShape) -> bool:
    is_plane = shape.precision in FP32_STORED and shape.is_dense_unit_stride and len(shape.kernel) == 2
    return is_plane and max(shape.kernel) > 1


def fft(shape: ConvolutionShape, direction: Direction = convolved) -> Iterator[Candidate]:
    """The tiled transform, none where it does not apply."""
    if has_transform(shape) and max(shape.kernel) <= _LARGEST_KERNEL:
        domain = domain_of("fft", workspace.TILE_EDGE, workspace.fft_tiles(shape))
        for suffix, (tile, architectures) in FFT_TILES.items():
            kernels = direction(shape, domain, tile)
            yield Candidate(
                f"fft_tiled{suffix}", kernels, workspace.fft_tiling_bytes(shape), architectures=architectures
            )


def domain_of(name: str, edge: int, tiles: int) -> Domain:
    # Real operations for each complex number: 2.5 log2(edge squared) (Cooley and Tukey's count for reals).
    flops = 5 * (edge.bit_length() - 1)
    sizes = workspace.frequencies(edge), tiles, workspace.COMPLEX_BYTES
    return Domain(name, *sizes, flops, 8, filters_are_weights=False, filter_class=WorkClass.TRANSFORM)
