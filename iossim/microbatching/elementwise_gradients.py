"""Gradients of element-wise ops: rules for sums, products and functions."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from iossim.base.errors import ModelError
from iossim.ir.ops.functions import Nary, Unary
from iossim.ir.ops.nary import Add, Mul, Where
from iossim.ir.ops.unary import Cast, Clip, Relu, Sigmoid
from iossim.microbatching.gradients import RULES, Gradients, Tape, summed


@dataclass(frozen=True)
class _Value:
    """A value on a tape, whose arithmetic adds ops to the tape."""

    tape: Tape
    name: str

    def __add__(self, other: _Value | float) -> _Value:
        return self._with(Add(), other)

    def __mul__(self, other: _Value | float) -> _Value:
        return self._with(Mul(), other)

    def __truediv__(self, other: _Value) -> _Value:
        return self._with(Nary("div"), other)

    def __neg__(self) -> _Value:
        return self.apply("neg")

    def __rsub__(self, other: float) -> _Value:
        return -self + other

    def apply(self, function: str) -> _Value:
        return _Value(self.tape, self.tape.add(Unary(function), self.name))

    def sigmoid(self) -> _Value:
        return _Value(self.tape, self.tape.add(Sigmoid(), self.name))

    def _with(self, op: Add | Mul | Nary, other: _Value | float) -> _Value:
        second = other if isinstance(other, _Value) else _number(self.tape, other)
        return _Value(self.tape, self.tape.add(op, self.name, second.name))


def _number(tape: Tape, value: float) -> _Value:
    return _Value(tape, tape.filled((), value))


#: The derivative of a function of one tensor with respect to ``x``, given ``x``, ``y`` and the parameters.
Slope = Callable[..., _Value]


def _between(y: _Value, minimum: float | None, maximum: float | None) -> _Value | None:
    """One where ``y`` is between the bounds, zero where it equals one of them; None without bounds."""
    below = None if minimum is None else (y + -minimum if minimum else y).apply("sign")
    above = None if maximum is None else (maximum - y).apply("sign")
    return below * above if below and above else below or above


def _gelu(x: _Value, y: _Value) -> _Value:
    density = (x * x * -0.5).apply("exp") * (1 / math.sqrt(2 * math.pi))
    return ((x * math.sqrt(0.5)).apply("erf") + 1.0) * 0.5 + x * density


def _gelu_tanh(x: _Value, y: _Value) -> _Value:
    scale, square = math.sqrt(2 / math.pi), x * x
    bend = (x * (square * (0.044715 * scale) + scale)).apply("tanh")
    return (bend + 1.0) * 0.5 + x * (1.0 - bend * bend) * (square * (1.5 * 0.044715 * scale) + 0.5 * scale)


def _swish(x: _Value, y: _Value, alpha: float) -> _Value:
    share = (x * alpha).sigmoid()
    return share + y * (1.0 - share) * alpha


def _hard_sigmoid(x: _Value, y: _Value, alpha: float, beta: float) -> _Value:
    inside = _between(y, 0.0, 1.0)
    assert inside is not None
    return inside * alpha


def _hard_swish(x: _Value, y: _Value) -> _Value:
    gate = _Value(x.tape, x.tape.add(Unary("hard_sigmoid", (1 / 6, 0.5)), x.name))
    return gate + x * _hard_sigmoid(x, gate, 1 / 6, 0.5)


SLOPES: dict[str, Slope] = {
    "abs": lambda x, y: x.apply("sign"),
    "cos": lambda x, y: -x.apply("sin"),
    "erf": lambda x, y: (-(x * x)).apply("exp") * (2 / math.sqrt(math.pi)),
    "exp": lambda x, y: y,
    "gelu": _gelu,
    "gelu_tanh": _gelu_tanh,
    "hard_sigmoid": _hard_sigmoid,
    "hard_swish": _hard_swish,
    "leaky_relu": lambda x, y, alpha: x.apply("sign") * ((1 - alpha) / 2) + (1 + alpha) / 2,
    "log": lambda x, y: x.apply("reciprocal"),
    "neg": lambda x, y: _number(x.tape, -1.0),
    "reciprocal": lambda x, y: -(y * y),
    "relu": lambda x, y: y.apply("sign"),
    "sigmoid": lambda x, y: y * (1.0 - y),
    "sin": lambda x, y: x.apply("cos"),
    "softplus": lambda x, y: x.sigmoid(),
    "sqrt": lambda x, y: y.apply("reciprocal") * 0.5,
    "swish": _swish,
    "tanh": lambda x, y: 1.0 - y * y,
}


@RULES.register(Relu, Sigmoid, Unary)
def _unary(tape: Tape, op: Relu | Sigmoid | Unary, grad: str, x: str) -> Gradients:
    kind, parameters = op.to_onnx()[0], op.parameters if isinstance(op, Unary) else ()
    if op.operation not in SLOPES:
        raise ModelError(f"op {tape.node.name!r} ({kind}) has no gradient here")
    with tape.fused(kind):
        slope = SLOPES[op.operation](_Value(tape, x), _Value(tape, tape.node.outputs[0]), *parameters)
        return [tape.add(Mul(), grad, slope.name)]


@RULES.register(Clip)
def _clip(tape: Tape, op: Clip, grad: str, x: str) -> Gradients:
    """Zero gradient where a bound is reached, as in PyTorch's ReLU6."""
    with tape.fused("Clip"):
        inside = _between(_Value(tape, tape.node.outputs[0]), op.minimum, op.maximum)
        return [tape.add(Mul(), grad, inside.name) if inside else grad]


