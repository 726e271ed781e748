"""Tables of element-wise functions, of one tensor and of several that are broadcast, and the ops that apply one.

Functions of one tensor count as their arithmetic operations; an elementary function (exponential, logarithm, root,
error function, comparison, trigonometric function) is one operation. Those of several tensors count as one operation
per input after the first.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any, ClassVar, Generic, Self, TypeVar

import numpy as np

from iossim.ir.onnx_spelling import NotCoveredError, OnnxNode
from iossim.ir.op import Array, Op, Role, broadcast, broadcast_shapes, require, widen
from iossim.ir.ops.unary import logistic
from iossim.ir.types import DType, TensorType

F = TypeVar("F", bound="UnaryFunction | NaryFunction")


@dataclass(frozen=True)
class UnaryFunction:
    """``compute`` takes the array, then the parameters, which are ONNX attributes with defaults; further ``attributes``
    distinguish functions of one ONNX type, of which the first has those that a node may omit.

    ``takes`` is the accepted kind of numbers: any, real (floats, and a quantised graph's bytes), integer, or booleans.
    """

    onnx_type: str
    flops: int
    compute: Callable[..., Array]
    parameters: tuple[tuple[str, float | int], ...] = ()
    takes: str = "real"
    makes_bool: bool = False
    attributes: tuple[tuple[str, int | str], ...] = ()


def _softplus(x: Array) -> Array:
    return np.asarray(np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x))))


def _erf(x: Array) -> Array:
    from scipy.special import erf

    return np.asarray(erf(x))


def _gelu(x: Array) -> Array:
    return np.asarray(0.5 * x * (1 + _erf(x / np.sqrt(2).astype(x.dtype))))


def _gelu_tanh(x: Array) -> Array:
    """The approximation of Hendrycks and Gimpel (arXiv:1606.08415, section 2)."""
    inner = np.sqrt(2 / np.pi).astype(x.dtype) * (x + 0.044715 * x**3)
    return np.asarray(0.5 * x * (1 + np.tanh(inner)))


def _elu(x: Array, alpha: float) -> Array:
    return np.where(x > 0, x, alpha * np.expm1(np.minimum(x, 0)))


def _celu(x: Array, alpha: float) -> Array:
    return np.asarray(np.maximum(x, 0) + np.minimum(0, alpha * np.expm1(np.minimum(x, 0) / alpha)))


def _shrink(x: Array, limit: float, bias: float) -> Array:
    zero = np.zeros_like(x)
    return np.where(x < -limit, x + bias, np.where(x > limit, x - bias, zero))


def _is_infinite(x: Array, negative: int, positive: int) -> Array:
    return np.asarray((np.isneginf(x) & bool(negative)) | (np.isposinf(x) & bool(positive)))


#: Every function by its name in the op.
UNARY: dict[str, UnaryFunction] = {
    "abs": UnaryFunction("Abs", 1, np.abs, takes="any"),
    "acos": UnaryFunction("Acos", 1, np.arccos),
    "acosh": UnaryFunction("Acosh", 1, np.arccosh),
    "asin": UnaryFunction("Asin", 1, np.arcsin),
    "asinh": UnaryFunction("Asinh", 1, np.arcsinh),
    "atan": UnaryFunction("Atan", 1, np.arctan),
    "atanh": UnaryFunction("Atanh", 1, np.arctanh),
    "bitwise_not": UnaryFunction("BitwiseNot", 1, np.invert, takes="whole"),
    "ceil": UnaryFunction("Ceil", 1, np.ceil),
    "celu": UnaryFunction("Celu", 7, _celu, (("alpha", 1.0),)),
    "cos": UnaryFunction("Cos", 1, np.cos),
    "cosh": UnaryFunction("Cosh", 1, np.cosh),
    "elu": UnaryFunction("Elu", 3, _elu, (("alpha", 1.0),)),
    "erf": UnaryFunction("Erf", 1, _erf),
    "exp": UnaryFunction("Exp", 1, np.exp),
    "floor": UnaryFunction("Floor", 1, np.floor),
    "gelu": UnaryFunction("Gelu", 5, _gelu, attributes=(("approximate", "none"),)),
    "gelu_tanh": UnaryFunction("Gelu", 8, _gelu_tanh, attributes=(("approximate", "tanh"),)),
    "hard_sigmoid": UnaryFunction(
        "HardSigmoid", 4, lambda x, a, b: np.clip(a * x + b, 0, 1), (("alpha", 0.2), ("beta", 0.5))
    ),
    "hard_swish": UnaryFunction("HardSwish", 5, lambda x: x * np.clip(x / 6 + 0.5, 0, 1)),
    "is_inf": UnaryFunction(
        "IsInf", 1, _is_infinite, (("detect_negative", 1), ("detect_positive", 1)), makes_bool=True
    ),
    "is_nan": UnaryFunction("IsNaN", 1, np.isnan, makes_bool=True),
    "leaky_relu": UnaryFunction("LeakyRelu", 2, lambda x, alpha: np.where(x < 0, alpha * x, x), (("alpha", 0.01),)),
    "log": UnaryFunction("Log", 1, np.log),
    "mish": UnaryFunction("Mish", 6, lambda x: x * np.tanh(_softplus(x))),
    "neg": UnaryFunction("Neg", 1, np.negative, takes="any"),
    "not": UnaryFunction("Not", 1, np.logical_not, takes="truth"),
    "reciprocal": UnaryFunction("Reciprocal", 1, np.reciprocal),
    "round": UnaryFunction("Round", 1, np.rint),
    "selu": UnaryFunction(
        "Selu", 4, lambda x, alpha, gamma: gamma * _elu(x, alpha), (("alpha", 1.6732632), ("gamma", 1.050701))
    ),
    "shrink": UnaryFunction("Shrink", 4, _shrink, (("lambd", 0.5), ("bias", 0.0)), takes="any"),
    "sign": UnaryFunction("Sign", 2, np.sign, takes="any"),
    "sin": UnaryFunction("Sin", 1, np.sin),
    "sinh": UnaryFunction("Sinh", 1, np.sinh),
    "softplus": UnaryFunction("Softplus", 3, _softplus),
    "softsign": UnaryFunction("Softsign", 3, lambda x: x / (1 + np.abs(x))),
    "sqrt": UnaryFunction("Sqrt", 1, np.sqrt),
    "swish": UnaryFunction("Swish", 6, lambda x, alpha: x * logistic(alpha * x), (("alpha", 1.0),)),
    "tan": UnaryFunction("Tan", 1, np.tan),
    "tanh": UnaryFunction("Tanh", 1, np.tanh),
    "thresholded_relu": UnaryFunction(
        "ThresholdedRelu", 1, lambda x, alpha: np.where(x > alpha, x, np.zeros_like(x)), (("alpha", 1.0),)
    ),
}


@dataclass(frozen=True)
class _OfTable(Op, Generic[F]):
    """Base of ops that apply a function of a ``table``, by its name, element by element."""

    table: ClassVar[Mapping[str, Any]]

    function: str

    @property
    def unit_kind(self) -> str:
        return self.to_onnx()[0]

    @property
    def operation(self) -> str:
        return self.function

    def completed(self, node: OnnxNode) -> Self:
        is_narrow = any(node.input_type(index).dtype.is_narrow for index in range(len(node.inputs)))
        node.refuse(is_narrow, f"computes in {node.input_type(0).dtype}")
        for name, function in self.table.items():
            same = all(node.attribute(key, value) == value for key, value in function.attributes)
            if function.onnx_type == node.op_type and same:
                return replace(self, function=name)
        raise NotCoveredError(f"{node.op_type} {node.name!r} has attributes that iossim does not know")

    def to_onnx(self) -> tuple[str, dict[str, object]]:
        return self._known().onnx_type, dict(self._known().attributes)

    def _known(self) -> F:
        require(self.function in self.table, f"has no function {self.function!r}; known: {', '.join(self.table)}")
        found: F = self.table[self.function]
        return found


@dataclass(frozen=True)
class Unary(
    _OfTable[UnaryFunction], kind="unary", table=UNARY, onnx_types=" ".join(each.onnx_type for each in UNARY.values()),
    role=Role.ACTIVATION,
):  # fmt: skip
    """``function(x, *parameters)``; the functions are in :data:`UNARY`."""

    parameters: tuple[float, ...] = ()

    def output(self, x: TensorType) -> TensorType:
        function = self._known()
        require(
            len(self.parameters) == len(function.parameters),
            f"{self.function} has {len(function.parameters)} parameters, not {len(self.parameters)}",
        )
        _check_numbers(self.function, function.takes, x.dtype)
        return TensorType(x.shape, DType.BOOL) if function.makes_bool else x

    def flops(self, inputs: Sequence[TensorType], outputs: Sequence[TensorType]) -> int:
        return self._known().flops * outputs[0].elements

    def evaluate(self, inputs: Sequence[Array]) -> tuple[Array, ...]:
        function = self._known()
        with np.errstate(all="ignore"):  # logarithms of negative numbers are NaN, as in IEEE 754
            y = np.asarray(function.compute(widen(inputs[0]), *self.parameters))
        return (y if function.makes_bool else y.astype(inputs[0].dtype, copy=False),)

    def completed(self, node: OnnxNode) -> Self:
        found = super().completed(node)
        usual = found._known().parameters
        return replace(found, parameters=tuple(type(value)(node.attribute(key, value)) for key, value in usual))

    def to_onnx(self) -> tuple[str, dict[str, object]]:
        onnx_type, attributes = super().to_onnx()
        pairs = zip(self._known().parameters, self.parameters, strict=True)
        return onnx_type, attributes | {key: type(usual)(value) for (key, usual), value in pairs}


def _check_numbers(name: str, takes: str, dtype: DType) -> None:
    fits = {
        "any": dtype is not DType.BOOL,
        "real": dtype.is_floating or dtype.bytes == 1,
        "whole": not dtype.is_floating and dtype is not DType.BOOL,
        "truth": dtype is DType.BOOL,
    }
    kinds = {"any": "numbers", "real": "floating-point numbers", "whole": "whole numbers", "truth": "truth values"}
    require(fits[takes], f"{name} takes {kinds[takes]}, not {dtype}")


@dataclass(frozen=True)
class NaryFunction:
    """``compute`` takes two arrays; with more (``variadic``) it is applied from left to right.

    ``attributes`` are as those of a :class:`UnaryFunction`. Inputs have one element type unless ``mixed``; then the
    output has the first one's.
    """

    onnx_type: str
    compute: Callable[[Array, Array], Array]
    attributes: tuple[tuple[str, int | str], ...] = ()
    makes_bool: bool = False
    variadic: bool = False
    mixed: bool = False
    takes_truth: bool = False


def _divide(a: Array, b: Array) -> Array:
    """Integer division truncates towards zero, as in C."""
    if a.dtype.kind not in "iu":
        return np.asarray(a / b)
    floor = a // b
    return np.asarray(floor + ((a % b != 0) & ((a < 0) != (b < 0))).astype(floor.dtype))


def _power(base: Array, exponent: Array) -> Array:
    if base.dtype.kind in "iu" and exponent.dtype.kind in "iu":
        base = base.astype(np.float64) if (exponent < 0).any() else base
    return np.asarray(np.power(base, exponent))


NARY: dict[str, NaryFunction] = {
    "sub": NaryFunction("Sub", np.subtract),
    "div": NaryFunction("Div", _divide),
    "pow": NaryFunction("Pow", _power, mixed=True),
    "min": NaryFunction("Min", np.minimum, variadic=True),
    "max": NaryFunction("Max", np.maximum, variadic=True),
    "mean": NaryFunction("Mean", np.add, variadic=True),
    "mod": NaryFunction("Mod", np.mod, (("fmod", 0),)),
    "fmod": NaryFunction("Mod", np.fmod, (("fmod", 1),)),
    "equal": NaryFunction("Equal", np.equal, makes_bool=True, takes_truth=True),
    "less": NaryFunction("Less", np.less, makes_bool=True),
    "less_or_equal": NaryFunction("LessOrEqual", np.less_equal, makes_bool=True),
    "greater": NaryFunction("Greater", np.greater, makes_bool=True),
    "greater_or_equal": NaryFunction("GreaterOrEqual", np.greater_equal, makes_bool=True),
    "and": NaryFunction("And", np.logical_and, makes_bool=True, takes_truth=True),
    "or": NaryFunction("Or", np.logical_or, makes_bool=True, takes_truth=True),
    "xor": NaryFunction("Xor", np.logical_xor, makes_bool=True, takes_truth=True),
    "bitwise_and": NaryFunction("BitwiseAnd", np.bitwise_and),
    "bitwise_or": NaryFunction("BitwiseOr", np.bitwise_or),
    "bitwise_xor": NaryFunction("BitwiseXor", np.bitwise_xor),
    "shift_left": NaryFunction("BitShift", np.left_shift, (("direction", "LEFT"),)),
    "shift_right": NaryFunction("BitShift", np.right_shift, (("direction", "RIGHT"),)),
}


@dataclass(frozen=True)
class Nary(
    _OfTable[NaryFunction], kind="nary", table=NARY, onnx_types=" ".join(each.onnx_type for each in NARY.values()),
    role=Role.ELEMENTWISE,
):  # fmt: skip
    """``function`` of all inputs; the functions are in :data:`NARY`."""

    def output(self, *inputs: TensorType) -> TensorType:
        function = self._known()
        fits = len(inputs) == 2 or (function.variadic and len(inputs) > 0)
        require(fits, f"{self.function} takes two inputs, not {len(inputs)}")
        logical = self.function in ("and", "or", "xor")
        for value in inputs:
            is_truth = value.dtype is DType.BOOL
            require(function.takes_truth or not is_truth, f"{self.function} takes numbers, not {value.dtype}")
            require(is_truth or not logical, f"{self.function} takes truth values, not {value.dtype}")
        made = TensorType(broadcast_shapes(inputs), inputs[0].dtype) if function.mixed else broadcast(inputs)
        return TensorType(made.shape, DType.BOOL) if function.makes_bool else made

    def flops(self, inputs: Sequence[TensorType], outputs: Sequence[TensorType]) -> int:
        return outputs[0].elements * (len(inputs) - 1 + (self.function == "mean"))

    def evaluate(self, inputs: Sequence[Array]) -> tuple[Array, ...]:
        function = self._known()
        with np.errstate(all="ignore"):  # division by zero gives infinity, as in IEEE 754
            y = np.asarray(reduce(function.compute, [widen(array) for array in inputs]))
            if self.function == "mean":
                y = y / y.dtype.type(len(inputs))
        return (y if function.makes_bool else y.astype(inputs[0].dtype, copy=False),)

    def least_opset(self, x: DType) -> int:
        # Before opset 28, the remainder of a floored division was for integers only.
        return 28 if self.function == "mod" and x.is_floating else 1
