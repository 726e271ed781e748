"""Libraries of compiled functions, one per module: made once by the machine's C compiler, kept on disk, and called.

A library is named after a hash of everything it is made from: the bytecode of the functions and of their callees, the
constants and types that these name, and the translator itself. A file under its final name is complete, even if
several processes make it at the same time. ``IOSSIM_COMPILER`` names another compiler, or ``numba`` for none.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

import numpy as np

from iossim.base.native.types import c_name

#: Products are not fused with sums, and integers wrap: results equal those of any other compiler.
_FLAGS = ("-O2", "-fPIC", "-shared", "-std=gnu11", "-ffp-contract=off", "-fwrapv", "-fno-math-errno", "-w")


@cache
def compiler() -> str | None:
    """The C compiler, or None. macOS's stub is not run: it may open a window that offers to install one."""
    chosen = os.environ.get("IOSSIM_COMPILER", "")
    if chosen == "numba" or sys.maxsize < 2**32 or (not chosen and sys.platform != "linux"):
        return None
    return next(
        (found for name in ([chosen] if chosen else ["cc", "gcc", "clang"]) if (found := shutil.which(name))), None
    )


class Library:
    """The functions of a library on disk; raises OSError if there is none."""

    def __init__(self, path: Path):
        self._find: Any = ctypes.PyDLL(str(path)).find
        self._find.argtypes, self._find.restype = (ctypes.c_char_p,), ctypes.py_object

    def function(self, function: Callable[..., Any]) -> Callable[..., Any] | None:
        """A function's entry in the library, None if it could not be translated.

        Calling it raises TypeError, ValueError or BufferError for arguments of other types than it was translated for.
        """
        found: Callable[..., Any] | None = self._find(c_name(function).encode())
        return found


def library_name(functions: Sequence[Callable[..., Any]], callee: Callable[[Any], Any]) -> str:
    """The file name of the library of a module's functions."""
    digest = hashlib.sha256(_own_sources() + f"{sys.version} {platform.machine()}".encode() + " ".join(_FLAGS).encode())
    seen: set[str] = set()
    for function in functions:
        _add(function, callee, digest, seen)
    return f"{functions[0].__module__}-{digest.hexdigest()[:16]}.so"


@cache
def _own_sources() -> bytes:
    return b"".join(path.read_bytes() for path in sorted(Path(__file__).parent.glob("*.py")))


def _add(function: Callable[..., Any], callee: Callable[[Any], Any], digest: Any, seen: set[str]) -> None:
    name = c_name(function)
    if name in seen:
        return
    seen.add(name)
    annotations = function.__annotations__
    digest.update(f"{name} {annotations}".encode())
    _add_code(function.__code__, digest)
    words = " ".join(map(str, annotations.values()))
    for each in sorted({*function.__code__.co_names, *re.findall(r"\w+", words)} & function.__globals__.keys()):
        _add_value(each, function.__globals__[each], callee, digest, seen)


def _add_value(name: str, value: Any, callee: Callable[[Any], Any], digest: Any, seen: set[str]) -> None:
    called = callee(value)
    if called is not None:
        _add(called[0], callee, digest, seen)
    elif isinstance(value, np.ndarray):
        digest.update(name.encode() + value.tobytes())
    elif hasattr(value, "_fields"):
        key = c_name(value)
        if key not in seen:
            seen.add(key)
            names = vars(sys.modules[value.__module__])
            digest.update(f"{key} {value.__annotations__}".encode())
            for each in sorted(set(re.findall(r"\w+", str(value.__annotations__))) & names.keys()):
                _add_value(each, names[each], callee, digest, seen)
    elif not isinstance(value, ModuleType | type):
        digest.update(f"{name} {value!r}".encode())


def _add_code(code: CodeType, digest: Any) -> None:
    digest.update(code.co_code + f"{code.co_names}{code.co_varnames}".encode())
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            _add_code(constant, digest)
        else:
            digest.update(repr(constant).encode())


def make(path: Path, text: str) -> bool:
    """Compile C into a library; returns whether that succeeded."""
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=f"{path.name}.") as folder:
        source, made = Path(folder) / "source.c", Path(folder) / "library.so"
        source.write_text(text)
        try:
            subprocess.run(
                [compiler() or "cc", *_FLAGS, str(source), "-o", str(made), "-lm"],
                check=True,
                stdin=subprocess.DEVNULL,
                capture_output=True,
            )
        except (OSError, subprocess.CalledProcessError):
            return False
        made.replace(path)
    return True
