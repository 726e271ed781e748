"""Compiled functions: by a C compiler, when the wheel was built or here, or by numba; kept on disk between processes.

Annotated functions are translated to C (:mod:`iossim.base.native`) and compiled into one library per module: by
``build_backend.py`` into the wheel, or else at the first call, within half a second. Such a call needs no numba, which
takes as long to import as everything else together. Without a library and a C compiler, and for code of plugins that
has no counterpart in C, numba compiles, where it is installed: both round alike, and a test checks it.
Libraries are in the user's cache folder (``IOSSIM_CACHE_DIR`` moves it). If that is not writable, or is writable by
others (whose files would be executed), a temporary folder takes its place, with a warning.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import cached_property, update_wrapper
from threading import RLock
from typing import TYPE_CHECKING, ParamSpec, TypeVar, overload

import numpy as np
from numpy.typing import NDArray

from iossim.base.compile_time import compiling
from iossim.base.errors import OptionError
from iossim.base.native import library
from iossim.base.user_folders import code_folder

if TYPE_CHECKING:
    from iossim.base.by_numba import Dispatcher

P = ParamSpec("P")
R = TypeVar("R")

#: Arrays of numbers of 64 bits, as compiled functions take them; sets of units are ``Masks``.
Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

#: Options of numba that change no result; a function with any other option is left to numba.
_HINTS = frozenset({"inline", "error_model"})


@overload
def jit(function: Callable[P, R], /) -> Callable[P, R]: ...
@overload
def jit(function: None = None, /, **options: object) -> Callable[[Callable[P, R]], Callable[P, R]]: ...
def jit(function: library.Function | None = None, /, **options: object) -> object:
    """Compile a function at its first call, without the interpreter lock; ``options`` are those of ``numba.njit``."""
    return (lambda decorated: Compiled(decorated, options)) if function is None else Compiled(function, options)


class Compiled:
    """A function that is compiled at its first call; numba, meeting it in another function, treats it as its own."""

    def __init__(self, function: library.Function, options: dict[str, object]):
        self.py_func, self.options = function, options
        update_wrapper(self, function)
        self._call = self._first_call
        _of_module.setdefault(function.__module__, []).append(self)

    def __call__(self, *arguments: object) -> object:
        return self._call(*arguments)

    def _first_call(self, *arguments: object) -> object:
        self._call = self._by_c() or self._otherwise(arguments)
        return self._call(*arguments)

    @property
    def may_be_c(self) -> bool:
        function = self.py_func
        has_types = "return" in function.__annotations__ and not function.__code__.co_freevars
        return has_types and self.options.keys() <= _HINTS

    def _by_c(self) -> library.Function | None:
        made = _library(self.py_func.__module__) if self.may_be_c and library.is_usable() else None
        call = None if made is None else made.function(self.py_func)
        if call is None:
            return None

        def run(*arguments: object) -> object:
            try:
                return call(*arguments)
            except (TypeError, ValueError, BufferError):
                return self._otherwise(arguments)(*arguments)

        return run

    def _otherwise(self, arguments: tuple[object, ...]) -> library.Function:
        """Numba's function for such arguments; Python's own if numba is missing and the callees are compiled by C."""
        from iossim.base.by_numba import compile_for  # most processes have a library

        try:
            found: library.Function = self.by_numba
            compile_for(found, arguments)
        except OptionError:
            if _made.get(self.py_func.__module__) is None:
                raise
            return self.py_func
        return found

    @cached_property
    def by_numba(self) -> Dispatcher:
        """Numba's function."""
        from iossim.base.by_numba import compiled_by_numba

        return compiled_by_numba(self.py_func, self.options)

    @property
    def _numba_type_(self) -> object:
        return self.by_numba._numba_type_

    @property
    def targetoptions(self) -> object:
        """The numba options that numba reads before inlining a function."""
        return self.by_numba.targetoptions


_of_module: dict[str, list[Compiled]] = {}
_made: dict[str, library.Library | None] = {}
_lock = RLock()


def callee(value: object) -> tuple[library.Function, bool] | None:
    """The Python function of a compiled one, and whether it is inlined; None for anything else."""
    return (value.py_func, value.options.get("inline") == "always") if isinstance(value, Compiled) else None


def _library(module: str) -> library.Library | None:
    """The library of a module's functions, made if it is missing; None if it cannot be made."""
    with _lock:
        if module not in _made:
            functions = [each.py_func for each in _of_module[module] if each.may_be_c]
            _made[module] = _load_or_make(library.library_name(functions, callee), functions)
        return _made[module]


def _load_or_make(name: str, functions: list[library.Function]) -> library.Library | None:
    with suppress(OSError):
        return library.Library(library.SHIPPED / name)
    folder = code_folder("native") if library.compiler() else None
    if folder is None:
        return None
    path = folder / name
    with suppress(OSError):
        return library.Library(path)
    with compiling():
        from iossim.base.native import translation  # most processes find the library already made

        text = translation.translate(functions, callee)
        with suppress(OSError):
            if translation.make(path, text):
                return library.Library(path)
    return None
