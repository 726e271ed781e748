"""Ops that read and write in order, by the engine's own kernels: element-wise chains, copies, moves, and reductions.

Ops that only move data (padding, repetition, blocks of pixels, lookups by index) write each output element once and
read at most one element for it, so that they read no more bytes than they write.

Reductions (sums and extremes over axes, running sums, normalisations, softmax, the largest elements) are one kernel
each, whose blocks divide the input, not the (often small) output. The passes over the input are those of an
implementation that keeps nothing in shared memory: first for statistics, then for the elements.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, cast

from iossim.hardware.lowering.gpu.matrix_product import stream_kernel
from iossim.hardware.lowering.kernel import OF_COMPILERS, Candidate, Kernel, Libraries, WorkClass
from iossim.hardware.lowering.step import Step
from iossim.ir.op import normal_axis
from iossim.ir.types import DType, TensorType

if TYPE_CHECKING:
    from iossim.ir.ops.normalization import LayerNorm, RmsNorm
    from iossim.ir.ops.softmax import SoftmaxLike


def _in_order(
    step: Step, name: str, elements: int, passes: int = 1, work_class: WorkClass = WorkClass.STREAM
) -> Kernel:
    """A kernel that makes a step's outputs in order and reads its activations ``passes`` times."""
    moved = {"read": passes * step.activation_bytes, "weights": step.weight_bytes, "written": step.bytes_written}
    return stream_kernel(name, elements, step.flops, **moved, work_class=work_class)


def _outputs(step: Step) -> int:
    return sum(output.elements for output in step.outputs)


def _stream(step: Step, name: str) -> list[Candidate]:
    return [Candidate(name, (_in_order(step, name, _outputs(step)),), is_library_call=False)]


def elementwise(step: Step) -> list[Candidate]:
    """One kernel for a chain of element-wise ops of any length."""
    return _stream(step, "elementwise")


def moved_or_made(step: Step) -> list[Candidate]:
    """A term of a concat, written in place: a copy, or the chain that makes it; for a view alone in its unit a copy."""
    return _stream(step, "copy" if len(step.operands) == 1 and not step.flops else "elementwise")


def copy(step: Step) -> list[Candidate]:
    """A copy with one launch per output."""
    return [copy_candidate(*step.outputs)]


def copy_candidate(*moved: TensorType) -> Candidate:
    """Copies of tensors, one kernel each."""
    kernels = [stream_kernel("copy", one.elements, 0, read=one.bytes, written=one.bytes) for one in moved]
    return Candidate("copy", tuple(kernels), is_library_call=False)


def traffic(step: Step) -> list[Candidate]:
    """One kernel that reads the inputs and writes the outputs: of an op known only to ONNX, or of a resampling, which
    computes the weighted sum of each output's neighbours.
    """
    return _stream(step, step.op.kind)


def gathering(step: Step) -> list[Candidate]:
    """One kernel that reads the indices, if there are any, and the selected data.

    A gradient of the data, which is written whole, is priced in the same way; this is not measured.
    """
    (written,), (data, *indices) = step.outputs, step.operands
    read = min(data.type.bytes, written.bytes)
    weights = read if data.is_weight else 0
    read += sum(each.type.bytes for each in indices) - weights
    moved = {"read": read, "weights": weights, "written": written.bytes}
    kernel = stream_kernel(step.op.kind, written.elements, step.flops, **moved, work_class=WorkClass.STREAM)
    return [Candidate(step.op.kind, (kernel,), is_library_call=False)]


_HALVES = (DType.FLOAT16, DType.BFLOAT16)
#: Elements of the input that count like one output in the division of work among threads.
_ELEMENTS_A_SHARE = 4
#: Passes over the input: statistics, then the elements; the digits of a radix selection.
_STATISTICS, _SELECTION = 2, 4
#: Threads of a block of layer norm, and clocks of an SM per row and per element: recordings of rows of 200 to 4,000
#: elements on a V100, a T4 and an A100 show 180 to 300 per row and 0.83 per element.
_NORM_THREADS, _MERGE_CLOCKS, _WELFORD_CLOCKS = 128, 250.0, 0.83


def reduction(step: Step) -> list[Candidate]:
    """A kernel with one pass over the input; the blocks of a scan pass their sums on to the following ones, and a radix
    selection has one for each byte of the keys.
    """
    return _passes(step, _SELECTION if step.op.kind == "top_k" else 1)


def normalisation(step: Step) -> list[Candidate]:
    """A kernel with two passes: statistics, then the elements.

    Half-precision kernels load one element at a time: on an A100 and an A40 their bandwidth is that of one load per
    thread. Those of compilers and ``cupy_cudnn`` load several, whatever the type.
    """
    is_narrow = step.operands[0].type.dtype in _HALVES
    (called,) = _passes(step, _STATISTICS, WorkClass.NARROW_STREAM if is_narrow else WorkClass.STREAM)
    (compiled,) = _passes(step, _STATISTICS, WorkClass.ROW)
    others = frozenset(Libraries) - OF_COMPILERS
    return [replace(called, libraries=others), replace(compiled, libraries=OF_COMPILERS)]


def row_normalisation(step: Step) -> list[Candidate]:
    """The same for rows, each by a block of four warps (PyTorch's ``vectorized_layer_norm_kernel``).

    Each thread keeps a running mean and variance, which are merged within warps, then across warps; then it reads its
    elements again.
    """
    shape = step.operands[0].type.shape
    rows = math.prod(shape[: normal_axis(cast("LayerNorm | RmsNorm", step.op).axis, len(shape))])
    if step.operands[0].type.dtype in _HALVES:
        return [*_passes(step, _STATISTICS, WorkClass.NARROW_STREAM), *_narrow_rows(step, rows)]
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


def softmax(step: Step) -> list[Candidate]:
    """Maximum, sum and division in one library call.

    A warp holds a row of up to 1,024 elements in registers and reads it once (PyTorch's ``softmax_warp_forward``). A
    block reads a longer one (``cunn_SoftMaxForward``) for each of maximum, sum and division, after the first time from
    where it is kept.
    """
    op = cast("SoftmaxLike", step.op)
    row, *rest = step.outputs[0].shape[op.axis :]
    row *= math.prod(rest) if op.flatten else 1
    elements = step.outputs[0].elements
    if row > _ROW_IN_REGISTERS:
        # PyTorch's SoftMax_getBlockSize: each thread has about two steps, and a block 512 threads at most.
        threads = 1 << (min(1024, row // _ELEMENTS_A_THREAD) // 2 - 1).bit_length()
        kernel = _row_kernel(step, elements // row, threads, elements * _SOFTMAX_CLOCKS)
        if row * step.outputs[0].dtype.bytes <= _KEPT_ROW_BYTES:
            kernel = replace(kernel, reread_bytes=0)
        return [Candidate("softmax", (kernel,)), *_narrow_rows(step, elements // row)]
    return [Candidate("softmax", (_in_order(step, "softmax", elements),))]


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


def _passes(step: Step, passes: int, work_class: WorkClass = WorkClass.STREAM) -> list[Candidate]:
    elements = max(_outputs(step), step.operands[0].type.elements // _ELEMENTS_A_SHARE)
    return [Candidate(step.op.kind, (_in_order(step, step.op.kind, elements, passes, work_class),))]


#: Multiply-adds per clock of the SM whose clocks :func:`_row_kernel` counts.
ROW_LANES = 64


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
