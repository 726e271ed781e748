"""Steps on images that lie as NHWC, as those on NCHW that compute the same."""

from __future__ import annotations

from dataclasses import replace

from iossim.hardware.lowering.step import Step
from iossim.ir.ops.channels_last import TO_FIRST, ChannelsLast, first_types, permuted


def as_channels_first(step: Step) -> Step:
    """The step of the op on NCHW; bytes and arithmetic are the same."""
    assert isinstance(step.op, ChannelsLast)
    x, *rest = step.operands
    return replace(
        step,
        op=step.op.channels_first,
        operands=(replace(x, type=permuted(x.type, TO_FIRST)), *rest),
        outputs=tuple(first_types(step.outputs)),
    )
