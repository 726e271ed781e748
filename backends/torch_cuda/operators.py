"""Every op kind in torch: one small function a kind, of an op, its operands and their types.

The functions look at types, never at tensors, so that they compute with tensors and also trace symbolic operands of
``torch.fx`` (:mod:`iossim.backends.torch_cuda.module`). What ONNX has and torch's own function does not (padding that
differs before and behind, wide padding, dilated averages, slices backwards) is spelled out with padding and flips.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812  (its usual name)

from iossim.execution.backend import BackendError
from iossim.ir.op import Op
from iossim.ir.ops.batch_norm import BatchNorm
from iossim.ir.ops.broadcasting import normal_axis
from iossim.ir.ops.clip import Clip
from iossim.ir.ops.concat import Concat
from iossim.ir.ops.conv import Conv
from iossim.ir.ops.gemm import Gemm
from iossim.ir.ops.local_response_norm import LocalResponseNorm
from iossim.ir.ops.pool import AveragePool, MaxPool
from iossim.ir.ops.slice import Slice
from iossim.ir.ops.softmax import Softmax
from iossim.ir.ops.split import Split
from iossim.ir.ops.transpose import Transpose
from iossim.ir.types import TensorType

#: A tensor, or what stands for one while a module is traced.
Operand = Any
#: Computes an op from its operands and their types.
Operator = Callable[[Any, Sequence[Operand], Sequence[TensorType]], tuple[Operand, ...]]

_OPERATORS: dict[str, Operator] = {}
#: Kinds that torch's own functions compute on floating-point numbers alone.
_FLOATING = frozenset(
    {"average_pool", "batch_norm", "conv", "gemm", "global_average_pool", "local_response_norm", "matmul", "max_pool"}
    | {"sigmoid", "softmax"}
)


def covers(op: Op, types: Sequence[TensorType]) -> str:
    """Why torch cannot compute the op on operands of these types, in a few words; empty where it can."""
    if op.kind not in _OPERATORS:
        return f"op kind {op.kind!r} has no function in torch"
    if op.kind in _FLOATING and not types[0].dtype.is_floating:
        return f"{op.kind} is computed on floating-point numbers only, not on {types[0].dtype}"
    if op.kind in ("conv", "max_pool", "average_pool") and not 1 <= len(types[0].shape) - 2 <= 3:
        return f"{op.kind} is computed over one to three spatial dimensions, not {len(types[0].shape) - 2}"
    return ""


def apply(op: Op, operands: Sequence[Operand], types: Sequence[TensorType]) -> tuple[Operand, ...]:
    """The op's outputs; raises BackendError for an op that torch does not cover."""
    if reason := covers(op, types):
        raise BackendError(f"{reason}; use backend numpy_reference")
    return _OPERATORS[op.kind](op, operands, types)


def _computes(*kinds: str) -> Callable[[Operator], Operator]:
    def register(function: Operator) -> Operator:
        for kind in kinds:
            _OPERATORS[kind] = function
        return function

    return register


@_computes("add")
def _add(op: Op, operands: Sequence[Operand], types: Sequence[TensorType]) -> tuple[Operand, ...]:
    return (reduce(torch.add, operands),)


@_computes("mul")
def _mul(op: Op, operands: Sequence[Operand], types: Sequence[TensorType]) -> tuple[Operand, ...]:
    return (torch.mul(*operands),)


@_computes("relu")
def _relu(op: Op, operands: Sequence[Operand], types: Sequence[TensorType]) -> tuple[Operand, ...]:
    return (torch.relu(operands[0]),)


@_computes("sigmoid")
def _sigmoid(op: Op, operands: Sequence[Operand], types: Sequence[TensorType]) -> tuple[Operand, ...]:
    return (torch.sigmoid(operands[0]),)


@_computes("identity")
def _identity(op: Op, operands: Sequence[Operand], types: Sequence[TensorType]) -> tuple[Operand, ...]:
    return (operands[0],)


@_computes("clip")
def _clip(op: Clip, operands: Sequence[Operand], types: Sequence[TensorType]) -> tuple[Operand, ...]:
    exact: Callable[[float], float] = float if types[0].dtype.is_floating else int
    low, high = (None if bound is None else exact(bound) for bound in (op.minimum, op.maximum))
    return (operands[0] if low is high is None else torch.clamp(operands[0], low, high),)


@_computes("concat")
def _concat(op: Concat, operands: Sequence[Operand], types: Sequence[TensorType]) -> tuple[Operand, ...]:
    return (torch.cat(list(operands), dim=op.axis),)


@_computes("split")
def _split(op: Split, operands: Sequence[Operand], types: Sequence[TensorType]) -> tuple[Operand, ...]:
    parts = torch.split(operands[0], list(op.sizes), dim=op.axis)
    return tuple(parts[index] for index in range(len(op.sizes)))


@_computes("reshape", "flatten")
def _reshape(op: Op, operands: Sequence[Operand], types: Sequence[TensorType]) -> tuple[Operand, ...]:
    (made,) = op.infer(types)
    return (torch.reshape(operands[0], made.shape),)


@_computes("transpose")
def _transpose(op: Transpose, operands: Sequence[Operand], types: Sequence[TensorType]) -> tuple[Operand, ...]:
    return (torch.permute(operands[0], op.permutation),)


@_computes("slice")
def _slice(op: Slice, operands: Sequence[Operand], types: Sequence[TensorType]) -> tuple[Operand, ...]:
    """torch has no steps backwards: such an axis is reversed first, and its elements counted from the end."""
    (x,), shape = operands, types[0].shape
    index, reversed_axes = [slice(None)] * len(shape), []
    for axis, *bounds in zip(op.axes, op.starts, op.ends, op.steps, strict=True):
        taken = range(*slice(*bounds).indices(shape[axis]))
        first, step = taken.start, taken.step
        if step < 0:
            reversed_axes.append(axis)
            first, step = shape[axis] - 1 - first, -step
        index[axis] = slice(first, first + (len(taken) - 1) * step + 1, step)
    return (operator.getitem(torch.flip(x, reversed_axes) if reversed_axes else x, tuple(index)),)


@_computes("softmax")
def _softmax(op: Softmax, operands: Sequence[Operand], types: Sequence[TensorType]) -> tuple[Operand, ...]:
    (x,), shape = operands, types[0].shape
    axis = normal_axis(op.axis, len(shape))
    if not op.flatten:
        return (torch.softmax(x, dim=axis),)
    return (torch.reshape(torch.softmax(torch.flatten(x, axis), dim=axis), shape),)


@_computes("matmul")
def _matmul(op: Op, operands: Sequence[Operand], types: Sequence[TensorType]) -> tuple[Operand, ...]:
    return (torch.matmul(*operands),)


@_computes("gemm")
def _gemm(op: Gemm, operands: Sequence[Operand], types: Sequence[TensorType]) -> tuple[Operand, ...]:
    a = torch.t(operands[0]) if op.trans_a else operands[0]
    b = torch.t(operands[1]) if op.trans_b else operands[1]
    if len(operands) == 3:
        return (torch.addmm(operands[2], a, b, beta=op.beta, alpha=op.alpha),)
    product = torch.mm(a, b)
    return (product if op.alpha == 1 else torch.mul(product, op.alpha),)


@_computes("batch_norm")
def _batch_norm(op: BatchNorm, operands: Sequence[Operand], types: Sequence[TensorType]) -> tuple[Operand, ...]:
    x, scale, bias, mean, variance = operands
    return (F.batch_norm(x, mean, variance, scale, bias, training=False, eps=op.epsilon),)


@_computes("local_response_norm")
def _local_response_norm(
    op: LocalResponseNorm, operands: Sequence[Operand], types: Sequence[TensorType]
) -> tuple[Operand, ...]:
    """torch takes ``size // 2`` channels below, ONNX above: they differ where ``size`` is even."""
    x, shape = operands[0], types[0].shape
    if len(shape) == 2:
        x = torch.unsqueeze(x, -1)
    even = op.size % 2 == 0
    y = F.local_response_norm(torch.flip(x, [1]) if even else x, op.size, op.alpha, op.beta, op.bias)
    return (torch.reshape(torch.flip(y, [1]) if even else y, shape),)


@_computes("global_average_pool")
def _global_average_pool(op: Op, operands: Sequence[Operand], types: Sequence[TensorType]) -> tuple[Operand, ...]:
    return (torch.mean(operands[0], dim=list(range(2, len(types[0].shape))), keepdim=True),)


