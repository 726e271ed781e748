"""Depthwise convolution as frameworks do it since: a thread an output, no matrix product, a kernel of their own.

A thread finds its channel, image and pixel by dividing its number, then loads, multiplies and adds the window: what
bounds it is not arithmetic but issuing all that. The divisions and bounds cost about as much as fourteen taps: what
windows of 3 to 15 taps take on an A100 and an RTX A6000 (PyTorch's own kernel) tells that within a third. Consecutive
threads are consecutive pixels; with a stride a load of a warp lies strewn over as many times the bytes, and takes as many
times as long. A block covers some rows of its image, and reads the rows that its windows reach beyond those as well.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from iossim.hardware.lowering.convolution_shape import ConvolutionShape
from iossim.hardware.lowering.kernel import OF_TODAY, Candidate, Kernel, WorkClass, ceil_div

_THREADS = 256
#: What finding its place costs a thread, in taps of the window.
_TAPS_OF_INDEXING = 14
#: Sides of the square windows that the loops are compiled for, and what a row of any other costs beside its taps: 3x5
#: windows take 1.3 to 1.6 times as long as 3x3 ones on an A100, a T4 and an RTX A6000.
_COMPILED, _TAPS_OF_A_ROW = ({1}, {3}, {5}), 1.5


def depthwise(shape: ConvolutionShape) -> Iterator[Candidate]:
    """One thread an output pixel; none for a convolution that is not depthwise."""
    if not shape.is_depthwise:
        return
    outputs = shape.filters * shape.pixels
    taps = math.prod(shape.kernel) * shape.strides[-1] + _TAPS_OF_INDEXING
    if set(shape.kernel) not in _COMPILED:
        taps += math.ceil(_TAPS_OF_A_ROW * math.prod(shape.kernel[:-1]))
    traffic = math.ceil(shape.input_bytes * _halo(shape)) + shape.weight_bytes + shape.output_bytes
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
                2 * outputs * taps + shape.epilogue_flops,
                shape.input_bytes,
                shape.weight_bytes,
                shape.output_bytes,
                traffic,
            ),
        ),
        libraries=OF_TODAY,
    )


def _halo(shape: ConvolutionShape) -> float:
    """How often a block's rows of the input are read from L2, over what its own outputs stand on: 1 or more."""
    row = math.prod(shape.output_size[1:])
    rows = max(1, min(_THREADS // max(1, row), shape.output_size[0]))
    own = rows * shape.strides[0]
    return max(1.0, (own - shape.strides[0] + shape.kernel[0]) / own)
