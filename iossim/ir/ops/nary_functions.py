"""A table of element-wise functions of several tensors, broadcast against each other, and the op that applies one.

Each function counts as one operation per input after the first.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any, Self

import numpy as np

from iossim.ir.op import Array, NotCoveredError, OnnxNode, Op, Role, broadcast, broadcast_shapes, require, widen
from iossim.ir.types import DType, TensorType


@dataclass(frozen=True)
class Function:
    """``compute`` takes two arrays; with more (``variadic``) it is applied from left to right.

    ``attributes`` distinguish functions of one ONNX type. Inputs have one element type unless ``mixed``; then the
    output has the first one's.
    """

    onnx_type: str
    compute: Callable[[Array, Array], Array]
    attributes: tuple[tuple[str, int | str], ...] = ()
    makes_bool: bool = False
    variadic: bool = False
    mixed: bool = False
    takes_truth: bool = False


def _divide(a: Array, b: Array) -> Any:
    """Integer division truncates towards zero, as in C."""
    if a.dtype.kind not in "iu":
        return a / b
    floor = a // b
    return floor + ((a % b != 0) & ((a < 0) != (b < 0))).astype(floor.dtype)


def _power(base: Array, exponent: Array) -> Any:
    if base.dtype.kind in "iu" and exponent.dtype.kind in "iu":
        return np.power(base.astype(np.float64), exponent) if (exponent < 0).any() else base**exponent
    return np.power(base, exponent)


FUNCTIONS: dict[str, Function] = {
    "sub": Function("Sub", np.subtract),
    "div": Function("Div", _divide),
    "pow": Function("Pow", _power, mixed=True),
    "min": Function("Min", np.minimum, variadic=True),
    "max": Function("Max", np.maximum, variadic=True),
    "mean": Function("Mean", np.add, variadic=True),
    "mod": Function("Mod", np.mod, (("fmod", 0),)),
    "fmod": Function("Mod", np.fmod, (("fmod", 1),)),
    "equal": Function("Equal", np.equal, makes_bool=True, takes_truth=True),
    "less": Function("Less", np.less, makes_bool=True),
    "less_or_equal": Function("LessOrEqual", np.less_equal, makes_bool=True),
    "greater": Function("Greater", np.greater, makes_bool=True),
    "greater_or_equal": Function("GreaterOrEqual", np.greater_equal, makes_bool=True),
    "and": Function("And", np.logical_and, makes_bool=True, takes_truth=True),
    "or": Function("Or", np.logical_or, makes_bool=True, takes_truth=True),
    "xor": Function("Xor", np.logical_xor, makes_bool=True, takes_truth=True),
    "bitwise_and": Function("BitwiseAnd", np.bitwise_and),
    "bitwise_or": Function("BitwiseOr", np.bitwise_or),
    "bitwise_xor": Function("BitwiseXor", np.bitwise_xor),
    "shift_left": Function("BitShift", np.left_shift, (("direction", "LEFT"),)),
    "shift_right": Function("BitShift", np.right_shift, (("direction", "RIGHT"),)),
}


@dataclass(frozen=True)
class Nary(Op, kind="nary", onnx_types=" ".join(each.onnx_type for each in FUNCTIONS.values()), role=Role.ELEMENTWISE):
    """``function`` of all inputs, element by element; the functions are in :data:`FUNCTIONS`."""

    function: str

    @property
    def unit_kind(self) -> str:
        return self.to_onnx()[0]

    @property
    def operation(self) -> str:
        return self.function

    def infer(self, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
        function = self._known()
        fits = len(inputs) == 2 or (function.variadic and len(inputs) > 0)
        require(fits, f"{self.function} takes two inputs, not {len(inputs)}")
        logical = self.function in ("and", "or", "xor")
        for value in inputs:
            is_truth = value.dtype is DType.BOOL
            require(function.takes_truth or not is_truth, f"{self.function} takes numbers, not {value.dtype}")
            require(is_truth or not logical, f"{self.function} takes truth values, not {value.dtype}")
        made = TensorType(broadcast_shapes(inputs), inputs[0].dtype) if function.mixed else broadcast(inputs)
        return (TensorType(made.shape, DType.BOOL) if function.makes_bool else made,)

    def flops(self, inputs: Sequence[TensorType], outputs: Sequence[TensorType]) -> int:
        return outputs[0].elements * (len(inputs) - 1 + (self.function == "mean"))

    def evaluate(self, inputs: Sequence[Array]) -> tuple[Array, ...]:
        function = self._known()
        with np.errstate(all="ignore"):  # division by zero gives infinity, as in IEEE 754
            y = np.asarray(reduce(function.compute, [widen(array) for array in inputs]))
            if self.function == "mean":
                y = y / y.dtype.type(len(inputs))
        return (y if function.makes_bool else y.astype(inputs[0].dtype, copy=False),)

    @classmethod
    def from_onnx(cls, node: OnnxNode) -> tuple[Self, tuple[str, ...]]:
        if any(node.input_type(index).dtype.is_narrow for index in range(len(node.inputs))):
            raise NotCoveredError(f"{node.op_type} {node.name!r} computes in {node.input_type(0).dtype}")
        for name, function in FUNCTIONS.items():
            same = all(node.attribute(key, 0) == value for key, value in function.attributes)
            if function.onnx_type == node.op_type and same:
                return cls(name), node.inputs
        raise NotCoveredError(f"{node.op_type} {node.name!r} has attributes that iossim does not know")

    def to_onnx(self) -> tuple[str, dict[str, Any]]:
        function = self._known()
        return function.onnx_type, dict(function.attributes)

    def least_opset(self, x: DType) -> int:
        # Before opset 28, the remainder of a floored division was for integers only.
        return 28 if self.function == "mod" and x.is_floating else 1

    def _known(self) -> Function:
        require(self.function in FUNCTIONS, f"has no function {self.function!r}; known: {', '.join(FUNCTIONS)}")
        return FUNCTIONS[self.function]
