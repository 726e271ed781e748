"""Derivation of equations from others: known ones are applied, in either direction, one step at a time.

Rules of another origin are covered if they are among the generated ones, or follow from them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from enum import StrEnum
from itertools import product

from evidence.rule_generation.equations import (
    TEMPLATE,
    Apply,
    Equation,
    Evaluation,
    Outputs,
    Term,
    apply,
    inputs,
    ops,
    substitute,
)
from evidence.rule_generation.vocabulary import Shape
from iossim.transforms.rewriting.expression import Literal
from iossim.transforms.rewriting.rule import PatternOp, Rule


class Derivations:
    """Known equations, and their consequences for graphs."""

    def __init__(self) -> None:
        #: The directions of equations, each a source and a target, by what the first output of the source is.
        self._by_root: dict[tuple[str, int], list[tuple[tuple[Apply, ...], Outputs]]] = {}

    def add(self, equation: Equation) -> None:
        """Add one more equation, read in each direction in which no input appears from nowhere."""
        for source, target in (equation.sides, equation.sides[::-1]):
            made = tuple(term for term in source if isinstance(term, Apply))
            if made == source and set(inputs(target)) <= set(inputs(source)):
                self._by_root.setdefault(_root(made[0]), []).append((made, target))

    def follows(self, left: Outputs, right: Outputs, shapes: Mapping[str, Shape]) -> bool:
        """True where at most two steps lead from one graph to the other."""
        ends = {left, *self._steps(left)}
        evaluation: Evaluation | None = None
        for made in (right, *self._steps(right)):
            if made in ends:
                # An equation valid at some shapes may fail at these: a step with another result is invalid.
                evaluation = evaluation or Evaluation(shapes)
                if evaluation.agree(left, made):
                    return True
        return False

    def _steps(self, graph: Outputs) -> Iterator[Outputs]:
        """Graphs that one step makes of a graph."""
        terms = [op._replace(output=output) for op in ops(graph) for output in range(TEMPLATE[op.template].outputs)]
        by_root: dict[tuple[str, int], list[Apply]] = {}
        for term in terms:
            by_root.setdefault(_root(term), []).append(term)
        for root in by_root:
            for source, target in self._by_root.get(root, ()):
                for places in product(*(by_root.get(_root(each), ()) for each in source)):
                    for bound in _match_all(source, places, {}) if len({*places}) == len(places) else ():
                        yield substitute(graph, dict(zip(places, substitute(target, bound), strict=True)))


def _root(term: Apply) -> tuple[str, int]:
    return term.template, term.output


def _match(pattern: Term, term: Term, bound: Mapping[Term, Term]) -> Iterator[Mapping[Term, Term]]:
    """Bindings of a pattern's inputs for which it is a term."""
    if isinstance(pattern, str):
        if bound.get(pattern, term) == term:
            yield {**bound, pattern: term}
        return
    if isinstance(term, str) or (term.template, term.output) != (pattern.template, pattern.output):
        return
    orders = [term.operands]
    if TEMPLATE[pattern.template].commutes and term.operands[0] != term.operands[1]:
        orders.append(term.operands[::-1])
    for operands in orders:
        yield from _match_all(pattern.operands, operands, bound)


def _match_all(patterns: Outputs, terms: Outputs, bound: Mapping[Term, Term]) -> Iterator[Mapping[Term, Term]]:
    if not patterns:
        yield bound
        return
    for more in _match(patterns[0], terms[0], bound):
        yield from _match_all(patterns[1:], terms[1:], more)


class Coverage(StrEnum):
    """Relation of generated equations to a rule."""

    FOUND = "found"  # the rule is one of them
    IDENTITY = "identity"  # both sides are one graph up to an op's name, or commuting operands
    DERIVED = "derived"  #: it follows from them in two steps
    WRONG = "wrong"  # its sides compute the same for no shapes of the vocabulary
    MISSING = "missing"
    OUT_OF_REACH = "out of reach"  # one of its ops has no template


#: Coverages of rules that were found again, or follow from found ones.
AMONG_FOUND = frozenset({Coverage.FOUND, Coverage.IDENTITY, Coverage.DERIVED})


def coverage(rules: Iterable[Rule], equations: Iterable[Equation], shapes: Iterable[Shape]) -> dict[str, Coverage]:
    """Coverage of each rule by name. ``shapes`` are those that its inputs may have, tried in order."""
    known = Derivations()
    texts = set()
    for each in equations:
        known.add(each)
        texts.add(str(each.canonical()))
    tried = tuple(dict.fromkeys(shapes))
    return {rule.name: _coverage(rule, known, texts, tried) for rule in rules}


def _coverage(rule: Rule, known: Derivations, texts: set[str], shapes: tuple[Shape, ...]) -> Coverage:
    sides = _sides(rule)
    if sides is None:
        return Coverage.OUT_OF_REACH
    left, right = sides
    if left == right:
        return Coverage.IDENTITY
    at = _shapes(left, right, shapes)
    if at is None:
        return Coverage.WRONG
    if str(Equation(left, right, at).canonical()) in texts:
        return Coverage.FOUND
    return Coverage.DERIVED if known.follows(left, right, at) else Coverage.MISSING


def _shapes(left: Outputs, right: Outputs, shapes: tuple[Shape, ...]) -> Mapping[str, Shape] | None:
    names = inputs((*left, *right))
    for chosen in product(shapes, repeat=len(names)):
        at = dict(zip(names, chosen, strict=True))
        if Evaluation(at).agree(left, right):
            return at
    return None


def _sides(rule: Rule) -> tuple[Outputs, Outputs] | None:
    """Sides of a rule as terms; None if an op has no template."""
    found = []
    for members, outputs in (
        (rule.source, [one for one, _ in rule.outputs]),
        (rule.target, [other for _, other in rule.outputs]),
    ):
        terms: dict[str, Term] = {name: name for name in rule.inputs}
        for op in members:
            template = _template(op)
            if template is None:
                return None
            for place, output in enumerate(op.outputs):
                terms[output] = apply(template, [terms[name] for name in op.inputs], place)
        found.append(tuple(terms[name] for name in outputs))
    return found[0], found[1]


def _template(op: PatternOp) -> str | None:
    """Template of an op. Kernels of a convolution are those of its weight, with the padding that keeps its size."""
    attributes = dict(op.attributes)
    axis = attributes.get("axis")
    for name, template in TEMPLATE.items():
        same_axis = template.axis is None or axis == Literal(template.axis)
        if template.kind == op.kind and template.operands == len(op.inputs) and same_axis and name != "scale":
            return name
    return None
