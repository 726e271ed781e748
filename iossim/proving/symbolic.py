"""Attributes and shapes as z3 sees them: integers, tuples of any length, other values, and claims about them.

What holds for all places of a tuple of unknown length is assumed at the first few and at :data:`ANYWHERE`, a place
counted from the end of which nothing else is assumed; so what follows there holds at every place.

Everything stays within linear arithmetic and uninterpreted functions, which z3 decides: a product or quotient of two
unknowns is an uninterpreted function of them, and what is true of it (it cancels, one is neutral) is added as facts
about those that occur.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

import z3

from iossim.base.errors import IossimError

#: A place of a tuple that may be any. It counts from the end, as broadcasting does.
ANYWHERE = z3.Int("anywhere")
#: From the front: where statements about all places of a tuple of unknown length are assumed, besides.
_FIRST = range(4)

#: Sort of attributes that are neither integers nor tuples of them.
_Value = z3.DeclareSort("Value")


class NotSymbolicError(IossimError):
    """An expression that symbolic arithmetic cannot represent."""


class Tuple:
    """Integers in order: a shape or an attribute. ``length`` is an int where it is known, else a z3 integer."""

    def __init__(self, length: Any, item: Callable[[Any], Any]) -> None:
        self.length = length
        self._item = item
        self._found: dict[Any, tuple[Any, Any]] = {}

    def at(self, place: Any) -> Any:
        """The item at a place: an int, or a z3 integer that is inside."""
        key = place if isinstance(place, int) else (place.get_id(),)
        if key not in self._found:
            self._found[key] = place, self._item(place)
        return self._found[key][1]

    @staticmethod
    def of(items: Sequence[Any]) -> Tuple:
        held = tuple(items)

        def at(place: Any) -> Any:
            if isinstance(place, int):
                return held[place] if 0 <= place < len(held) else z3.IntVal(0)
            if not held:
                return z3.IntVal(0)
            found = held[-1]
            for index in range(len(held) - 2, -1, -1):
                found = z3.If(place == index, held[index], found)
            return found

        return Tuple(len(held), at)

    @staticmethod
    def unknown(name: str, length: int | None = None) -> Tuple:
        """A tuple of which nothing is known but its length, if that is given."""
        if length is not None:
            return Tuple.of([z3.Int(f"{name}[{place}]") for place in range(length)])
        item = z3.Function(f"{name}[-1 - ]", z3.IntSort(), z3.IntSort())
        size = z3.Int(f"len({name})")
        return Tuple(size, lambda place: item(z3.simplify(size - 1 - place)))

    @staticmethod
    def made(length: Any, at: Callable[[Any], Any]) -> Tuple:
        """The items that a function gives for each place."""
        if isinstance(length, int):
            return Tuple.of([at(place) for place in range(length)])
        return Tuple(length, at)

    @property
    def items(self) -> list[Any] | None:
        """All items where the length is known."""
        return [self.at(place) for place in range(self.length)] if isinstance(self.length, int) else None

    def places(self, every: bool) -> Sequence[Any]:
        """Places at which to state what holds at all places of a long tuple: to assume it (``every``) or show it."""
        from_front = z3.simplify(self.length - 1 - ANYWHERE)
        return (*_FIRST, from_front) if every else (from_front,)


def is_inside(place: Any, length: Any) -> Any:
    """Condition that a place is one of a tuple's."""
    if isinstance(place, int) and isinstance(length, int):
        return z3.BoolVal(0 <= place < length)
    return z3.And(place >= 0, place < length)


def integer(value: Any) -> Any:
    return z3.IntVal(value) if isinstance(value, int) else value


def plus(a: Any, b: Any) -> Any:
    return a + b if isinstance(a, int) and isinstance(b, int) else z3.simplify(integer(a) + integer(b))


class Claim:
    """A statement in two forms: what may be assumed once it is known (``given``), what shows it (``shown``).

    They differ where it is ``universal``, about all places of a tuple of unknown length. Each is spelled out when it
    is asked for.
    """

    def __init__(self, given: Any, shown: Any = None) -> None:
        """A statement of one form, or functions that make the two."""
        self._given, self._shown = given, shown
        self.universal = shown is not None

    @cached_property
    def given(self) -> Any:
        given = self._given() if callable(self._given) else self._given
        return z3.BoolVal(given) if isinstance(given, bool) else given

    @cached_property
    def shown(self) -> Any:
        return self._shown() if self.universal else self.given

    @staticmethod
    def all_of(claims: Sequence[Claim]) -> Claim:
        shown = (lambda: z3.And([each.shown for each in claims])) if _any_universal(claims) else None
        return Claim(lambda: z3.And([each.given for each in claims]), shown)

    def negated(self) -> Claim:
        """The opposite: of what must be shown at all places it says nothing."""
        if not self.universal:
            return Claim(z3.Not(self.given))
        return Claim(lambda: z3.BoolVal(True), lambda: z3.BoolVal(False))


