"""Convolution in the frequency domain (Mathieu et al., 2014): of whole images, or over tiles of 32x32 pixels.

A square of T by T reals transforms to T (T/2 + 1) complex numbers; each frequency is one complex matrix product. The output
of a tile is 32 less the kernel's overhang. Pays for kernels of 5 and more with many channels.

Whole images are transformed in a square that is a power of two, up to 256. Its workspace has everything twice, so that here
frequencies are also transposed, before and after the product; what that costs is no measurement, as no data set has it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from iossim.hardware.lowering.convolution_shape import FP32_STORED, ConvolutionShape
from iossim.hardware.lowering.gpu.convolution import workspace
from iossim.hardware.lowering.gpu.convolution.transformed import Domain, convolved, filter_gradient
from iossim.hardware.lowering.gpu.matrix_product import TILE_64X64, Tile, stream_kernel
from iossim.hardware.lowering.kernel import Candidate, Kernel, WorkClass

_LARGEST_KERNEL = 16
_LARGEST_IMAGE = 256

_Direction = Callable[[ConvolutionShape, Domain, Tile], tuple[Kernel, ...]]


def fft(shape: ConvolutionShape) -> Iterator[Candidate]:
    """The tiled transform, none where it does not apply."""
    yield from _tiled(shape, convolved)


def fft_of_filter(shape: ConvolutionShape) -> Iterator[Candidate]:
    """The tiled transform for the gradient of the filter."""
    yield from _tiled(shape, filter_gradient)


def whole_fft(shape: ConvolutionShape) -> Iterator[Candidate]:
    """The transform of whole images, none where it does not apply."""
    yield from _whole(shape, convolved)


def whole_fft_of_filter(shape: ConvolutionShape) -> Iterator[Candidate]:
    """The transform of whole images for the gradient of the filter."""
    yield from _whole(shape, filter_gradient)


def _applies(shape: ConvolutionShape) -> bool:
    is_plane = shape.precision in FP32_STORED and shape.is_dense_unit_stride and len(shape.kernel) == 2
    return is_plane and max(shape.kernel) > 1


def _tiled(shape: ConvolutionShape, direction: _Direction) -> Iterator[Candidate]:
    if _applies(shape) and max(shape.kernel) <= _LARGEST_KERNEL:
        domain = _domain("fft", workspace.TILE_EDGE, workspace.fft_tiles(shape))
        before, of_filter, gemm, after = direction(shape, domain, TILE_64X64)
        yield Candidate("fft_tiled", (before, of_filter, gemm, after), workspace.fft_tiling_bytes(shape))


def _whole(shape: ConvolutionShape, direction: _Direction) -> Iterator[Candidate]:
    if not _applies(shape) or workspace.fft_edge(shape) > _LARGEST_IMAGE:
        return
    first, second, gemm, last = direction(
        shape, _domain("fft_whole", workspace.fft_edge(shape), shape.batch), TILE_64X64
    )
    kernels = (
        first,
        second,
        _transposed("fft_transpose_operands", first.bytes_written + second.bytes_written),
        gemm,
        _transposed("fft_transpose_result", gemm.bytes_written),
        last,
    )
    of_filter = direction is filter_gradient
    yield Candidate("fft_whole", kernels, workspace.fft_bytes(shape, of_filter=of_filter))


def _domain(name: str, edge: int, tiles: int) -> Domain:
    # Real operations for each complex number: 2.5 log2(edge squared) (Cooley and Tukey's count for reals).
    flops = 5 * (edge.bit_length() - 1)
    return Domain(
        name, workspace.frequencies(edge), tiles, workspace.COMPLEX_BYTES, flops, 8, filters_are_weights=False
    )


def _transposed(name: str, moved_bytes: int) -> Kernel:
    return stream_kernel(
        name,
        moved_bytes // workspace.COMPLEX_BYTES,
        0,
        activation_bytes=moved_bytes,
        bytes_written=moved_bytes,
        work_class=WorkClass.TRANSFORM,
    )
