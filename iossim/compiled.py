"""Compiled functions: numba, with the machine code kept on disk between processes.

Numba looks only at a function's own file to decide whether its cached machine code is still good, so a change in a
function that it calls from another file goes unnoticed. The cache folder is therefore named after a hash of every
compiled module's source: change any of them, and all are compiled anew. It stands in the user's cache folder, since
site-packages may be read-only; ``IOSSIM_CACHE_DIR`` moves it.

A module whose text names ``iossim.compiled`` counts as compiled; importing this one imports neither numba nor them.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Callable, Iterator
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any, ParamSpec, TypeVar, overload

from iossim.user_folders import user_cache

P = ParamSpec("P")
R = TypeVar("R")


@overload
def jit(function: Callable[P, R], /) -> Callable[P, R]: ...
@overload
def jit(function: None = None, /, **options: Any) -> Callable[[Callable[P, R]], Callable[P, R]]: ...
def jit(function: Callable[..., Any] | None = None, /, **options: Any) -> Any:
    """Compile a function with ``numba.njit``, cached on disk and free of the interpreter lock.

    ``options`` go to ``numba.njit`` and override ``cache=True, nogil=True``. Use as ``@jit`` or ``@jit(inline="always")``.
    """
    if function is None:
        return lambda decorated: jit(decorated, **options)
    import numba

    folder = cache_folder()
    config: Any = numba.config
    before = config.CACHE_DIR
    # Numba reads the folder when a function is decorated; put it back, so that others' functions keep theirs.
    config.CACHE_DIR = "" if folder is None else str(folder)
    try:
        return numba.njit(**{"cache": folder is not None, "nogil": True, **options})(function)
    finally:
        config.CACHE_DIR = before


@cache
def cache_folder() -> Path | None:
    """The folder of compiled code of this very source, or None where no folder can be written."""
    name = f"compiled-{source_hash()}"
    for root in (user_cache(), Path(tempfile.gettempdir()) / f"iossim-{_user()}"):
        folder = root / name
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=folder):
                return folder
        except OSError:
            continue
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
                if b"iossim.compiled" in text:
                    yield f"{package.__name__}/{path.relative_to(root).as_posix()}", text


def _user() -> str:
    return str(os.getuid()) if hasattr(os, "getuid") else os.environ.get("USERNAME", "user")
