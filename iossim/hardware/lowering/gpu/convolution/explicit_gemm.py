"""Convolution as an explicit matrix product: the windows of all outputs are written one after another, then multiplied.

cuDNN's GEMM. Images are multiplied one by one in one launch, since outputs of an image lie together (NCHW). Where it has
been measured, it was never the fastest; that is why it is no candidate where a library chooses for itself.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from iossim.hardware.lowering.convolution_shape import FP32_STORED, ConvolutionShape
from iossim.hardware.lowering.gpu.convolution.workspace import columns_bytes
from iossim.hardware.lowering.gpu.matrix_product import BATCHED_TILES, Product, product_kernel, stream_kernel
from iossim.hardware.lowering.kernel import Candidate, WorkClass


def explicit_gemm(shape: ConvolutionShape) -> Iterator[Candidate]:
    """Every tile of a batched product; of one group and in fp32 only."""
    if shape.precision not in FP32_STORED or shape.groups > 1:
        return
    inner, size = shape.channels * math.prod(shape.kernel), columns_bytes(shape)
    product = Product(
        math.prod(shape.output_size),
        shape.filters,
        inner,
        size,
        shape.weight_bytes,
        shape.output_bytes,
        shape.element_bytes,
        shape.precision,
        shape.batch,
    )
    columns = stream_kernel(
        "windows_to_columns",
        inner * shape.pixels,
        0,
        activation_bytes=shape.input_bytes,
        bytes_written=size,
    )
    for tile, architectures in BATCHED_TILES.items():
        gemm = product_kernel(product, tile, WorkClass.GEMM, extra_flops=shape.epilogue_flops)
        yield Candidate(f"explicit_gemm_{tile}", (columns, gemm), size, architectures=architectures)
