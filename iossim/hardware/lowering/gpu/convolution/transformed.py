"""Convolution in another domain, as a batched matrix product: Winograd and FFT, and their workspaces.

Of the three tensors of a convolution (input, filter, output) two are transformed, multiplied at each point of the
domain, and the product transformed back to the third. The third is the output, or the filter for its gradient.

**Winograd** (Lavin and Gray, 2016): fewer multiplications for small kernels at stride 1. *Fused*, 3x3 only: F(2x2,
3x3), 16 products for 4 outputs. One kernel generates the tiles of the filters, a second transforms, multiplies and
transforms back. A block of the second holds 32 filters by 32 tiles; the tiles form a box of images x rows x columns,
which is part of the kernel's name (``tile148``, ``tile244`` and so on): the libraries' kernels since Volta have the box
1x4x8, the older ones several. *Non-fused*, 3x3 and 5x5: transforms of data, filter and output as kernels of their own
around one batched matrix product; F(4x4, 3x3) with 36 products for 16 outputs, F(9x9, 5x5) with 169 for 81. The images
are padded to a multiple of 16, as the recorded grids of all four generations show; the filter is transformed in every
call.

**FFT** (Mathieu et al., 2014): of whole images, or over tiles of 32x32 pixels. A square of T by T reals transforms to
T (T/2 + 1) complex numbers; each frequency is one complex matrix product. The output of a tile is 32 minus the kernel's
overhang. It pays for kernels of 5 or more with many channels. Recordings of cuDNN on five GPUs show one kernel that
transforms images and filters alike (``fft2d_r2c_32x32``), and a product of complex numbers (``maxwell_gcgemm_64x64``:
256 threads a block; ``32x32``: 64; since Volta ``64x32``). Whole images are transformed in a square that is a power of
two, up to 256. Recordings have squares of 16 and 32, with a kernel that flips the filter first. The workspace
holds everything twice, so the frequencies of larger squares are assumed to be transposed before and after the product;
no data set has measured that.

All compute in fp32, even if tf32 is allowed. Workspaces are exact in public logs of cuDNN 6 (three convolutions on
an MNIST network's layers, AlexNet's second layer at several batch sizes); gradients are assumed to follow the same
formulas with the roles exchanged.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

from iossim.hardware.compute_capability import SINCE_AMPERE, Architecture
from iossim.hardware.lowering.gpu.matrix_product import (
    BEFORE_VOLTA,
    SINCE_VOLTA,
    TILE,
    Product,
    Tile,
    product_kernel,
    stream_kernel,
)
from iossim.hardware.lowering.kernel import Candidate, Kernel, WorkClass, ceil_div
from iossim.hardware.lowering.step import FP32_STORED, ConvolutionShape
from iossim.ir.types import Precision


@dataclass(frozen=True, slots=True)
class Domain:
    """A transform of the ``tiles`` tiles of all images to ``points`` values each."""

    name: str
    points: int
    tiles: int
    value_bytes: int
    #: Arithmetic per transformed value, and of a multiply-add of two.
    flops_per_value: int
    flops_per_step: int
    #: Whether transformed filters count as weights, which do not stay in L2.
    filters_are_weights: bool
    #: The kind of kernel that transforms filters, to the domain and back.
    filter_class: WorkClass = WorkClass.FILTER_TRANSFORM

    def values(self, shape: ConvolutionShape) -> tuple[int, int, int]:
        """Number of transformed values of input, filter and output."""
        data, filters, output = tensors(shape, self.tiles)
        return self.points * data, self.points * filters, self.points * output

    def workspace_bytes(self, shape: ConvolutionShape) -> int:
        """Bytes of the transformed tiles of input, filter and output, the same in every direction."""
        return self.value_bytes * sum(self.values(shape))


def tensors(shape: ConvolutionShape, tiles: int) -> tuple[int, int, int]:
    """Number of pairs of image (or tile) and channel, of filter and channel, and of image and filter."""
    return tiles * shape.channels, shape.filters * shape.channels, tiles * shape.filters


def kernels_in(domain: Domain, shape: ConvolutionShape, tile: Tile, *, of_filter: bool = False) -> tuple[Kernel, ...]:
    """The kernels that transform two of the three tensors, multiply them, and transform the product back to the third.

    The third is the output, or with ``of_filter`` the gradient of the filter, by a product over all tiles.
    """
    data, filters, output = domain.values(shape)

    def to_domain(
        what: str, values: int, read: int, weights: int = 0, work_class: WorkClass = WorkClass.TRANSFORM
    ) -> Kernel:
        flops, written = domain.flops_per_value * values, values * domain.value_bytes
        name = f"{domain.name}_{what}"
        return stream_kernel(name, values, flops, read=read, weights=weights, written=written, work_class=work_class)

    if of_filter:
        second = to_domain("gradient", output, shape.output_bytes)
        sizes, read, weights, made = (shape.filters, shape.channels, domain.tiles), data + output, 0, filters
        name, written, work_class = "filter_gradient", shape.weight_bytes, domain.filter_class
    else:
        second = to_domain("filter", filters, 0, shape.weight_bytes, domain.filter_class)
        weights = filters if domain.filters_are_weights else 0
        sizes, read, made = (domain.tiles, shape.filters, shape.channels), data + filters - weights, output
        name, written, work_class = "output", shape.output_bytes, WorkClass.TRANSFORM
    moved = read * domain.value_bytes, weights * domain.value_bytes, made * domain.value_bytes
    batch = domain.points, domain.flops_per_step
    name, flops = f"{domain.name}_{name}", domain.flops_per_value * made + shape.epilogue_flops
    back = stream_kernel(name, made, flops, read=moved[2], written=written, work_class=work_class)
    product = Product(*sizes, *moved, shape.element_bytes, Precision.FP32, *batch)
    multiplied = product_kernel(product, tile, WorkClass.WINOGRAD_GEMM)
    return to_domain("data", data, shape.input_bytes), second, multiplied, back


#: Images are padded to a multiple of this before non-fused Winograd transforms.
_IMAGES = 16
#: Boxes of 32 tiles, as images x rows x columns, and the architectures with kernels for them; None for all.
_FUSED_BOXES = {
    (1, 4, 8): None,
    (2, 4, 4): BEFORE_VOLTA,
    (2, 2, 8): BEFORE_VOLTA,
    (4, 1, 8): BEFORE_VOLTA,
    (4, 2, 4): BEFORE_VOLTA,
    (4, 4, 2): BEFORE_VOLTA,
}
_FUSED_FILTERS = 32
_FUSED_TAPS = 16
#: Output edge of a non-fused tile, by kernel edge.
_OUTPUT_EDGE = {3: 4, 5: 9}
#: Tiles of the batched product between the transforms, and the architectures that have them; an A100 shows one.
_GEMM_TILES = {
    TILE["128x128"]: SINCE_AMPERE,
    TILE["128x64"]: SINCE_VOLTA - SINCE_AMPERE,
    TILE["64x64"]: frozenset(Architecture) - SINCE_AMPERE,
    TILE["32x128"]: frozenset(Architecture) - SINCE_AMPERE,
    TILE["128x32"]: frozenset(Architecture) - SINCE_AMPERE,
}


def fused(shape: ConvolutionShape) -> Iterator[Candidate]:
    """A candidate for each box of tiles, for 3x3 windows."""
    if not _is_plane(shape) or shape.kernel != (3, 3):
        return
    values = shape.filters * shape.channels * _FUSED_TAPS
    tile_bytes = values * shape.element_bytes
    moved = {"read": 0, "weights": shape.weight_bytes, "written": tile_bytes}
    generate = stream_kernel("winograd_generate_tiles", values, 0, **moved, work_class=WorkClass.TILE_GENERATION)
    channels = ceil_div(shape.channels, 8) * 8
    products = 2 * _FUSED_TAPS * 32 * _FUSED_FILTERS * channels
    # A block reads the tiles of its filters, and the pixels of its own tiles with a border of one: about 6 per tile.
    loaded = channels * (_FUSED_TAPS * _FUSED_FILTERS + 6 * 32) * shape.element_bytes
    rows, columns = (ceil_div(size, 2) for size in shape.output_size)
    for box, architectures in _FUSED_BOXES.items():
        boxes = ceil_div(shape.batch, box[0]) * ceil_div(rows, box[1]) * ceil_div(columns, box[2])
        blocks = boxes * ceil_div(shape.filters, _FUSED_FILTERS)
        bytes_moved = shape.input_bytes, tile_bytes, shape.output_bytes, blocks * loaded + shape.output_bytes
        name, flops = "winograd_fused_" + "x".join(map(str, box)), blocks * products + shape.epilogue_flops
        kernel = Kernel(name, WorkClass.WINOGRAD_FUSED, blocks, 256, 126, 49_152, flops, *bytes_moved)
        yield Candidate(name, (generate, kernel), tile_bytes, architectures=architectures)


def _is_plane(shape: ConvolutionShape) -> bool:
    return shape.precision in FP32_STORED and shape.is_dense_unit_stride and len(shape.kernel) == 2


def non_fused(shape: ConvolutionShape, *, of_filter: bool = False) -> Iterator[Candidate]:
    """A candidate for each tile of the product, for 3x3 and 5x5 windows."""
    if not _is_plane(shape) or len({*shape.kernel}) > 1 or shape.kernel[0] not in _OUTPUT_EDGE:
        return
    edge = _OUTPUT_EDGE[shape.kernel[0]]
    images = ceil_div(shape.batch, _IMAGES) * _IMAGES
    sizes = (
        (edge + shape.kernel[0] - 1) ** 2,
        images * math.prod(ceil_div(size, edge) for size in shape.output_size),
        shape.element_bytes,
    )
    domain = Domain("winograd_transform", *sizes, 2, 2, filters_are_weights=True)
    for tile, architectures in _GEMM_TILES.items():
        kernels = kernels_in(domain, shape, tile, of_filter=of_filter)
        name = f"winograd_nonfused_{tile}"
        yield Candidate(name, kernels, domain.workspace_bytes(shape), architectures=architectures)


COMPLEX_BYTES = 8
#: Edge in pixels of a tile of the tiled transform, and of the largest kernel that it supports.
_TILE_EDGE, _LARGEST_KERNEL = 32, 16

#: Recorded tiles of the complex products, and the architectures with kernels for them; registers as for real products.
FFT_TILES = {
    "": (replace(TILE["64x64"], threads=256), None),
    "_64x32": (TILE["64x32"], SINCE_VOLTA),
    "_32x32": (replace(TILE["32x32"], threads=64), None),
}


def frequencies(edge: int) -> int:
    """Complex numbers to which a square of reals is transformed: half of them, as the others are their conjugates."""
    return edge * (edge // 2 + 1)


def has_transform(shape: ConvolutionShape) -> bool:
    return _is_plane(shape) and max(shape.kernel) > 1


def fft(shape: ConvolutionShape, *, of_filter: bool = False) -> Iterator[Candidate]:
    """Candidates by the tiled transform; none if it does not apply."""
    if not has_transform(shape) or max(shape.kernel) > _LARGEST_KERNEL:
        return
    tiles = shape.batch * math.prod(
        ceil_div(size, _TILE_EDGE - kernel + 1) for size, kernel in zip(shape.output_size, shape.kernel, strict=True)
    )
    domain = frequency_domain("fft", _TILE_EDGE, tiles)
    for suffix, (tile, architectures) in FFT_TILES.items():
        kernels = kernels_in(domain, shape, tile, of_filter=of_filter)
        yield Candidate(f"fft_tiled{suffix}", kernels, domain.workspace_bytes(shape), architectures=architectures)


def frequency_domain(name: str, edge: int, tiles: int) -> Domain:
    """The Fourier transform of squares."""
    # Real operations for each complex number: 2.5 log2(edge squared) (Cooley and Tukey's count for reals).
    flops = 5 * (edge.bit_length() - 1)
    sizes = frequencies(edge), tiles, COMPLEX_BYTES
    return Domain(name, *sizes, flops, 8, filters_are_weights=False, filter_class=WorkClass.TRANSFORM)
