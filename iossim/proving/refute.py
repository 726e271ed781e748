"""Rules tried on random tensors: one difference between their sides refutes, and the counterexample can be replayed.

Both sides are evaluated over a prime field if it has their ops. If they differ there, or if it lacks an op, they are
evaluated in float64, on numbers of either sign and on positive ones. So a difference that refutes is one of real
numbers, larger than rounding can be.

Elements of the field are whole numbers below :data:`PRIME` in float64. A product of two is below 2^40 and a sum of up
to 2^13 products below 2^53: NumPy computes both exactly, so an op's own ``evaluate``, reduced after each op, is
arithmetic of the field. Activations are fixed pseudo-random functions of an element that keep what substitutions
build on: elements other than zero are positive or negative, ``-x`` always the other, and ``relu``, ``clip``, ``abs``,
``sign`` and leaky rectifiers are what these signs make of them, hence idempotent where the real ones are. All others,
``tanh`` say, know nothing of their argument but which it is. Equalities of these functions are true of the real ones,
but not conversely (``tanh`` is odd). Pooling, softmax, normalisation, division, rounding and comparison have no
counterpart; see :func:`is_exact`.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from iossim.ir.graph import Graph
from iossim.ir.op import Array, Op
from iossim.ir.ops.functions import Nary, Unary
from iossim.ir.ops.matmul import Gemm
from iossim.ir.ops.nary import PRelu
from iossim.ir.ops.reduce import Reduce
from iossim.ir.ops.reshape import Pad
from iossim.ir.ops.unary import Clip, Relu
from iossim.proving.sampling import samples
from iossim.transforms.rewriting.instance import ConditionFailsError, NotMadeError, Placed, place
from iossim.transforms.rewriting.rule import Rule
from iossim.transforms.rewriting.verdict import Counterexample

#: 2^20 - 3.
PRIME = 1048573
#: Sums, products and movement of data: their own evaluation on whole numbers is exact.
_PLAIN = frozenset(
    {"add", "mul", "matmul", "conv", "conv_nhwc", "conv_transpose", "cumsum", "concat", "split", "slice", "transpose"}
    | {"reshape", "flatten", "identity", "expand", "tile", "depth_to_space", "space_to_depth"}
)
#: Functions that the field lacks: they compare with neighbours or round, or take or make truth values.
_WITHOUT = frozenset(["ceil", "floor", "round", "shrink", "is_inf", "is_nan", "not", "bitwise_not"])
#: Whole numbers up to this one keep their own sign.
_SMALL = 1 << 10


def is_exact(op: Op) -> bool:
    """True if the field has the op; others are evaluated in float64 only."""
    match op:
        case Reduce(function="sum" | "sum_square") | Nary(function="sub") | Gemm() | Pad() | Relu() | Clip() | PRelu():
            return True
        case Unary(function):
            return function not in _WITHOUT
    return op.kind in _PLAIN or op.kind == "sigmoid"


def is_exact_graph(*graphs: Graph) -> bool:
    """True if the field has all ops of the graphs."""
    return all(is_exact(node.op) for graph in graphs for node in graph.nodes)


def random_elements(random: np.random.Generator, shape: tuple[int, ...]) -> Array:
    """Elements drawn evenly, of ``shape``."""
    return random.integers(0, PRIME, shape).astype(np.float64)


def in_field(numbers: Any) -> Array:
    """Real numbers as elements. Floats are fractions of powers of two, so that this is exact."""
    array = np.asarray(numbers, dtype=np.float64)
    if (array == np.floor(array)).all():
        whole: Array = np.mod(array, PRIME)
        return whole
    exact = map(Fraction, array.ravel().tolist())
    elements = [value.numerator * pow(value.denominator, -1, PRIME) % PRIME for value in exact]
    return np.array(elements, dtype=np.float64).reshape(array.shape)


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
    """Outputs of a graph by name, from real numbers by name, in float64 where an op's evaluation keeps to it."""
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
    """Sign of elements: small numbers keep their own, others get a pseudo-random one, ``-x`` the opposite of ``x``."""
    mirrored = x > PRIME // 2
    size = np.where(mirrored, PRIME - x, x)
    flipped = (size > _SMALL) & (_scrambled(size, "sign") % 2 == 1)
    result: NDArray[np.bool_] = mirrored == flipped
    return result


