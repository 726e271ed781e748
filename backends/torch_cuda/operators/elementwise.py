"""Element-wise functions of one tensor and of several."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import reduce

import torch
import torch.nn.functional as F  # noqa: N812  (its usual name)

from iossim.backends.torch_cuda.operators.registry import Operand, Types, computes, only_floats, register, without
from iossim.backends.torch_cuda.tensors import DTYPES, converted
from iossim.ir.ops import functions
from iossim.ir.ops.functions import Nary, Unary
from iossim.ir.ops.nary import PRelu
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
