"""Ops on images in NHWC. The arithmetic units determine the layout of a convolution's kernel:

- *Tensor cores* read and write NHWC. Today's libraries transform nothing, not even the filters, which are stored in the
  required layout before the network runs. The published engine's library transforms fp32 tensors of either layout: on
  an A100 and an RTX 3070 its convolutions of NHWC take 1.1 times as long as those of NCHW (medians of 41 shapes each).
  Half-precision tensors are never transformed (:mod:`iossim.hardware.lowering.gpu.tensor_core_convolution`).
- *FP32 lanes*, and kernels for groups, read and write NCHW: NHWC tensors are transformed before and after. On Hopper
  those for groups of tensors of 16 bits or fewer read and write NHWC.

Pooling reads either layout unchanged, in the same time (:mod:`iossim.hardware.lowering.gpu.families.pooling`), but for
PyTorch's maxima (``max_pool_forward_nhwc``), whose few blocks wait for one tap after another: each thread compares what
it loads with what it keeps in shared memory. Grids of 14 recordings on an H100 are as computed here.
"""

from __future__ import annotations

import math
from dataclasses import replace

from iossim.hardware.compute_capability import SINCE_HOPPER, WARP_THREADS
from iossim.hardware.lowering.gpu.families.convolution import by_layout, on_lanes
from iossim.hardware.lowering.gpu.families.pooling import pooling
from iossim.hardware.lowering.gpu.families.streaming import copy_candidate
from iossim.hardware.lowering.gpu.tensor_core_convolution import layout_kernel
from iossim.hardware.lowering.kernel import Candidate, ceil_div
from iossim.hardware.lowering.step import FP32_STORED, ConvolutionShape, Step, as_channels_first
from iossim.ir.ops.channels_last import MaxPoolNhwc
from iossim.ir.ops.reshape import Transpose
from iossim.ir.types import TO_FIRST, TO_LAST


def convolution_nhwc(step: Step) -> list[Candidate]:
    """Candidates on tensor cores, narrow depthwise ones on Hopper, and all others between transforms."""
    first = as_channels_first(step)
    shape, found = ConvolutionShape.of(first), list(on_lanes(first))
    is_narrow = shape.precision not in FP32_STORED
    hopper = [one for one in found if is_narrow and one.architectures and one.architectures <= SINCE_HOPPER]
    others = (_between_transforms(one, shape) for one in found if one not in hopper)
    return [*by_layout(shape, lies_as_wanted=True), *hopper, *others]


#: Threads of a block at most; bytes of a kept position; what a tap waits for each channel besides its load, in steps of
#: tensor cores (those 14: 11% off *in-sample*, 70% before).
_THREADS, _PLACE_BYTES, _CHANNEL_STEPS = 1_024, 4, 1.2


def maximum_nhwc(step: Step[MaxPoolNhwc]) -> list[Candidate]:
    """Candidates of a pooling, of which PyTorch's on Hopper goes tap by tap: 2x2 outputs of 4 channels a thread."""
    images, height, width, channels = step.outputs[0].shape
    across, along, down = (1 << (size.bit_length() - 1) for size in (channels, width, height))
    along = min(along, _THREADS // min(across, WARP_THREADS))
    down = min(down, _THREADS // min(across, WARP_THREADS) // along)
    across = min(across, _THREADS // along // down)
    parts, columns, rows = (ceil_div(*one) for one in ((channels, 4 * across), (width, 2 * along), (height, 2 * down)))
    blocks, threads, each = images * parts * columns * rows, across * along * down, ceil_div(channels, across * parts)
    outputs = ceil_div(ceil_div(width, columns), along) * ceil_div(ceil_div(height, rows), down)
    steps = round(outputs * math.prod(step.op.kernel) * (1.0 + _CHANNEL_STEPS * each))
    kept_bytes = each * threads * (step.outputs[0].dtype.bytes + _PLACE_BYTES)
    of_cudnn, earlier, called, compiled = pooling(step)
    grid = replace(called.kernels[0], blocks=blocks, threads_per_block=threads, shared_bytes_per_block=kept_bytes)
    return [of_cudnn, earlier, replace(called, kernels=(replace(grid, steps=steps),)), compiled]


def _between_transforms(candidate: Candidate, shape: ConvolutionShape) -> Candidate:
    size, read, written = shape.element_bytes, math.prod(shape.input_size), math.prod(shape.output_size)
    input_bytes = shape.batch * shape.channels * read * size
    before = layout_kernel("nhwc_to_nchw", shape.batch, shape.channels, read, input_bytes, element_bytes=size)
    after = layout_kernel("nchw_to_nhwc", shape.batch, shape.filters, written, shape.output_bytes, element_bytes=size)
    workspace_bytes = candidate.workspace_bytes + before.bytes_written + shape.output_bytes
    return replace(candidate, kernels=(before, *candidate.kernels, after), workspace_bytes=workspace_bytes)


def transpose(step: Step[Transpose]) -> list[Candidate]:
    """The libraries' kernel from NCHW to NHWC or back; a copy for any other permutation."""
    (y,) = step.outputs
    if step.op.permutation == TO_LAST:
        images, *positions, channels = y.shape
    elif step.op.permutation == TO_FIRST:
        images, channels, *positions = y.shape
    else:
        return [copy_candidate(y)]
    kernel = layout_kernel("layout", images, channels, math.prod(positions), y.bytes, element_bytes=y.dtype.bytes)
    return [Candidate("layout", (kernel,), is_library_call=False)]
