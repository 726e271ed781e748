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
from iossim.hardware.lowering.gpu.convolution.transformed import Direction, Domain, convolved, filter_gradient
from iossim.hardware.lowering.gpu.matrix_product import SINCE_VOLTA, TILE, stream_kernel
from iossim.hardware.lowering.kernel import Candidate, Kernel, WorkClass

_LARGEST_KERNEL = 16
_LARGEST_IMAGE = 256

#: The square up to which recordings show no transposition.
_LARGEST_IN_ONE_KERNEL = 32
#: Recorded blocks of the complex products, and where kernels for them are; registers are those of real products.
_TILES = {
    "": (replace(TILE["64x64"], threads=256), None),
    "_64x32": (TILE["64x32"], SINCE_VOLTA),
    "_32x32": (replace(TILE["32x32"], threads=64), None),
}


def _applies(shape: ConvolutionShape) -> bool:
    is_plane = shape.precision in FP32_STORED and shape.is_dense_unit_stride and len(shape.kernel) == 2
    return is_plane and max(shape.kernel) > 1


def fft(shape: ConvolutionShape, direction: Direction = convolved) -> Iterator[Candidate]:
    """The tiled transform, none where it does not apply."""
    if _applies(shape) and max(shape.kernel) <= _LARGEST_KERNEL:
        domain = _domain("fft", workspace.TILE_EDGE, workspace.fft_tiles(shape))
        for suffix, (tile, architectures) in _TILES.items():
            kernels = direction(shape, domain, tile)
            yield Candidate(
                f"fft_tiled{suffix}", kernels, workspace.fft_tiling_bytes(shape), architectures=architectures
            )


def whole_fft(shape: ConvolutionShape, direction: Direction = convolved) -> Iterator[Candidate]:
    """The transform of whole images, none where it does not apply."""
    if not _applies(shape) or workspace.fft_edge(shape) > _LARGEST_IMAGE:
        return
    edge, of_filter = workspace.fft_edge(shape), direction is filter_gradient
    for suffix, (tile, architectures) in _TILES.items():
        first, second, gemm, last = direction(shape, _domain("fft_whole", edge, shape.batch), tile)
        if edge <= _LARGEST_IN_ONE_KERNEL:
            turned = [] if of_filter else [_moved("fft_flip_filter", shape.weight_bytes, shape.element_bytes)]
            kernels = (*turned, first, second, gemm, last)
        else:
            operands = _moved("fft_transpose_operands", first.bytes_written + second.bytes_written)
            result = _moved("fft_transpose_result", gemm.bytes_written)
            kernels = (first, second, operands, gemm, result, last)
        size = workspace.fft_bytes(shape, of_filter=of_filter)
        yield Candidate(f"fft_whole{suffix}", kernels, size, architectures=architectures)


def _domain(name: str, edge: int, tiles: int) -> Domain:
    # Real operations for each complex number: 2.5 log2(edge squared) (Cooley and Tukey's count for reals).
    flops = 5 * (edge.bit_length() - 1)
    sizes = workspace.frequencies(edge), tiles, workspace.COMPLEX_BYTES
    return Domain(name, *sizes, flops, 8, filters_are_weights=False, filter_class=WorkClass.TRANSFORM)


def _moved(name: str, moved_bytes: int, element_bytes: int = workspace.COMPLEX_BYTES) -> Kernel:
    moved = {"activation_bytes": moved_bytes, "bytes_written": moved_bytes}
    return stream_kernel(name, moved_bytes // element_bytes, 0, **moved, work_class=WorkClass.TRANSFORM)
