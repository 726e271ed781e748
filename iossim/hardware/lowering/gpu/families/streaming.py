"""Ops that read and write in order: element-wise chains, copies, and moves of data, by the engine's own kernels.

Ops that only move data (padding, repetition, blocks of pixels, entries picked by index) write each output element
once and read one element for it, or none: what is read is at most what is written.
"""

from __future__ import annotations

from iossim.hardware.lowering.gpu.matrix_product import step_kernel, stream_kernel
from iossim.hardware.lowering.kernel import Candidate
from iossim.hardware.lowering.step import Step
from iossim.ir.types import TensorType


def _stream(step: Step, name: str) -> list[Candidate]:
    kernel = step_kernel(step, name, sum(output.elements for output in step.outputs))
    return [Candidate(name, (kernel,), is_library_call=False)]


def elementwise(step: Step) -> list[Candidate]:
    """A chain of element-wise ops, whatever their number, as one kernel."""
    return _stream(step, "elementwise")


def concat_term(step: Step) -> list[Candidate]:
    """One term of a concat, written to its place: a copy, or the chain that makes the term."""
    return _stream(step, "copy" if len(step.operands) == 1 and not step.flops else "elementwise")


def copy(step: Step) -> list[Candidate]:
    """A copy; one launch for each output."""
    return [copy_candidate(*step.outputs)]


def copy_candidate(*moved: TensorType) -> Candidate:
    """Copies of tensors, a kernel each."""
    kernels = [stream_kernel("copy", one.elements, 0, read=one.bytes, written=one.bytes) for one in moved]
    return Candidate("copy", tuple(kernels), is_library_call=False)


def view(step: Step) -> list[Candidate]:
    """The same bytes. Only a unit that is nothing but an identity is lowered at all, to a copy."""
    return _stream(step, "copy")


def resample(step: Step) -> list[Candidate]:
    """One kernel that weighs the neighbours of each output."""
    return _stream(step, "resample")


def traffic(step: Step) -> list[Candidate]:
    """An op that only ONNX knows: one kernel that reads its inputs and writes its outputs."""
    return _stream(step, step.op.kind)


def move(step: Step) -> list[Candidate]:
    """One kernel that gathers its output."""
    return [_gathering(step, 0)]


def pick(step: Step) -> list[Candidate]:
    """One kernel that reads the indices, and of the data what they pick.

    A gradient of data is priced like that, too: it is written whole. No measurement is behind that.
    """
    return [_gathering(step, step.operands[1].type.bytes)]


def _gathering(step: Step, index_bytes: int) -> Candidate:
    (written,) = step.outputs
    data = step.operands[0]
    read = min(data.type.bytes, written.bytes)
    weights = read if data.is_weight else 0
    kernel = stream_kernel(
        step.op.kind,
        written.elements,
        step.flops,
        read=index_bytes + read - weights,
        weights=weights,
        written=written.bytes,
    )
    return Candidate(step.op.kind, (kernel,), is_library_call=False)
