"""Ops that read and write in order: element-wise chains, copies, and moves of data, by the engine's own kernels.

Ops that only move data (padding, repetition, blocks of pixels, entries picked by index) write each output element
once and read one element for it, or none: what is read is at most what is written.
"""

from __future__ import annotations

import math

from iossim.hardware.lowering.gpu.matrix_product import row_kernel, step_kernel, stream_kernel
from iossim.hardware.lowering.gpu.tensor_core_convolution import layout_kernel
from iossim.hardware.lowering.kernel import Candidate
from iossim.hardware.lowering.step import Step
from iossim.ir.ops.channels_last import TO_FIRST, TO_LAST
from iossim.ir.ops.reshape import Transpose
from iossim.ir.ops.softmax import SoftmaxLike
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


def transpose(step: Step) -> list[Candidate]:
    """From NCHW to NHWC, or back, the kernel that libraries have for it; any other as a copy."""
    assert isinstance(step.op, Transpose)
    (y,) = step.outputs
    if step.op.permutation == TO_LAST:
        images, *positions, channels = y.shape
    elif step.op.permutation == TO_FIRST:
        images, channels, *positions = y.shape
    else:
        return [copy_candidate(y)]
    kernel = layout_kernel("layout", images, channels, math.prod(positions), y.bytes, element_bytes=y.dtype.bytes)
    return [Candidate("layout", (kernel,), is_library_call=False)]


def copy_candidate(*moved: TensorType) -> Candidate:
    """Copies of tensors, a kernel each."""
    kernels = [
        stream_kernel("copy", one.elements, 0, activation_bytes=one.bytes, bytes_written=one.bytes) for one in moved
    ]
    return Candidate("copy", tuple(kernels), is_library_call=False)


def view(step: Step) -> list[Candidate]:
    """The same bytes. Only a unit that is nothing but an identity is lowered at all, to a copy."""
    return _stream(step, "copy")


#: Elements of a row that a warp holds in its registers; of a longer one, those that a thread loads at once.
_ROW_IN_REGISTERS, _ELEMENTS_A_THREAD = 1024, 4
#: Clocks of an SM for an element of a long row: 1.2 on an A100, 1.4 on a V100.
_SOFTMAX_CLOCKS = 1.3


def softmax(step: Step) -> list[Candidate]:
    """Maximum, sum and division in one library call.

    Rows of up to 1,024 elements are held in registers by a warp each, and read once (PyTorch's
    ``softmax_warp_forward``). A block reads longer ones (``cunn_SoftMaxForward``) for maximum, sum and division.
    """
    assert isinstance(step.op, SoftmaxLike)
    row, *rest = step.outputs[0].shape[step.op.axis :]
    row *= math.prod(rest) if step.op.flatten else 1
    elements = step.outputs[0].elements
    if row > _ROW_IN_REGISTERS:
        # Four elements a thread, rounded down to a power of two that leaves each at least two steps.
        threads = min(1024, 1 << (math.ceil(row / _ELEMENTS_A_THREAD / 2) - 1).bit_length())
        return [Candidate("softmax", (row_kernel(step, elements // row, threads, elements * _SOFTMAX_CLOCKS),))]
    kernel = stream_kernel(
        "softmax", elements, step.flops, activation_bytes=step.activation_bytes, bytes_written=step.bytes_written
    )
    return [Candidate("softmax", (kernel,))]


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
    kernel = stream_kernel(
        step.op.kind,
        written.elements,
        step.flops,
        activation_bytes=index_bytes + (0 if data.is_weight else read),
        weight_bytes=read if data.is_weight else 0,
        bytes_written=written.bytes,
    )
    return Candidate(step.op.kind, (kernel,), is_library_call=False)
