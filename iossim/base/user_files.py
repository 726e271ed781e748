"""Users' files: read with errors of one line, and written completely or not at all; and the numbers and JSON in them.

All readers parse numbers and JSON here, and refuse the same ones. JSON and CSV can spell numbers that no measurement
has: infinite ones, those of hundreds of digits, negative times.
"""

from __future__ import annotations

import codecs
import gzip
import io
import json
import math
import os
import shutil
import tempfile
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

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


def write_atomically(path: Path, contents: str | bytes, what: str = "", error: type[IossimError] | None = None) -> None:
    """Write a file (text as UTF-8) so that a reader sees either the old one or the complete new one.

    If it cannot be written, for example because the disk is full, raises ``error``, which says ``what`` the file is; by
    default OSError with the path as its ``filename``.
    """
    try:
        _write_beside(path, contents.encode() if isinstance(contents, str) else contents)
    except OSError as problem:
        if error is not None:
            raise error(f"cannot write {what} {path}: {problem.strerror}; choose another file") from None
        problem.filename, problem.filename2 = str(path), None
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


#: Upper limit of every count of bytes or operations, rate and point in time.
LARGEST = 1e18
#: Digits of the longest integer that is kept as one.
_MOST_DIGITS = 40


class NumberError(ValueError):
    """Reason why a cell holds no valid number: ``is empty``, ``is not a number``, ``is not finite`` ..."""


def read_number(value: object, *, positive: bool = False, least: float = 0.0, most: float = LARGEST) -> float:
    """The number in a cell of text or of JSON, from ``least`` to ``most``, and above 0 if ``positive``.

    Raises NumberError.
    """
    if value is None or (isinstance(value, str) and not value.strip()):
        raise NumberError("is empty")
    try:
        found = float(value) if type(value) in (int, float) or _is_plain(value) else math.nan  # type: ignore[arg-type]
    except ValueError:
        found = math.nan
    except OverflowError:  # an integer of hundreds of digits
        found = math.inf
    if math.isnan(found):
        raise NumberError("is not a number")
    if math.isinf(found):
        raise NumberError("is not finite")
    if found < least or (positive and found <= 0):
        raise NumberError("is not positive" if positive else f"is less than {least:g}" if least else "is negative")
    if found > most:
        raise NumberError(f"is more than {most:g}, the largest value allowed")
    return found


def _is_plain(value: object) -> bool:
    """True if text is in common number syntax; Python would also read ``1_000`` as one."""
    return isinstance(value, str) and "_" not in value


def read_json(text: str) -> Any:
    """The values of JSON; raises ValueError, with its position, for invalid JSON and for JSON nested too deeply.

    An integer beyond all counts becomes a float, possibly infinite.
    """
    try:
        return json.loads(text, parse_int=lambda digits: (int if len(digits) <= _MOST_DIGITS else float)(digits))
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
