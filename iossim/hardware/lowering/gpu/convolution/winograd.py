"""Winograd convolution (Lavin and Gray, 2016): fewer multiplications for small kernels at stride 1.

*Fused*, 3x3 only: F(2x2, 3x3), 16 products for 4 outputs. One kernel generates the tiles of the filters, a second
transforms, multiplies and transforms back. A block of the second holds 32 filters by 32 tiles; the tiles form a box
of images x rows x columns, which is part of the kernel's name (``tile148``, ``tile244`` and so on): the libraries'
kernels since Volta have the box 1x4x8, the older ones several.

*Non-fused*, 3x3 and 5x5: transforms of data, filter and output as kernels of their own around one batched matrix
product; F(4x4, 3x3) with 36 products for 16 outputs, F(9x9, 5x5) with 169 for 81. The images are padded to a multiple
of 16, as the recorded grids of all four generations tell; the filter is transformed in every call.

Both compute in fp32, also where tf32 is allowed.
"""

from __future__ import annotations

from collections.abc import Iterator

from iossim.hardware.compute_capability import SINCE_AMPERE, Architecture
from iossim.hardware.lowering.convolution_shape import FP32_STORED, ConvolutionShape
from iossim.hardware.lowering.gpu.convolution import workspace
from iossim.hardware.lowering.gpu.convolution.transformed import Direction, Domain, convolved
from iossim.hardware.lowering.gpu.matrix_product import BEFORE_VOLTA, SINCE_VOLTA, TILE, stream_kernel
from iossim.hardware.lowering.kernel import Candidate, Kernel, WorkClass, ceil_div

#: Boxes of 32 tiles, as images x rows x columns, and where kernels for them are.
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
#: Tiles of the batched product between the transforms, and who has them; an A100 shows one.
_GEMM_TILES = {
    TILE["128x128"]: SINCE_AMPERE,
    TILE["128x64"]: SINCE_VOLTA - SINCE_AMPERE,
    TILE["64x64"]: frozenset(Architecture) - SINCE_AMPERE,
    TILE["32x128"]: frozenset(Architecture) - SINCE_AMPERE,
    TILE["128x32"]: frozenset(Architecture) - SINCE_AMPERE,
}


def winograd(shape: ConvolutionShape) -> Iterator[Candidate]:
    """Fused and non-fused candidates, none where the algorithm does not apply."""
    yield from fused(shape)
    yield from non_fused(shape)


def fused(shape: ConvolutionShape) -> Iterator[Candidate]:
    """A candidate for each box of tiles; of 3x3 windows."""
    if not _is_square_plane(shape) or shape.kernel != (3, 3):
        return
    generate = _generate_tiles(shape)
    for box, architectures in _FUSED_BOXES.items():
        name = "winograd_fused_" + "x".join(map(str, box))
        kernels = generate, _fused(shape, box, name)
        yield Candidate(name, kernels, generate.bytes_written, architectures=architectures)


def _generate_tiles(shape: ConvolutionShape) -> Kernel:
    tiles = shape.filters * shape.channels * _FUSED_TAPS
    return stream_kernel(
        "winograd_generate_tiles",
        tiles,
        0,
        activation_bytes=0,
        weight_bytes=shape.weight_bytes,
        bytes_written=tiles * shape.element_bytes,
        work_class=WorkClass.TILE_GENERATION,
    )


def _fused(shape: ConvolutionShape, box: tuple[int, int, int], name: str) -> Kernel:
    rows, columns = (ceil_div(size, 2) for size in shape.output_size)
    boxes = ceil_div(shape.batch, box[0]) * ceil_div(rows, box[1]) * ceil_div(columns, box[2])
    blocks = boxes * ceil_div(shape.filters, _FUSED_FILTERS)
    channels = ceil_div(shape.channels, 8) * 8
    products = 2 * _FUSED_TAPS * 32 * _FUSED_FILTERS * channels
    # A block reads the tiles of its filters, and the pixels under its own tiles with a border of one: about 6 a tile.
    loaded = blocks * channels * (_FUSED_TAPS * _FUSED_FILTERS + 6 * 32) * shape.element_bytes
    tile_bytes = shape.filters * shape.channels * _FUSED_TAPS * shape.element_bytes
    moved = shape.input_bytes, tile_bytes, shape.output_bytes, loaded + shape.output_bytes
    flops = blocks * products + shape.epilogue_flops
    return Kernel(name, WorkClass.WINOGRAD_FUSED, blocks, 256, 126, 49_152, flops, *moved)


def _is_square_plane(shape: ConvolutionShape) -> bool:
    is_plane = shape.precision in FP32_STORED and shape.is_dense_unit_stride and len(shape.kernel) == 2
    return is_plane and shape.kernel[0] == shape.kernel[1]


def non_fused(shape: ConvolutionShape, direction: Direction = convolved) -> Iterator[Candidate]:
    """A candidate for each tile of the product; of 3x3 and 5x5 windows."""
    if not _is_square_plane(shape) or shape.kernel[0] not in _OUTPUT_EDGE:
        return
    edge = _OUTPUT_EDGE[shape.kernel[0]]
    taps = (edge + shape.kernel[0] - 1) ** 2
    tiles = workspace.winograd_tiles(shape, edge)
    domain = Domain("winograd_transform", taps, tiles, shape.element_bytes, 2, 2, filters_are_weights=True)
    size = workspace.winograd_nonfused_bytes(shape, edge)
    for tile, architectures in _GEMM_TILES.items():
        yield Candidate(f"winograd_nonfused_{tile}", direction(shape, domain, tile), size, architectures=architectures)
