"""Operators that compute: element by element, and over the elements of axes, which are reduced, summed in turn, ordered
or normalised.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import reduce

import torch
import torch.nn.functional as F  # noqa: N812  (its usual name)

from iossim.backends.torch_cuda.operators.registry import Operand, Types, computes, only_floats, register, without
from iossim.backends.torch_cuda.tensors import DTYPES, converted
from iossim.ir.op import Op, normal_axis
from iossim.ir.ops import functions
from iossim.ir.ops.functions import Nary, Unary
from iossim.ir.ops.nary import PRelu
from iossim.ir.ops.normalization import GroupNorm, InstanceNorm, LayerNorm, LocalResponseNorm, RmsNorm
from iossim.ir.ops.reduce import ArgExtreme, CumSum, Reduce, TopK
from iossim.ir.ops.softmax import SoftmaxLike
from iossim.ir.ops.unary import Clip
from iossim.ir.types import DType

register(
    {
        "add": lambda op, types, *terms: reduce(torch.add, terms),
        "mul": lambda op, types, *factors: torch.mul(*factors),
        "relu": lambda op, types, x: torch.relu(x),
        "cast": lambda op, types, x: converted(x, DType(op.dtype)),
        "where": lambda op, types, *operands: torch.where(*operands),
    }
)
register({"sigmoid": lambda op, types, x: torch.sigmoid(x)}, refuses=only_floats)


@computes("clip")
def _clip(op: Clip, types: Types, x: Operand) -> Operand:
    exact: Callable[[float], float] = float if types[0].dtype.is_floating else int
    low, high = (None if bound is None else exact(bound) for bound in (op.minimum, op.maximum))
    return x if low is high is None else torch.clamp(x, low, high)


@computes("prelu")
def _prelu(op: PRelu, types: Types, x: Operand, slope: Operand) -> Operand:
    shape, slopes = (value.shape for value in types)
    by_channel = op.per_channel or (len(slopes) == len(shape) - 1 > 0 and slopes[1:] == (1,) * (len(slopes) - 1))
    if types[0].dtype.is_floating and (math.prod(slopes) == 1 or (by_channel and slopes[0] == shape[1])):
        return F.prelu(x, torch.reshape(slope, (-1,)))
    if op.per_channel:
        slope = torch.reshape(slope, (-1, *[1] * (len(shape) - 2)))
    return torch.where(x < 0, torch.mul(slope, x), x)


def _hard_sigmoid(x: Operand, alpha: float, beta: float) -> Operand:
    if math.isclose(alpha, 1 / 6, rel_tol=1e-6) and beta == 0.5:
        return F.hardsigmoid(x)
    return torch.clamp(torch.mul(x, alpha) + beta, 0.0, 1.0)


def _is_infinite(x: Operand, negative: float, positive: float) -> Operand:
    if negative and positive:
        return torch.isinf(x)
    if negative or positive:
        return torch.isneginf(x) if negative else torch.isposinf(x)
    return torch.zeros_like(x, dtype=torch.bool)


def _shrink(x: Operand, limit: float, bias: float) -> Operand:
    return torch.where(x < -limit, x + bias, torch.where(x > limit, x - bias, torch.zeros_like(x)))


#: Functions of one tensor that torch calls as iossim does.
_NAMED_ALIKE = (
    "abs", "acos", "acosh", "asin", "asinh", "atan", "atanh", "bitwise_not", "ceil", "cos", "cosh", "erf", "exp",
    "floor", "log", "neg", "reciprocal", "round", "sign", "sin", "sinh", "sqrt", "tan", "tanh",
)  # fmt: skip
#: By the name that the op carries: of the tensor, then of the op's parameters.
_UNARY: dict[str, Callable[..., Operand]] = {
    **{name: getattr(torch, name) for name in _NAMED_ALIKE},
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "hard_sigmoid": _hard_sigmoid,
    "hard_swish": F.hardswish,
    "is_inf": _is_infinite,
    "is_nan": torch.isnan,
    "not": torch.logical_not,
    "selu": lambda x, alpha, gamma: torch.mul(F.elu(x, alpha), gamma),
    "shrink": _shrink,
    **{name: getattr(F, name) for name in ("celu", "elu", "gelu", "leaky_relu", "mish", "softplus", "softsign")},
    "swish": lambda x, alpha: F.silu(x) if alpha == 1 else torch.mul(x, torch.sigmoid(torch.mul(x, alpha))),
    "thresholded_relu": lambda x, alpha: F.threshold(x, alpha, 0.0),
}


def _is_exact(op: Unary, types: Types) -> bool:
    return functions.UNARY[op.function].takes in ("whole", "truth") or op.function in ("abs", "neg", "sign")


register({"unary": lambda op, types, x: _UNARY[op.function](x, *op.parameters)}, without(_UNARY, _is_exact))


_NARY: dict[str, Callable[[Operand, Operand], Operand]] = {
    **{name: getattr(torch, name) for name in ("sub", "div", "pow", "fmod")},
    **{name: getattr(torch, f"logical_{name}") for name in ("and", "or", "xor")},
    **{name: getattr(torch, name) for name in ("bitwise_and", "bitwise_or", "bitwise_xor")},
    "min": torch.minimum, "max": torch.maximum, "mean": torch.add, "mod": torch.remainder, "equal": torch.eq,
    "less": torch.lt, "less_or_equal": torch.le, "greater": torch.gt, "greater_or_equal": torch.ge,
    "shift_left": torch.bitwise_left_shift, "shift_right": torch.bitwise_right_shift,
}  # fmt: skip


@computes("nary", refuses=without(_NARY, lambda op, types: op.function != "mean"))
def _nary(op: Nary, types: Types, *operands: Operand) -> Operand:
    if op.function == "div" and not types[0].dtype.is_floating:
        return torch.div(*operands, rounding_mode="trunc")
    y = reduce(_NARY[op.function], operands)
    if op.function == "mean":
        y = torch.div(y, len(operands))
    # A power has the type of its base, whatever that of the exponent.
    mixed = functions.NARY[op.function].mixed and len({value.dtype for value in types}) > 1
    return y.to(DTYPES[types[0].dtype]) if mixed else y


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


def _sums_exactly(op: Reduce, types: Types) -> bool:
    return op.function in ("sum", "max", "min", "product", "l1", "sum_square") and types[0].dtype is not DType.BOOL


@computes("reduce", refuses=without(_REDUCTIONS, _sums_exactly))
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
