"""Transposed convolutions: cuDNN's data gradient, an implicit matrix product."""

from __future__ import annotations

import math

from iossim.ir.ops.conv_transpose import ConvTranspose
from iossim.lowering.gpu.matrix_product import TILES, Product, split_products
from iossim.lowering.gpu.registry import FAMILIES
from iossim.lowering.kernel import Candidate, WorkClass, ceil_div
from iossim.lowering.step import Step


@FAMILIES.lowers("conv_transpose")
def transposed_convolution(step: Step) -> list[Candidate]:
    """A product for each output pixel; of the window's taps those that meet an input pixel, one in each stride."""
    assert isinstance(step.op, ConvTranspose)
    x, weight, y = step.operands[0].type, step.operands[1].type, step.outputs[0]
    groups = step.op.groups
    taps = ceil_div(math.prod(weight.shape[2:]), math.prod(step.op.strides))
    inner = x.shape[1] // groups * taps
    pixels = y.shape[0] * math.prod(y.shape[2:])
    product = Product(
        weight.shape[1],
        pixels,
        inner,
        step.activation_bytes,
        step.weight_bytes,
        step.bytes_written,
        y.dtype.bytes,
        step.precision,
        groups,
    )
    extra = max(0, step.flops - 2 * x.elements * math.prod(weight.shape[1:]))
    return [
        Candidate("transposed_" + kernels[0].name, kernels)
        for tile in TILES
        for kernels in split_products(product, tile, WorkClass.IMPLICIT_PRECOMP_GEMM, extra, "implicit_gemm")
    ]
