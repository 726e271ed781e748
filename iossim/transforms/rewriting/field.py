"""Graphs evaluated over a prime field: exact, so that two that compute the same are equal to the last bit.

Elements are whole numbers below :data:`PRIME`, held in float64. A product of two is below 2^40, and a sum of up to 2^13 products
below 2^53: NumPy computes both exactly, so an op's own ``evaluate``, reduced after each op, is arithmetic of the field.

Activations are fixed pseudo-random functions of an element that keep what substitutions build on. Elements other than zero are
either positive or negative, ``-x`` always the other; ``relu``, ``clip``, ``abs``, ``sign`` and leaky rectifiers are what
these signs make of them, hence idempotent where the real ones are. All others, ``tanh`` say, know nothing of their argument
but which it is. What an equality of these functions says is true of the real ones; the converse is not (``tanh`` is odd),
so a difference here is one of real numbers only once float64 shows it, too.

Pooling, softmax, normalisation, division, rounding and comparison have no counterpart; see :func:`is_exact`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from iossim.ir.graph import Graph
from iossim.ir.op import Array, Op
from iossim.ir.ops.matmul import Gemm
from iossim.ir.ops.nary import Nary, PRelu
from iossim.ir.ops.reduce import Reduce
from iossim.ir.ops.slice import Pad
from iossim.ir.ops.unary import Clip, Relu, Unary

#: 2^20 - 3.
PRIME = 1048573
#: Sums, products and movement of data: their own evaluation on whole numbers is exact.
_PLAIN = frozenset(
    [
        "add",
        "mul",
        "matmul",
        "conv",
        "conv_nhwc",
        "conv_transpose",
        "cumsum",
        "concat",
        "split",
        "slice",
        "transpose",
        "reshape",
        "flatten",
        "identity",
        "expand",
        "tile",
        "depth_to_space",
        "space_to_depth",
    ]
)
#: Functions that the field has not: they compare with neighbours or round, or take or make truth values.
_WITHOUT = frozenset(["ceil", "floor", "round", "shrink", "is_inf", "is_nan", "not", "bitwise_not"])
#: Whole numbers up to here have the sign that they have.
_SMALL = 1 << 10


def is_exact(op: Op) -> bool:
    """Whether the field has the op; if not, it is evaluated in float64 only."""
    match op:
        case (
            Reduce(function="sum" | "sum_square") | Nary(function="sub") | Gemm() | Pad() | Relu() | Clip() | PRelu()
        ):
            return True
        case Unary(function):
            return function not in _WITHOUT
    return op.kind in _PLAIN or op.kind == "sigmoid"


def is_exact_graph(*graphs: Graph) -> bool:
    """Whether the field has all ops of the graphs."""
    return all(is_exact(node.op) for graph in graphs for node in graph.nodes)


def random_elements(random: np.random.Generator, shape: tuple[int, ...]) -> Array:
    """Elements drawn evenly, of ``shape``."""
    return random.integers(0, PRIME, shape).astype(np.float64)


def in_field(numbers: Any) -> Array:
    """Real numbers as elements. Floats are fractions of powers of two, so that sums and products of those go with it exactly."""
    array = np.asarray(numbers, dtype=np.float64)
    if (array == np.floor(array)).all():
        whole: Array = np.mod(array, PRIME)
        return whole
    return np.array([_fraction(value) for value in array.ravel().tolist()], dtype=np.float64).reshape(array.shape)


def _fraction(value: float) -> int:
    exact = Fraction(value)
    return exact.numerator * pow(exact.denominator, -1, PRIME) % PRIME


def evaluate_op(op: Op, inputs: Sequence[Array]) -> tuple[Array, ...]:
    """The outputs of an op that :func:`is_exact`, of elements."""
    match op:
        case Gemm(alpha, beta):
            (product,) = replace(op, alpha=1.0, beta=1.0).evaluate(inputs[:2])
            y = np.mod(product, PRIME) * in_field(alpha)
            made: tuple[Array, ...] = (y + inputs[2] * in_field(beta) if len(inputs) == 3 else y,)
        case Pad(value=value):
            made = replace(op, value=float(in_field(value))).evaluate(inputs)
        case Relu():
            made = (np.where(_is_positive(inputs[0]), inputs[0], 0.0),)
        case Clip(minimum, maximum):
            (y,) = inputs
            if minimum is not None:
                y = np.where(_is_positive(np.mod(y - in_field(minimum), PRIME)), y, in_field(minimum))
            if maximum is not None:
                y = np.where(_is_positive(np.mod(in_field(maximum) - y, PRIME)), y, in_field(maximum))
            made = (y,)
        case PRelu():
            x, slope = inputs
            slope = slope.reshape(-1, *[1] * (x.ndim - 2)) if op.per_channel else slope
            made = (np.where(_is_positive(x), x, slope * x),)
        case Unary(function, parameters) if function in _BY_SIGN:
            made = (_BY_SIGN[function](inputs[0], *(in_field(value) for value in parameters)),)
        case Unary() | Op(kind="sigmoid"):
            made = (_scrambled(inputs[0], op.signature),)
        case _:
            made = op.evaluate(inputs)
    return tuple(np.mod(each, PRIME) for each in made)


def evaluate_exact(graph: Graph, inputs: Mapping[str, Array]) -> dict[str, Array]:
    """Outputs of a graph whose ops are all exact, by name, from elements by name; constants are taken for elements."""
    return _evaluate(graph, inputs, in_field, evaluate_op)


def evaluate_real(graph: Graph, inputs: Mapping[str, Array]) -> dict[str, Array]:
    """Outputs of a graph by name, from real numbers by name, in float64 wherever an op's own evaluation keeps to that."""
    with np.errstate(all="ignore"):  # what divides by zero is infinite on both sides
        return _evaluate(
            graph, inputs, lambda array: np.asarray(array, np.float64), lambda op, given: op.evaluate(given)
        )


