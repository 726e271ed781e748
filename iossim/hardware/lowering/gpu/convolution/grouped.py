"""Depthwise and grouped convolution as cuDNN 7.6 does it for fp32 tensors NCHW: an implicit product for each group.

The grid has a slice for each group, and a block computes a tile of 32 pixels by 32 filters of its group as the implicit
product without a table of offsets does. Filters that the group does not have are computed all the same: of a
depthwise convolution 31 columns of 32 are lost. That is why frameworks wrote depthwise kernels of their own.

The inner dimension is a window of few channels, some steps of the product's loop, so that filling and draining a block
take as long as its loop: the kernel waits more than it computes, which is what kernels beside it gain by. Blocks read
what their tile needs of the input once; windows that overlap inside a tile hit L1.

No kernel of this family has been measured alone. With what dense convolutions tell of such products, the efficiency of
an implicit product with 32x32 tiles and the time to fill and drain a wave of blocks, and nothing else, NasNet-A run unit
after unit is foretold 14 per cent too long. One number is pinned on that latency, how much of that filling and draining
is seen (``GROUPED_PROLOGUE_SEEN`` of ``backends.simulator.kernel_times``). NasNet-A's other latencies take no part.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from iossim.hardware.lowering.convolution_shape import ConvolutionShape
from iossim.hardware.lowering.gpu.matrix_product import INNER_STEP
from iossim.hardware.lowering.kernel import Candidate, Kernel, Libraries, WorkClass, ceil_div

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
    kernel = Kernel(
        name,
        WorkClass.GROUPED,
        blocks,
        _THREADS,
        _REGISTERS,
        _SHARED_BYTES,
        2 * blocks * _PIXELS * _FILTERS * inner + shape.epilogue_flops,
        shape.input_bytes,
        shape.weight_bytes,
        shape.output_bytes,
        loads + shape.output_bytes,
        shape.precision,
        tile,
    )
    yield Candidate(name, (kernel,), libraries=frozenset({Libraries.CUDNN_7}))
