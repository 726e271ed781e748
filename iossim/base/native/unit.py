"""What functions that are translated together share: types, constants, and what is known of their variables."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from iossim.base.native.types import Array, Dimensions, Record, Signature, Tuple, Type

#: A function, and whether it is inlined.
Callee = tuple[Callable[..., Any], bool]


class MoreKnownError(Exception):
    """More became known of a type: what was translated with less is translated anew."""


class Unit:
    """What is translated together: the types and functions that are declared, and what is known of variables."""

    def __init__(self, callee: Callable[[Any], Callee | None]):
        self.callee = callee
        self.dimensions = Dimensions()
        #: The types of variables, by function and name; how often one was found to be wider than it seemed.
        self.locals: dict[tuple[str, str], Type] = {}
        self.widened = 0
        #: The C of types, and of constants and functions, by name in the order in which they need each other.
        self.types: dict[str, str] = {}
        self.parts: dict[str, str] = {}
        self.called: set[str] = set()
        #: The places of arrays with which something is done: others may have any number of dimensions.
        self.used: set[tuple[str, str]] = set()

    def define(self, function: Callable[..., Any], inline: bool = False) -> str:
        """The name of a function in C, which is defined."""
        raise NotImplementedError

    def signature(self, function: Callable[..., Any]) -> Signature:
        return Signature.of(function, self.dimensions)

    def declare(self, kind: Type) -> str:
        """The name of a type in C, which is declared."""
        if isinstance(kind, Array) and kind.c_name not in self.types:
            sizes = ", ".join(f"n{axis}" for axis in range(kind.dimensions))
            self.types[kind.c_name] = f"typedef struct {{ {kind.c_element} *at; int64_t {sizes}; }} {kind.c_name};"
        if isinstance(kind, Record) and kind.name not in self.types:
            fields = " ".join(f"{self.held(own)} {name};" for name, own in kind.fields)
            self.types[kind.name] = f"typedef struct {{ {fields} }} {kind.name};"
        if isinstance(kind, Tuple) and kind.c_name not in self.types:
            fields = " ".join(f"{item.c_name} v{place};" for place, item in enumerate(kind.items))
            self.types[kind.c_name] = f"typedef struct {{ {fields} }} {kind.c_name};"
        return kind.c_name

    def held(self, kind: Type) -> str:
        """The name of a type in C, as what holds a value of it."""
        name = self.declare(kind)
        return kind.name if isinstance(kind, Record) else name

    def widen(self, place: tuple[str, str], dimensions: int) -> None:
        """The array of a place has at least so many dimensions."""
        if self.dimensions.of.get(place, 1) < dimensions:
            self.dimensions.of[place] = dimensions
            raise MoreKnownError
