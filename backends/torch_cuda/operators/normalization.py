"""Normalisations, and what weighs the elements of an axis against each other."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F  # noqa: N812  (its usual name)

from iossim.backends.torch_cuda.operators.registry import Operand, Types, computes, floating_only, register
from iossim.ir.op import normal_axis
from iossim.ir.ops.normalization import GroupNorm, InstanceNorm, LayerNorm, LocalResponseNorm, RmsNorm
from iossim.ir.ops.softmax import SoftmaxLike

register(
    {
        "batch_norm": lambda op, types, x, scale, bias, mean, variance: F.batch_norm(
            x, mean, variance, scale, bias, training=False, eps=op.epsilon
        )
    },
    refuses=floating_only,
)


@computes("layer_norm", "rms_norm", refuses=floating_only)
def _layer_norm(op: LayerNorm | RmsNorm, types: Types, x: Operand, *parameters: Operand) -> Operand:
    shape = types[0].shape
    normalised = shape[normal_axis(op.axis, len(shape)) :]
    norm: Callable[..., Operand] = F.layer_norm if isinstance(op, LayerNorm) else F.rms_norm
    if all(value.shape == normalised for value in types[1:]):
        return norm(x, normalised, *parameters, eps=op.epsilon)
    # torch takes parameters of the whole shape that is normalised, ONNX all that broadcast.
    y = torch.mul(norm(x, normalised, eps=op.epsilon), parameters[0])
    return torch.add(y, parameters[1]) if len(parameters) > 1 else y


@computes("instance_norm", "group_norm", refuses=floating_only)
def _group_norm(op: InstanceNorm | GroupNorm, types: Types, x: Operand, scale: Operand, bias: Operand) -> Operand:
    shape = types[0].shape
    if isinstance(op, InstanceNorm) and math.prod(shape[2:]) > 1:
        return F.instance_norm(x, weight=scale, bias=bias, eps=op.epsilon)
    # Not the function of nn.functional, which takes a group of one element for a mistake.
    groups = op.groups if isinstance(op, GroupNorm) else shape[1]
    return torch.group_norm(x, groups, scale, bias, op.epsilon)


@computes("local_response_norm", refuses=floating_only)
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


@computes(*_ALONG_AXIS, refuses=floating_only)
def _softmax(op: SoftmaxLike, types: Types, x: Operand) -> Operand:
    shape, function = types[0].shape, _ALONG_AXIS[op.kind]
    axis = normal_axis(op.axis, len(shape))
    if not op.flatten:
        return function(x, dim=axis)
    return torch.reshape(function(torch.flatten(x, axis), dim=axis), shape)
