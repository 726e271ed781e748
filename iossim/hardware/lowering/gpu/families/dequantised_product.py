"""Products with weights of 4 or 8 bits, by three kinds of kernels; their bytes are those of the stored weight.

- *Few rows*: a block reads a few columns of weights once, 16 bytes a thread and load, and multiplies them on FP32 lanes
  (the kernel of ``backends/cupy_cudnn``; frameworks have the like).
- *Fused*: kernels for 16 bits that dequantise weights between shared memory and tensor cores (Frantar et al., 2024,
  arXiv:2408.11743; CUTLASS' products of mixed inputs), so that the arithmetic takes longer.
- *Dequantised*: the weight dequantised into memory, then a product of the libraries.

No measurement of such a kernel stands behind these prices. Instructions are counted, rates are those of other kernels.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from iossim.hardware.lowering.gpu.families.matrix_product import matrix_product
from iossim.hardware.lowering.gpu.matrix_product import stream_kernel
from iossim.hardware.lowering.kernel import OF_FRAMEWORKS, Candidate, Kernel, WorkClass, ceil_div
from iossim.hardware.lowering.step import Operand, Step
from iossim.ir.ops.matmul import MatMul
from iossim.ir.types import TensorType

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
    return [*_dequantised(step), *_fused(step), *_few_rows(step)]


def _as_product(step: Step) -> Step:
    flops = step.flops - 2 * step.operands[1].type.elements
    return replace(step, op=MatMul(), flops=flops)


def _wide(step: Step) -> TensorType:
    """The weight in the type of the activations."""
    return TensorType(step.operands[1].type.shape, step.operands[0].type.dtype)


def _dequantised(step: Step) -> Iterator[Candidate]:
    wide, (a, *_) = _wide(step), step.operands
    count = wide.elements
    first = stream_kernel("dequantise", count, 2 * count, read=0, weights=step.weight_bytes, written=wide.bytes)
    for one in matrix_product(replace(_as_product(step), operands=(a, Operand(wide)))):
        yield replace(
            one,
            algorithm=f"dequantised_{one.algorithm}",
            kernels=(first, *one.kernels),
            workspace_bytes=wide.bytes + one.workspace_bytes,
        )


def _fused(step: Step) -> Iterator[Candidate]:
    saved_bytes = _wide(step).bytes - step.weight_bytes
    for one in matrix_product(_as_product(step)):
        product, *rest = one.kernels
        if product.steps:
            l2_bytes, flops = product.l2_bytes - saved_bytes, round(_FUSED_ARITHMETIC * product.flops)
            fused = replace(product, name=f"fused_{product.name}", flops=flops, l2_bytes=l2_bytes)
            yield replace(one, algorithm=fused.name, kernels=(fused, *rest), libraries=OF_FRAMEWORKS)


def _few_rows(step: Step) -> Iterator[Candidate]:
    columns = step.operands[1].type.shape[1]
    read_bytes, weight_bytes, written = step.activation_bytes, step.weight_bytes, step.bytes_written
    flops = step.flops + _UNPACKING_FLOPS * step.operands[1].type.elements
    for together in _COLUMNS:
        if together * step.outputs[0].elements > _MOST_SUMS * columns:
            continue
        blocks = ceil_div(columns, together)
        moved = read_bytes, weight_bytes, written, blocks * read_bytes + weight_bytes + written
        name = f"few_rows{together}"
        kernel = Kernel(name, WorkClass.STREAM, blocks, _THREADS, _REGISTERS, 0, flops, *moved, step.precision)
        yield Candidate(name, (kernel,), is_library_call=False)