def _evaluate(
    graph: Graph,
    inputs: Mapping[str, Array],
    take: Callable[[Array], Array],
    run: Callable[[Op, Sequence[Array]], Iterable[Array]],
) -> dict[str, Array]:
    values = {**inputs, **{name: take(constant.load()) for name, constant in graph.constants.items()}}
    for node in graph.nodes:
        values.update(zip(node.outputs, run(node.op, [values[name] for name in node.inputs]), strict=True))
    return {name: values[name] for name in graph.outputs}


def _is_positive(x: Array) -> NDArray[np.bool_]:
    """The sign of elements: small numbers have their own, others one that looks random, ``-x`` the other than ``x``."""
    mirrored = x > PRIME // 2
    size = np.where(mirrored, PRIME - x, x)
    flipped = (size > _SMALL) & (_scrambled(size, "sign") % 2 == 1)
    result: NDArray[np.bool_] = mirrored == flipped
    return result


def _scrambled(x: Array, name: str) -> Array:
    """A pseudo-random function of elements for each name, the same in every process (the finaliser of SplitMix64)."""
    z = x.astype(np.uint64) + _offset(name)
    with np.errstate(over="ignore"):  # NumPy tells of it for single numbers
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return ((z ^ (z >> np.uint64(31))) % np.uint64(PRIME)).astype(np.float64)


@cache
def _offset(name: str) -> np.uint64:
    return np.uint64(int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "little"))


#: Functions that the sign of their argument decides.
_BY_SIGN: dict[str, Callable[..., Array]] = {
    "neg": lambda x: -x,
    "abs": lambda x: np.where(_is_positive(x), x, -x),
    "sign": lambda x: np.where(x == 0, 0.0, np.where(_is_positive(x), 1.0, -1.0)),
    "leaky_relu": lambda x, alpha: np.where(_is_positive(x), x, alpha * x),
    "thresholded_relu": lambda x, alpha: np.where(_is_positive(np.mod(x - alpha, PRIME)), x, 0.0),
}
