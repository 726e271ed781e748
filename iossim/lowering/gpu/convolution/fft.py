"""Convolution in the frequency domain, over tiles of 32x32 pixels (Mathieu et al., 2014).

A tile of 32x32 reals transforms to 32x17 complex numbers; each frequency is one complex matrix product. The output of
a tile is 32 less the kernel's overhang. Pays for kernels of 5 and more with many channels.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from iossim.ir.types import Precision
from iossim.lowering.convolution_shape import FP32_STORED, ConvolutionShape
from iossim.lowering.gpu.matrix_product import TILE_64X64, Product, product_kernel, stream_kernel
from iossim.lowering.kernel import Candidate, WorkClass, ceil_div

_EDGE = 32
_FREQUENCIES = _EDGE * (_EDGE // 2 + 1)
_COMPLEX_BYTES = 8
#: Real operations of a 32x32 transform, for each complex number: 2.5 log2(1024) (Cooley and Tukey's count for reals).
_TRANSFORM_FLOPS = 25
_LARGEST_KERNEL = 16


def fft(shape: ConvolutionShape) -> Iterator[Candidate]:
    """The tiled transform, none where it does not apply."""
    if shape.precision not in FP32_STORED or not shape.is_dense_unit_stride or len(shape.kernel) != 2:
        return
    if not 1 < max(shape.kernel) <= _LARGEST_KERNEL:
        return
    count = shape.batch * math.prod(
        ceil_div(size, _EDGE - kernel + 1) for size, kernel in zip(shape.output_size, shape.kernel, strict=True)
    )
    data, filters, output = (
        _FREQUENCIES * elements
        for elements in (count * shape.channels, shape.filters * shape.channels, count * shape.filters)
    )
    product = Product(
        count,
        shape.filters,
        shape.channels,
        (data + filters) * _COMPLEX_BYTES,
        0,
        output * _COMPLEX_BYTES,
        shape.element_bytes,
        Precision.FP32,
        _FREQUENCIES,
        flops_per_step=8,
    )
    before = (
        stream_kernel(
            "fft_data",
            data,
            _TRANSFORM_FLOPS * data,
            activation_bytes=shape.input_bytes,
            bytes_written=data * _COMPLEX_BYTES,
            work_class=WorkClass.TRANSFORM,
        ),
        stream_kernel(
            "fft_filter",
            filters,
            _TRANSFORM_FLOPS * filters,
            activation_bytes=0,
            weight_bytes=shape.weight_bytes,
            bytes_written=filters * _COMPLEX_BYTES,
            work_class=WorkClass.FILTER_TRANSFORM,
        ),
    )
    after = stream_kernel(
        "fft_output",
        output,
        _TRANSFORM_FLOPS * output + shape.epilogue_flops,
        activation_bytes=output * _COMPLEX_BYTES,
        bytes_written=shape.output_bytes,
        work_class=WorkClass.TRANSFORM,
    )
    gemm = product_kernel(product, TILE_64X64, WorkClass.WINOGRAD_GEMM)
    yield Candidate("fft_tiled", (*before, gemm, after), (data + filters + output) * _COMPLEX_BYTES)