@RULES.register(Add)
def _add(tape: Tape, op: Add, grad: str, *terms: str) -> Gradients:
    return [partial(summed, tape, grad, each) for each in terms]


@RULES.register(Mul)
def _mul(tape: Tape, op: Mul, grad: str, a: str, b: str) -> Gradients:
    return [lambda: summed(tape, tape.add(Mul(), grad, b), a), lambda: summed(tape, tape.add(Mul(), grad, a), b)]


@RULES.register(Nary)
def _nary(tape: Tape, op: Nary, grad: str, a: str, b: str = "", *more: str) -> Gradients:
    """Gradients of differences, quotients, and powers with a constant exponent."""
    if op.function not in ("sub", "div") and (op.function != "pow" or tape.needed(b)):
        raise ModelError(f"op {tape.node.name!r} ({op.function}) has no gradient here")
    y, second, upstream = (_Value(tape, name) for name in (tape.node.outputs[0], b, grad))
    of_a = of_b = ""
    with tape.fused(op.function.capitalize()):
        if tape.needed(a):
            match op.function:
                case "sub":
                    first = upstream
                case "div":
                    first = upstream / second
                case _:
                    if tape.types[b].dtype is not tape.types[a].dtype:
                        second = _Value(tape, tape.add(Cast(str(tape.types[a].dtype)), b))
                    power = tape.add(Nary("pow"), a, (second + -1.0).name)
                    first = upstream * (second * _Value(tape, power))
            of_a = summed(tape, first.name, a)
        if tape.needed(b):
            of_b = summed(tape, (-upstream if op.function == "sub" else -(upstream * y / second)).name, b)
    return [of_a, of_b]


@RULES.register(Where)
def _where(tape: Tape, op: Where, grad: str, condition: str, x: str, y: str) -> Gradients:
    zero, of_x, of_y = tape.filled((), 0.0), "", ""
    with tape.fused("Where"):
        if tape.needed(x):
            of_x = summed(tape, tape.add(Where(), condition, grad, zero), x)
        if tape.needed(y):
            of_y = summed(tape, tape.add(Where(), condition, zero, grad), y)
    return [None, of_x, of_y]
