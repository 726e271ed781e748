"""Results of generation as values: terms over named inputs, and equations between the outputs of two graphs of them.

A term is the name of an input, or an output of a template applied to terms. Ops that are equal are one op, so a tuple
of terms is a graph. Commuting operands are in the order of their texts.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from itertools import count, islice, permutations, product
from typing import NamedTuple, TypeAlias

import numpy as np

from evidence.rule_generation.fingerprints import evaluate_stacked
from evidence.rule_generation.vocabulary import TEMPLATES, Shape, Template, Type
from iossim.ir.op import Array, Op
from iossim.proving.refute import random_elements

#: Templates by name.
TEMPLATE: dict[str, Template] = {each.name: each for group in TEMPLATES.values() for each in group}
#: Number of random values of the inputs for which an equation is tested.
_DRAWS = 8
_MEMORY = 1 << 18
#: Most distinct splittings of an input's places of use that are tried.
_MOST_TRIES = 400


class Apply(NamedTuple):
    """Output ``output`` of a template, by name, applied to terms; made by :func:`apply`."""

    template: str
    operands: tuple[Term, ...]
    output: int = 0


Term: TypeAlias = str | Apply
Outputs: TypeAlias = tuple[Term, ...]


def apply(template: str, operands: Iterable[Term], output: int = 0) -> Apply:
    """The term, its operands in order."""
    given = tuple(operands)
    return Apply(template, tuple(sorted(given, key=text)) if TEMPLATE[template].commutes else given, output)


@lru_cache(_MEMORY)
def text(term: Term) -> str:
    """The term as one string: ``add(a, relu(b))``; an output other than the first has its number after the op."""
    if isinstance(term, str):
        return term
    name = f"{term.template}.{term.output}" if TEMPLATE[term.template].outputs > 1 else term.template
    return f"{name}({', '.join(map(text, term.operands))})"


def ops(outputs: Iterable[Term]) -> tuple[Apply, ...]:
    """Ops of a graph, each once and after what it reads, as the terms of their first outputs."""
    found: dict[Apply, None] = {}

    def visit(term: Term) -> None:
        if not isinstance(term, str) and (op := term._replace(output=0)) not in found:
            for operand in term.operands:
                visit(operand)
            found[op] = None

    for output in outputs:
        visit(output)
    return tuple(found)


def inputs(outputs: Iterable[Term]) -> tuple[str, ...]:
    """Inputs that a graph reads, in the order in which it does."""
    found: dict[str, None] = {}
    for term in outputs:
        found |= dict.fromkeys((term,) if isinstance(term, str) else _inputs(term))
    return tuple(found)


@lru_cache(_MEMORY)
def _tree_size(term: Term) -> int:
    return 0 if isinstance(term, str) else 1 + sum(map(_tree_size, term.operands))


@lru_cache(_MEMORY)
def _inputs(term: Apply) -> tuple[str, ...]:
    return inputs(term.operands)


def substitute(outputs: Outputs, replaced: Mapping[Term, Term]) -> Outputs:
    """A graph with terms replaced wherever they occur."""
    memory: dict[Term, Term] = dict(replaced)

    def visit(term: Term) -> Term:
        if term in memory:
            return memory[term]
        if isinstance(term, str):
            return term
        made = apply(term.template, map(visit, term.operands), term.output)
        memory[term] = made
        return made

    return tuple(map(visit, outputs))


@dataclass(frozen=True)
class Equation:
    """Two graphs that compute the same, output by output. The ``shapes`` of the inputs at which that was found do not
    count.
    """

    left: Outputs
    right: Outputs
    shapes: Mapping[str, Shape] = field(compare=False)

    @property
    def sides(self) -> tuple[Outputs, Outputs]:
        return self.left, self.right

    @cached_property
    def sizes(self) -> tuple[int, int]:
        """Numbers of ops of both sides."""
        return len(ops(self.left)), len(ops(self.right))

    @cached_property
    def inputs(self) -> tuple[str, ...]:
        return inputs((*self.left, *self.right))

    @cached_property
    def order(self) -> tuple[int, int, int, str]:
        """Sort key: small ones first, then general ones. An input read twice counts twice: it may become two."""
        sizes = [sum(map(_tree_size, side)) for side in self.sides]
        return max(sizes), sum(sizes), -len(self.inputs), str(self)

    def renamed(self, names: Mapping[str, str]) -> Equation:
        terms: dict[Term, Term] = dict(names.items())
        return Equation(
            substitute(self.left, terms),
            substitute(self.right, terms),
            {names[name]: self.shapes[name] for name in self.inputs},
        )

    def canonical(self) -> Equation:
        """Representative of all equations that differ only in names, in the order of outputs and of the sides."""
        swapped = Equation(self.right, self.left, self.shapes)
        largest = max(self.sizes)
        oriented = [each for each in (self, swapped) if each.sizes[0] == largest]
        return min((form for each in oriented for form in each.namings()), key=str)

    def namings(self) -> Iterator[Equation]:
        """The equation with its inputs named ``x0``, ``x1``, ... in all orders compatible with the places where they
        are read, and with its outputs in order.
        """
        places = {name: _places(self.sides, name) for name in self.inputs}
        groups = [[name for name in self.inputs if places[name] == place] for place in sorted(set(places.values()))]
        for orders in product(*map(permutations, groups)):
            names = {name: f"x{index}" for index, name in enumerate(name for order in orders for name in order)}
            yield self.renamed(names)._ordered()

    def named_by_appearance(self) -> Equation:
        """The inputs named in the order in which they are read: a quick step that unifies most equations that
        :meth:`canonical` unifies.
        """
        return self.renamed({name: f"x{index}" for index, name in enumerate(self.inputs)})

    def _ordered(self) -> Equation:
        pairs = sorted(zip(self.left, self.right, strict=True), key=lambda pair: (text(pair[0]), text(pair[1])))
        return Equation(tuple(left for left, _ in pairs), tuple(right for _, right in pairs), self.shapes)

    def __str__(self) -> str:
        return " = ".join("; ".join(map(text, side)) for side in self.sides)


@lru_cache(_MEMORY)
def _applied(template: str, operands: tuple[Type, ...]) -> tuple[Op, tuple[Type, ...]] | None:
    return TEMPLATE[template].apply(operands)


def _places(sides: Iterable[Outputs], name: str) -> tuple[str, ...]:
    """Places where an input is read, in words independent of names and of the order of outputs or operands."""
    return tuple(
        sorted(f"{side} {path}" for side, outputs in enumerate(sides) for term in outputs for path in _ways(term, name))
    )


@lru_cache(_MEMORY)
def _ways(term: Term, name: str) -> tuple[str, ...]:
    if isinstance(term, str):
        return ("",) if term == name else ()
    commutes = TEMPLATE[term.template].commutes
    return tuple(
        f"{term.template}.{term.output}.{0 if commutes else place} {way}"
        for place, operand in enumerate(term.operands)
        for way in _ways(operand, name)
    )


class Evaluation:
    """Terms over inputs of given shapes: their types, and their values for some random inputs."""

    def __init__(self, shapes: Mapping[str, Shape], seed: int = 1) -> None:
        self._random = np.random.default_rng(seed)
        self._known: dict[Term, tuple[Type, Array] | None] = {}
        for name, shape in sorted(shapes.items()):
            self.add(name, shape)

    def add(self, name: str, shape: Shape) -> None:
        """Add one more input."""
        self._known[name] = Type(shape), random_elements(self._random, (_DRAWS, *shape))

    def of(self, term: Term) -> tuple[Type, Array] | None:
        """Type and values (one along the first axis per draw); None if an op does not take its operands."""
        if term not in self._known:
            assert not isinstance(term, str), f"input {term} has no shape"
            first = term._replace(output=0)
            operands = [found for operand in term.operands if (found := self.of(operand)) is not None]
            fit = len(operands) == len(term.operands)
            applied = _applied(term.template, tuple(kind for kind, _ in operands)) if fit else None
            values = evaluate_stacked(applied[0], [value for _, value in operands]) if applied is not None else ()
            for output in range(TEMPLATE[term.template].outputs):
                made = (applied[1][output], values[output]) if applied is not None else None
                self._known[first._replace(output=output)] = made
        return self._known[term]

    def agree(self, left: Outputs, right: Outputs) -> bool:
        """True where two graphs are well formed and compute the same."""
        return all(self._same(one, other) for one, other in zip(left, right, strict=True))

    def _same(self, left: Term, right: Term) -> bool:
        if left == right:
            return self.of(left) is not None
        one, other = self.of(left), self.of(right)
        return (
            one is not None
            and other is not None
            and one[0].shape == other[0].shape
            and bool((one[1] == other[1]).all())
        )


def holds(equation: Equation, seed: int = 1) -> bool:
    """True where both sides compute the same at the shapes of the equation, for inputs that ``seed`` draws."""
    return Evaluation(equation.shapes, seed).agree(equation.left, equation.right)


def generalised(equation: Equation) -> Equation:
    """The equation without the parts common to both sides: common ops become inputs, and an input that stands for
    several becomes those, as long as it holds.
    """
    return _with_inputs_apart(_without_common_ops(equation))


def _without_common_ops(equation: Equation) -> Equation:
    right = set(ops(equation.right))
    for op in reversed(ops(equation.left)):
        if op not in right:
            continue
        evaluation = Evaluation(equation.shapes)
        cut: dict[Term, Term] = {}
        shapes = dict(equation.shapes)
        for output in range(TEMPLATE[op.template].outputs):
            name = f"{'y' * (output + 1)}{len(shapes)}"
            known = evaluation.of(op._replace(output=output))
            assert known is not None, f"{equation} is not well formed"
            cut[op._replace(output=output)] = name
            shapes[name] = known[0].shape
        shorter = Equation(substitute(equation.left, cut), substitute(equation.right, cut), shapes)
        if shorter.left != shorter.right and not any(isinstance(term, str) for term in shorter.left) and holds(shorter):
            return _without_common_ops(_trimmed(shorter))
    return equation


def _with_inputs_apart(equation: Equation) -> Equation:
    evaluation = Evaluation(equation.shapes)
    for name in equation.inputs:
        left, right = (range(1, 1 << sum(_reads(op, name) for op in _makers(side))) for side in equation.sides)
        fresh = f"z{len(equation.shapes)}"
        evaluation.add(fresh, equation.shapes[name])
        tries = ((some, others) for some in _fewest_first(left[:-1]) for others in _fewest_first(right))
        for some, others in islice(tries, _MOST_TRIES):
            apart = _with_fresh(equation.left, name, some, fresh), _with_fresh(equation.right, name, others, fresh)
            if evaluation.agree(*apart):
                found = Equation(*apart, {**equation.shapes, fresh: equation.shapes[name]})
                return _with_inputs_apart(_trimmed(found))
    return equation


def _trimmed(equation: Equation) -> Equation:
    return Equation(equation.left, equation.right, {name: equation.shapes[name] for name in equation.inputs})


def _makers(outputs: Outputs) -> dict[Apply, None]:
    """The ops that make the outputs, each once."""
    return dict.fromkeys(term._replace(output=0) for term in outputs if isinstance(term, Apply))


def _reads(term: Term, name: str) -> int:
    """Number of places where an input is read, those of an op that is read twice counted twice."""
    return int(term == name) if isinstance(term, str) else sum(_reads(operand, name) for operand in term.operands)


def _fewest_first(places: range) -> list[int]:
    """Sets of places, as bits."""
    return sorted(places, key=lambda bits: (bits.bit_count(), bits))


def _with_fresh(outputs: Outputs, name: str, places: int, fresh: str) -> Outputs:
    """A graph that reads another input in some of the places where it reads ``name``, numbered in order, as bits."""
    numbers = count()

    def visit(term: Term) -> Term:
        if isinstance(term, str):
            return fresh if term == name and places >> next(numbers) & 1 else term
        return apply(term.template, map(visit, term.operands), term.output)

    made = {op: apply(op.template, map(visit, op.operands)) for op in _makers(outputs)}
    return tuple(
        term if isinstance(term, str) else made[term._replace(output=0)]._replace(output=term.output)
        for term in outputs
    )
