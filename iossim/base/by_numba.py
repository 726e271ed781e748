"""Functions compiled by numba, whose code is kept on disk between processes.

Numba checks a function's own file only, not those of its callees. So its cache folder is named after a hash of the
source of every compiled module (one whose text names ``iossim.base.compiled``), which also replaces numba's stamp, the
path and time of a file.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

from iossim.base.compile_time import compiling
from iossim.base.errors import OptionError
from iossim.base.user_folders import code_folder, warn_uncached


def compiled_by_numba(function: Callable[..., Any], options: Mapping[str, Any]) -> Any:
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
            made = numba.njit(**{"cache": folder is not None, "nogil": True, **options})(function)
        finally:
            config.CACHE_DIR = before
    if folder is not None:
        if function.__module__.startswith("iossim."):
            _stamp_with_hash(made._cache, folder, function.__module__)
        _do_without(made._cache)
    compile_for = made._compile_for_args

    def compile_timed(*arguments: Any, **named: Any) -> Any:
        with compiling():
            return compile_for(*arguments, **named)

    made._compile_for_args = compile_timed
    return made


def _stamp_with_hash(cache: Any, folder: Path, module: str) -> None:
    """Let numba's cache of a function of this package stay valid wherever the package is installed."""
    from numba.core.caching import IndexDataCacheFile

    file = f"{module}.{cache._impl.filename_base}"
    make: Any = IndexDataCacheFile  # numba's is not typed
    cache._cache_file = make(str(folder), file, source_stamp=source_hash())


def _do_without(cache: Any) -> None:
    """Let numba's cache of a function fail softly: unreadable or unwritable code is recompiled, with a notice."""
    load, save = cache.load_overload, cache.save_overload

    def load_if_possible(signature: Any, context: Any) -> Any:
        try:
            return load(signature, context)
        except Exception:  # unpickling a file that a crash or a full disk tore raises anything
            with suppress(OSError):
                cache.flush()  # replace the torn file
            return None

    def save_if_possible(signature: Any, data: Any) -> None:
        try:
            save(signature, data)
        except OSError as error:
            warn_uncached(f"{cache_folder()}: {error.strerror}")

    cache.load_overload, cache.save_overload = load_if_possible, save_if_possible


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
