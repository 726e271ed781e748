"""Pooling: each thread finds the window of its output and combines the taps.

Most of these kernels are limited by instruction issue, like depthwise convolution (``convolution/grouped.py``): their
work is counted in its taps, of some 13 instructions. There are two libraries:

- cuDNN's kernel locates its output in four strided dimensions: 2x2 pooling of the published engine takes two clocks of
  an SM per output on an A100 and on a Titan X alike, NCHW or NHWC; windows of 3x3 and 7x7 determine the cost of a tap.
  Averages wait for their taps in DRAM one by one (``AVERAGE_WAIT_US`` of ``backends.simulator.kernel_times``).
  The mean of an image is one window, which one thread reads whole.
- PyTorch's kernel divides to find its window, for averages three times in 64 bits: 3x3 averages take as long on an A100
  with 2.0 TB/s as on one with 1.6; an H200 divides in less than half the clocks. Maxima also write their positions, as
  64-bit integers: with these, the poolings of ResNet-50 and VGG move data at the rate of DRAM on a V100 and an RTX
  A5000. The mean of an image is a reduction, on Hopper by a warp (or by a part of one if it has few loads).

Compilers keep channels last, so that a thread pools as many channels as one load holds: TensorRT's maxima of
ResNet-50's first images take 1.2 to 1.3 times as long as their DRAM traffic (RTX 3090 in fp16, A100 in fp32).
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, cast

from iossim.hardware.compute_capability import SINCE_HOPPER, WARP_THREADS, Architecture
from iossim.hardware.lowering.gpu.families.streaming import in_passes
from iossim.hardware.lowering.kernel import (
    ALL_OF_CUDNN,
    OF_COMPILERS,
    Candidate,
    Kernel,
    Libraries,
    WorkClass,
    ceil_div,
)
from iossim.hardware.lowering.step import Step, as_channels_first
from iossim.ir.ops.pool import AveragePool, MaxPool
from iossim.ir.types import DType

if TYPE_CHECKING:
    from iossim.ir.ops.normalization import LocalResponseNorm
    from iossim.ir.ops.pool_backward import AveragePoolBackward, MaxPoolBackward

_THREADS, _REGISTERS = 128, 26
#: Cost of a tap, and of finding the window (cuDNN, PyTorch's maximum and average), in taps of depthwise convolution.
_TAP = 2
_CUDNN, _MAXIMUM, _AVERAGE = 11, 21, 55
#: The same of PyTorch's average on Hopper, channels first and last (49 recordings of an H200, 6 of an H100).
_AVERAGE_ON_HOPPER = 13, 34
#: Threads of a block of PyTorch's means; length of a row whose threads load vectors; what a thread takes besides a tap
#: for each load (16 means of an H200: 6% off *in-sample*, 57% before).
_ROW_THREADS, _LONG_ROW, _ROW = 512, 128, 14
#: Bytes of contiguous channels that one load fetches, and that one instruction compares or adds.
_LOAD_BYTES, _REGISTER_BYTES = 16, 4


def pooling(step: Step) -> list[Candidate]:
    """The kernels of the library, of the framework and of compilers, the same for either layout."""
    given, step = step, as_channels_first(step)
    if step.op.kind == "local_response_norm":
        taps, indexing, places = cast("LocalResponseNorm", step.op).size, _AVERAGE, 0
    else:
        assert isinstance(step.op, MaxPool | AveragePool)
        is_maximum = isinstance(step.op, MaxPool)
        taps, indexing = math.prod(step.op.kernel), _MAXIMUM if is_maximum else _AVERAGE
        places = step.outputs[0].elements * DType.INT64.bytes if is_maximum else 0
    on_hopper = _AVERAGE_ON_HOPPER[given is not step] if step.op.kind == "average_pool" else indexing
    called = [_window_kernel(step, each + _TAP * taps, WorkClass.WINDOW, places) for each in (indexing, on_hopper)]
    element_bytes = step.operands[0].type.dtype.bytes
    vector_taps = math.ceil(_CUDNN * element_bytes / _LOAD_BYTES + taps * element_bytes / _REGISTER_BYTES)
    compiled = _window_kernel(step, vector_taps, WorkClass.WINDOW)
    return [_of_cudnn(step, taps), *_of_framework(called[0], called[1], compiled)]


def global_pooling(step: Step) -> list[Candidate]:
    """The library's kernel with the whole image as its window, and the framework's reduction, for either layout."""
    given, step = step, as_channels_first(step)
    ((reduced,),) = (one.kernels for one in in_passes(step, work_class=WorkClass.SUM))
    x, size = step.operands[0].type, math.prod(step.operands[0].type.shape[2:])
    loads = min(WARP_THREADS, size if size <= _LONG_ROW else size * x.dtype.bytes // _LOAD_BYTES)
    blocks = ceil_div(step.outputs[0].elements << (loads.bit_length() - 1), _ROW_THREADS)
    flops = 2 * blocks * _ROW_THREADS * (_ROW + ceil_div(size, WARP_THREADS))
    grid = replace(reduced, work_class=WorkClass.WINDOW, blocks=blocks, threads_per_block=_ROW_THREADS, flops=flops)
    return [_of_cudnn(step, size), *_of_framework(reduced, grid if given is step else reduced, reduced)]


def pooling_backward(step: Step[MaxPoolBackward | AveragePoolBackward]) -> list[Candidate]:
    """One thread per element of the input, which reads all windows that contain it; not measured."""
    sizes = zip(step.op.kernel, step.op.strides, strict=True)
    windows = math.prod(ceil_div(taps, stride) for taps, stride in sizes)
    kernel = _window_kernel(step, _AVERAGE + _TAP * windows, WorkClass.WINDOW)
    return [_of_cudnn(step, windows), *_of_framework(kernel, kernel, kernel)]


def _of_framework(earlier: Kernel, on_hopper: Kernel, compiled: Kernel) -> list[Candidate]:
    before, current = frozenset(Architecture) - SINCE_HOPPER, frozenset({Libraries.CURRENT})
    kinds = (earlier, before, current), (on_hopper, SINCE_HOPPER, current), (compiled, None, OF_COMPILERS)
    return [Candidate("pooling", (one,), 0, True, where, libraries) for one, where, libraries in kinds]


def _of_cudnn(step: Step, taps: int) -> Candidate:
    work_class = WorkClass.AVERAGE_WINDOW if step.op.kind == "average_pool" else WorkClass.WINDOW
    kernel = _window_kernel(step, _CUDNN + _TAP * taps, work_class)
    return Candidate("pooling", (kernel,), libraries=ALL_OF_CUDNN)


def _window_kernel(step: Step, taps_counted: int, work_class: WorkClass, places_bytes: int = 0) -> Kernel:
    written = step.bytes_written + places_bytes
    blocks = max(1, ceil_div(step.outputs[0].elements, _THREADS))
    # The threads of the last block that have no output take their time, too: they wait for those that have one.
    outputs = blocks * _THREADS
    moved = step.activation_bytes, 0, written, step.activation_bytes + written
    return Kernel("pooling", work_class, blocks, _THREADS, _REGISTERS, 0, 2 * outputs * taps_counted, *moved)
