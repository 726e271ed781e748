"""C of compiled functions, and libraries of it: a translation of the small subset of Python that they are written in.

Numbers have 64 bits and arrays know their sizes; operations are the same in the same order, so that results equal
numba's to the last bit. Unsupported constructs raise UntranslatableError. Indices are not checked, and none is
negative except literal ones; no integer is divided by 0.
"""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from iossim.base.native import calls
from iossim.base.native.library import FLAGS, Callees, Function, c_name, compiler
from iossim.base.native.statements import FunctionText
from iossim.base.native.types import Row
from iossim.base.native.unit import MoreKnownError, Unit

#: The beginning of all translations.
_PRELUDE = Path(__file__).with_name("prelude.c")


def translate(functions: Sequence[Function], callee: Callees) -> str:
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


class Translation(Unit):
    """The C of functions and of all their callees, see :func:`translate`; raises UntranslatableError."""

    def __init__(self, functions: Sequence[Function], callee: Callees):
        super().__init__(callee)
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

    def define(self, function: Function, inline: bool = False) -> str:
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

    def _is_inner(self, function: Function) -> bool:
        """True if only compiled functions call it: other callers use numba."""
        takes_rows = any(isinstance(kind, Row) for _, kind in self.signature(function).parameters)
        return takes_rows or (function.__name__.startswith("_") and c_name(function) in self.called)

    def _entry(self, function: Function) -> str:
        name = self.define(function)
        return calls.entry(name, self.signature(function), self.declare, lambda array: array.place in self.used)


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
