"""Types of compiled functions, from their annotations: numbers, arrays, rows of tables, and named tuples; and the types
of the variables of functions that are translated together (:class:`Unit`).
"""

from __future__ import annotations

import builtins
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, get_args, get_origin

import numpy as np

from iossim.base.native.library import Callees, Function, c_name, without_alias


class UntranslatableError(Exception):
    """A construct outside the subset of Python that is translated."""


@dataclass(frozen=True)
class Number:
    """``code`` is that of ``struct``: a 64-bit integer (q), an unsigned one (Q), a double (d), a boolean (?)."""

    code: str

    @property
    def c_name(self) -> str:
        return {"q": "int64_t", "Q": "uint64_t", "d": "double", "?": "int"}[self.code]


INTEGER, MASK, FLOAT, TRUTH = map(Number, "qQd?")
#: By the types of Python and NumPy that denote them.
NUMBERS: Mapping[object, Number] = {int: INTEGER, float: FLOAT, bool: TRUTH, np.uint64: MASK, np.int64: INTEGER}

#: The elements of arrays, and the types that they are computed in.
_ELEMENTS = {
    "f8": ("double", FLOAT), "u8": ("uint64_t", MASK), "i8": ("int64_t", INTEGER), "i4": ("int32_t", INTEGER),
    "i1": ("int8_t", INTEGER), "u1": ("uint8_t", INTEGER), "b1": ("uint8_t", TRUTH),
}  # fmt: skip


@dataclass(frozen=True)
class Row:
    """A row of a table."""

    dtype: np.dtype[np.generic]

    @property
    def c_name(self) -> str:
        return "const char *"


@dataclass(frozen=True)
class Array:
    """``place`` keys its number of dimensions in :attr:`Dimensions.of`; its parts are empty if the number is known."""

    dtype: np.dtype[np.generic]
    dimensions: int = 1
    place: tuple[str, str] = ("", "")

    @property
    def c_name(self) -> str:
        return f"array_{self.dtype.str[1:]}_{self.dimensions}"

    @property
    def element(self) -> Number | Row:
        """Type of an element once it is loaded."""
        return Row(self.dtype) if self.dtype.kind == "V" else _ELEMENTS[self.dtype.str[1:]][1]

    @property
    def c_element(self) -> str:
        return "char" if self.dtype.kind == "V" else _ELEMENTS[self.dtype.str[1:]][0]


@dataclass(frozen=True)
class Record:
    """A named tuple, passed by value: the compiler then knows that no store changes a field; its fields by name."""

    name: str
    fields: tuple[tuple[str, Type], ...]

    @property
    def c_name(self) -> str:
        return self.name


@dataclass(frozen=True)
class Tuple:
    """Several return values of a function."""

    items: tuple[Number, ...]

    @property
    def c_name(self) -> str:
        return f"tuple_{''.join(item.code for item in self.items).replace('?', 't')}"


Type = Number | Row | Array | Record | Tuple


class Dimensions:
    """Numbers of dimensions of arrays: inferred from their use, since annotations do not state them."""

    def __init__(self) -> None:
        self.of: dict[tuple[str, str], int] = {}

    def annotated(self, annotation: object, names: Mapping[str, object], place: tuple[str, str]) -> Type:
        """The type that the annotation of ``place`` denotes; raises UntranslatableError for unsupported ones."""
        if isinstance(annotation, str):
            try:
                annotation = eval(annotation, {**vars(builtins), **names})
            except NameError as error:
                raise UntranslatableError(f"{place}: {error}") from None
        annotation = without_alias(annotation)
        dtype = None
        if get_origin(annotation) is Annotated:
            annotation, dtype = without_alias(get_args(annotation)[0]), get_args(annotation)[1]
        if (number := NUMBERS.get(annotation)) is not None:
            return number
        if annotation is np.void and dtype is not None:
            return Row(dtype)
        if get_origin(annotation) is np.ndarray:
            (element,) = get_args(get_args(annotation)[1])
            if element is not np.void or dtype is not None:
                return Array(np.dtype(element if dtype is None else dtype), self.of.get(place, 1), place)
        if get_origin(annotation) is tuple:
            items = [self.annotated(item, names, place) for item in get_args(annotation)]
            if all(isinstance(item, Number) for item in items):
                return Tuple(tuple(item for item in items if isinstance(item, Number)))
        if isinstance(annotation, type) and hasattr(annotation, "_fields"):
            scope = vars(__import__(annotation.__module__, fromlist=[""]))
            fields = {name: getattr(kind, "__forward_arg__", kind) for name, kind in annotation.__annotations__.items()}
            own_name = c_name(annotation)
            own = [(name, self.annotated(kind, scope, (own_name, name))) for name, kind in fields.items()]
            return Record(own_name, tuple(own))
        raise UntranslatableError(f"{place}: {annotation} has no counterpart in C")


@dataclass(frozen=True)
class Signature:
    """The parameters of a function by name, and its return type, None for nothing."""

    parameters: tuple[tuple[str, Type], ...]
    returned: Number | Tuple | None

    @staticmethod
    def of(function: Function, dimensions: Dimensions) -> Signature:
        code = function.__code__
        annotations, names = function.__annotations__, function.__globals__
        parameters = []
        for name in code.co_varnames[: code.co_argcount]:
            if name not in annotations:
                raise UntranslatableError(f"{function.__name__}: {name} has no annotation")
            parameters.append((name, dimensions.annotated(annotations[name], names, (c_name(function), name))))
        if "return" not in annotations:
            raise UntranslatableError(f"{function.__name__}: what it returns has no annotation")
        if annotations["return"] in (None, "None"):
            return Signature(tuple(parameters), None)
        returned = dimensions.annotated(annotations["return"], names, (c_name(function), "return"))
        if not isinstance(returned, Number | Tuple):
            raise UntranslatableError(f"{function.__name__}: it returns no number")
        return Signature(tuple(parameters), returned)


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
