"""Depthwise and grouped convolution: the products of cuDNN 7.6, and the depthwise kernels of frameworks.

cuDNN 7.6 runs an implicit product for each group of fp32 tensors NCHW. A block computes a tile of 32 pixels by 32
filters of its group, including filters that the group does not have: of a depthwise convolution 31 columns of 32 are
lost. The inner dimension is a window of few channels, so that filling and draining a block takes as long as its loop.
Blocks read what their tile needs of the input once; windows that overlap inside a tile hit L1.

Nobody measured these kernels alone. Their efficiency is that of an implicit product with 32x32 tiles; which part of
filling and draining is seen (``GROUPED_PROLOGUE_SEEN`` of ``backends.simulator.device_rates``) is pinned on the
published latency of NasNet-A run unit after unit, which is predicted 14 per cent too long without it.

Depthwise kernels of frameworks have a thread an output. It finds its channel, image and pixel by dividing its number,
then loads, multiplies and adds the window: it is bound by issuing all that. Divisions and bounds cost about as much
as fourteen taps: windows of 3 to 15 taps on an A100 and an RTX A6000 (PyTorch's own kernel) tell that within a third.
Consecutive threads are consecutive pixels; with a stride a load of a warp takes as many times as long. A block covers
some rows of its image, and reads the rows that its windows reach beyond those as well.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from iossim.hardware.lowering.convolution_shape import ConvolutionShape
from iossim.hardware.lowering.gpu.matrix_product import INNER_STEP
from iossim.hardware.lowering.kernel import OF_TODAY, Candidate, Kernel, Libraries, WorkClass, ceil_div

#: Of a block: pixels, filters, threads, registers of each, bytes of shared memory.
_PIXELS = _FILTERS = 32
_THREADS, _REGISTERS, _SHARED_BYTES = 64, 64, 4_352


def grouped(shape: ConvolutionShape) -> Iterator[Candidate]:
    """The one candidate of the published engine's library; none for a convolution of one group."""
    if shape.groups == 1:
        return
    filters, channels = shape.filters // shape.groups, shape.channels // shape.groups
    blocks = ceil_div(shape.pixels, _PIXELS) * ceil_div(filters, _FILTERS) * shape.groups
    inner = ceil_div(channels * math.prod(shape.kernel), INNER_STEP) * INNER_STEP
    loads = ceil_div(filters, _FILTERS) * shape.input_bytes + ceil_div(shape.pixels, _PIXELS) * shape.weight_bytes
    tile = f"{_PIXELS}x{_FILTERS}"
    name = f"grouped_convolve_{tile}"
    flops = 2 * blocks * _PIXELS * _FILTERS * inner + shape.epilogue_flops
    moved = shape.input_bytes, shape.weight_bytes, shape.output_bytes, loads + shape.output_bytes
    block = _THREADS, _REGISTERS, _SHARED_BYTES
    kernel = Kernel(name, WorkClass.GROUPED, blocks, *block, flops, *moved, shape.precision, tile)
    yield Candidate(name, (kernel,), libraries=frozenset({Libraries.CUDNN_7}))


_DEPTHWISE_THREADS = 256
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
    moved = shape.input_bytes, shape.weight_bytes, shape.output_bytes, traffic
    blocks, flops = ceil_div(outputs, _DEPTHWISE_THREADS), 2 * outputs * taps + shape.epilogue_flops
    kernel = Kernel("depthwise", WorkClass.DEPTHWISE, blocks, _DEPTHWISE_THREADS, 40, 4_096, flops, *moved)
    yield Candidate("depthwise", (kernel,), libraries=OF_TODAY)


def _halo(shape: ConvolutionShape) -> float:
    """How often a block's rows of the input are read from L2, over what its own outputs stand on: 1 or more."""
    row = math.prod(shape.output_size[1:])
    rows = max(1, min(_DEPTHWISE_THREADS // max(1, row), shape.output_size[0]))
    own = rows * shape.strides[0]
    return max(1.0, (own - shape.strides[0] + shape.kernel[0]) / own)
