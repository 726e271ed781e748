"""Ops whose outputs each need many inputs: sums and extremes over axes, running sums, normalisations, softmax, the
largest elements.

Each is one kernel, whose blocks divide the input, not the (often small) output. The passes over the input are those of
an implementation that keeps nothing in shared memory: first for statistics, then for the elements.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

from iossim.hardware.lowering.gpu.families.streaming import in_order, in_passes
from iossim.hardware.lowering.kernel import OF_COMPILERS, ROW_LANES, Candidate, Kernel, Libraries, WorkClass
from iossim.hardware.lowering.step import Step
from iossim.ir.op import normal_axis
from iossim.ir.types import DType

if TYPE_CHECKING:
    from iossim.ir.ops.normalization import LayerNorm, RmsNorm
    from iossim.ir.ops.reduce import ArgExtreme, CumSum, TopK
    from iossim.ir.ops.softmax import SoftmaxLike

_HALVES = (DType.FLOAT16, DType.BFLOAT16)
#: Passes over the input: statistics, then the elements; the digits of a radix selection.
_STATISTICS, _SELECTION = 2, 4
#: Threads of a block of layer norm, and clocks of an SM per row and per element: recordings of rows of 200 to 4,000
#: elements on a V100, a T4 and an A100 show 180 to 300 per row and 0.83 per element.
_NORM_THREADS, _MERGE_CLOCKS, _WELFORD_CLOCKS = 128, 250.0, 0.83


def reduction(step: Step) -> list[Candidate]:
    """A kernel with one pass over the input."""
    return list(in_passes(step, 1, WorkClass.SUM))


def selection(step: Step[ArgExtreme | CumSum | TopK]) -> list[Candidate]:
    """A kernel with one pass over the input, or, for the largest elements, with one for each byte of the keys.

    A block reads a row, however long (``cupy_cudnn``'s and most of PyTorch's). A pass takes a third of the clocks of
    a long softmax, which has three (an estimate, not measured).
    """
    passes = _SELECTION if step.op.kind == "top_k" else 1
    (found,) = in_passes(step, passes, WorkClass.ROW)
    x = step.operands[0].type
    flops = round(2 * ROW_LANES * passes * x.elements * _SOFTMAX_CLOCKS / 3)
    blocks = max(1, x.elements // x.shape[step.op.axis])
    kernel = replace(found.kernels[0], flops=flops, blocks=blocks, threads_per_block=_THREADS[1])
    return [replace(found, kernels=(kernel,))]


def normalisation(step: Step) -> list[Candidate]:
    """A kernel with two passes: statistics, then the elements.

    Half-precision kernels load one element at a time: on an A100 and an A40 their bandwidth is that of one load per
    thread. Those of compilers and ``cupy_cudnn`` load several, whatever the type.
    """
    is_narrow = step.operands[0].type.dtype in _HALVES
    (called,) = in_passes(step, _STATISTICS, WorkClass.NARROW_STREAM if is_narrow else WorkClass.STREAM)
    (compiled,) = in_passes(step, _STATISTICS, WorkClass.ROW)
    others = frozenset(Libraries) - OF_COMPILERS
    return [replace(called, libraries=others), replace(compiled, libraries=OF_COMPILERS)]


def row_normalisation(step: Step[LayerNorm | RmsNorm]) -> list[Candidate]:
    """The same for rows, each by a block of four warps (PyTorch's ``vectorized_layer_norm_kernel``).

    Each thread keeps a running mean and variance, which are merged within warps, then across warps; then it reads its
    elements again.
    """
    shape = step.operands[0].type.shape
    rows = math.prod(shape[: normal_axis(step.op.axis, len(shape))])
    if step.operands[0].type.dtype in _HALVES:
        return [*in_passes(step, _STATISTICS, WorkClass.NARROW_STREAM), *_narrow_rows(step, rows)]
    clocks = rows * _MERGE_CLOCKS + step.operands[0].type.elements * _WELFORD_CLOCKS
    kernel = _row_kernel(step, rows, _NORM_THREADS, clocks)
    return [Candidate(step.op.kind, (kernel,)), *_narrow_rows(step, rows)]


#: Longest row that a warp holds in its registers; elements of a longer one that a thread loads at once.
_ROW_IN_REGISTERS, _ELEMENTS_A_THREAD = 1024, 4
#: Clocks of an SM per element of a long row: 1.2 on an A100, 1.4 on a V100.
_SOFTMAX_CLOCKS = 1.3
#: Longest row that its block keeps, in the shared memory of a block (``cunn_SoftMaxForwardSmem``). Recordings of rows
#: of up to 16 KiB load them from DRAM once, however many rows are in flight (V100, P4).
_KEPT_ROW_BYTES = 48 * 1024


def softmax(step: Step[SoftmaxLike]) -> list[Candidate]:
    """Maximum, sum and division in one library call.

    A warp holds a row of up to 1,024 elements in registers and reads it once (PyTorch's ``softmax_warp_forward``). A
    block reads a longer one (``cunn_SoftMaxForward``) for each of maximum, sum and division, after the first time from
    where it is kept.
    """
    row, *rest = step.outputs[0].shape[step.op.axis :]
    row *= math.prod(rest) if step.op.flatten else 1
    elements = step.outputs[0].elements
    if row > _ROW_IN_REGISTERS:
        # PyTorch's SoftMax_getBlockSize: each thread has about two steps, and a block 512 threads at most.
        threads = 1 << (min(1024, row // _ELEMENTS_A_THREAD) // 2 - 1).bit_length()
        kernel = _row_kernel(step, elements // row, threads, elements * _SOFTMAX_CLOCKS)
        if row * step.outputs[0].dtype.bytes <= _KEPT_ROW_BYTES:
            kernel = replace(kernel, reread_bytes=0)
        return [Candidate("softmax", (kernel,)), *_narrow_rows(step, elements // row)]
    return [Candidate("softmax", (in_order(step, "softmax", elements),))]


#: Elements that each of a row's threads holds in registers; the fewest and most threads. Clocks of an SM for an element
#: (some 16 instructions load, sum, scale and store it), and for a thread (its part of a row's sums): not measured.
_HELD, _THREADS, _HELD_CLOCKS, _THREAD_CLOCKS = 32, (32, 256), 0.125, 2


def _narrow_rows(step: Step, rows: int) -> list[Candidate]:
    """The kernel of compilers and ``cupy_cudnn`` for rows of 16 bits or fewer: held in registers if they are short."""
    if step.operands[0].type.dtype.bytes > DType.FLOAT16.bytes:
        return []
    elements, (threads, most) = step.operands[0].type.elements, _THREADS
    while threads < most and threads * _HELD * rows < elements:
        threads *= 2
    kernel = _row_kernel(step, rows, threads, elements * _HELD_CLOCKS + rows * threads * _THREAD_CLOCKS)
    if threads * _HELD * rows >= elements:
        kernel = replace(kernel, l2_bytes=kernel.l2_bytes - kernel.reread_bytes, reread_bytes=0)
    return [Candidate(step.op.kind, (kernel,), libraries=frozenset({Libraries.COMPILED}))]


def _row_kernel(step: Step, rows: int, threads: int, sm_clocks: float) -> Kernel:
    """A kernel with a block of ``threads`` for each of ``rows``, whose elements it reads twice.

    Its issued instructions (merging of statistics, exponentials, addresses) are given in clocks of an SM with four
    schedulers, for all blocks together, and count as the arithmetic of that many clocks of 64 lanes.
    """
    flops = max(step.flops, round(2 * ROW_LANES * sm_clocks))
    read_bytes, weight_bytes, written = step.activation_bytes, step.weight_bytes, step.bytes_written
    moved = read_bytes, weight_bytes, written, 2 * read_bytes + weight_bytes + written
    blocks = max(1, rows)
    return Kernel(step.op.kind, WorkClass.ROW, blocks, threads, 32, 0, flops, *moved, reread_bytes=read_bytes)
