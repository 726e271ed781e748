"""Ops that read and write in order, by the engine's own kernels: element-wise chains, copies, and moves.

Ops that only move data (padding, repetition, blocks of pixels, lookups by index) write each output element once and
read at most one element for it, so that they read no more bytes than they write.
"""

from __future__ import annotations

from iossim.hardware.lowering.gpu.matrix_product import stream_kernel
from iossim.hardware.lowering.kernel import Candidate, Kernel, WorkClass
from iossim.hardware.lowering.step import Step
from iossim.ir.types import TensorType

#: Elements of the input that count like one output in the division of work among threads.
_ELEMENTS_A_SHARE = 4


def in_order(step: Step, name: str, elements: int, passes: int = 1, work_class: WorkClass = WorkClass.STREAM) -> Kernel:
    """A kernel that makes a step's outputs in order and reads its activations ``passes`` times."""
    moved = {"read": passes * step.activation_bytes, "weights": step.weight_bytes, "written": step.bytes_written}
    return stream_kernel(name, elements, step.flops, **moved, work_class=work_class)


def _outputs(step: Step) -> int:
    return sum(output.elements for output in step.outputs)


def _stream(step: Step, name: str) -> list[Candidate]:
    return [Candidate(name, (in_order(step, name, _outputs(step)),), is_library_call=False)]


def in_passes(step: Step, passes: int = 1, work_class: WorkClass = WorkClass.STREAM) -> list[Candidate]:
    """One kernel whose blocks divide what is larger, the outputs or the input that they reduce."""
    elements = max(_outputs(step), step.operands[0].type.elements // _ELEMENTS_A_SHARE)
    return [Candidate(step.op.kind, (in_order(step, step.op.kind, elements, passes, work_class),))]


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
