"""Rules tried on random tensors: one difference between their sides refutes, and the counterexample can be replayed.

Both sides are evaluated over a prime field where it has their ops (:mod:`iossim.transforms.rewriting.field`). Where they differ there, or
where it has not, they are evaluated in float64, on numbers of either sign and on positive ones. So a difference that refutes
is one of real numbers, larger than rounding can be.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from iossim.ir.graph import Graph
from iossim.ir.op import Array
from iossim.transforms.rewriting.field import evaluate_exact, evaluate_real, is_exact_graph, random_elements
from iossim.transforms.rewriting.instance import ConditionFailsError, InputShape, Placed, place
from iossim.transforms.rewriting.make import NotMadeError
from iossim.transforms.rewriting.rule import Rule
from iossim.transforms.rewriting.sampling import samples

#: Of the largest number of an output: more than rounding makes where ops compute in fp32, as normalisations do.
_TOLERANCE = 1e-5


@dataclass(frozen=True)
class Counterexample:
    """Attributes and shapes at which the sides of a rule differ. ``reason`` says how.

    ``element`` of the output ``output`` is the first that differs for inputs of ``seed``: None where the target does not
    take the shapes, or makes others. ``source`` and ``target`` are its values, None where that is no finite number.
    """

    attributes: Mapping[str, Any]
    shapes: Mapping[str, InputShape]
    reason: str
    seed: int = 0
    output: str | None = None
    element: tuple[int, ...] | None = None
    source: float | None = None
    target: float | None = None

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> Counterexample:
        """Inverse of :meth:`to_json`, read back from a file or not."""
        return Counterexample(**{name: _frozen(value) for name, value in data.items()})

    def replay(self, rule: Rule) -> Counterexample | None:
        """The difference found again: equal to this one where the rule is the same; None where there is none."""
        try:
            return compare(place(rule, self.attributes, self.shapes), self.seed)
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


def refute(rule: Rule, cases: int = 100, seed: int = 0) -> Counterexample | None:
    """The first difference in ``cases`` places, or None."""
    found = (trial.counterexample for trial in trials(rule, cases, seed))
    return next((each for each in found if each is not None), None)


def compare(placed: Placed, seed: int) -> Counterexample | None:
    """The first difference of a rule's sides at one place, for inputs of ``seed``. Raises ConditionFailsError where a
    condition on what the target makes excludes the place.
    """
    shapes = {name: _shape(value) for name, value in placed.types.items()}
    try:
        target = placed.target()
    except ConditionFailsError:
        raise
    except NotMadeError as error:
        return Counterexample(placed.attributes, shapes, str(error), seed)
    source = placed.source
    if is_exact_graph(source, target):
        elements = _inputs(source, seed, random_elements)
        made, by = evaluate_exact(source, elements), evaluate_exact(target, elements)
        if all((made[one] == by[other]).all() for one, other in _pairs(source, target)):
            return None
    for draw in (_normal, _positive):
        numbers = _inputs(source, seed, draw)
        made, by = evaluate_real(source, numbers), evaluate_real(target, numbers)
        for (name, _), (one, other) in zip(placed.rule.outputs, _pairs(source, target), strict=True):
            differs = _differs(made[one], by[other])
            if differs.any():
                first = tuple(int(place) for place in np.argwhere(differs)[0])
                values = float(made[one][first]), float(by[other][first])
                reason = f"{name}{list(first)} is {values[0]:.6g}, but {values[1]:.6g} by the target"
                finite = (value if math.isfinite(value) else None for value in values)
                return Counterexample(placed.attributes, shapes, reason, seed, name, first, *finite)
    return None


def _pairs(source: Graph, target: Graph) -> list[tuple[str, str]]:
    return list(zip(source.outputs, target.outputs, strict=True))


def _inputs(graph: Graph, seed: int, draw: Any) -> dict[str, Array]:
    random = np.random.default_rng(seed)
    return {name: draw(random, graph.types[name].shape) for name in graph.inputs}


def _normal(random: np.random.Generator, shape: tuple[int, ...]) -> Array:
    return random.standard_normal(shape)


def _positive(random: np.random.Generator, shape: tuple[int, ...]) -> Array:
    """Variances, divisors, and what is under a root."""
    return random.uniform(0.25, 2.0, shape)


def _differs(one: Array, other: Array) -> Array:
    finite = np.concatenate([array[np.isfinite(array)].ravel() for array in (one, other)])
    largest = float(np.abs(finite).max(initial=0.0))
    same: Array = np.isclose(one, other, rtol=0.0, atol=_TOLERANCE * largest, equal_nan=True)
    return ~same


def _shape(value: Any) -> InputShape:
    if value is None:
        return None
    return tuple(each.shape for each in value) if isinstance(value, tuple) else value.shape


def _frozen(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _frozen(each) for name, each in value.items()}
    return tuple(map(_frozen, value)) if isinstance(value, list | tuple) else value
