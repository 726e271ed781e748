"""Libraries of compiled functions, one per module: made once by the machine's C compiler, kept on disk, and called.

A library is named after a hash of everything it is made from: the sources of the functions and of their callees, the
constants and types that these name, and the translator itself. It calls Python's stable ABI only, so one library serves
every version of Python: a wheel ships those of the platform that built it (:data:`SHIPPED`), and one whose name differs
is not used. A file under its final name is complete, even if several processes make it at the same time.
``IOSSIM_COMPILER`` names another compiler, or ``numba`` for neither compiler nor shipped libraries.
"""

from __future__ import annotations

import ctypes
import hashlib
import marshal
import os
import platform
import re
import shutil
import sys
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import get_args, get_origin

import numpy as np

#: Products are not fused with sums, and integers wrap: results equal those of any other compiler.
FLAGS = ("-O2", "-fPIC", "-shared", "-std=gnu11", "-ffp-contract=off", "-fwrapv", "-fno-math-errno", "-w")

#: A Python function, as written or compiled.
Function = Callable[..., object]
#: The Python function of a compiled one, and whether it is inlined; None for anything else.
Callees = Callable[[object], tuple[Function, bool] | None]

#: The libraries that came with the package.
SHIPPED = Path(__file__).parent / "shipped"


def is_usable() -> bool:
    """True if libraries can be used: unless numba is requested, or addresses are shorter than 64 bits."""
    return os.environ.get("IOSSIM_COMPILER") != "numba" and sys.maxsize > 2**32


@cache
def compiler() -> str | None:
    """The C compiler, or None. macOS's stub is not run: it may open a window that offers to install one."""
    chosen = os.environ.get("IOSSIM_COMPILER", "")
    if not is_usable() or (not chosen and sys.platform != "linux"):
        return None
    return next(
        (found for name in ([chosen] if chosen else ["cc", "gcc", "clang"]) if (found := shutil.which(name))), None
    )


class Library:
    """The functions of a library on disk; raises OSError if there is none."""

    def __init__(self, path: Path):
        self._find = ctypes.PyDLL(str(path)).find
        self._find.argtypes, self._find.restype = (ctypes.c_char_p,), ctypes.py_object

    def function(self, function: Function) -> Function | None:
        """A function's entry in the library, None if it could not be translated.

        Calling it raises TypeError, ValueError or BufferError for arguments of other types than it was translated for.
        """
        found: Function | None = self._find(c_name(function).encode())
        return found


def library_name(functions: Sequence[Function], callee: Callees) -> str:
    """The file name of the library of a module's functions."""
    abi = f"{sys.platform} {platform.machine()} {sys.abiflags if os.name == 'posix' else ''}"
    digest = hashlib.sha256(_own_sources() + abi.encode() + " ".join(FLAGS).encode())
    seen: set[str] = set()
    for function in functions:
        _add(function, callee, digest, seen)
    return f"{functions[0].__module__}-{digest.hexdigest()[:16]}.so"


@cache
def _own_sources() -> bytes:
    own = (path for path in sorted(Path(__file__).parent.iterdir()) if path.suffix in (".c", ".py"))
    return b"".join(path.read_bytes() for path in own)


def _add(function: Function, callee: Callees, digest: hashlib._Hash, seen: set[str]) -> None:
    name = c_name(function)
    if name in seen:
        return
    seen.add(name)
    annotations = function.__annotations__
    digest.update(f"{name} {annotations}".encode())
    digest.update(_source(function.__module__) or marshal.dumps(function.__code__))
    words = " ".join(map(str, annotations.values()))
    for each in sorted({*function.__code__.co_names, *re.findall(r"\w+", words)} & function.__globals__.keys()):
        _add_value(each, function.__globals__[each], callee, digest, seen)


def _add_value(name: str, value: object, callee: Callees, digest: hashlib._Hash, seen: set[str]) -> None:
    called = callee(value)
    if called is not None:
        _add(called[0], callee, digest, seen)
    elif isinstance(value, np.ndarray):
        digest.update(name.encode() + value.tobytes())
    elif isinstance(value, type) and hasattr(value, "_fields"):
        key = c_name(value)
        if key not in seen:
            seen.add(key)
            names = vars(sys.modules[value.__module__])
            digest.update(f"{key} {value.__annotations__}".encode())
            for each in sorted(set(re.findall(r"\w+", str(value.__annotations__))) & names.keys()):
                _add_value(each, names[each], callee, digest, seen)
    elif not isinstance(value, ModuleType | type):
        digest.update(f"{name} {_written(value)}".encode())


def _written(value: object) -> str:
    """A constant or an annotation, alike under every version of Python and NumPy."""
    if getattr(value, "__parameters__", ()):
        return "generic"
    value = without_alias(value)
    if get_origin(value) is np.ndarray:
        return f"array of {_written(get_args(get_args(value)[1])[0])}"
    if get_origin(value) is not None:
        return f"{getattr(get_origin(value), '__name__', '')}[{', '.join(map(_written, get_args(value)))}]"
    if isinstance(value, np.dtype):
        return str(value.descr)
    if isinstance(value, type):
        return value.__name__
    return repr(value.item() if isinstance(value, np.generic) else value)


@cache
def _source(module: str) -> bytes | None:
    """The source of a module; None of one that is in no file, such as a notebook."""
    path = getattr(sys.modules[module], "__file__", None)
    return None if path is None else Path(path).read_bytes()


def c_name(defined: Function) -> str:
    """The name of a function or class in C, unique among all modules."""
    return f"{defined.__module__}_{defined.__name__}".replace(".", "_")


def without_alias(annotation: object) -> object:
    """The type that an alias such as ``NDArray`` denotes; NumPy declares it with ``type`` where Python has that."""
    while (denoted := getattr(get_origin(annotation), "__value__", None)) is not None:
        annotation = denoted[get_args(annotation)]
    return annotation
