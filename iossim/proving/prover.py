"""Proofs that the two sides of a rule are equal, from axioms that carry conditions on shapes and attributes.

Both sides become terms (:mod:`iossim.proving.terms`). What the rule's conditions and its well-formed sides
say of shapes and attributes is linear arithmetic, which z3 decides (:mod:`iossim.proving.symbolic`).
Axioms are not left to z3's quantifiers: in rounds, each is matched against all terms there are, and where its
conditions follow and the ops on its other side are known to take their inputs, that side is added and the two are
equal. Once both sides of the rule are one class, z3 gets the instances of axioms with their conditions, the facts, and
the claim that the sides differ: unsatisfiable is a proof, and its core says which axioms it takes. Rounds, terms and
z3's steps are bounded, so that the answer does not depend on the speed of a machine. Seconds of CPU are a last resort,
and a proof that they end says so (:data:`~iossim.transforms.rewriting.verdict.OUT_OF_TIME`).
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import Any

import z3

from iossim.proving.axioms import Equation, Pattern, equations, parts, spread, subsets
from iossim.proving.congruence import Congruence, Symbol, Term
from iossim.proving.symbolic import Claim, NotSymbolicError, Tuple
from iossim.proving.symbolic_expressions import Evaluator
from iossim.proving.terms import Sides, Terms, VoidError
from iossim.transforms.rewriting.expression import Expression, Sequence, Shape, Variable
from iossim.transforms.rewriting.rule import Filled, Rule
from iossim.transforms.rewriting.verdict import OUT_OF_TIME

#: Number of times that all axioms are applied to all terms, and the most terms.
ROUNDS, MOST_TERMS = 8, 700
#: Limit of z3's work on the confirmation of a derivation, in its own unit: a hundred times what any shipped rule takes.
_STEPS = 20_000_000


@dataclass(frozen=True, slots=True)
class Proof:
    """Result of a proof: if a rule is not ``proved``, the ``reason``; if it is, the ``axioms`` that this takes."""

    proved: bool
    reason: str
    axioms: tuple[str, ...] = ()


def prove(rule: Rule, seconds: float = 20.0) -> Proof:
    """Prove that a rule replaces tensors by equal ones wherever it is applied, in so many seconds of CPU."""
    deadline = time.process_time() + seconds
    used: set[str] = set()
    applies = False
    for left_out, empty in product(subsets(rule.optional), subsets(rule.rests)):
        case = "".join(f" without {name}" for name in sorted(left_out | empty))
        try:
            sides = _sides(rule, left_out, empty)
            if sides is None:
                continue
            applies = True
            search = _Search(sides, deadline)
            reason = search.run()
            if reason is None:
                used |= search.check()
        except NotSymbolicError as error:
            reason = str(error)
        if reason is not None:
            return Proof(False, f"{reason}{case and f';{case}'}")
    if not applies:
        return Proof(False, "its conditions and ops allow no shapes at all")
    return Proof(True, "", tuple(sorted(used)))


def _sides(rule: Rule, left_out: frozenset[str], empty: frozenset[str]) -> Sides | None:
    """The rule's sides, tuples of one possible length with that length; None where no shapes fit."""
    lengths: dict[str, int] = {}
    equalities: list[Claim] = []
    while True:
        try:
            sides = Sides(rule, left_out, empty, lengths, equalities)
        except VoidError:
            return None
        if sides.terms.arithmetic.is_contradictory():
            return None
        found = {name: sides.terms.arithmetic.value_of(length) for name, length in sides.lengths.items()}
        known = {name: length for name, length in found.items() if length is not None}
        if known.keys() != lengths.keys():
            lengths, equalities = known, []
            continue
        more = sides.terms.equalities()
        if not more:
            return sides
        equalities += more


@dataclass(frozen=True)
class _Step:
    """An axiom at one place: the terms that it says are equal, and the conditions under which it does."""

    axiom: str
    equation: Any
    claims: tuple[Claim, ...]


@dataclass
class _Match:
    """Classes and numbers that the names of an axiom stand for."""

    tensors: dict[str, int]
    attributes: dict[str, int]


