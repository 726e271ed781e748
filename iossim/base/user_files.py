"""Users' files: read with errors of one line, and written completely or not at all."""

from __future__ import annotations

import codecs
import gzip
import io
import os
import shutil
import tempfile
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path

from iossim.base.errors import IossimError, OptionError

_GZIP = b"\x1f\x8b"
#: Upper limit of a gzipped file's size after decompression: gzip shrinks zeros to a thousandth.
_MOST_UNZIPPED_BYTES = 1 << 29


def read_text(
    path: Path,
    what: str,
    remedy: str,
    error: type[IossimError],
    known: Callable[[Path, bytes], str] = lambda path, data: "",
) -> str:
    """The text of a file, gzipped or not: UTF-8, or UTF-16 with a byte order mark, as PowerShell redirects output.

    ``known`` recognises a file that is not text, and returns its kind with the remedy. Raises ``error`` with ``what``,
    ``path`` and the ``remedy``.
    """
    try:
        data = path.read_bytes()
        if data.startswith(_GZIP):
            with gzip.open(io.BytesIO(data)) as stream:
                data = stream.read(_MOST_UNZIPPED_BYTES + 1)
            if len(data) > _MOST_UNZIPPED_BYTES:
                raise error(f"{what} {path}: holds more than {_MOST_UNZIPPED_BYTES >> 20} MiB; split the file")
        marked = data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
        text = data.decode("utf-16" if marked else "utf-8-sig")
    except (EOFError, zlib.error, gzip.BadGzipFile):
        raise error(f"{what} {path}: the gzip file is damaged or cut short; copy it again") from None
    except OSError as problem:
        raise error(f"cannot read {what} {path}: {problem.strerror}; {remedy}") from None
    except UnicodeDecodeError:
        text = "\0"
    if "\0" in text:
        raise error(f"{what} {path} is {known(path, data) or f'not text; {remedy}'}")
    return text.replace("\r\n", "\n").replace("\r", "\n") if "\r" in text else text


def write_atomically(path: Path, contents: str | bytes) -> None:
    """Write a file (text as UTF-8) so that a reader sees either the old one or the complete new one.

    Raises OSError with the path as its ``filename`` if it cannot be written, for example because the disk is full.
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


def check_writable(folder: Path) -> None:
    """Raise OptionError before the work rather than after it, if the folder cannot be made or written."""
    existing = folder
    while not existing.exists() and existing != existing.parent:
        existing = existing.parent
    if not existing.is_dir():
        raise OptionError(f"output folder {folder}: {existing} is not a folder; choose another with `out`")
    if reason := _refusal(existing):
        raise OptionError(f"output folder {folder}: {existing} cannot be written ({reason}); choose another with `out`")


def check_file(path: Path | None, option: str) -> None:
    """Raise OptionError before the work rather than after it, if an option's file cannot be written."""
    if path is None:
        return
    if path.is_dir():
        raise OptionError(f"{option} {path} cannot be written: it is a folder; choose another file")
    reason = _refusal(path.parent) if path.parent.is_dir() else f"{path.parent} is no folder"
    if reason:
        raise OptionError(f"{option} {path} cannot be written: {reason}; choose another file")


def _refusal(folder: Path) -> str:
    """The system's reason why no file can be made in a folder, found by trying; empty if one can."""
    try:
        with tempfile.TemporaryFile(dir=folder):
            return ""
    except OSError as error:
        return error.strerror or "it is refused"


def write_all(folder: Path, files: Mapping[str, Callable[[Path], None]]) -> list[Path]:
    """Make each file, by name, in a folder inside the final one, then move them up; returns their paths.

    If one of them fails, no file and no folder is left over. Raises OptionError if the folder cannot be written.
    """
    check_writable(folder)
    made = [place for place in (folder, *folder.parents) if not place.exists()]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        staging = Path(tempfile.mkdtemp(prefix=".writing-", dir=folder))
    except OSError as error:
        raise OptionError(f"output folder {folder}: {error.strerror}; choose another with `out`") from None
    try:
        for name, write in files.items():
            write(staging / name)
        written = []
        for name in files:
            os.replace(staging / name, folder / name)
            written.append(folder / name)
        return written
    except OSError as error:
        raise OptionError(f"output folder {folder}: {error.strerror}; choose another with `out`") from None
    finally:
        shutil.rmtree(staging, ignore_errors=True)
        for place in made:
            if not any(place.iterdir()):
                place.rmdir()