@_computes("global_max_pool")
def _global_max_pool(op: Op, operands: Sequence[Operand], types: Sequence[TensorType]) -> tuple[Operand, ...]:
    return (torch.amax(operands[0], dim=list(range(2, len(types[0].shape))), keepdim=True),)


@_computes("conv")
def _conv(op: Conv, operands: Sequence[Operand], types: Sequence[TensorType]) -> tuple[Operand, ...]:
    rank = len(op.strides)
    convolve = (F.conv1d, F.conv2d, F.conv3d)[rank - 1]
    bias = operands[2] if len(operands) > 2 else None
    x, padding = operands[0], op.pads[:rank]
    if op.pads[rank:] != padding:
        x, padding = _padded(x, op.pads[:rank], op.pads[rank:], 0.0), (0,) * rank
    return (convolve(x, operands[1], bias, op.strides, padding, op.dilations, op.groups),)


@_computes("max_pool")
def _max_pool(op: MaxPool, operands: Sequence[Operand], types: Sequence[TensorType]) -> tuple[Operand, ...]:
    rank = len(op.kernel)
    pool = (F.max_pool1d, F.max_pool2d, F.max_pool3d)[rank - 1]
    if _has_torch_padding(op):
        return (pool(operands[0], op.kernel, op.strides, op.pads[:rank], op.dilations, op.ceil_mode),)
    x = _padded(operands[0], op.pads[:rank], _reach_behind(op, types[0]), -math.inf)
    return (pool(x, op.kernel, op.strides, 0, op.dilations),)


@_computes("average_pool")
def _average_pool(op: AveragePool, operands: Sequence[Operand], types: Sequence[TensorType]) -> tuple[Operand, ...]:
    (x,), rank = operands, len(op.kernel)
    pool = (F.avg_pool1d, F.avg_pool2d, F.avg_pool3d)[rank - 1]
    if _has_torch_padding(op) and set(op.dilations) == {1}:
        return (pool(x, op.kernel, op.strides, op.pads[:rank], op.ceil_mode, op.count_include_pad),)
    # The sum of each window over how many of its elements count, both as convolutions with ones.
    counted = torch.ones_like(x)
    before, behind = op.pads[:rank], _reach_behind(op, types[0])
    if op.count_include_pad:
        counted = _padded(counted, before, op.pads[rank:], 1.0)
        rest = tuple(far - near for far, near in zip(behind, op.pads[rank:], strict=True))
        counted = _padded(counted, (0,) * rank, rest, 0.0)
    else:
        counted = _padded(counted, before, behind, 0.0)
    channels = types[0].shape[1]
    ones = x.new_ones((channels, 1, *op.kernel))
    convolve = (F.conv1d, F.conv2d, F.conv3d)[rank - 1]
    total, count = (
        convolve(part, ones, None, op.strides, 0, op.dilations, channels)
        for part in (_padded(x, before, behind, 0.0), counted)
    )
    return (torch.div(total, torch.clamp(count, min=1.0)),)


def _has_torch_padding(op: MaxPool | AveragePool) -> bool:
    """Whether torch pads so: as much before as behind, and at most half of the kernel."""
    rank = len(op.kernel)
    same = op.pads[:rank] == op.pads[rank:]
    return same and all(2 * pad <= kernel for pad, kernel in zip(op.pads, op.kernel, strict=False))


def _reach_behind(op: MaxPool | AveragePool, x: TensorType) -> tuple[int, ...]:
    """How far the last window reaches beyond the input, axis by axis; negative where it ends before it.

    Elements that no window reaches are cut off, so that the windows that fit are those of the op.
    """
    rank = len(op.kernel)
    (made,) = op.infer([x])
    return tuple(
        (made.shape[2 + axis] - 1) * op.strides[axis]
        + op.dilations[axis] * (op.kernel[axis] - 1)
        + 1
        - op.pads[axis]
        - x.shape[2 + axis]
        for axis in range(rank)
    )


def _padded(x: Operand, before: Sequence[int], behind: Sequence[int], value: float) -> Operand:
    """``x`` padded along its last axes; torch lists the last axis first."""
    pads = [pad for pair in zip(reversed(before), reversed(behind), strict=True) for pad in pair]
    return F.pad(x, pads, value=value) if any(pads) else x
