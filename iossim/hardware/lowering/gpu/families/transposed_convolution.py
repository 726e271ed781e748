"""Transposed convolutions: cuDNN's data gradient, an implicit matrix product of output pixels by filters.

An output pixel uses only those taps of the window that meet an input pixel, one per stride. Kernels on tensor cores
multiply only these: gradients called directly with a stride of 2 (fp16 on a V100 and a T4, windows of 5x10 and 5x5)
take 0.9 to 1.7 times as long as a convolution with as many products. On FP32 lanes cuDNN computes each offset on demand
(ALGO_1), as IMPLICIT_GEMM does in the forward direction. Only these kernels support groups, and they multiply the other
taps by zeros: a strided one of 4 groups takes 5 to 33 ms (A100, RTX A6000, T4), here 4 to 27.
"""

from __future__ import annotations

import math
from dataclasses import replace

from iossim.hardware.lowering.convolution_shape import ConvolutionShape
from iossim.hardware.lowering.gpu.families.matrix_product import parts_bytes, split_products
from iossim.hardware.lowering.gpu.matrix_product import TILES, Product
from iossim.hardware.lowering.gpu.tensor_core_convolution import tensor_core_convolution
from iossim.hardware.lowering.gpu.tensor_core_product import without_tensor_cores
from iossim.hardware.lowering.kernel import Candidate, WorkClass, ceil_div
from iossim.hardware.lowering.step import Step
from iossim.ir.ops.conv_transpose import ConvBackwardData, ConvTranspose


def transposed_convolution(step: Step) -> list[Candidate]:
    """Products on FP32 lanes for every tile and split, and those on tensor cores that support the precision."""
    assert isinstance(step.op, ConvTranspose | ConvBackwardData)
    shape = _as_convolution(step)
    sizes = shape.filters // shape.groups, shape.pixels, shape.channels // shape.groups * math.prod(shape.kernel)
    moved = step.activation_bytes, step.weight_bytes, step.bytes_written
    product = Product(*sizes, *moved, shape.element_bytes, shape.on_lanes.precision, shape.groups)
    is_grouped = shape.groups > 1
    architectures = None if is_grouped else without_tensor_cores(step.precision, None)
    work_class = WorkClass.IMPLICIT_PRECOMP_GEMM if is_grouped else WorkClass.IMPLICIT_GEMM
    found = [
        Candidate("transposed_" + kernels[0].name, kernels, parts_bytes(kernels), architectures=architectures)
        for tile in TILES
        for kernels in split_products(product, tile, work_class, shape.epilogue_flops, "implicit_gemm")
    ]
    on_tensor_cores = tensor_core_convolution(shape, is_called_by_engine=False)
    return [*found, *(replace(one, algorithm=f"transposed_{one.algorithm}") for one in on_tensor_cores)]


def _as_convolution(step: Step) -> ConvolutionShape:
    """The convolution at stride 1 with as many products: a window of taps for each output pixel."""
    assert isinstance(step.op, ConvTranspose | ConvBackwardData)
    x, weight, y = step.operands[0].type, step.operands[1].type, step.outputs[0]
    skipped = math.prod(step.op.strides) if step.op.groups == 1 else 1
    taps = ceil_div(math.prod(weight.shape[2:]), skipped)
    rank = len(x.shape) - 2
    own = 2 * x.elements * math.prod(weight.shape[1:])
    ones = (1,) * rank
    geometry = (taps, *ones[1:]), ones, ones, step.op.groups, x.shape[2:], y.shape[2:]
    stored = x.dtype.bytes, y.dtype.bytes, max(0, step.flops - own), step.precision
    return ConvolutionShape(x.shape[0], x.shape[1], y.shape[1], *geometry, *stored)
