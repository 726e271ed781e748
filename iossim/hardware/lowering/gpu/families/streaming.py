"""Ops that read and write in order: element-wise chains, copies, and moves of data, by the engine's own kernels.

Ops that only move data (padding, repetition, blocks of pixels, lookups by index) write each output element once and
read at most one element for it, so that they read no more bytes than they write.
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
    """One kernel for a chain of element-wise ops of any length."""
    return _stream(step, "elementwise")


def concat_term(step: Step) -> list[Candidate]:
    """One term of a concat written in place: a copy, or the chain that makes the term."""
    return _stream(step, "copy" if len(step.operands) == 1 and not step.flops else "elementwise")


def copy(step: Step) -> list[Candidate]:
    """A copy with one launch per output."""
    return [copy_candidate(*step.outputs)]


def copy_candidate(*moved: TensorType) -> Candidate:
    """Copies of tensors, one kernel each."""
    kernels = [stream_kernel("copy", one.elements, 0, read=one.bytes, written=one.bytes) for one in moved]
    return Candidate("copy", tuple(kernels), is_library_call=False)


def view(step: Step) -> list[Candidate]:
    """A copy: views are lowered only in a unit that is nothing but an identity."""
    return _stream(step, "copy")


def resample(step: Step) -> list[Candidate]:
    """One kernel that computes the weighted sum of each output's neighbours."""
    return _stream(step, "resample")


def traffic(step: Step) -> list[Candidate]:
    """One kernel that reads the inputs and writes the outputs of an op known only to ONNX."""
    return _stream(step, step.op.kind)


def move(step: Step) -> list[Candidate]:
    """One kernel that gathers its output."""
    return [_gathering(step, 0)]


def pick(step: Step) -> list[Candidate]:
    """One kernel that reads the indices and the selected data.

    A gradient of the data, which is written whole, is priced in the same way; this is not measured.
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
