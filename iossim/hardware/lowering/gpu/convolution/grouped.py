"""Depthwise and grouped convolution: the products of cuDNN 7.6, and the depthwise kernels of frameworks.

cuDNN 7.6 runs an implicit product for each group of fp32 tensors in NCHW. A block computes a tile of 32 pixels by 32
filters of its group, including filters that the group does not have: a depthwise convolution wastes 31 of 32 columns.
The inner dimension is a window of few channels, so that filling and draining a block takes as long as its loop. Blocks
read the input of their tile once; overlapping windows inside a tile hit L1.

These kernels were not measured alone. Their efficiency is that of an implicit product with 32x32 tiles; the visible
fraction of filling and draining (``GROUPED_PROLOGUE_SEEN`` of ``backends.simulator.device_rates``) is fitted to the
published latency of NasNet-A run unit after unit, which is predicted 14 per cent too long without it.

Depthwise kernels of frameworks have one thread per output. It finds its channel, image and pixel by dividing its
number, then loads, multiplies and adds the window: it is limited by instruction issue. Divisions and bounds cost about
as much as fourteen taps, within a third for windows of 3 to 15 taps on an A100 and an RTX A6000 (PyTorch's own kernel).
Consecutive threads are consecutive pixels; with a stride of s a warp's load takes s times as long, before Hopper. A
block covers some rows of its image, and also reads the rows beyond them that its windows reach.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

from iossim.hardware.compute_capability import SINCE_HOPPER, Architecture
from iossim.hardware.lowering.gpu.matrix_product import INNER_STEP
from iossim.hardware.lowering.gpu.tensor_core_families import CONTENTION
from iossim.hardware.lowering.kernel import OF_TODAY, Candidate, Kernel, Libraries, WorkClass, ceil_div
from iossim.hardware.lowering.step import ConvolutionShape
from iossim.ir.types import Precision

#: Resources of a block: pixels, filters, threads, registers per thread, bytes of shared memory.
_PIXELS = _FILTERS = 32
_THREADS, _REGISTERS, _SHARED_BYTES = 64, 64, 4_352


def grouped(shape: ConvolutionShape) -> Iterator[Candidate]:
    """The single candidate of the published engine's library; none for a convolution of one group."""
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
#: Cost of finding the output's position, in taps of the window.
_TAPS_OF_INDEXING = 14
#: Sides of the square windows for which loops are compiled, and the cost of a row of any other window besides its taps:
#: 3x5 windows take 1.3 to 1.6 times as long as 3x3 ones (A100, T4, RTX A6000), 7x7 ones three times (H200).
_COMPILED, _TAPS_OF_A_ROW = ({1}, {3}, {5}), 2.5
#: Threads of a block, registers and shared memory of 66 recordings on an H200, where a stride costs nothing.
_ON_HOPPER = 1_024, 32, 0


def depthwise(shape: ConvolutionShape) -> Iterator[Candidate]:
    """The framework's candidates, with one thread per output; none for a convolution that is not depthwise."""
    if not shape.is_depthwise:
        return
    is_compiled = set(shape.kernel) in _COMPILED
    others = _TAPS_OF_INDEXING + (0 if is_compiled else math.ceil(_TAPS_OF_A_ROW * math.prod(shape.kernel[:-1])))
    traffic = math.ceil(shape.input_bytes * _halo(shape)) + shape.weight_bytes + shape.output_bytes
    before = frozenset(Architecture) - SINCE_HOPPER, shape.strides[-1], (_DEPTHWISE_THREADS, 40, 4_096)
    for where, stride, block in (before, (SINCE_HOPPER, 1, _ON_HOPPER)):
        kernel = _window_kernel("depthwise", shape, math.prod(shape.kernel) * stride + others, block[0], block)
        kernel = replace(kernel, work_class=WorkClass.DEPTHWISE, l2_bytes=traffic)
        yield Candidate("depthwise", (kernel,), architectures=where, libraries=OF_TODAY)


def _window_kernel(
    name: str, shape: ConvolutionShape, taps: float, outputs_a_block: int, block: tuple[int, int, int], rate: float = 1
) -> Kernel:
    """A kernel on FP32 lanes that finds the window of each output, and multiplies and adds ``taps`` at a ``rate``."""
    outputs, moved = shape.filters * shape.pixels, (shape.input_bytes, shape.weight_bytes, shape.output_bytes)
    flops = math.ceil(2 * outputs * taps / rate) + shape.epilogue_flops
    blocks = ceil_div(outputs, outputs_a_block)
    return Kernel(name, WorkClass.WINDOW, blocks, *block, flops, *moved, sum(moved))


#: Outputs of a thread of cuDNN's kernel for NHWC; the cost of a tap relative to :func:`depthwise` (neighbouring
#: channels are loaded together), and of finding an output's position, in taps. A stride leaves less reuse in registers.
_OUTPUTS_A_THREAD, _TAPS_OF_NHWC, _INDEXING_OF_NHWC = 4, 0.32, 6
#: Taps of windows that exceed the registers, and their relative cost.
_SPILLED, _SPILLING = 49, 1.5
#: By the side of the window: registers of a thread without a stride and with one; the latency of its loads in steps of
#: tensor cores, where it checks one after another, and where its 2x2 outputs and all their taps lie in the image. For a
#: single image, and for several.
_OF_ONE_IMAGE = {3: ((40, 48), (13, 13)), 5: ((80, 98), (40, 12)), 7: ((128, 162), (90, 25))}
_OF_MANY_IMAGES = {3: ((80, 79), (30, 30)), 5: ((156, 160), (30, 30)), 7: ((254, 255), (30, 30))}
#: Fraction of its time in which a depthwise block keeps its SM busy, like ``tensor_core_families.CONTENTION``.
_DEPTHWISE_CONTENTION = 0.5
#: Outputs of a block for several images.
_OUTPUTS_OF_MANY_IMAGES = 4_096
#: A small image with 3x3 windows (up to this size) uses another kernel, with blocks of 1,024 outputs of this many taps.
_SMALL_IMAGE, _TAPS_OF_SMALL = 28 * 28, 120


