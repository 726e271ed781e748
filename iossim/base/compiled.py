"""Compiled functions: numba, with the machine code kept on disk between processes.

Numba checks a function's own file alone, not those that it calls. So the cache folder is named after a hash of the
source of every compiled module (one whose text names ``iossim.base.compiled``), which also takes the place of numba's
stamp, the path and time of a file. It stands in the user's cache folder (``IOSSIM_CACHE_DIR`` moves it); where that
cannot be written a temporary folder takes its place, or each command compiles anew, with a warning.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any, ParamSpec, TypeVar, overload

from iossim.base.errors import warn_once
from iossim.base.user_files import user_cache

P = ParamSpec("P")
R = TypeVar("R")


@overload
def jit(function: Callable[P, R], /) -> Callable[P, R]: ...
@overload
def jit(function: None = None, /, **options: Any) -> Callable[[Callable[P, R]], Callable[P, R]]: ...
def jit(function: Callable[..., Any] | None = None, /, **options: Any) -> Any:
    """``numba.njit``, by default cached on disk and free of the interpreter lock; ``options`` are numba's."""
    if function is None:
        return lambda decorated: jit(decorated, **options)
    import numba

    folder = cache_folder()
    config: Any = numba.config
    before = config.CACHE_DIR
    # Numba reads the folder when a function is decorated; put it back, so that others' functions keep theirs.
    config.CACHE_DIR = "" if folder is None else str(folder)
    try:
        compiled = numba.njit(**{"cache": folder is not None, "nogil": True, **options})(function)
    finally:
        config.CACHE_DIR = before
    if folder is not None:
        if function.__module__.startswith("iossim."):
            _stamp_with_hash(compiled._cache, folder, function.__module__)
        _do_without(compiled._cache)
    return compiled


def _stamp_with_hash(cache: Any, folder: Path, module: str) -> None:
    """Let numba's cache of a function of this package stand wherever the package does."""
    from numba.core.caching import IndexDataCacheFile

    file = f"{module}.{cache._impl.filename_base}"
    make: Any = IndexDataCacheFile  # numba's is not typed
    cache._cache_file = make(str(folder), file, source_stamp=source_hash())


def _do_without(cache: Any) -> None:
    """Let numba's cache of a function fail: what cannot be read or kept is compiled, and a line says so."""
    load, save = cache.load_overload, cache.save_overload

    def load_if_possible(signature: Any, context: Any) -> Any:
        try:
            return load(signature, context)
        except Exception:  # unpickling a file that a crash or a full disk tore raises anything
            with suppress(OSError):
                cache.flush()  # no file is torn for good
            return None

    def save_if_possible(signature: Any, data: Any) -> None:
        try:
            save(signature, data)
        except OSError as error:
            _warn(f"{cache_folder()}: {error.strerror}")

    cache.load_overload, cache.save_overload = load_if_possible, save_if_possible


def _warn(why: str) -> None:
    warn_once(f"compiled code is not kept, and every command compiles anew: {why}; free space or set IOSSIM_CACHE_DIR")


@cache
def cache_folder() -> Path | None:
    """The folder of this source's code; with a warning a temporary one where it cannot be written, else None."""
    name = f"compiled-{source_hash()}"
    problems: list[str] = []
    for root in (user_cache(), Path(tempfile.gettempdir()) / f"iossim-{_user()}"):
        folder = root / name
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=folder):
                if problems:
                    warn_once(
                        f"compiled code is kept in {root}, where it may not stay: the cache folder cannot be used "
                        f"({problems[0]}); set IOSSIM_CACHE_DIR to a folder that can be written"
                    )
                return folder
        except OSError as error:
            problems.append(f"{root}: {error.strerror}")
    _warn(", ".join(problems))
    return None


@cache
def source_hash() -> str:
    """Hash of the sources of all compiled modules of iossim."""
    digest = hashlib.sha256()
    for name, text in sorted(_compiled_sources()):
        digest.update(name.encode() + b"\0" + text + b"\0")
    return digest.hexdigest()[:16]


def _compiled_sources() -> Iterator[tuple[str, bytes]]:
    # The backends stand in a folder of their own in an editable install, and inside the package otherwise.
    for package in (import_module("iossim"), import_module("iossim.backends")):
        for root in package.__path__:
            for path in Path(root).rglob("*.py"):
                text = path.read_bytes()
                if b"iossim.base.compiled" in text:
                    yield f"{package.__name__}/{path.relative_to(root).as_posix()}", text


def _user() -> str:
    return str(os.getuid()) if hasattr(os, "getuid") else os.environ.get("USERNAME", "user")
