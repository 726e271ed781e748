"""C of compiled functions, and libraries of it: a translation of the small subset of Python that they are written in.

Numbers have 64 bits and arrays know their sizes; operations are the same in the same order, so that results equal
numba's to the last bit. Unsupported constructs raise UntranslatableError. Indices are not checked, and none is
negative except literal ones; no integer is divided by 0.
"""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from iossim.base.native import calls
from iossim.base.native.library import FLAGS, c_name, compiler
from iossim.base.native.statements import FunctionText
from iossim.base.native.types import Array, Dimensions, Record, Row, Signature, Tuple, Type

#: The beginning of all translations.
_PRELUDE = Path(__file__).with_name("prelude.c")
#: A function, and whether it is inlined.
Callee = tuple[Callable[..., Any], bool]


class MoreKnownError(Exception):
    """A type was refined: code that was translated with the former type has to be translated again."""


def translate(functions: Sequence[Callable[..., Any]], callee: Callable[[Any], Callee | None]) -> str:
    """The C of the translatable ones of the functions, and of all their callees.

    ``callee`` gives the Python function of a compiled one, and whether it is inlined; None for anything else.
    """
    with suppress(Exception):
        return Translation(functions, callee).text
    able = []
    for function in functions:
        with suppress(Exception):  # unforeseen code of a plugin is left to numba
            Translation([function], callee)
            able.append(function)
    return Translation(able, callee).text


class Translation:
    """The C of functions and of all their callees, see :func:`translate`, with the types and functions that it declares
    and the inferred types of variables; raises UntranslatableError.
    """

    def __init__(self, functions: Sequence[Callable[..., Any]], callee: Callable[[Any], Callee | None]):
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
        while True:
            self.types.clear()
            self.parts.clear()
            try:
                for function in functions:
                    self.define(function)
                called = [function for function in functions if not self._is_inner(function)]
                entries = [*map(self._entry, called), calls.table([c_name(function) for function in called])]
                break
            except MoreKnownError:
                continue
        prelude = _PRELUDE.read_text(encoding="utf-8")
        self.text = "\n".join([prelude, *self.types.values(), *self.parts.values(), *entries])

    def define(self, function: Callable[..., Any], inline: bool = False) -> str:
        """Define a function in C; returns its name there."""
        name = c_name(function)
        if name not in self.parts:
            before = -1
            while before != len(self.locals) + self.widened:
                before = len(self.locals) + self.widened
                self.parts[name] = FunctionText(self, function, inline).text
            # Move it after its callees, which were defined meanwhile.
            self.parts[name] = self.parts.pop(name)
        return name

    def signature(self, function: Callable[..., Any]) -> Signature:
        return Signature.of(function, self.dimensions)

    def declare(self, kind: Type) -> str:
        """Declare a type in C; returns its name there."""
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
        """The C name of a type for a variable that stores a value of it."""
        name = self.declare(kind)
        return kind.name if isinstance(kind, Record) else name

    def widen(self, place: tuple[str, str], dimensions: int) -> None:
        """Record that an array has at least this number of dimensions; raises MoreKnownError if that is new."""
        if self.dimensions.of.get(place, 1) < dimensions:
            self.dimensions.of[place] = dimensions
            raise MoreKnownError

    def _is_inner(self, function: Callable[..., Any]) -> bool:
        """Whether a function is called by compiled ones only: calls from elsewhere go to numba."""
        takes_rows = any(isinstance(kind, Row) for _, kind in self.signature(function).parameters)
        return takes_rows or (function.__name__.startswith("_") and c_name(function) in self.called)

    def _entry(self, function: Callable[..., Any]) -> str:
        name = self.define(function)
        return calls.entry(name, self.signature(function), self.held, lambda array: array.place in self.used)


def make(path: Path, text: str) -> bool:
    """Compile C into a library; returns whether that succeeded."""
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=f"{path.name}.") as folder:
        source, made = Path(folder) / "source.c", Path(folder) / "library.so"
        source.write_text(text)
        try:
            subprocess.run(
                [compiler() or "cc", *FLAGS, str(source), "-o", str(made), "-lm"],
                check=True,
                stdin=subprocess.DEVNULL,
                capture_output=True,
            )
        except (OSError, subprocess.CalledProcessError):
            return False
        made.replace(path)
    return True