def depthwise_nhwc(shape: ConvolutionShape) -> Iterator[Candidate]:
    """cuDNN 9's kernels for depthwise convolutions of halves in NHWC on Hopper, and those of compilers for 8 bits.

    The numbers come from 57 recordings on an H100 in bf16. ``conv2d_c1_k1_nhwc`` takes 0.13 us per tap for a million
    outputs, and twice as long with a stride of 2. One small image with 3x3 windows runs as
    ``conv2d_grouped_direct_kernel``, which takes three times as long.
    """
    if not shape.is_depthwise or not (is_half(shape) or is_quantised(shape)):
        return
    window, side = math.prod(shape.kernel), min(7, max(3, *shape.kernel))
    side += side % 2 == 0
    taps = _TAPS_OF_NHWC * (window * shape.strides[-1] + _INDEXING_OF_NHWC)
    taps *= _SPILLING if window >= _SPILLED else 1.0
    of_strides, latencies = (_OF_ONE_IMAGE if shape.batch == 1 else _OF_MANY_IMAGES)[side]
    registers = of_strides[shape.strides[-1] > 1]
    ends = zip(shape.output_size, shape.strides, shape.kernel, shape.input_size, strict=True)
    is_inside = all(not made % 2 and (made - 1) * by + wide <= read for made, by, wide, read in ends)
    name, a_block, block = "depthwise_nhwc", _OUTPUTS_A_THREAD * _DEPTHWISE_THREADS, (_DEPTHWISE_THREADS, registers, 0)
    if shape.batch > 1:
        a_block, block = _OUTPUTS_OF_MANY_IMAGES, (_DEPTHWISE_THREADS // 2, registers, 0)
    elif side == 3 and shape.pixels <= _SMALL_IMAGE and is_half(shape):
        name, block, taps = "grouped_direct_nhwc", (1024, 40, 0), float(_TAPS_OF_SMALL)
    kernel = _window_kernel(name, shape, taps, a_block, block)
    kernel = replace(kernel, steps=latencies[is_inside], contention=_DEPTHWISE_CONTENTION)
    yield Candidate(name, (kernel,), architectures=SINCE_HOPPER)


#: Channels below which a convolution counts as a first layer. Then multiply-adds of an SM in the time of a tap of
#: :func:`depthwise`, the cost of finding an output's position in multiply-adds, outputs of a block, and the latency of
#: its loads in steps of tensor cores.
FEW_CHANNELS = 8
_DIRECT_RATE, _DIRECT_INDEXING, _DIRECT_OUTPUTS, _DIRECT_STEPS = 4.2, 40, 1_024, 15
#: Padded elements in a microsecond by which PyTorch's timing of plans flatters products of padded channels: cuDNN's
#: padding takes half its time right after L2 was emptied (``tensor_core_convolution.padding_kernels``), as it is then.
_FLATTERED = 50e3


def direct_nhwc(shape: ConvolutionShape) -> Iterator[Candidate]:
    """cuDNN 9's kernel for first layers in NHWC on Hopper (``convolve_common_engine_float_NHWC``).

    It multiplies on FP32 lanes, 11 million multiply-adds per microsecond on an H100 (five recorded layers).
    """
    if not is_first_layer(shape):
        return
    taps = shape.channels * math.prod(shape.kernel) + _DIRECT_INDEXING
    kernel = _window_kernel("direct_nhwc", shape, taps, _DIRECT_OUTPUTS, (64, 91, 2_304), _DIRECT_RATE)
    kernel = replace(kernel, steps=_DIRECT_STEPS, contention=CONTENTION)
    lead_us = 0.0 if shape.epilogue_flops else shape.batch * math.prod(shape.input_size) * FEW_CHANNELS / _FLATTERED
    yield Candidate(kernel.name, (kernel,), architectures=SINCE_HOPPER, passed_over_us=lead_us)


def is_first_layer(shape: ConvolutionShape) -> bool:
    """True if a half-precision convolution has too few channels for a load of the kernels on tensor cores."""
    return shape.groups == 1 and shape.channels < FEW_CHANNELS and is_half(shape)


def is_half(shape: ConvolutionShape) -> bool:
    """True for numbers of 16 bits."""
    return shape.precision in (Precision.FP16, Precision.BF16)


def is_quantised(shape: ConvolutionShape) -> bool:
    """True for numbers of 8 bits, whose convolutions compilers alone run."""
    return shape.precision in (Precision.INT8, Precision.FP8)


def _halo(shape: ConvolutionShape) -> float:
    """Input rows that a block reads from L2, over those at its outputs: 1 or more."""
    row = math.prod(shape.output_size[1:])
    rows = max(1, min(_DEPTHWISE_THREADS // max(1, row), shape.output_size[0]))
    own = rows * shape.strides[0]
    return max(1.0, (own - shape.strides[0] + shape.kernel[0]) / own)
