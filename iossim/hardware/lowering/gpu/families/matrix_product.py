"""Dense layers and matrix products, including those of quantised tensors, by cuBLAS.

cuBLAS stores matrices by columns, so that the columns of a product here are the rows of its tiles: recorded grids of
dense layers have ``ceil(columns / tile rows)`` by ``ceil(rows / tile columns)`` blocks.

Products of quantised tensors run as the same products in int8 or fp8, with the scales in the epilogue. Where a GPU has
no tensor cores for fp8, its operands are dequantised before a product of their numbers, weights once, as they are
loaded. No measurement of a kernel of fp8 stands behind these prices: they are int8's, by the rate that vendors print.

Products with weights of 4 or 8 bits run by three kinds of kernels; their bytes are those of the stored weight:

- *Few rows*: a block reads a few columns of weights once, 16 bytes a thread and load, and multiplies them on FP32 lanes
  (the kernel of ``backends/cupy_cudnn``; frameworks have the like).
- *Fused*: kernels for 16 bits that dequantise weights between shared memory and tensor cores (Frantar et al., 2024,
  arXiv:2408.11743; CUTLASS' products of mixed inputs), so that the arithmetic takes longer.
- *Dequantised*: the weight dequantised into memory, then a product of the libraries.

No measurement of these three stands behind their prices. Instructions are counted, rates are those of other kernels.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

from iossim.hardware.compute_capability import TENSOR_CORES, Architecture
from iossim.hardware.lowering.gpu.families.convolution import convolution
from iossim.hardware.lowering.gpu.matrix_product import (
    BATCHED_TILES,
    LEAST_INNER,
    MOST_TILES_TO_SPLIT,
    SINCE_VOLTA,
    TILE,
    TILES,
    Product,
    Tile,
    product_kernel,
    stream_kernel,
    sum_of_parts,
    tiles,
)
from iossim.hardware.lowering.gpu.tensor_core_families import PRODUCTS
from iossim.hardware.lowering.gpu.tensor_core_product import (
    SPLITS,
    UNSPLIT,
    on_tensor_cores,
    parts_bytes,
    without_tensor_cores,
)
from iossim.hardware.lowering.kernel import Candidate, Kernel, WorkClass, ceil_div
from iossim.hardware.lowering.step import FP32_STORED, Operand, Step
from iossim.ir.ops.grouped_matmul import GroupedMatMul, balanced
from iossim.ir.ops.matmul import Gemm, MatMul, stacked_product
from iossim.ir.ops.quantize import Dequantised, StoredProduct
from iossim.ir.ops.recurrent import Recurrent
from iossim.ir.types import Precision, TensorType

_SPLITS = (1, 2, 3, 4, 6, 8, 12, 16)
#: Tiles, and the architectures with kernels for them; None for all.
_TILES = {
    TILE["128x128"]: SINCE_VOLTA,
    TILE["128x64"]: SINCE_VOLTA,
    TILE["64x128"]: SINCE_VOLTA,
    TILE["64x64"]: None,
    TILE["128x32"]: None,
    TILE["32x128"]: None,
    TILE["64x32"]: SINCE_VOLTA,
    TILE["32x32"]: SINCE_VOLTA,
}


def matrix_product(step: Step) -> list[Candidate]:
    """Candidates for every tile and split; a stack of several products is one batched launch."""
    step = _evenly(step) if isinstance(step.op, GroupedMatMul) else step
    y = step.outputs[0]
    a, b = (operand.type.shape for operand in step.operands[:2])
    trans_a, trans_b = (step.op.trans_a, step.op.trans_b) if isinstance(step.op, Gemm) else (False, False)
    stack = stacked_product(a[::-1] if trans_a else a, b[::-1] if trans_b else b)
    # The size of each side, and whether the inner dimension is its contiguous one.
    rows = stack.rows, not trans_a or stack.rows == 1
    columns = stack.columns, trans_b or stack.columns_are_vectors
    neighbours, others = (rows, columns) if stack.rows_are_neighbours else (columns, rows)
    sizes = neighbours[0], others[0], stack.inner
    strided = neighbours[1], others[1]
    size = step.operands[0].type.dtype.bytes  # an epilogue may write another type
    # Matrices that recur in a stack, such as weights of experts for each image, are read again after all the others.
    each = ((stack.inner * side, math.prod(shape)) for side, shape in ((stack.rows, a), (stack.columns, b)))
    again = sum(stack.count * one - elements for one, elements in each if elements > one)
    moved = step.activation_bytes + again * size, step.weight_bytes, step.bytes_written
    product = Product(*sizes, *moved, size, step.precision, stack.count, 2, *strided)
    extra = max(0, step.flops - 2 * y.elements * stack.inner)
    is_one = stack.count == 1
    on_lanes = (
        Candidate(kernels[0].name, kernels, parts_bytes(kernels), architectures=where)
        for tile, known in (_TILES if is_one else BATCHED_TILES).items()
        for where in [without_tensor_cores(step.precision, known)]
        for kernels in split_products(product, tile, WorkClass.GEMM, extra, splits=_SPLITS if is_one else UNSPLIT)
    )
    by_vector = [Candidate("gemv", (_by_vector(product, extra),))]
    vectors = by_vector if 1 in sizes[:2] and step.precision in FP32_STORED else []
    splits = SPLITS if is_one else UNSPLIT
    on_cores = on_tensor_cores(product, PRODUCTS, WorkClass.TENSOR, extra_flops=extra, splits=splits)
    return [*on_lanes, *vectors, *on_cores]


def _by_vector(product: Product, extra_flops: int) -> Kernel:
    """Each matrix by one vector (BLAS' gemv, batched or not): the matrices are streamed, where tiles would be nearly
    empty, and summed over blocks.

    One matrix of 256 by 131,072 in fp32 takes 0.93 to 1.31 times as long (A100, T4, A10, RTX A6000), 12 of 0.8 to 17
    million elements on an H200 0.9 to 1.3 times (2.7 to 23 us). Recorded networks multiply vectors of 16 bits by
    ``nvjet``, unless there are 50,257 columns.
    """
    elements = max(product.rows, product.columns) * product.inner * product.count
    moved = {"read": product.activation_bytes, "weights": product.weight_bytes, "written": product.bytes_written}
    return stream_kernel("gemv", elements, 2 * elements + extra_flops, **moved, work_class=WorkClass.SUM)


def _evenly(step: Step) -> Step:
    """A grouped product as a batched one of as many rows for each expert, as if routing were balanced.

    ``evidence/concurrency/grouped_experts.py`` compares layers that are priced so with published measurements.
    """
    types = balanced(*(operand.type for operand in step.operands[:2]))
    operands = tuple(replace(operand, type=each) for operand, each in zip(step.operands, types, strict=False))
    (x, weight), (made,) = types, step.outputs
    y = TensorType((*x.shape[:2], weight.shape[2]), made.dtype)
    flops = step.flops + 2 * (y.elements - made.elements) * x.shape[2]
    return replace(step, op=MatMul(), operands=operands, outputs=(y,), flops=flops)


def stored_product(step: Step) -> list[Candidate]:
    """The product of the integers or fp8, without scales and zero points; sums stay in 32 bits until the epilogue."""
    assert isinstance(step.op, StoredProduct)
    plain = replace(step, op=step.op.product, operands=tuple(step.operands[place] for place in step.op.places[:2]))
    lower = matrix_product if isinstance(plain.op, MatMul) else convolution
    if not isinstance(step.op, Dequantised):
        return lower(replace(plain, precision=Precision.INT8))
    having = TENSOR_CORES[Precision.FP8]
    found = [one.among(having) for one in lower(replace(plain, precision=Precision.FP8))]
    before, wide = list[Kernel](), list[Operand]()
    for each in plain.operands:
        wide.append(replace(each, type=replace(each.type, dtype=step.precision.storage)))
        if not each.is_weight:
            count, written = each.type.elements, wide[-1].type.bytes
            before.append(stream_kernel("dequantise", count, count, read=each.type.bytes, written=written))
    more_bytes = sum(kernel.bytes_written for kernel in before)
    for one in lower(replace(plain, operands=tuple(wide))):
        name, kernels = f"dequantised_{one.algorithm}", (*before, *one.kernels)
        made = replace(one, algorithm=name, kernels=kernels, workspace_bytes=one.workspace_bytes + more_bytes)
        found.append(made.among(frozenset(Architecture) - having))
    return [one for one in found if one.architectures]


#: A kernel on FP32 lanes: columns of a block, the most sums (by rows) of a thread, threads and registers.
_COLUMNS, _MOST_SUMS, _THREADS, _REGISTERS = (2, 8), 32, 128, 64
#: Operations that make fp32 of a stored number: a difference, and a shift and a mask, which run in part beside it.
_UNPACKING_FLOPS = 4
#: Arithmetic of a fused product relative to one of operands in 16 bits. Two weights take some three instructions;
#: beside 128 rows that is 9% of a Turing SM's clocks (512 multiply-adds and 64 integer instructions a clock), 19% of
#: Ampere's and 37% of Hopper's, in part beside the products (estimate).
_FUSED_ARITHMETIC = 1.25


def dequantised_product(step: Step) -> list[Candidate]:
    """The weight dequantised before the product, on the way to tensor cores, and on FP32 lanes for few rows."""
    a, weight = (operand.type for operand in step.operands[:2])
    count, columns, stored_bytes = weight.elements, weight.shape[1], step.weight_bytes
    wide = replace(weight, dtype=a.dtype)
    plain = replace(step, op=MatMul(), flops=step.flops - 2 * count)
    found = []
    first = stream_kernel("dequantise", count, 2 * count, read=0, weights=stored_bytes, written=wide.bytes)
    for one in matrix_product(replace(plain, operands=(step.operands[0], Operand(wide)))):
        kernels, workspace_bytes = (first, *one.kernels), wide.bytes + one.workspace_bytes
        name = f"dequantised_{one.algorithm}"
        found.append(replace(one, algorithm=name, kernels=kernels, workspace_bytes=workspace_bytes))
    for one in matrix_product(plain):
        product, *rest = one.kernels
        if product.steps:
            name, flops = f"fused_{product.name}", round(_FUSED_ARITHMETIC * product.flops)
            fused = replace(product, name=name, flops=flops, l2_bytes=product.l2_bytes - wide.bytes + stored_bytes)
            found.append(replace(one, algorithm=name, kernels=(fused, *rest)))
    for together in columns_together(step.outputs[0].elements // columns):
        name, blocks = f"few_rows{together}", ceil_div(columns, together)
        l2_bytes = blocks * step.activation_bytes + stored_bytes + step.bytes_written
        moved = step.activation_bytes, stored_bytes, step.bytes_written, l2_bytes
        block, work = (blocks, _THREADS, _REGISTERS, 0), step.flops + _UNPACKING_FLOPS * count
        kernel = Kernel(name, WorkClass.STREAM, *block, work, *moved, step.precision)
        found.append(Candidate(name, (kernel,), is_library_call=False))
    return found


def columns_together(rows: int) -> tuple[int, ...]:
    """The columns that a block of the kernel for few rows may make, of which a thread has a sum for each row."""
    return tuple(each for each in _COLUMNS if rows * each <= _MOST_SUMS)


def recurrent(step: Step[Recurrent]) -> list[Candidate]:
    """A candidate for each tile of the products; both directions share launches."""
    op = step.op
    x = step.operands[0].type
    steps, batch = (x.shape[1], x.shape[0]) if op.batch_first else (x.shape[0], x.shape[1])
    size, columns, d = x.dtype.bytes, op.gates * op.hidden, op.directions
    gates_bytes, state_bytes = batch * columns * d * size, batch * op.hidden * d * size

    def product(count: int, inner: int, read_bytes: int, made_bytes: int) -> Product:
        """The product that makes the gates of ``count`` columns of the input or the state, for each direction."""
        weight_bytes = d * columns * inner * size
        return Product(columns, count, inner, read_bytes, weight_bytes, made_bytes, size, step.precision, d)

    whole = product(steps * batch, x.shape[2], x.bytes, steps * gates_bytes)
    one = product(batch, op.hidden, state_bytes, gates_bytes)
    products = 2 * steps * batch * d * columns * (x.shape[2] + op.hidden)
    cell = stream_kernel(
        "recurrent_cell",
        batch * op.hidden * d,
        max(0, step.flops - products) // steps,
        read=2 * gates_bytes + state_bytes,
        written=2 * state_bytes,
    )
    found = []
    for tile in TILES:
        first, each = (product_kernel(part, tile, WorkClass.GEMM) for part in (whole, one))
        found.append(Candidate(f"recurrent_{tile}", (first, *(each, cell) * steps), steps * gates_bytes))
    return found


def split_products(
    product: Product,
    tile: Tile,
    work_class: WorkClass,
    extra_flops: int = 0,
    name: str = "",
    splits: Sequence[int] = _SPLITS,
) -> Iterator[tuple[Kernel, ...]]:
    """The product as one kernel, then with its inner dimension split in several ways, followed by the reduction."""
    count = tiles(product, tile)
    for split in splits:
        if split == 1:
            yield (product_kernel(product, tile, work_class, 1, extra_flops, name),)
        elif count <= MOST_TILES_TO_SPLIT and product.inner >= split * LEAST_INNER:
            yield product_kernel(product, tile, work_class, split, name=name), sum_of_parts(product, split, extra_flops)