class _Search:
    """Derivation of equalities from axioms, until both sides of a rule are equal."""

    def __init__(self, sides: Sides, deadline: float) -> None:
        self._sides, self._terms, self._deadline = sides, sides.terms, deadline
        self._congruence = sides.terms.congruence
        self._done: set[tuple[Any, ...]] = set()
        self._literals: dict[int, int] = {}
        self.steps: list[_Step] = []

    def run(self) -> str | None:
        """None once both sides are equal, else the reason why they are not found to be."""
        if self._is_reached():
            return None
        for _ in range(ROUNDS):
            before = len(self.steps)
            for equation in equations():
                for match in list(self._matches(equation)):
                    if time.process_time() > self._deadline:
                        return OUT_OF_TIME
                    self._apply(equation, match)
                    if len(self._congruence) > MOST_TERMS:
                        return f"no derivation within {MOST_TERMS} terms"
                if self._is_reached():
                    return None
            if len(self.steps) == before:
                return f"no derivation: axioms say nothing more of its terms{self._strangers()}"
        return f"no derivation within {ROUNDS} rounds"

    def _is_reached(self) -> bool:
        find = self._congruence.find
        return all(find(a) == find(b) for a, b in self._sides.outputs)

    def _strangers(self) -> str:
        known = {part.kind for equation in equations() for part in parts(equation.left) if isinstance(part, Pattern)}
        kinds = {term.symbol.kind for _, term in self._congruence.all_terms()}
        strangers = sorted(kind for kind in kinds - known if not kind.startswith(("tensor ", "filled")))
        return f"; no axioms of {', '.join(strangers)}" if strangers else ""

    def _matches(self, equation: Equation) -> Iterator[_Match]:
        for number, term in list(self._congruence.all_terms()):
            if _fits(equation.left, term):
                yield from self._match_term(equation.left, term, number, _Match({}, {}))

    def _match_term(self, pattern: Pattern, term: Term, number: int, match: _Match) -> Iterator[_Match]:
        attributes = match.attributes
        for wanted, found in zip(pattern.attributes, term.symbol.attributes, strict=True):
            if isinstance(wanted, Variable):
                bound = attributes.get(wanted.name)
                if bound is None:
                    attributes = {**attributes, wanted.name: found}
                elif bound != found:
                    return
            elif _is_literal(wanted) and self._literal(wanted) != found:
                return
        matches = [_Match({**match.tensors, pattern.name: number}, attributes)]
        for argument, held in zip(pattern.arguments, term.arguments, strict=True):
            matches = [after for before in matches for after in self._match(argument, held, before)]
        yield from matches

    def _match(self, pattern: Pattern | Filled | str, number: int, match: _Match) -> Iterator[_Match]:
        number = self._congruence.find(number)
        match pattern:
            case str():
                bound = match.tensors.get(pattern)
                if bound is None:
                    yield _Match({**match.tensors, pattern: number}, match.attributes)
                elif self._congruence.find(bound) == number:
                    yield match
            case Filled():
                for term in self._congruence.terms(number):
                    if term.symbol.kind.startswith("filled"):
                        yield from self._match_filled(pattern, term, match)
            case Pattern():
                bound = match.tensors.get(pattern.name)
                if bound is not None and self._congruence.find(bound) != number:
                    return
                for term in self._congruence.terms(number):
                    if _fits(pattern, term):
                        yield from self._match_term(pattern, term, number, match)

    def _match_filled(self, pattern: Filled, term: Term, match: _Match) -> Iterator[_Match]:
        name, shape = spread(pattern), self._terms.values[term.symbol.attributes[0]]
        if name is None:
            yield match
        elif isinstance(pattern.shape, Sequence) and shape.items is not None:
            rest = self._terms.intern(Tuple.of(shape.items[len(pattern.shape.items) - 1 :]))
            if match.attributes.get(name, rest) == rest:
                yield _Match(match.tensors, {**match.attributes, name: rest})

    def _literal(self, expression: Expression) -> int:
        """Number of the value of a literal attribute of an axiom."""
        key = id(expression)
        if key not in self._literals:
            value = Evaluator({}, lambda name: Tuple.of([]), self._terms.arithmetic).value(expression)
            self._literals[key] = self._terms.intern(value)
        return self._literals[key]

    def _apply(self, equation: Equation, match: _Match) -> None:
        find = self._congruence.find
        tensors = {name: find(number) for name, number in match.tensors.items()}
        key = (id(equation), *sorted(tensors.items()), *sorted(match.attributes.items()))
        if key in self._done:
            return
        self._done.add(key)
        place = _Place(self._terms, tensors, match.attributes)
        try:
            if not place.meets(equation.conditions):
                return
            left = place.tensor(equation.left, make=False)
            right = place.tensor(equation.right, make=True) if left is not None else None
        except NotSymbolicError:
            return
        if left is not None and right is not None and self._congruence.merge(left[0], right[0]):
            self.steps.append(_Step(equation.axiom, left[1] == right[1], tuple(place.claims)))

    def check(self) -> set[str]:
        """Axioms with which z3 confirms the derivation. Raises NotSymbolicError if it does not."""
        differ = z3.Or([named(self._congruence, a) != named(self._congruence, b) for a, b in self._sides.outputs])
        solver = _solver("QF_UF")
        solver.add(differ)
        for index, step in enumerate(self.steps):
            solver.assert_and_track(step.equation, f"step {index}")
        if solver.check() != z3.unsat:
            raise NotSymbolicError("z3 does not confirm the derivation")
        core = [self.steps[int(str(label).split()[1])] for label in solver.unsat_core()]
        solver = _solver("QF_UFLIA")
        solver.add(differ, *self._terms.arithmetic.assumed)
        solver.add([z3.Implies(z3.And([claim.shown for claim in step.claims]), step.equation) for step in core])
        if solver.check() != z3.unsat:
            raise NotSymbolicError("z3 does not confirm the conditions of the derivation")
        return {step.axiom for step in core}


