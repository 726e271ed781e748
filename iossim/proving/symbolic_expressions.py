"""Values of expressions over symbols: a rule's statements on attributes and shapes, in a form that z3 can decide."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any

import z3

from iossim.proving.symbolic import (
    Arithmetic,
    Claim,
    NotSymbolicError,
    Tuple,
    any_of,
    equal,
    integer,
    is_inside,
    is_integer,
    plus,
)
from iossim.transforms.rewriting import expression as ex


class Evaluator:
    """Values of expressions. ``needed`` gathers what makes them have one: places that tuples have, divisors that are
    not zero. ``assumes`` says that the expressions are known to be true, not to be shown.
    """

    def __init__(
        self,
        attributes: Mapping[str, Any],
        shapes: Callable[[str], Tuple],
        arithmetic: Arithmetic,
        assumes: bool = False,
    ) -> None:
        self._attributes, self._shapes, self._arithmetic, self._assumes = attributes, shapes, arithmetic, assumes
        self.needed: list[Claim] = []

    def value(self, expression: ex.Expression) -> Any:
        """An integer, a :class:`Tuple`, a Python value, or an opaque one."""
        match expression:
            case ex.Literal(value):
                return value
            case ex.Variable(name):
                return self._attributes[name]
            case ex.Shape(tensor):
                return self._shapes(tensor)
            case ex.Length(of):
                return self._tuple(of).length
            case ex.Item(of, index):
                found, place = self._tuple(of), self._integer(index)
                if isinstance(place, int) and place < 0:
                    place = found.length + place
                elif not isinstance(place, int):
                    place = z3.If(place < 0, place + found.length, place)
                self.needed.append(Claim(is_inside(place, found.length)))
                return found.at(place)
            case ex.Part(of, start, stop):
                return self._part(self._tuple(of), start, stop)
            case ex.Sequence(items):
                return self._sequence(items)
            case ex.Arithmetic(sign, left, right):
                if any(isinstance(side, ex.Shape | ex.Part | ex.Sequence) for side in (left, right)):
                    raise NotSymbolicError(f"{expression} is of tuples")
                return self._calculated(sign, self._integer(left), self._integer(right))
        raise NotSymbolicError(f"{expression} has no value for symbolic arithmetic")

    def claim(self, expression: ex.Expression) -> Claim:
        """The truth that an expression states."""
        match expression:
            case ex.IsConstant():  # says nothing of values
                return Claim(lambda: z3.BoolVal(True), lambda: z3.BoolVal(False))
            case ex.AnyOf(conditions):
                claims = [self.claim(conditions[0])]
                certain = len(self.needed)
                claims += [self.claim(each) for each in conditions[1:]]
                if self._assumes:  # Python reads the others only where the first does not hold
                    del self.needed[certain:]
                return any_of(claims)
            case ex.Comparison(sign, left, right):
                a, b = self.value(left), self.value(right)
                if sign in ("==", "!="):
                    found = equal(a, b, self._arithmetic)
                    return found if sign == "==" else found.negated()
                if not (is_integer(a) and is_integer(b)):
                    raise NotSymbolicError(f"{expression} orders values other than whole numbers")
                a, b = integer(a), integer(b)
                return Claim({"<": a < b, "<=": a <= b, ">": a > b, ">=": a >= b}[sign])
            case ex.Literal(bool() as value):
                return Claim(value)
        raise NotSymbolicError(f"{expression} is not a condition that symbolic arithmetic can represent")

    def _tuple(self, expression: ex.Expression) -> Tuple:
        found = self.value(expression)
        if not isinstance(found, Tuple):
            raise NotSymbolicError(f"{expression} is not a tuple of whole numbers")
        return found

    def _integer(self, expression: ex.Expression) -> Any:
        found = self.value(expression)
        if not is_integer(found):
            raise NotSymbolicError(f"{expression} is not a whole number")
        return found

    def _calculated(self, sign: str, a: Any, b: Any) -> Any:
        match sign:
            case "+":
                return a + b
            case "-":
                return a - b
            case "*":
                return self._arithmetic.times(a, b)
        self.needed.append(Claim(integer(b) != 0))
        quotient = self._arithmetic.quotient(a, b)
        return quotient if sign == "//" else integer(a) - self._arithmetic.times(quotient, b)

    @staticmethod
    def _part(whole: Tuple, start: int | None, stop: int | None) -> Tuple:
        if isinstance(whole.length, int):
            return Tuple.of((whole.items or [])[start:stop])
        length = z3.IntVal(0) + whole.length

        def bound(given: int | None, usual: Any) -> Any:
            if given is None:
                return usual
            inside = z3.If(length < given, length, given) if given >= 0 else length + given
            return z3.If(inside < 0, 0, inside)

        first, last = bound(start, z3.IntVal(0)), bound(stop, length)
        # Where the tuple is long enough, places are shifted by a number, so that what is assumed at places fits.
        shift = start if start is not None and start >= 0 else first
        return Tuple(z3.simplify(z3.If(last > first, last - first, 0)), lambda place: whole.at(plus(place, shift)))

    def _sequence(self, items: Sequence[ex.Expression]) -> Tuple:
        parts: list[Any] = []
        for item in items:
            if isinstance(item, ex.Spread):
                spread = self._tuple(item.of)
                if spread.items is None:
                    parts.append(spread)
                else:
                    parts.extend(spread.items)
            else:
                parts.append(self._integer(item))
        if not any(isinstance(part, Tuple) for part in parts):
            return Tuple.of([integer(part) for part in parts])
        pieces = [part if isinstance(part, Tuple) else Tuple.of([integer(part)]) for part in parts]
        starts: list[Any] = [0]
        for piece in pieces:
            starts.append(plus(starts[-1], piece.length))

        def at(place: Any) -> Any:
            found = z3.IntVal(0)
            for (start, stop), piece in reversed(list(zip(pairwise(starts), pieces, strict=True))):
                offset = place - start if not isinstance(start, int) or start else place
                found = z3.If(z3.And(integer(place) >= start, integer(place) < stop), piece.at(offset), found)
            return found

        return Tuple(starts[-1], at)