def _scrambled(x: Array, name: str) -> Array:
    """A pseudo-random function of elements for each name, the same in every process (the finaliser of SplitMix64)."""
    z = x.astype(np.uint64) + _offset(name)
    with np.errstate(over="ignore"):  # NumPy warns of it for scalars
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


#: Fraction of the largest number of an output: more than rounding makes where ops compute in fp32 (normalisations).
_TOLERANCE = 1e-5


def replay(found: Counterexample, rule: Rule) -> Counterexample | None:
    """The difference found again, equal to this one if the rule is the same; None if there is none."""
    try:
        return compare(place(rule, found.attributes, found.shapes), found.seed)
    except NotMadeError:
        return None


@dataclass(frozen=True)
class Trial:
    """A place where a rule was tried, and the difference that was found there."""

    placed: Placed
    counterexample: Counterexample | None


def trials(rule: Rule, cases: int, seed: int = 0) -> Iterator[Trial]:
    """Up to ``cases`` places that the rule's source takes and its conditions allow, with what was found there."""
    for number, placed in enumerate(samples(rule, cases, seed)):
        try:
            yield Trial(placed, compare(placed, seed * 1_000_003 + number))
        except ConditionFailsError:
            continue  # a condition on what the target makes, which only the target can tell


def compare(placed: Placed, seed: int) -> Counterexample | None:
    """The first difference of a rule's sides at one place, for inputs of ``seed``. Raises ConditionFailsError where a
    condition on what the target makes excludes the place.
    """
    try:
        target = placed.target()
    except ConditionFailsError:
        raise
    except NotMadeError as error:
        return Counterexample(placed.attributes, placed.shapes, str(error), seed)
    source = placed.source
    pairs = list(zip(source.outputs, target.outputs, strict=True))
    if is_exact_graph(source, target):
        elements = _inputs(source, seed, random_elements)
        made, by = evaluate_exact(source, elements), evaluate_exact(target, elements)
        if all((made[one] == by[other]).all() for one, other in pairs):
            return None
    for draw in (np.random.Generator.standard_normal, _positive):
        numbers = _inputs(source, seed, draw)
        made, by = evaluate_real(source, numbers), evaluate_real(target, numbers)
        for (name, _), (one, other) in zip(placed.rule.outputs, pairs, strict=True):
            differs = _differs(made[one], by[other])
            if differs.any():
                first = tuple(int(place) for place in np.argwhere(differs)[0])
                values = float(made[one][first]), float(by[other][first])
                reason = f"{name}{list(first)} is {values[0]:.6g}, but {values[1]:.6g} by the target"
                finite = (value if math.isfinite(value) else None for value in values)
                return Counterexample(placed.attributes, placed.shapes, reason, seed, name, first, *finite)
    return None


def _inputs(graph: Graph, seed: int, draw: Any) -> dict[str, Array]:
    random = np.random.default_rng(seed)
    return {name: draw(random, graph.types[name].shape) for name in graph.inputs}


def _positive(random: np.random.Generator, shape: tuple[int, ...]) -> Array:
    """Numbers for variances, divisors, and arguments of roots."""
    return random.uniform(0.25, 2.0, shape)


def _differs(one: Array, other: Array) -> Array:
    finite = np.concatenate([array[np.isfinite(array)].ravel() for array in (one, other)])
    largest = float(np.abs(finite).max(initial=0.0))
    same: Array = np.isclose(one, other, rtol=0.0, atol=_TOLERANCE * largest, equal_nan=True)
    return ~same
