"""Functions compiled by numba, whose code is kept on disk between processes.

Numba checks a function's own file only, not those of its callees. So its cache folder is named after a hash of the
source of every compiled module (one whose text names ``iossim.base.compiled``).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

from iossim.base.compile_time import compiling
from iossim.base.errors import OptionError
from iossim.base.user_folders import code_folder, warn_uncached

#: A function as numba compiles it; only some of its releases declare their types.
Dispatcher = Any


def compiled_by_numba(function: Callable[..., object], options: Mapping[str, Any]) -> Dispatcher:
    """The function as numba compiles it; raises OptionError if numba is not installed."""
    with compiling():
        try:
            import numba
        except ImportError:
            raise OptionError(
                f"{function.__module__} cannot be compiled: iossim was installed without compiled code of "
                "this platform, and there is no C compiler (cc, gcc or clang) and no numba; pip install numba"
            ) from None

        folder = cache_folder()
        config: Any = numba.config
        before = config.CACHE_DIR
        # Numba reads the folder when a function is decorated; restore it for functions of other packages.
        config.CACHE_DIR = "" if folder is None else str(folder)
        try:
            return numba.njit(**{"cache": folder is not None, "nogil": True, **options})(function)
        finally:
            config.CACHE_DIR = before


def compile_for(made: Dispatcher, arguments: Sequence[object]) -> None:
    """Compile numba's function for arguments of these types, or load the code that is kept for them."""
    with compiling():
        import numba

        types = tuple(map(numba.typeof, arguments))
        try:
            made.compile(types)
        except OSError as error:  # compiled, and not kept
            warn_uncached(f"{cache_folder()}: {error.strerror}")
        except Exception:  # unpickling a file that a crash or a full disk tore raises anything
            folder = cache_folder()
            for file in folder.rglob("*.nb[ic]") if folder else ():
                file.unlink(missing_ok=True)
            made.compile(types)


def cache_folder() -> Path | None:
    """The folder of numba's code of this source; a temporary one if it is unusable; None if there is neither."""
    return code_folder(f"compiled-{source_hash()}")


@cache
def source_hash() -> str:
    """Hash of the sources of all compiled modules of iossim."""
    digest = hashlib.sha256()
    for name, text in sorted(compiled_sources()):
        digest.update(name.encode() + b"\0" + text + b"\0")
    return digest.hexdigest()[:16]


def compiled_sources() -> Iterator[tuple[str, bytes]]:
    """Name and text of every module of iossim that has compiled functions."""
    # In a checkout the backends are in a folder of their own, otherwise inside the package.
    for package in (import_module("iossim"), import_module("iossim.backends")):
        for root in package.__path__:
            for path in Path(root).rglob("*.py"):
                text = path.read_bytes()
                if b"iossim.base.compiled" in text:
                    yield f"{package.__name__}/{path.relative_to(root).as_posix()}", text
