"""What is known of integers, tuples and other values, and what follows.

Everything stays within linear arithmetic and uninterpreted functions, which z3 decides: a product or quotient of two unknowns is
an uninterpreted function of them, and what is true of it (it cancels, one is neutral) is added as facts about those that occur.
"""

from __future__ import annotations

from typing import Any

import z3

from iossim.transforms.rewriting.symbolic import (
    Claim,
    NotSymbolicError,
    Tuple,
    integer,
    is_integer,
    is_opaque,
    named_value,
    same,
)

#: Of z3 for one question: its own unit of work, so that the answer is the same on every machine. No rule that ships takes a quarter of a million.
_STEPS = 2_000_000

_times = z3.Function("times", z3.IntSort(), z3.IntSort(), z3.IntSort())
_quotient = z3.Function("quotient", z3.IntSort(), z3.IntSort(), z3.IntSort())


class Arithmetic:
    """What is known of attributes and shapes, and what follows.

    Assumptions come first; then questions are asked. Answers are kept.
    """

    def __init__(self) -> None:
        self._solver = z3.SolverFor("QF_UFLIA")
        self._solver.set("rlimit", _STEPS)
        self._answers: dict[int, tuple[Any, bool]] = {}
        self._models: list[Any] = []
        self._products: dict[tuple[int, int], tuple[Any, Any, Any]] = {}
        self._quotients: dict[tuple[int, int], tuple[Any, Any, Any]] = {}
        self._literals: dict[Any, Any] = {}
        self._statements: dict[tuple[str, int], tuple[Tuple, Any]] = {}
        self.assumed: list[Any] = []

    def assume(self, *claims: Claim) -> None:
        for claim in claims:
            fact = z3.simplify(claim.given)
            if not z3.is_true(fact):
                self._add(fact)

    def _add(self, fact: Any) -> None:
        self.assumed.append(fact)
        self._solver.add(fact)
        self._models.clear()
        self._answers = {key: answer for key, answer in self._answers.items() if answer[1]}

    def is_contradictory(self) -> bool:
        return bool(self._solver.check() == z3.unsat)

    def knows(self, claim: Claim | Any) -> bool:
        """Whether a statement follows."""
        formula = z3.simplify(claim.shown if isinstance(claim, Claim) else claim)
        if z3.is_true(formula):
            return True
        if z3.is_false(formula):
            return False
        key = formula.get_id()
        if key not in self._answers:
            self._answers[key] = formula, self._decide(formula)
        return self._answers[key][1]

    def _decide(self, formula: Any) -> bool:
        for model in self._models:
            if z3.is_false(model.eval(formula, model_completion=True)):
                return False
        self._solver.push()
        self._solver.add(z3.Not(formula))
        answer = self._solver.check()
        if answer == z3.sat:
            self._models.append(self._solver.model())
        self._solver.pop()
        return bool(answer == z3.unsat)

    def value_of(self, term: Any) -> int | None:
        """The only value that an integer can have, None where there are several."""
        if isinstance(term, int):
            return term
        term = z3.simplify(term)
        if z3.is_int_value(term):
            return int(term.as_long())
        if self._solver.check() != z3.sat:
            return None
        value = self._solver.model().eval(term, model_completion=True)
        return int(value.as_long()) if z3.is_int_value(value) and self.knows(term == value) else None

    def literal(self, value: Any) -> Any:
        """A value that is neither an integer nor a tuple of them. Those that Python takes for equal are."""
        if value not in self._literals:
            made = named_value(f"literal {value!r}")
            for other in self._literals.values():
                self._add(made != other)
            self._literals[value] = made
        return self._literals[value]

    def statement(self, what: str, of: Tuple) -> Claim:
        """A statement about this very tuple that is known only where it has been assumed of it."""
        found = self._statements.setdefault((what, id(of)), (of, z3.Bool(f"{what} {len(self._statements)}")))
        return Claim(found[1])

    def times(self, a: Any, b: Any, cancels: bool = True) -> Any:
        """The product: multiplied out, and of two unknowns an uninterpreted function.

        Facts about each pair of products are many; where it ``cancels`` from no equation they are spared.
        """
        return self._linear(z3.simplify(integer(a) * integer(b), som=True), cancels)

    def _linear(self, term: Any, cancels: bool) -> Any:
        if z3.is_add(term):
            return z3.Sum([self._linear(each, cancels) for each in term.children()])
        if not z3.is_mul(term):
            return term
        factors = term.children()
        number = [each for each in factors if z3.is_int_value(each)]
        unknown = sorted((each for each in factors if not z3.is_int_value(each)), key=str)
        found = unknown[0]
        for factor in unknown[1:]:
            found = self._product(found, factor) if cancels else _times(found, factor)
        return number[0] * found if number else found

    def _product(self, a: Any, b: Any) -> Any:
        key = a.get_id(), b.get_id()
        if key in self._products:
            return self._products[key][2]
        made = _times(a, b)
        facts = [
            z3.Implies(a == 1, made == b),
            z3.Implies(b == 1, made == a),
            z3.Implies(z3.And(a >= 1, b >= 1), z3.And(made >= a, made >= b)),
            z3.Implies(z3.And(made == a, a >= 1), b == 1),
            z3.Implies(z3.And(made == b, b >= 1), a == 1),
        ]
        for c, d, other in self._products.values():
            for x, y, z, w in ((a, b, c, d), (a, b, d, c)):
                facts.append(z3.Implies(z3.And(x == z, y == w), made == other))
                facts.append(z3.Implies(z3.And(made == other, x == z, x >= 1), y == w))
                facts.append(z3.Implies(z3.And(made == other, y == w, y >= 1), x == z))
        self._products[key] = a, b, made
        for whole, by, quotient in self._quotients.values():
            facts += self._divides(whole, by, quotient, a, b, made)
        for fact in facts:
            self._add(fact)
        return made

    def quotient(self, a: Any, b: Any, cancels: bool = True) -> Any:
        """``a // b`` for a positive ``b``; of any other it is a number of which nothing is known. ``cancels`` as of products."""
        a, b = z3.simplify(integer(a)), z3.simplify(integer(b))
        if z3.is_int_value(b):
            if b.as_long() <= 0:
                raise NotSymbolicError(f"divides by {b}")
            return z3.simplify(a / b)
        if not cancels:
            return _quotient(a, b)
        key = a.get_id(), b.get_id()
        if key not in self._quotients:
            made = _quotient(a, b)
            self._quotients[key] = a, b, made
            self._add(z3.Implies(z3.And(b >= 1, a == b), made == 1))
            self._add(z3.Implies(b == 1, made == a))
            self._add(z3.Implies(z3.And(b >= 1, a >= 0), z3.And(made >= 0, made <= a)))
            for c, d, product in self._products.values():
                for fact in self._divides(a, b, made, c, d, product):
                    self._add(fact)
        return self._quotients[key][2]

    @staticmethod
    def _divides(whole: Any, by: Any, quotient: Any, a: Any, b: Any, product: Any) -> list[Any]:
        """A product divided by one of its factors is the other."""
        exact = z3.And(whole == product, by >= 1)
        return [
            z3.Implies(z3.And(exact, by == a), quotient == b),
            z3.Implies(z3.And(exact, by == b), quotient == a),
        ]

    def is_divisible(self, a: Any, b: Any) -> Claim:
        """That ``b`` divides ``a``."""
        return Claim(self.times(self.quotient(a, b), b) == a)


def equal(a: Any, b: Any, arithmetic: Arithmetic) -> Claim:
    """That two values of attributes are equal: integers, tuples, or Python values and those of z3 that stand for such."""
    if isinstance(a, Tuple) and isinstance(b, Tuple):
        return same(a, b)
    if isinstance(a, Tuple) or isinstance(b, Tuple):
        return Claim(False)
    if is_integer(a) and is_integer(b):
        return Claim(integer(a) == integer(b))
    if is_opaque(a) or is_opaque(b):
        if _is_unknown_integer(a) or _is_unknown_integer(b):
            raise NotSymbolicError("compares a whole number with what may be none")
        return Claim(_opaque(a, arithmetic) == _opaque(b, arithmetic))
    if _is_unknown_integer(a) or _is_unknown_integer(b):
        raise NotSymbolicError("compares a whole number with what may be none")
    return Claim(bool(a == b))


def _opaque(value: Any, arithmetic: Arithmetic) -> Any:
    """A Python value as one that z3 can compare."""
    return value if is_opaque(value) else arithmetic.literal(value)


def _is_unknown_integer(value: Any) -> bool:
    return isinstance(value, z3.ExprRef) and z3.is_int(value)