class _Place:
    """An axiom at one place: what its names stand for. ``claims`` are those that make it hold there."""

    def __init__(self, terms: Terms, tensors: dict[str, int], attributes: dict[str, int]) -> None:
        self._terms, self._tensors, self._numbers = terms, tensors, attributes
        self._values = {name: terms.values[number] for name, number in attributes.items()}
        self.claims: list[Claim] = []

    def _evaluator(self) -> Evaluator:
        return Evaluator(self._values, lambda name: self._terms.shapes[self._tensors[name]], self._terms.arithmetic)

    def _is_known(self, *claims: Claim) -> bool:
        self.claims += claims
        return all(self._terms.arithmetic.knows(claim) for claim in claims)

    def meets(self, conditions: tuple[Expression, ...]) -> bool:
        """True if the conditions are known to hold."""
        for condition in conditions:
            evaluator = self._evaluator()
            claim = evaluator.claim(condition)
            if not self._is_known(*evaluator.needed, claim):
                return False
        return True

    def tensor(self, pattern: Pattern | Filled | str, make: bool) -> tuple[int, Any] | None:
        """The class of what a pattern stands for, and its term for z3; with ``make`` a new one if needed."""
        congruence = self._terms.congruence
        if isinstance(pattern, str):
            number = self._tensors[pattern]
            return number, named(congruence, number)
        if isinstance(pattern, Filled):
            shape = self._value(pattern.shape)
            if shape is None:
                return None
            term = self._terms.filled(pattern, shape)
            found = congruence.get(term)
            return None if found is None else (found, _applied(term.symbol, []))
        arguments = [self.tensor(argument, make) for argument in pattern.arguments]
        values = [
            self._values[value.name] if isinstance(value, Variable) else self._value(value)
            for value in pattern.attributes
        ]
        if None in arguments or None in values:
            return None
        numbers = [argument[0] for argument in arguments if argument is not None]
        attributes = self._terms.attributes(pattern.kind, values, numbers)
        symbol = Symbol(pattern.kind, attributes, pattern.output, pattern.outputs)
        made = congruence.get(Term(symbol, tuple(numbers)))
        if made is None and make:
            outputs = self._terms.op(pattern.kind, values, numbers, pattern.outputs)
            made = None if outputs is None else outputs[pattern.output]
        if made is None:
            return None
        self._tensors.setdefault(pattern.name, made)
        return made, _applied(symbol, [argument[1] for argument in arguments if argument is not None])

    def _value(self, expression: Expression) -> Any:
        """Value of an expression; None if it is not known to have one."""
        evaluator = self._evaluator()
        value = evaluator.value(expression)
        return value if self._is_known(*evaluator.needed) else None


def _solver(logic: str) -> Any:
    solver = z3.SolverFor(logic)
    solver.set("rlimit", _STEPS)
    return solver


_Tensor = z3.DeclareSort("Tensor")


def named(congruence: Congruence, number: int) -> Any:
    """The first term of a class, as z3 has it."""
    term = congruence.first[number]
    return _applied(term.symbol, [named(congruence, argument) for argument in term.arguments])


def _applied(symbol: Symbol, arguments: list[Any]) -> Any:
    """Application of a function of tensors: one function for each op, output and set of attributes."""
    if not arguments:
        return z3.Const(str(symbol), _Tensor)
    return z3.Function(str(symbol), *[_Tensor] * (len(arguments) + 1))(*arguments)


def _fits(pattern: Pattern, term: Term) -> bool:
    symbol = term.symbol
    return (symbol.kind, symbol.output, symbol.outputs, len(term.arguments)) == (
        pattern.kind,
        pattern.output,
        pattern.outputs,
        len(pattern.arguments),
    )


def _is_literal(expression: Expression) -> bool:
    return not any(isinstance(part, Variable | Shape) for part in expression.walk())
