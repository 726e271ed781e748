"""Operators over the elements of axes: reductions, running sums, orders, normalisations, and softmax."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import reduce

import torch
import torch.nn.functional as F  # noqa: N812  (its usual name)

from iossim.backends.torch_cuda.operators.registry import Operand, Types, computes, only_floats, register, without
from iossim.backends.torch_cuda.tensors import DTYPES
from iossim.ir.op import Op, normal_axis
from iossim.ir.ops.normalization import GroupNorm, InstanceNorm, LayerNorm, LocalResponseNorm, RmsNorm
from iossim.ir.ops.reduce import ArgExtreme, CumSum, Reduce, TopK
from iossim.ir.ops.softmax import SoftmaxLike
from iossim.ir.types import DType


def _product(x: Operand, axes: list[int], keepdim: bool) -> Operand:
    """torch multiplies along one axis at a time: the last first, so that the others keep their places."""
    return reduce(lambda y, axis: torch.prod(y, axis, keepdim=keepdim), sorted(axes, reverse=True), x)


#: By the name that the op carries: of the tensor, its axes, and whether they stay as ones.
_REDUCTIONS: dict[str, Callable[[Operand, list[int], bool], Operand]] = {
    "sum": torch.sum,
    "mean": torch.mean,
    "max": torch.amax,
    "min": torch.amin,
    "product": _product,
    "l1": lambda x, axes, keepdim: torch.sum(torch.abs(x), axes, keepdim),
    "l2": lambda x, axes, keepdim: torch.linalg.vector_norm(x, 2, axes, keepdim),
    "log_sum": lambda x, axes, keepdim: torch.log(torch.sum(x, axes, keepdim)),
    "log_sum_exp": torch.logsumexp,
    "sum_square": lambda x, axes, keepdim: torch.sum(torch.mul(x, x), axes, keepdim),
}


def _is_exact(op: Reduce, types: Types) -> bool:
    return op.function in ("sum", "max", "min", "product", "l1", "sum_square") and types[0].dtype is not DType.BOOL


@computes("reduce", refuses=without(_REDUCTIONS, _is_exact))
def _reduce(op: Reduce, types: Types, x: Operand) -> Operand:
    (given,) = types
    if not op.axes:
        return x
    y = _REDUCTIONS[op.function](x, [normal_axis(axis, len(given.shape)) for axis in op.axes], op.keepdims)
    # torch sums whole numbers in 64 bits.
    return y if given.dtype.is_floating else y.to(DTYPES[given.dtype])


@computes("cumsum")
def _cumsum(op: CumSum, types: Types, x: Operand) -> Operand:
    (given,), axis = types, op.axis
    x = torch.flip(x, [axis]) if op.reverse else x
    y = torch.cumsum(x, axis, dtype=DTYPES[given.dtype])
    if op.exclusive:
        first = torch.zeros_like(torch.narrow(y, axis, 0, 1))
        y = torch.cat([first, torch.narrow(y, axis, 0, given.shape[axis] - 1)], dim=axis)
    return torch.flip(y, [axis]) if op.reverse else y


def _image_axes(types: Types) -> list[int]:
    return list(range(2, len(types[0].shape)))


register(
    {
        "global_average_pool": lambda op, types, x: torch.mean(x, _image_axes(types), keepdim=True),
        "batch_norm": lambda op, types, x, scale, bias, mean, var: F.batch_norm(
            x, mean, var, scale, bias, eps=op.epsilon
        ),
    },
    only_floats,
)
register({"global_max_pool": lambda op, types, x: torch.amax(x, _image_axes(types), keepdim=True)})


def _no_truth(op: Op, types: Types) -> str:
    return f"{op.kind} is computed on numbers, not on {types[0].dtype}" if types[0].dtype is DType.BOOL else ""


@computes("arg_extreme", refuses=_no_truth)
def _arg_extreme(op: ArgExtreme, types: Types, x: Operand) -> Operand:
    find = torch.argmin if op.smallest else torch.argmax
    if not op.last:
        return find(x, op.axis, op.keepdims)
    return types[0].shape[op.axis] - 1 - find(torch.flip(x, [op.axis]), op.axis, op.keepdims)


@computes("top_k", refuses=_no_truth)
def _top_k(op: TopK, types: Types, x: Operand) -> Operand:
    """By a stable sort: which of several equal elements ``torch.topk`` takes is not said, in ONNX it is the first."""
    found = torch.sort(x, dim=op.axis, descending=op.largest, stable=True)
    return tuple(torch.narrow(found[part], op.axis, 0, op.count) for part in range(2))


@computes("layer_norm", "rms_norm", refuses=only_floats)
def _layer_norm(op: LayerNorm | RmsNorm, types: Types, x: Operand, *parameters: Operand) -> Operand:
    normalised = types[0].shape[op.axis :]
    norm: Callable[..., Operand] = F.layer_norm if isinstance(op, LayerNorm) else F.rms_norm
    if all(value.shape == normalised for value in types[1:]):
        return norm(x, normalised, *parameters, eps=op.epsilon)
    # torch takes parameters of the whole shape that is normalised, ONNX all that broadcast.
    y = torch.mul(norm(x, normalised, eps=op.epsilon), parameters[0])
    return torch.add(y, parameters[1]) if len(parameters) > 1 else y


@computes("instance_norm", "group_norm", refuses=only_floats)
def _group_norm(op: InstanceNorm | GroupNorm, types: Types, x: Operand, scale: Operand, bias: Operand) -> Operand:
    shape = types[0].shape
    if isinstance(op, InstanceNorm) and math.prod(shape[2:]) > 1:
        return F.instance_norm(x, weight=scale, bias=bias, eps=op.epsilon)
    # Not the function of nn.functional, which takes a group of one element for a mistake.
    groups = op.groups if isinstance(op, GroupNorm) else shape[1]
    return torch.group_norm(x, groups, scale, bias, op.epsilon)


@computes("local_response_norm", refuses=only_floats)
def _local_response_norm(op: LocalResponseNorm, types: Types, x: Operand) -> Operand:
    """torch takes ``size // 2`` channels below, ONNX above: they differ where ``size`` is even."""
    shape = types[0].shape
    if len(shape) == 2:
        x = torch.unsqueeze(x, -1)
    even = op.size % 2 == 0
    y = F.local_response_norm(torch.flip(x, [1]) if even else x, op.size, op.alpha, op.beta, op.bias)
    return torch.reshape(torch.flip(y, [1]) if even else y, shape)


_ALONG_AXIS: dict[str, Callable[..., Operand]] = {
    "softmax": torch.softmax,
    "log_softmax": torch.log_softmax,
    "hardmax": lambda x, dim: torch.scatter(torch.zeros_like(x), dim, torch.argmax(x, dim, keepdim=True), 1.0),
}


@computes(*_ALONG_AXIS, refuses=only_floats)
def _softmax(op: SoftmaxLike, types: Types, x: Operand) -> Operand:
    function = _ALONG_AXIS[op.kind]
    if not op.flatten:
        return function(x, dim=op.axis)
    axis = normal_axis(op.axis, len(types[0].shape))
    return torch.reshape(function(torch.flatten(x, axis), dim=axis), types[0].shape)
