"""Ops that only move data: padding, repetition, blocks of pixels, entries picked by index. The engine's own kernels.

Each output element is written once and reads one element, or none: what is read is at most what is written.
"""

from __future__ import annotations

from iossim.hardware.lowering.gpu.matrix_product import stream_kernel
from iossim.hardware.lowering.gpu.registry import FAMILIES
from iossim.hardware.lowering.kernel import Candidate
from iossim.hardware.lowering.step import Step


@FAMILIES.lowers("pad", "expand", "tile", "depth_to_space", "space_to_depth")
def move(step: Step) -> list[Candidate]:
    """One kernel that gathers its output."""
    return [_gathering(step, 0)]


@FAMILIES.lowers("gather", "gather_elements", "gather_nd", "gather_backward")
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
