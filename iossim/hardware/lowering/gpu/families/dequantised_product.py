"""Products with weights of 4 or 8 bits, by three kinds of kernels; their bytes are those of the stored weight.

- *Few rows*: a block reads a few columns of weights once, 16 bytes a thread and load, and multiplies them on FP32 lanes
  (the kernel of ``backends/cupy_cudnn``; frameworks have the like).
- *Fused*: kernels for 16 bits that dequantise weights between shared memory and tensor cores (Frantar et al., 2024,
  arXiv:2408.11743; CUTLASS' products of mixed inputs), so that the arithmetic takes longer.
- *Dequantised*: the weight dequantised into memory, then a product of the libraries.

No measurement of such a kernel stands behind these prices. Instructions are counted, rates are those of other kernels.
"""

from __future__ import annotations

from dataclasses import replace

from iossim.hardware.lowering.gpu.families.matrix_product import matrix_product
from iossim.hardware.lowering.gpu.matrix_product import stream_kernel
from iossim.hardware.lowering.kernel import Candidate, Kernel, WorkClass, ceil_div
from iossim.hardware.lowering.step import Operand, Step
from iossim.ir.ops.matmul import MatMul

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
