"""Bytes of workspace that cuDNN's algorithms ask for.

All but the table of offsets are exact in public logs of cuDNN 6 (three convolutions on an MNIST network's layers,
AlexNet's second layer at several batch sizes). Gradients are assumed to follow the same formulas with the roles
exchanged.
"""

from __future__ import annotations

import math

from iossim.hardware.lowering.convolution_shape import ConvolutionShape
from iossim.hardware.lowering.kernel import ceil_div
from iossim.ir.types import DType

COMPLEX_BYTES = 8
#: Pixels along an edge of a tile of the tiled transform.
TILE_EDGE = 32
#: Images are padded to a multiple of this before non-fused Winograd transforms.
IMAGES = 16


def frequencies(edge: int) -> int:
    """Complex numbers that a square of reals transforms to: half of them, as the others are their conjugates."""
    return edge * (edge // 2 + 1)


def fft_tiles(shape: ConvolutionShape) -> int:
    """Tiles of the tiled transform in all images: each makes an output less the kernel's overhang."""
    return shape.batch * math.prod(
        ceil_div(size, TILE_EDGE - kernel + 1) for size, kernel in zip(shape.output_size, shape.kernel, strict=True)
    )


def winograd_tiles(shape: ConvolutionShape, edge: int) -> int:
    """Tiles of ``edge`` by ``edge`` outputs in all images, of which there are whole sixteens."""
    return ceil_div(shape.batch, IMAGES) * IMAGES * math.prod(ceil_div(size, edge) for size in shape.output_size)


def offset_table_bytes(shape: ConvolutionShape) -> int:
    """An offset for each element of a window: an assumption, as logs only tell that there is a small table."""
    return DType.INT32.bytes * shape.channels // shape.groups * math.prod(shape.kernel)


def fft_tiling_bytes(shape: ConvolutionShape) -> int:
    """The tiles of input, filter and output, each transformed: in every direction the same."""
    return COMPLEX_BYTES * frequencies(TILE_EDGE) * sum(tensors(shape, fft_tiles(shape)))


def winograd_nonfused_bytes(shape: ConvolutionShape, edge: int) -> int:
    """The tiles of input, filter and output, each transformed: in every direction the same."""
    taps = (edge + shape.kernel[0] - 1) ** 2
    return shape.element_bytes * taps * sum(tensors(shape, winograd_tiles(shape, edge)))


def tensors(shape: ConvolutionShape, tiles: int) -> tuple[int, int, int]:
    """Pairs of image (or tile) and channel, of filter and channel, and of image and filter."""
    return tiles * shape.channels, shape.filters * shape.channels, tiles * shape.filters
