"""Winograd convolution (Lavin and Gray, 2016): fewer multiplications for small kernels at stride 1.

*Fused*, 3x3 only: F(2x2, 3x3), 16 products for 4 outputs. One kernel generates the tiles of the filters, a second
transforms, multiplies and transforms back. A block of the second holds 32 filters by 32 tiles; the tiles form a box of
images x rows x columns, which is part of the kernel's name (``tile148``, ``tile244`` and so on): the libraries' kernels
since Volta have the box 1x4x8, the older ones several.

*Non-fused*, 3x3 and 5x5: transforms of data, filter and output as kernels of their own around one batched matrix
product; F(4x4, 3x3) with 36 products for 16 outputs, F(9x9, 5x5) with 169 for 81. The images are padded to a multiple
of 16, as the recorded grids of all four generations tell; the filter is transformed in every call.

Both compute in fp32, also where tf32 is allowed.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from iossim.devices.compute_capability import GPUS
from iossim.ir.types import Precision
from iossim.lowering.convolution.shape import FP32_STORED, ConvolutionShape
from iossim.lowering.kernel import Candidate, Kernel, WorkClass, ceil_div
from iossim.lowering.matrix_product import (
    BEFORE_VOLTA,
    SINCE_AMPERE,
    SINCE_VOLTA,
    TILE_32X128,
    TILE_64X64,
    TILE_128X32,
    TILE_128X64,
    TILE_128X128,
    Product,
    product_kernel,
    stream_kernel,
)

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
#: Images are padded to a multiple of this before the non-fused transform.
_IMAGES = 16
#: Tiles of the batched product between the transforms, and where kernels for them are: recordings on an A100 show one.
_GEMM_TILES = {
    TILE_128X128: SINCE_AMPERE,
    TILE_128X64: SINCE_VOLTA - SINCE_AMPERE,
    TILE_64X64: GPUS - SINCE_AMPERE,
    TILE_32X128: GPUS - SINCE_AMPERE,
    TILE_128X32: GPUS - SINCE_AMPERE,
}


def winograd(shape: ConvolutionShape) -> Iterator[Candidate]:
    """Fused and non-fused candidates, none where the algorithm does not apply."""
    if shape.precision not in FP32_STORED or not shape.is_dense_unit_stride or len(shape.kernel) != 2:
        return
    if shape.kernel == (3, 3):
        generate = _generate_tiles(shape)
        for box, architectures in _FUSED_BOXES.items():
            name = "winograd_fused_" + "x".join(map(str, box))
            workspace = generate.bytes_written
            yield Candidate(name, (generate, _fused(shape, box, name)), workspace, architectures=architectures)
    if shape.kernel[0] == shape.kernel[1] and shape.kernel[0] in _OUTPUT_EDGE:
        yield from _non_fused(shape, _OUTPUT_EDGE[shape.kernel[0]])


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
    return Kernel(
        name,
        WorkClass.WINOGRAD_FUSED,
        blocks,
        256,
        126,
        49_152,
        blocks * products + shape.epilogue_flops,
        shape.input_bytes,
        shape.filters * shape.channels * _FUSED_TAPS * shape.element_bytes,
        shape.output_bytes,
        loaded + shape.output_bytes,
    )


def _non_fused(shape: ConvolutionShape, edge: int) -> Iterator[Candidate]:
    taps = (edge + shape.kernel[0] - 1) ** 2
    images = ceil_div(shape.batch, _IMAGES) * _IMAGES
    count = images * math.prod(ceil_div(size, edge) for size in shape.output_size)
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
        work_class=WorkClass.TRANSFORM,
    )
    transform_filter = stream_kernel(
        "winograd_transform_filter",
        filters // size,
        2 * filters // size,
        activation_bytes=0,
        weight_bytes=shape.weight_bytes,
        bytes_written=filters,
        work_class=WorkClass.FILTER_TRANSFORM,
    )
    transform_output = stream_kernel(
        "winograd_transform_output",
        output // size,
        2 * output // size + shape.epilogue_flops,
        activation_bytes=output,
        bytes_written=shape.output_bytes,
        work_class=WorkClass.TRANSFORM,
    )
    product = Product(
        count, shape.filters, shape.channels, data, filters, output, size, Precision.FP32, taps
    )  # fmt: skip
    for tile, architectures in _GEMM_TILES.items():
        gemm = product_kernel(product, tile, WorkClass.WINOGRAD_GEMM)
        yield Candidate(
            f"winograd_nonfused_{tile}",
            (transform_data, transform_filter, gemm, transform_output),
            data + filters + output,
            architectures=architectures,
        )
