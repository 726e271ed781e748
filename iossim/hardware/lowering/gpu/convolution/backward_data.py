"""The gradient of a convolution's input as a product that is scattered: cuDNN's ALGO_0 of backward data.

Pixels of the output's gradient by channels x window, over the filters: each result is added atomically to the pixel that its
tap lies on, in a gradient that is cleared before. No data set has measured these kernels; they are taken to be as efficient
as the forward kernels that compute each offset where it is needed, with every addition going through L2.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

from iossim.hardware.lowering.convolution_shape import FP32_STORED, ConvolutionShape
from iossim.hardware.lowering.gpu.matrix_product import (
    TILE_64X64,
    TILE_128X32,
    TILE_128X64,
    TILE_128X128,
    Product,
    product_kernel,
    stream_kernel,
)
from iossim.hardware.lowering.kernel import Candidate, WorkClass
from iossim.ir.types import Precision

_TILES = (TILE_128X128, TILE_128X64, TILE_64X64, TILE_128X32)


def scattered(shape: ConvolutionShape) -> Iterator[Candidate]:
    """Every tile."""
    made = shape.batch * shape.channels * math.prod(shape.input_size)
    made_bytes = made * shape.element_bytes
    columns = shape.channels // shape.groups * math.prod(shape.kernel)
    product = Product(
        shape.pixels,
        columns,
        shape.filters // shape.groups,
        shape.output_bytes,
        shape.weight_bytes,
        made_bytes,
        shape.element_bytes,
        Precision.FP32 if shape.precision in FP32_STORED else shape.precision,
        shape.groups,
    )
    clear = stream_kernel("clear", made, 0, activation_bytes=0, bytes_written=made_bytes)
    added_bytes = shape.pixels * columns * shape.groups * shape.element_bytes
    for tile in _TILES:
        kernel = product_kernel(
            product, tile, WorkClass.IMPLICIT_GEMM, extra_flops=shape.epilogue_flops, name="scattered_gradient"
        )
        scattering = replace(kernel, l2_bytes=kernel.l2_bytes - made_bytes + added_bytes)
        yield Candidate(kernel.name, (clear, scattering))
