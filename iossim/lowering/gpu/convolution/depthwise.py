"""Depthwise convolution: each channel has filters of its own, so there is no matrix product in it."""

from __future__ import annotations

import math
from collections.abc import Iterator

from iossim.lowering.convolution_shape import ConvolutionShape
from iossim.lowering.kernel import Candidate, Kernel, WorkClass, ceil_div

_THREADS = 256


def depthwise(shape: ConvolutionShape) -> Iterator[Candidate]:
    """One thread an output pixel; none for a convolution that is not depthwise."""
    if not shape.is_depthwise:
        return
    outputs = shape.filters * shape.pixels
    window = math.prod(shape.kernel)
    traffic = shape.input_bytes + shape.weight_bytes + shape.output_bytes
    yield Candidate(
        "depthwise",
        (
            Kernel(
                "depthwise",
                WorkClass.DEPTHWISE,
                ceil_div(outputs, _THREADS),
                _THREADS,
                40,
                4_096,
                2 * outputs * window + shape.epilogue_flops,
                shape.input_bytes,
                shape.weight_bytes,
                shape.output_bytes,
                traffic,
            ),
        ),
    )
