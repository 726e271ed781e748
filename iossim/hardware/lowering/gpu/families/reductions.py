"""Reductions: sums and extremes over axes, running sums, normalisations, softmax, the largest elements.

Each is one kernel, whose blocks divide the input, not the (often small) output. The passes over the input are those of
an implementation that keeps nothing in shared memory: first for statistics, then for the elements.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, cast

from iossim.hardware.lowering.gpu.matrix_product import row_kernel, step_kernel, stream_kernel
from iossim.hardware.lowering.kernel import Candidate, WorkClass
from iossim.hardware.lowering.step import Step
from iossim.ir.op import normal_axis
from iossim.ir.types import DType

if TYPE_CHECKING:
    from iossim.ir.ops.normalization import LayerNorm, RmsNorm
    from iossim.ir.ops.softmax import SoftmaxLike

HALVES = (DType.FLOAT16, DType.BFLOAT16)
#: Elements of the input that count like one output in the division of work among threads.
_ELEMENTS_A_SHARE = 4
#: Passes over the input: statistics, then the elements; the digits of a radix selection.
_STATISTICS, _SELECTION = 2, 4
#: Threads of a block of layer norm, and clocks of an SM per row and per element: recordings of rows of 200 to 4,000
#: elements on a V100, a T4 and an A100 show 180 to 300 per row and 0.83 per element.
_NORM_THREADS, _MERGE_CLOCKS, _WELFORD_CLOCKS = 128, 250.0, 0.83


def reduction(step: Step) -> list[Candidate]:
    """A kernel with one pass over the input; the blocks of a scan pass their sums on to the following ones."""
    return [_passes(step, 1)]


def normalisation(step: Step) -> list[Candidate]:
    """A kernel with two passes: statistics, then the elements.

    Half-precision kernels load one element at a time: on an A100 and an A40 their bandwidth is that of one load per
    thread.
    """
    candidate = _passes(step, _STATISTICS)
    if step.operands[0].type.dtype in HALVES:
        kernels = tuple(replace(kernel, work_class=WorkClass.NARROW_STREAM) for kernel in candidate.kernels)
        candidate = replace(candidate, kernels=kernels)
    return [candidate]


def row_normalisation(step: Step) -> list[Candidate]:
    """The same for rows, each by a block of four warps (PyTorch's ``vectorized_layer_norm_kernel``).

    Each thread keeps a running mean and variance, which are merged within warps, then across warps; then it reads its
    elements again.
    """
    if step.operands[0].type.dtype in HALVES:
        return normalisation(step)
    shape = step.operands[0].type.shape
    rows = math.prod(shape[: normal_axis(cast("LayerNorm | RmsNorm", step.op).axis, len(shape))])
    clocks = rows * _MERGE_CLOCKS + step.operands[0].type.elements * _WELFORD_CLOCKS
    return [Candidate(step.op.kind, (row_kernel(step, rows, _NORM_THREADS, clocks),))]


def selection(step: Step) -> list[Candidate]:
    """A radix selection, one byte of the keys per pass."""
    return [_passes(step, _SELECTION)]


#: Longest row that a warp holds in its registers; elements of a longer one that a thread loads at once.
_ROW_IN_REGISTERS, _ELEMENTS_A_THREAD = 1024, 4
#: Clocks of an SM per element of a long row: 1.2 on an A100, 1.4 on a V100.
_SOFTMAX_CLOCKS = 1.3


def softmax(step: Step) -> list[Candidate]:
    """Maximum, sum and division in one library call.

    A warp holds a row of up to 1,024 elements in registers and reads it once (PyTorch's ``softmax_warp_forward``). A
    block reads a longer one (``cunn_SoftMaxForward``) for each of maximum, sum and division.
    """
    op = cast("SoftmaxLike", step.op)
    row, *rest = step.outputs[0].shape[op.axis :]
    row *= math.prod(rest) if op.flatten else 1
    elements = step.outputs[0].elements
    if row > _ROW_IN_REGISTERS:
        # Four elements per thread; rounded down to a power of two, so that each thread has at least two steps.
        threads = min(1024, 1 << (math.ceil(row / _ELEMENTS_A_THREAD / 2) - 1).bit_length())
        return [Candidate("softmax", (row_kernel(step, elements // row, threads, elements * _SOFTMAX_CLOCKS),))]
    kernel = stream_kernel("softmax", elements, step.flops, read=step.activation_bytes, written=step.bytes_written)
    return [Candidate("softmax", (kernel,))]


def _passes(step: Step, passes: int) -> Candidate:
    outputs = sum(output.elements for output in step.outputs)
    elements = max(outputs, step.operands[0].type.elements // _ELEMENTS_A_SHARE)
    return Candidate(step.op.kind, (step_kernel(step, step.op.kind, elements, passes),))
