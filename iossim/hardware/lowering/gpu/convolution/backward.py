"""Gradients of convolutions as matrix products: of the input, which is a transposed convolution, and of the filter.

A transposed convolution is an implicit matrix product of output pixels by filters. An output pixel uses only those taps
of the window that meet an input pixel, one per stride. Kernels on tensor cores multiply only these: gradients called
directly with a stride of 2 (fp16 on a V100 and a T4, windows of 5x10 and 5x5) take 0.9 to 1.7 times as long as a
convolution with as many products. On FP32 lanes cuDNN computes each offset on demand (ALGO_1), as IMPLICIT_GEMM does in
the forward direction. Only these kernels support groups, and they multiply the other taps by zeros: a strided one of 4
groups takes 5 to 33 ms (A100, RTX A6000, T4), here 4 to 27.

The gradient of the input may also be a scattered product (cuDNN's ALGO_0 of backward data) of pixels of the output's
gradient by channels x window, over the filters. Each result is added atomically, through L2, to its tap's pixel in a
cleared gradient.

The gradient of a filter is a product of filters by channels x window, over the output pixels of all images. It is
split, since it has few output tiles and a long inner dimension. The parts are summed (Chetlur et al., 2014; cuDNN's
manual)

- with atomic additions through L2 to the cleared result (ALGO_0, and ALGO_3 with a table of offsets);
- by a separate kernel, from a workspace as large as the parts (ALGO_1): each number of parts is a candidate.

Neither scattered products nor gradients of filters are in a data set. They are assumed to be as efficient as the
forward kernels that gather in the same way: with a table (ALGO_1, ALGO_3), or without one (ALGO_0); on tensor cores,
as the forward product of the same sizes.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

from iossim.hardware.lowering.gpu.convolution.gemm import offset_table_bytes
from iossim.hardware.lowering.gpu.families.convolution import lanes_and_beside
from iossim.hardware.lowering.gpu.families.matrix_product import split_products
from iossim.hardware.lowering.gpu.matrix_product import (
    LEAST_INNER,
    OFFSETS_KERNEL,
    TILE,
    TILES,
    Product,
    product_kernel,
    stream_kernel,
)
from iossim.hardware.lowering.gpu.tensor_core_convolution import tensor_core_convolution
from iossim.hardware.lowering.gpu.tensor_core_families import CONVOLUTIONS
from iossim.hardware.lowering.gpu.tensor_core_product import on_tensor_cores, parts_bytes
from iossim.hardware.lowering.kernel import Candidate, Libraries, WorkClass, ceil_div
from iossim.hardware.lowering.step import ConvolutionShape, Step
from iossim.ir.ops.conv import ConvAttributes


def transposed_convolution(step: Step[ConvAttributes]) -> list[Candidate]:
    """Products on FP32 lanes for every tile and split, and those on tensor cores that support the precision."""
    shape = _as_convolution(step)
    sizes = shape.filters // shape.groups, shape.pixels, shape.channels // shape.groups * math.prod(shape.kernel)
    moved = step.activation_bytes, step.weight_bytes, step.bytes_written
    product = Product(*sizes, *moved, shape.element_bytes, shape.on_lanes.precision, shape.groups)
    work_class = WorkClass.IMPLICIT_PRECOMP_GEMM if shape.groups > 1 else WorkClass.IMPLICIT_GEMM
    on_lanes = [
        Candidate("transposed_" + kernels[0].name, kernels, parts_bytes(kernels))
        for tile in TILES
        for kernels in split_products(product, tile, work_class, shape.epilogue_flops, "implicit_gemm")
    ]
    if shape.groups > 1:
        return on_lanes
    elsewhere, beside = lanes_and_beside(on_lanes, step.precision)
    compiled = frozenset({Libraries.COMPILED})
    on_tensor_cores = [
        replace(one, algorithm=f"transposed_{one.algorithm}", libraries=libraries)
        for libraries in (frozenset(Libraries) - compiled, compiled)
        for one in tensor_core_convolution(shape, is_called_by_engine=False, is_compiled=libraries == compiled)
    ]
    return [*elsewhere, *on_tensor_cores, *beside]


def _as_convolution(step: Step[ConvAttributes]) -> ConvolutionShape:
    """The convolution at stride 1 with as many products: a window of taps for each output pixel."""
    x, weight, y = step.operands[0].type, step.operands[1].type, step.outputs[0]
    skipped = math.prod(step.op.strides) if step.op.groups == 1 else 1
    taps = ceil_div(math.prod(weight.shape[2:]), skipped)
    rank = len(x.shape) - 2
    own = 2 * x.elements * math.prod(weight.shape[1:])
    ones = (1,) * rank
    geometry = (taps, *ones[1:]), ones, ones, step.op.groups, x.shape[2:], y.shape[2:]
    stored = x.dtype.bytes, y.dtype.bytes, max(0, step.flops - own), step.precision
    return ConvolutionShape(x.shape[0], x.shape[1], y.shape[1], *geometry, *stored)


_TILES = (TILE["128x128"], TILE["128x64"], TILE["64x64"], TILE["128x32"])


def scattered(shape: ConvolutionShape) -> Iterator[Candidate]:
    """Candidates of the scattered product, one per tile."""
    made = shape.batch * shape.channels * math.prod(shape.input_size)
    made_bytes = made * shape.element_bytes
    columns = shape.channels // shape.groups * math.prod(shape.kernel)
    moved = shape.output_bytes, shape.weight_bytes, made_bytes
    sizes = shape.pixels, columns, shape.filters // shape.groups
    product = Product(*sizes, *moved, shape.element_bytes, shape.on_lanes.precision, shape.groups)
    clear = stream_kernel("clear", made, 0, read=0, written=made_bytes)
    added_bytes = shape.pixels * columns * shape.groups * shape.element_bytes
    for tile in _TILES:
        kernel = product_kernel(
            product, tile, WorkClass.IMPLICIT_GEMM, extra_flops=shape.epilogue_flops, name="scattered_gradient"
        )
        scattering = replace(kernel, l2_bytes=kernel.l2_bytes - made_bytes + added_bytes)
        yield Candidate(kernel.name, (clear, scattering))


#: Numbers of parts that are summed atomically; with more, each has little of the inner dimension.
_ATOMIC_SPLITS = (1, 2, 4, 8, 16, 32, 64)


def product_of(shape: ConvolutionShape) -> Product:
    """The product of every group."""
    columns = shape.channels // shape.groups * math.prod(shape.kernel)
    moved = shape.input_bytes + shape.output_bytes, 0, shape.weight_bytes
    sizes = shape.filters // shape.groups, columns, shape.pixels
    return Product(*sizes, *moved, shape.element_bytes, shape.on_lanes.precision, shape.groups)


def atomic(shape: ConvolutionShape, *, by_table: bool) -> Iterator[Candidate]:
    """Candidates of ALGO_3, with a table of offsets, or of ALGO_0, without one."""
    product = product_of(shape)
    work_class = WorkClass.IMPLICIT_PRECOMP_GEMM if by_table else WorkClass.IMPLICIT_GEMM
    name = "filter_gradient_by_table" if by_table else "filter_gradient"
    values = product.bytes_written // shape.element_bytes
    clear = stream_kernel("clear", values, 0, read=0, written=product.bytes_written)
    before = (clear, OFFSETS_KERNEL) if by_table else (clear,)
    table_bytes = offset_table_bytes(shape) if by_table else 0
    for tile in _TILES:
        for split in _ATOMIC_SPLITS:
            if split > 1 and product.inner < split * LEAST_INNER:
                break
            kernel = product_kernel(product, tile, work_class, split, shape.epilogue_flops, name)
            # The parts are summed in L2: only the sum goes to DRAM.
            added = replace(kernel, bytes_written=product.bytes_written)
            yield Candidate(kernel.name, (*before, added), table_bytes)


def summed(shape: ConvolutionShape) -> Iterator[Candidate]:
    """Candidates of ALGO_1: the parts are written, then summed in order."""
    table_bytes = offset_table_bytes(shape)
    for tile in _TILES:
        for kernels in split_products(
            product_of(shape), tile, WorkClass.IMPLICIT_PRECOMP_GEMM, shape.epilogue_flops, "filter_gradient_in_order"
        ):
            yield Candidate(kernels[0].name, (OFFSETS_KERNEL, *kernels), table_bytes + parts_bytes(kernels))


def gradient_on_tensor_cores(shape: ConvolutionShape) -> Iterator[Candidate]:
    """Candidates of ALGO_1 on tensor cores that support the precision; for one group."""
    if shape.groups == 1:
        product, extra_flops = replace(product_of(shape), precision=shape.precision), shape.epilogue_flops
        of_convolutions = product, CONVOLUTIONS, WorkClass.TENSOR_CONVOLUTION
        yield from on_tensor_cores(*of_convolutions, extra_flops=extra_flops, name="filter_gradient_")
