"""Derivation of equations from others: known ones are applied, in either direction, one step at a time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from evidence.rule_generation.equations import (
    TEMPLATE,
    Apply,
    Equation,
    Evaluation,
    Outputs,
    Term,
    inputs,
    ops,
    substitute,
)
from evidence.rule_generation.vocabulary import Shape


@dataclass(frozen=True)
class _Direction:
    """An equation read one way."""

    source: Outputs
    target: Outputs


class Derivations:
    """Known equations, and their consequences for graphs."""

    def __init__(self) -> None:
        self._by_root: dict[tuple[str, int], list[_Direction]] = {}

    def add(self, equation: Equation) -> None:
        """Add one more equation, read in each direction in which no input appears from nowhere."""
        for source, target in (equation.sides, equation.sides[::-1]):
            root = source[0]
            if isinstance(root, Apply) and set(inputs(target)) <= set(inputs(source)) and all(map(_is_op, source)):
                self._by_root.setdefault((root.template, root.output), []).append(_Direction(source, target))

    def follows(self, left: Outputs, right: Outputs, shapes: Mapping[str, Shape]) -> bool:
        """Whether at most two steps lead from one graph to the other."""
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
            by_root.setdefault((term.template, term.output), []).append(term)
        for root in by_root:
            for direction in self._by_root.get(root, ()):
                for places, bound in _matches(direction.source, by_root, (), {}):
                    made = substitute(direction.target, bound)
                    yield substitute(graph, dict(zip(places, made, strict=True)))


def _is_op(term: Term) -> bool:
    return isinstance(term, Apply)


def _matches(
    patterns: Outputs,
    by_root: Mapping[tuple[str, int], list[Apply]],
    places: tuple[Apply, ...],
    bound: Mapping[Term, Term],
) -> Iterator[tuple[tuple[Apply, ...], Mapping[Term, Term]]]:
    """Terms for the outputs of a source, with the bindings of its inputs."""
    if len(places) == len(patterns):
        yield places, bound
        return
    pattern = patterns[len(places)]
    assert isinstance(pattern, Apply)
    for term in by_root.get((pattern.template, pattern.output), ()):
        if term not in places:
            for more in _match(pattern, term, bound):
                yield from _matches(patterns, by_root, (*places, term), more)


def _match(pattern: Term, term: Term, bound: Mapping[Term, Term]) -> Iterator[Mapping[Term, Term]]:
    """Bindings of a pattern's inputs for which it is a term."""
    if isinstance(pattern, str):
        known = bound.get(pattern)
        if known is None:
            yield {**bound, pattern: term}
        elif known == term:
            yield bound
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