def _any_universal(claims: Sequence[Claim]) -> bool:
    return any(each.universal for each in claims)


def any_of(claims: Sequence[Claim]) -> Claim:
    """Claim that one of the claims holds. Of those about all places, only the first can help to show it."""
    if not _any_universal(claims):
        return Claim(z3.Or([each.given for each in claims]))
    useful = [each for each in claims if not each.universal] + [each for each in claims if each.universal][:1]
    return Claim(lambda: z3.Or([each.given for each in claims]), lambda: z3.Or([each.shown for each in useful]))


def everywhere(over: Tuple, holds: Callable[[Any], Any]) -> Claim:
    """Claim that something holds at each place of a tuple."""
    if isinstance(over.length, int):
        return Claim(lambda: z3.And([holds(place) for place in range(over.length)]))

    def at(places: Sequence[Any]) -> Any:
        return z3.And([z3.Implies(is_inside(place, over.length), holds(place)) for place in places])

    return Claim(lambda: at(over.places(True)), lambda: at(over.places(False)))


def same(a: Tuple, b: Tuple) -> Claim:
    """Claim that two tuples are equal."""
    if a is b:
        return Claim(True)
    if isinstance(a.length, int) and isinstance(b.length, int):
        if a.length != b.length:
            return Claim(False)
        return Claim(lambda: z3.And([x == y for x, y in zip(a.items or (), b.items or (), strict=True)]))
    known = a if isinstance(a.length, int) else b
    return Claim.all_of([Claim(a.length == b.length), everywhere(known, lambda place: a.at(place) == b.at(place))])


def distinct(items: Sequence[Any]) -> Any:
    return z3.Distinct(*items) if len(items) > 1 else z3.BoolVal(True)


def is_opaque(value: Any) -> bool:
    return isinstance(value, z3.ExprRef) and value.sort() == _Value


def named_value(name: str) -> Any:
    """A value that is neither an integer nor a tuple of them: of an unknown attribute, or a literal."""
    return z3.Const(name, _Value)


def is_integer(value: Any) -> bool:
    return type(value) is int or z3.is_int(value)


#: Limit of z3's work on one question, in its own unit, so that the answer is the same on every machine. No shipped rule
#: takes a quarter of a million.
_STEPS = 2_000_000

_times = z3.Function("times", z3.IntSort(), z3.IntSort(), z3.IntSort())
_quotient = z3.Function("quotient", z3.IntSort(), z3.IntSort(), z3.IntSort())


class Arithmetic:
    """Facts about attributes and shapes, and their consequences. Assumptions come first, then questions."""

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
        """True if a statement follows."""
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
        """The product: multiplied out, and of two unknowns an uninterpreted function. Facts about each pair of
        products are many; they are omitted for one that ``cancels`` from no equation.
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
        """``a // b`` for a positive ``b``; nothing is known of any other. ``cancels`` is as for products."""
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
        return [z3.Implies(z3.And(exact, by == a), quotient == b), z3.Implies(z3.And(exact, by == b), quotient == a)]

    def is_divisible(self, a: Any, b: Any) -> Claim:
        """Claim that ``b`` divides ``a``."""
        return Claim(self.times(self.quotient(a, b), b) == a)


def equal(a: Any, b: Any, arithmetic: Arithmetic) -> Claim:
    """Claim that two values of attributes are equal: integers, tuples, or Python values and z3's for such."""
    if isinstance(a, Tuple) and isinstance(b, Tuple):
        return same(a, b)
    if isinstance(a, Tuple) or isinstance(b, Tuple):
        return Claim(False)
    if is_integer(a) and is_integer(b):
        return Claim(integer(a) == integer(b))
    if any(isinstance(value, z3.ExprRef) and z3.is_int(value) for value in (a, b)):
        raise NotSymbolicError("compares a whole number with what may be none")
    if is_opaque(a) or is_opaque(b):
        a, b = (value if is_opaque(value) else arithmetic.literal(value) for value in (a, b))
        return Claim(a == b)
    return Claim(bool(a == b))
