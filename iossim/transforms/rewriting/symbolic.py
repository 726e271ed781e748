"""Attributes and shapes as z3 sees them: integers, tuples of any length, other values, and what is claimed of them.

What holds for all places of a tuple of unknown length is assumed at the first few and at :data:`ANYWHERE`, a place counted from the
end of which nothing else is assumed; so what follows there holds at every place.
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

#: Of attributes that are neither integers nor tuples of them.
_Value = z3.DeclareSort("Value")


class NotSymbolicError(IossimError):
    """An expression that symbolic arithmetic has not."""


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
        """Where to state of a tuple of unknown length what holds at each place: where it is assumed (``every``), or anywhere."""
        from_front = z3.simplify(self.length - 1 - ANYWHERE)
        return (*_FIRST, from_front) if every else (from_front,)


def is_inside(place: Any, length: Any) -> Any:
    """Whether a place is one of a tuple's."""
    if isinstance(place, int) and isinstance(length, int):
        return z3.BoolVal(0 <= place < length)
    return z3.And(place >= 0, place < length)


def integer(value: Any) -> Any:
    return z3.IntVal(value) if isinstance(value, int) else value


class Claim:
    """A statement in two forms: what may be assumed where it is known (``given``), and what must be shown to know it (``shown``).

    They differ where it is ``universal``, about all places of a tuple of unknown length. Each is spelled out when it is asked for.
    """

    def __init__(self, given: Any, shown: Any = None) -> None:
        """A statement of one form, or functions that make the two."""
        self._given, self._shown = given, shown
        self.universal = shown is not None

    @cached_property
    def given(self) -> Any:
        return self._given() if callable(self._given) else _truth(self._given)

    @cached_property
    def shown(self) -> Any:
        return self._shown() if self.universal else self.given

    @staticmethod
    def all_of(claims: Sequence[Claim]) -> Claim:
        def given() -> Any:
            return z3.And([each.given for each in claims])

        return Claim(given, (lambda: z3.And([each.shown for each in claims])) if _any_universal(claims) else None)

    def negated(self) -> Claim:
        """The opposite: of what must be shown at all places it says nothing."""
        if not self.universal:
            return Claim(z3.Not(self.given))
        return Claim(lambda: z3.BoolVal(True), lambda: z3.BoolVal(False))


def _truth(value: Any) -> Any:
    return z3.BoolVal(value) if isinstance(value, bool) else value


def _any_universal(claims: Sequence[Claim]) -> bool:
    return any(each.universal for each in claims)


def any_of(claims: Sequence[Claim]) -> Claim:
    """That one of the claims holds. Of those about all places, only the first can help to show it."""
    if not _any_universal(claims):
        return Claim(z3.Or([each.given for each in claims]))
    useful = [each for each in claims if not each.universal] + [each for each in claims if each.universal][:1]
    return Claim(
        lambda: z3.Or([each.given for each in claims]),
        lambda: z3.Or([each.shown for each in useful]),
    )


def everywhere(over: Tuple, holds: Callable[[Any], Any]) -> Claim:
    """That something holds at each place of a tuple."""
    if isinstance(over.length, int):
        return Claim(lambda: z3.And([holds(place) for place in range(over.length)]))

    def at(places: Sequence[Any]) -> Any:
        return z3.And([z3.Implies(is_inside(place, over.length), holds(place)) for place in places])

    return Claim(lambda: at(over.places(True)), lambda: at(over.places(False)))


def same(a: Tuple, b: Tuple) -> Claim:
    """That two tuples are equal."""
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
