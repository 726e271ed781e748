"""Pooling: a window over each channel; about half of the bandwidth of a copy."""

from __future__ import annotations

from iossim.lowering.gpu.matrix_product import stream_kernel
from iossim.lowering.gpu.registry import FAMILIES
from iossim.lowering.kernel import Candidate, WorkClass
from iossim.lowering.step import Step


@FAMILIES.lowers("max_pool", "average_pool", "global_average_pool", "global_max_pool", "local_response_norm")
def pooling(step: Step) -> list[Candidate]:
    """One library call; a global pooling gives each channel of each image a block's share of threads."""
    elements = step.outputs[0].elements
    if step.op.kind.startswith("global"):
        elements = max(elements, step.operands[0].type.elements // 4)
    kernel = stream_kernel(
        "pooling",
        elements,
        step.flops,
        activation_bytes=step.activation_bytes,
        bytes_written=step.bytes_written,
        work_class=WorkClass.WINDOW,
    )
    return [Candidate("pooling", (kernel,))]
