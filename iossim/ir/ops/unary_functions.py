"""A table of element-wise functions of one tensor, and the op that applies one.

Functions count as their arithmetic operations; an elementary function (exponential, logarithm, root,
error function, comparison, trigonometric function) is one operation.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from iossim.ir.op import Array, NotCoveredError, OnnxNode, Op, Role, one_input, require, widen
from iossim.ir.ops.unary import logistic
from iossim.ir.types import DType, TensorType


@dataclass(frozen=True)
class Function:
    """``compute`` takes the array, then the parameters, which are ONNX attributes with defaults.

    ``takes`` is the accepted kind of numbers: any, real (floats, and a quantised graph's bytes), integer, or booleans.
    """

    onnx_type: str
    flops: int
    compute: Callable[..., Array]
    parameters: tuple[tuple[str, float | int], ...] = ()
    takes: str = "real"
    makes_bool: bool = False


def _softplus(x: Array) -> Any:
    return np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x)))


def _erf(x: Array) -> Any:
    from scipy.special import erf

    return erf(x)


def _gelu(x: Array) -> Any:
    return 0.5 * x * (1 + _erf(x / np.sqrt(2).astype(x.dtype)))


def _gelu_tanh(x: Array) -> Any:
    """The approximation of Hendrycks and Gimpel (arXiv:1606.08415, section 2)."""
    inner = np.sqrt(2 / np.pi).astype(x.dtype) * (x + 0.044715 * x**3)
    return 0.5 * x * (1 + np.tanh(inner))


def _elu(x: Array, alpha: float) -> Any:
    return np.where(x > 0, x, alpha * np.expm1(np.minimum(x, 0)))


def _celu(x: Array, alpha: float) -> Any:
    return np.maximum(x, 0) + np.minimum(0, alpha * np.expm1(np.minimum(x, 0) / alpha))


def _shrink(x: Array, limit: float, bias: float) -> Any:
    zero = np.zeros_like(x)
    return np.where(x < -limit, x + bias, np.where(x > limit, x - bias, zero))


def _is_infinite(x: Array, negative: int, positive: int) -> Any:
    return (np.isneginf(x) & bool(negative)) | (np.isposinf(x) & bool(positive))


#: Every function by its name in the op.
FUNCTIONS: dict[str, Function] = {
    "abs": Function("Abs", 1, np.abs, takes="any"),
    "acos": Function("Acos", 1, np.arccos),
    "acosh": Function("Acosh", 1, np.arccosh),
    "asin": Function("Asin", 1, np.arcsin),
    "asinh": Function("Asinh", 1, np.arcsinh),
    "atan": Function("Atan", 1, np.arctan),
    "atanh": Function("Atanh", 1, np.arctanh),
    "bitwise_not": Function("BitwiseNot", 1, np.invert, takes="whole"),
    "ceil": Function("Ceil", 1, np.ceil),
    "celu": Function("Celu", 7, _celu, (("alpha", 1.0),)),
    "cos": Function("Cos", 1, np.cos),
    "cosh": Function("Cosh", 1, np.cosh),
    "elu": Function("Elu", 3, _elu, (("alpha", 1.0),)),
    "erf": Function("Erf", 1, _erf),
    "exp": Function("Exp", 1, np.exp),
    "floor": Function("Floor", 1, np.floor),
    "gelu": Function("Gelu", 5, _gelu),
    "gelu_tanh": Function("Gelu", 8, _gelu_tanh),
    "hard_sigmoid": Function(
        "HardSigmoid", 4, lambda x, a, b: np.clip(a * x + b, 0, 1), (("alpha", 0.2), ("beta", 0.5))
    ),
    "hard_swish": Function("HardSwish", 5, lambda x: x * np.clip(x / 6 + 0.5, 0, 1)),
    "is_inf": Function("IsInf", 1, _is_infinite, (("detect_negative", 1), ("detect_positive", 1)), makes_bool=True),
    "is_nan": Function("IsNaN", 1, np.isnan, makes_bool=True),
    "leaky_relu": Function("LeakyRelu", 2, lambda x, alpha: np.where(x < 0, alpha * x, x), (("alpha", 0.01),)),
    "log": Function("Log", 1, np.log),
    "mish": Function("Mish", 6, lambda x: x * np.tanh(_softplus(x))),
    "neg": Function("Neg", 1, np.negative, takes="any"),
    "not": Function("Not", 1, np.logical_not, takes="truth"),
    "reciprocal": Function("Reciprocal", 1, np.reciprocal),
    "round": Function("Round", 1, np.rint),
    "selu": Function(
        "Selu", 4, lambda x, alpha, gamma: gamma * _elu(x, alpha), (("alpha", 1.6732632), ("gamma", 1.050701))
    ),
    "shrink": Function("Shrink", 4, _shrink, (("lambd", 0.5), ("bias", 0.0)), takes="any"),
    "sign": Function("Sign", 2, np.sign, takes="any"),
    "sin": Function("Sin", 1, np.sin),
    "sinh": Function("Sinh", 1, np.sinh),
    "softplus": Function("Softplus", 3, _softplus),
    "softsign": Function("Softsign", 3, lambda x: x / (1 + np.abs(x))),
    "sqrt": Function("Sqrt", 1, np.sqrt),
    "swish": Function("Swish", 6, lambda x, alpha: x * logistic(alpha * x), (("alpha", 1.0),)),
    "tan": Function("Tan", 1, np.tan),
    "tanh": Function("Tanh", 1, np.tanh),
    "thresholded_relu": Function(
        "ThresholdedRelu", 1, lambda x, alpha: np.where(x > alpha, x, np.zeros_like(x)), (("alpha", 1.0),)
    ),
}
_BY_ONNX_TYPE = {function.onnx_type: name for name, function in FUNCTIONS.items() if name != "gelu_tanh"}


@dataclass(frozen=True)
class Unary(Op, kind="unary", onnx_types=" ".join(_BY_ONNX_TYPE), role=Role.ACTIVATION):
    """``function(x, *parameters)``, element by element; the functions are in :data:`FUNCTIONS`."""

    function: str
    parameters: tuple[float, ...] = ()

    @property
    def unit_kind(self) -> str:
        return self.to_onnx()[0]

    @property
    def operation(self) -> str:
        return self.function

    def infer(self, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
        x = one_input(inputs)
        function = self._known()
        require(
            len(self.parameters) == len(function.parameters),
            f"{self.function} has {len(function.parameters)} parameters, not {len(self.parameters)}",
        )
        _check_numbers(self.function, function.takes, x.dtype)
        return (TensorType(x.shape, DType.BOOL) if function.makes_bool else x,)

    def flops(self, inputs: Sequence[TensorType], outputs: Sequence[TensorType]) -> int:
        return self._known().flops * outputs[0].elements

    def evaluate(self, inputs: Sequence[Array]) -> tuple[Array, ...]:
        function = self._known()
        with np.errstate(all="ignore"):  # logarithms of negative numbers are NaN, as in IEEE 754
            y = np.asarray(function.compute(widen(inputs[0]), *self.parameters))
        return (y if function.makes_bool else y.astype(inputs[0].dtype, copy=False),)

    @classmethod
    def from_onnx(cls, node: OnnxNode) -> tuple[Self, tuple[str, ...]]:
        name = _BY_ONNX_TYPE[node.op_type]
        if node.op_type == "Gelu" and node.attribute("approximate", "none") == "tanh":
            name = "gelu_tanh"
        if node.input_type(0).dtype.is_narrow:
            raise NotCoveredError(f"{node.op_type} {node.name!r} computes in {node.input_type(0).dtype}")
        parameters = tuple(type(usual)(node.attribute(key, usual)) for key, usual in FUNCTIONS[name].parameters)
        return cls(name, parameters), node.data_inputs(1)

    def to_onnx(self) -> tuple[str, dict[str, Any]]:
        function = self._known()
        attributes: dict[str, Any] = {
            key: type(usual)(value) for (key, usual), value in zip(function.parameters, self.parameters, strict=True)
        }
        if function.onnx_type == "Gelu":
            attributes["approximate"] = "tanh" if self.function == "gelu_tanh" else "none"
        return function.onnx_type, attributes

    def _known(self) -> Function:
        require(self.function in FUNCTIONS, f"has no function {self.function!r}; known: {', '.join(FUNCTIONS)}")
        return FUNCTIONS[self.function]


def _check_numbers(name: str, takes: str, dtype: DType) -> None:
    fits = {
        "any": dtype is not DType.BOOL,
        "real": dtype.is_floating or dtype.bytes == 1,
        "whole": not dtype.is_floating and dtype is not DType.BOOL,
        "truth": dtype is DType.BOOL,
    }
    kinds = {"any": "numbers", "real": "floating-point numbers", "whole": "whole numbers", "truth": "truth values"}
    require(fits[takes], f"{name} takes {kinds[takes]}, not {dtype}")
