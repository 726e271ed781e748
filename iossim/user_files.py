"""Files that a user gives and gets: read with an error of one line, written whole or not at all."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from iossim.errors import IossimError


def read_text(path: Path, what: str, remedy: str, error: type[IossimError]) -> str:
    """The text of a UTF-8 file; raises ``error`` saying that ``what`` at ``path`` cannot be read, and the ``remedy``."""
    try:
        return path.read_text(encoding="utf-8")
    except OSError as problem:
        raise error(f"cannot read {what} {path}: {problem.strerror}; {remedy}") from None
    except UnicodeDecodeError:
        raise error(f"{what} {path} is not text; {remedy}") from None


def write_atomically(path: Path, contents: str | bytes) -> None:
    """Write a file (text as UTF-8) so that a reader sees the old one or the whole new one.

    Raises OSError with the path as its ``filename`` where it cannot be written: the disk is full, say.
    """
    try:
        _write_beside(path, contents.encode() if isinstance(contents, str) else contents)
    except OSError as error:
        error.filename, error.filename2 = str(path), None
        raise


def _write_beside(path: Path, contents: bytes) -> None:
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(contents)
        umask = os.umask(0)
        os.umask(umask)
        os.chmod(temporary, 0o666 & ~umask)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise
