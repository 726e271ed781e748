"""The state shared by functions that are translated together: types, constants, and inferred types of variables."""

from __future__ import annotations

from iossim.base.native.library import Callees, Function
from iossim.base.native.types import Array, Dimensions, Record, Signature, Tuple, Type


class MoreKnownError(Exception):
    """A type was refined: code that was translated with the former type has to be translated again."""


class Unit:
    """A translation unit: the declared types and functions, and the inferred types of variables."""

    def __init__(self, callee: Callees):
        self.callee = callee
        self.dimensions = Dimensions()
        #: The types of variables, by function and name; the number of times that one was widened.
        self.locals: dict[tuple[str, str], Type] = {}
        self.widened = 0
        #: The C of types, and of constants and functions, by name in dependency order.
        self.types: dict[str, str] = {}
        self.parts: dict[str, str] = {}
        self.called: set[str] = set()
        #: The places of arrays that are accessed: others may have any number of dimensions.
        self.used: set[tuple[str, str]] = set()

    def define(self, function: Function, inline: bool = False) -> str:
        """Define a function in C; returns its name there."""
        raise NotImplementedError

    def signature(self, function: Function) -> Signature:
        return Signature.of(function, self.dimensions)

    def declare(self, kind: Type) -> str:
        """Declare a type in C; returns its name there."""
        if isinstance(kind, Array) and kind.c_name not in self.types:
            sizes = ", ".join(f"n{axis}" for axis in range(kind.dimensions))
            self.types[kind.c_name] = f"typedef struct {{ {kind.c_element} *at; int64_t {sizes}; }} {kind.c_name};"
        if isinstance(kind, Record) and kind.name not in self.types:
            fields = " ".join(f"{self.declare(own)} {name};" for name, own in kind.fields)
            self.types[kind.name] = f"typedef struct {{ {fields} }} {kind.name};"
        if isinstance(kind, Tuple) and kind.c_name not in self.types:
            fields = " ".join(f"{item.c_name} v{place};" for place, item in enumerate(kind.items))
            self.types[kind.c_name] = f"typedef struct {{ {fields} }} {kind.c_name};"
        return kind.c_name

    def widen(self, place: tuple[str, str], dimensions: int) -> None:
        """Record that an array has at least this number of dimensions; raises MoreKnownError if that is new."""
        if self.dimensions.of.get(place, 1) < dimensions:
            self.dimensions.of[place] = dimensions
            raise MoreKnownError
