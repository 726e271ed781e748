"""Ops that read and write in order: element-wise chains, copies, reductions. The engine's own kernels, not a library's."""

from __future__ import annotations

import math

from iossim.ir.ops.softmax import SoftmaxLike
from iossim.ir.types import TensorType
from iossim.lowering.kernel import Candidate
from iossim.lowering.matrix_product import stream_kernel
from iossim.lowering.step import Role, Step, lowers


def _stream(step: Step, name: str) -> list[Candidate]:
    kernel = stream_kernel(
        name,
        sum(output.elements for output in step.outputs),
        step.flops,
        activation_bytes=step.activation_bytes,
        weight_bytes=step.weight_bytes,
        bytes_written=step.bytes_written,
    )
    return [Candidate(name, (kernel,), is_library_call=False)]


@lowers("add", "mul", "nary", "where", "cast", "prelu", "quantize", "dequantize", "batch_norm", role=Role.ELEMENTWISE)
def elementwise(step: Step) -> list[Candidate]:
    """A chain of element-wise ops, whatever their number, as one kernel."""
    return _stream(step, "elementwise")


@lowers("relu", "clip", "sigmoid", "unary", role=Role.ACTIVATION)
def activation(step: Step) -> list[Candidate]:
    """An activation that no product before it takes into its epilogue."""
    return _stream(step, "elementwise")


@lowers("concat", role=Role.CONCAT)
def concat_term(step: Step) -> list[Candidate]:
    """One term of a concat, written to its place: a copy, or the chain that makes the term."""
    return _stream(step, "copy" if len(step.operands) == 1 and not step.flops else "elementwise")


@lowers("slice", "split", "transpose")
def copy(step: Step) -> list[Candidate]:
    """A copy; one launch for each output."""
    return [copy_candidate(*step.outputs)]


def copy_candidate(*moved: TensorType) -> Candidate:
    """Copies of tensors, a kernel each."""
    kernels = [
        stream_kernel("copy", one.elements, 0, activation_bytes=one.bytes, bytes_written=one.bytes) for one in moved
    ]
    return Candidate("copy", tuple(kernels), is_library_call=False)


@lowers("identity", "reshape", "flatten", role=Role.VIEW)
def view(step: Step) -> list[Candidate]:
    """The same bytes. Only a unit that is nothing but an identity is lowered at all, to a copy."""
    return _stream(step, "copy")


#: Elements of a row that a warp holds in its registers.
_ROW_IN_REGISTERS = 1024


@lowers("softmax", "log_softmax", "hardmax", has_prologue=True)
def softmax(step: Step) -> list[Candidate]:
    """Maximum, sum and division in one library call.

    Rows of up to 1,024 elements are held in registers by a warp each, and read once (PyTorch's ``softmax_warp_forward``).
    Longer ones are read three times by a block each; the second and third time mostly from caches, and recordings of five
    generations show 1.2 to 1.8 times the time of a single pass: they count one pass more.
    """
    assert isinstance(step.op, SoftmaxLike)
    row, *rest = step.outputs[0].shape[step.op.axis :]
    row *= math.prod(rest) if step.op.flatten else 1
    passes = 1 if row <= _ROW_IN_REGISTERS else 2
    kernel = stream_kernel(
        "softmax",
        step.outputs[0].elements,
        step.flops,
        activation_bytes=passes * step.activation_bytes,
        bytes_written=step.bytes_written,
    )
    return [Candidate("softmax", (kernel,))]


@lowers("resize")
def resample(step: Step) -> list[Candidate]:
    """One kernel that weighs the neighbours of each output."""
    return _stream(step, "resample")


@lowers("")
def unknown(step: Step) -> list[Candidate]:
    """An op kind that no family registered: one kernel that reads its inputs and writes its outputs."""
    return _stream(step, step.op.kind)
