"""Operators that slide a window over images, or resample them."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F  # noqa: N812  (its usual name)
from torch.nn import grad

from iossim.backends.torch_cuda.operators.movement import padded, resampled
from iossim.backends.torch_cuda.operators.registry import Operand, Types, apply, computes, constant, covers, only_floats
from iossim.backends.torch_cuda.tensors import DTYPES
from iossim.ir.op import Op
from iossim.ir.ops.channels_last import ChannelsLast
from iossim.ir.ops.conv import Conv
from iossim.ir.ops.conv_transpose import ConvBackwardData, ConvBackwardFilter, ConvTranspose
from iossim.ir.ops.grid_sample import GridSample
from iossim.ir.ops.pool import AveragePool, MaxPool
from iossim.ir.ops.pool_backward import AveragePoolBackward, MaxPoolBackward
from iossim.ir.ops.resize import Resize
from iossim.ir.types import TO_FIRST, TO_LAST, TensorType, first_types

#: torch's functions by the number of spatial dimensions.
_CONVOLVE = (F.conv1d, F.conv2d, F.conv3d)
_TRANSPOSED = (F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d)
_MAX_POOL = (F.max_pool1d, F.max_pool2d, F.max_pool3d)


def _refusal(op: Op, types: Types) -> str:
    spatial = len(types[0].shape) - 2
    if not 1 <= spatial <= 3:
        return f"{op.kind} is computed over one to three spatial dimensions, not {spatial}"
    return only_floats(op, types)


@computes("conv", refuses=_refusal)
def _conv(op: Conv, types: Types, x: Operand, weight: Operand, bias: Operand | None = None) -> Operand:
    x, padding = _evenly_padded(x, op.pads)
    return _CONVOLVE[len(op.strides) - 1](x, weight, bias, op.strides, padding, op.dilations, op.groups)


def _evenly_padded(x: Operand, pads: Sequence[int]) -> tuple[Operand, Sequence[int]]:
    """``x``, padded where torch cannot pad it, which pads both ends alike; and the padding that is left to torch."""
    rank = len(pads) // 2
    if pads[rank:] == pads[:rank]:
        return x, pads[:rank]
    return padded(x, pads[:rank], pads[rank:], 0.0), (0,) * rank


@computes("conv_transpose", refuses=_refusal)
def _conv_transpose(
    op: ConvTranspose, types: Types, x: Operand, weight: Operand, bias: Operand | None = None
) -> Operand:
    """torch crops both ends alike, and adds less at the end than a stride (or dilation)."""
    rank = len(op.strides)
    convolve = _TRANSPOSED[rank - 1]
    before, after = op.pads[:rank], op.pads[rank:]
    least = [max(stride, dilation) for stride, dilation in zip(op.strides, op.dilations, strict=True)]
    if before == after and all(extra < bound for extra, bound in zip(op.output_padding, least, strict=True)):
        return convolve(x, weight, bias, op.strides, before, op.output_padding, op.groups, op.dilations)
    y = convolve(x, weight, None, op.strides, 0, 0, op.groups, op.dilations)
    added = [extra - cut for extra, cut in zip(op.output_padding, after, strict=True)]
    y = padded(y, [-cut for cut in before], added, 0.0)
    return y if bias is None else torch.add(y, torch.reshape(bias, (-1, *[1] * rank)))


@computes("conv_backward_data", refuses=_refusal)
def _conv_backward_data(op: ConvBackwardData, types: Types, *operands: Operand) -> Operand:
    grad_output, weight = types
    return _conv_transpose(op.transposed(grad_output.shape[2:], weight.shape[2:]), types, *operands)


@computes("conv_backward_filter", refuses=_refusal)
def _conv_backward_filter(
    op: ConvBackwardFilter, types: Types, x: Operand, grad_output: Operand, *accumulated: Operand
) -> Operand:
    (weight,) = op.infer(types)
    differentiate = (grad.conv1d_weight, grad.conv2d_weight, grad.conv3d_weight)[len(op.strides) - 1]
    x, padding = _evenly_padded(x, op.pads)
    made = differentiate(x, weight.shape, grad_output, op.strides, padding, op.dilations, op.groups)
    return torch.add(*accumulated, made) if accumulated else made


@computes("max_pool", refuses=_refusal)
def _max_pool(op: MaxPool, types: Types, x: Operand) -> Operand:
    rank = len(op.kernel)
    pool = _MAX_POOL[rank - 1]
    if _has_torch_padding(op):
        return pool(x, op.kernel, op.strides, op.pads[:rank], op.dilations, op.ceil_mode)
    x = padded(x, op.pads[:rank], _reach_beyond(op, types[0]), -math.inf)
    return pool(x, op.kernel, op.strides, 0, op.dilations)


@computes("average_pool", refuses=_refusal)
def _average_pool(op: AveragePool, types: Types, x: Operand) -> Operand:
    rank = len(op.kernel)
    pool = (F.avg_pool1d, F.avg_pool2d, F.avg_pool3d)[rank - 1]
    if _has_torch_padding(op) and set(op.dilations) == {1}:
        return pool(x, op.kernel, op.strides, op.pads[:rank], op.ceil_mode, op.count_include_pad)
    (made,), channels = op.infer(types), types[0].shape[1]
    x, ones = padded(x, op.pads[:rank], _reach_beyond(op, types[0]), 0.0), x.new_ones((channels, 1, *op.kernel))
    total = _CONVOLVE[rank - 1](x, ones, None, op.strides, 0, op.dilations, channels)
    return torch.div(total, constant(op.counts(types[0].shape[2:], made.shape[2:]), x, made.dtype))


@computes("max_pool_backward")
def _max_pool_backward(op: MaxPoolBackward, types: Types, x: Operand, grad_output: Operand) -> Operand:
    forward, rank, shape = op.forward, len(op.kernel), types[0].shape
    pool = _MAX_POOL[rank - 1]
    x = padded(x, op.pads[:rank], _reach_beyond(forward, types[0]), -math.inf)
    _, places = pool(x, op.kernel, op.strides, 0, op.dilations, return_indices=True)
    flat = torch.zeros_like(x).flatten(2).scatter_add(2, places.flatten(2), grad_output.flatten(2))
    reach = _reach(forward, types[1].shape[2:])
    return _inside(flat.reshape((*shape[:2], *reach)), reach, op.pads[:rank], shape[2:])


@computes("average_pool_backward")
def _average_pool_backward(op: AveragePoolBackward, types: Types, grad_output: Operand) -> Operand:
    rank, channels, out = len(op.kernel), types[0].shape[1], types[0].shape[2:]
    share = torch.div(grad_output, constant(op.forward.counts(op.input_size, out), grad_output, types[0].dtype))
    ones = grad_output.new_ones((channels, 1, *op.kernel))
    made = _TRANSPOSED[rank - 1](share, ones, None, op.strides, 0, 0, channels, op.dilations)
    return _inside(made, _reach(op.forward, out), op.pads[:rank], op.input_size)


def _reach(forward: MaxPool | AveragePool, out: Sequence[int]) -> tuple[int, ...]:
    """Extent of so many windows, from the beginning of the first."""
    return tuple(
        (count - 1) * stride + dilation * (taps - 1) + 1
        for count, stride, dilation, taps in zip(out, forward.strides, forward.dilations, forward.kernel, strict=True)
    )


def _inside(x: Operand, have: Sequence[int], before: Sequence[int], size: Sequence[int]) -> Operand:
    """The image without its padding, of spatial size ``have`` with it; zero after the last window."""
    after = [first + length - own for first, length, own in zip(before, size, have, strict=True)]
    return padded(x, [-first for first in before], after, 0.0)


_CHANNELS_LAST = ("conv", "max_pool", "average_pool", "global_average_pool", "global_max_pool")


@computes(
    *(f"{kind}_nhwc" for kind in _CHANNELS_LAST),
    refuses=lambda op, types: covers(op.channels_first, first_types(types)),
)
def _channels_last(op: ChannelsLast[Op], types: Types, x: Operand, *more: Operand) -> Operand:
    """Transposed tensors of torch are views: a tensor permuted to NCHW still lies as NHWC, and is computed so."""
    (y,) = apply(op.channels_first, (torch.permute(x, TO_FIRST), *more), first_types(types))
    return torch.permute(y, TO_LAST)


def _has_torch_padding(op: MaxPool | AveragePool) -> bool:
    """True where torch can pad so: both ends alike, by at most half of the kernel."""
    rank = len(op.kernel)
    same = op.pads[:rank] == op.pads[rank:]
    return same and all(2 * pad <= kernel for pad, kernel in zip(op.pads, op.kernel, strict=False))


def _reach_beyond(op: MaxPool | AveragePool, x: TensorType) -> tuple[int, ...]:
    """Extent of the last window beyond the input, axis by axis; negative where it ends before it.

    Elements that no window reaches are cut off, so that the windows that fit are those of the op.
    """
    reach = _reach(op, op.infer([x])[0].shape[2:])
    return tuple(whole - before - size for whole, before, size in zip(reach, op.pads, x.shape[2:], strict=False))


#: Modes as torch calls them, by ONNX's and how many spatial dimensions there are.
_INTERPOLATIONS = {
    **{("nearest", spatial): "nearest" for spatial in (1, 2, 3)},
    **{("linear", spatial): mode for spatial, mode in enumerate(("linear", "bilinear", "trilinear"), 1)},
    ("cubic", 2): "bicubic",
}


def _interpolation(op: Resize, given: TensorType, made: TensorType) -> str:
    """The mode in which torch computes the same on images; empty where none does."""
    in_whole = op.sizes or all(float(size * scale).is_integer() for size, scale in _axes(op, given))
    interpolates = {
        "half_pixel": True,
        "pytorch_half_pixel": 1 not in made.shape[2:],
        "align_corners": bool(in_whole),
    }.get(op.coordinates, False)
    exact = (op.coordinates, op.rounding) == ("asymmetric", "floor") if op.mode == "nearest" else interpolates
    plain = not op.antialias and (op.mode != "cubic" or (op.cubic == -0.75 and not op.exclude_outside))
    mode = _INTERPOLATIONS.get((op.mode, len(given.shape) - 2), "")
    return mode if exact and plain and made.shape[:2] == given.shape[:2] else ""


def _axes(op: Resize, given: TensorType) -> list[tuple[int, float]]:
    """Size and scale of each spatial axis."""
    scales = op.scales or [after / before for after, before in zip(op.sizes, given.shape, strict=True)]
    return list(zip(given.shape[2:], scales[2:], strict=True))


@computes("grid_sample", refuses=only_floats)
def _grid_sample(op: GridSample, types: Types, x: Operand, grid: Operand) -> Operand:
    """In fp32 where operands are narrower: positions of 16 bits are too coarse to compute with."""
    dtype = DTYPES[types[0].dtype]
    wide, mode = torch.promote_types(dtype, torch.float32), "bilinear" if op.mode == "linear" else op.mode
    return F.grid_sample(x.to(wide), grid.to(wide), mode, op.padding, op.align_corners).to(dtype)


@computes("resize", refuses=only_floats)
def _resize(op: Resize, types: Types, x: Operand) -> Operand:
    """By torch's function where that computes the same, else axis by axis by tables."""
    (given,), (made,) = types, op.infer(types)
    if mode := _interpolation(op, given, made):
        aligned = None if op.mode == "nearest" else op.coordinates == "align_corners"
        if op.sizes:
            return F.interpolate(x, made.shape[2:], mode=mode, align_corners=aligned)
        scales = tuple(scale for _, scale in _axes(op, given))
        return F.interpolate(x, scale_factor=scales, mode=mode, align_corners=aligned)
    for axis, table in op.tables(given.shape, made.shape).items():
        x = resampled(x, axis, table, given.dtype)
    return x
