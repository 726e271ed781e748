"""Locations of a user's own files: kept data (measurements, profiles of the machine) and rebuildable caches.

Users' files are read with errors of one line, and written completely or not at all.
"""

from __future__ import annotations

import codecs
import errno
import gzip
import io
import os
import shutil
import stat
import sys
import tempfile
import zlib
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path

from iossim.base.errors import IossimError, OptionError

if sys.platform != "win32":
    import grp
    import pwd

_GZIP = b"\x1f\x8b"
#: Upper limit of a gzipped file's size after decompression: gzip shrinks zeros to a thousandth.
_MOST_UNZIPPED_BYTES = 1 << 29


def user_data() -> Path:
    """``$IOSSIM_DATA_DIR``, or iossim's place in the platform's application data folder; it may not exist yet."""
    return _folder("IOSSIM_DATA_DIR", "data", "Application Support", "XDG_DATA_HOME", ".local/share")


def user_cache() -> Path:
    """``$IOSSIM_CACHE_DIR``, or iossim's place in the platform's cache folder; it may not exist yet."""
    return _folder("IOSSIM_CACHE_DIR", "cache", "Caches", "XDG_CACHE_HOME", ".cache")


def _folder(variable: str, windows: str, library: str, xdg_variable: str, xdg_default: str) -> Path:
    if chosen := os.environ.get(variable):
        return Path(chosen)
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA", Path.home() / "AppData" / "Local")) / "iossim" / windows
    if sys.platform == "darwin":
        return Path.home() / "Library" / library / "iossim"
    return Path(os.environ.get(xdg_variable) or Path.home() / xdg_default) / "iossim"


def own_folder(folder: Path) -> Path:
    """A folder for code, made (with its missing parents, mode 0700) if necessary; its path without symbolic links.

    Raises OSError if it cannot be made, or if another user owns it, can write it, or can replace it: by owning a folder
    or link on its path, or by write access to one that has no sticky bit. A group whose only member is this user counts
    as the user. On Windows, where such folders are private, nothing is checked.
    """
    folder = folder.absolute()
    _check_own(folder)
    for place in (*reversed(folder.parents), folder):
        place.mkdir(mode=0o700, exist_ok=True)
    found = folder.resolve()
    _check_own(folder)
    _check_own(found)
    return found


def _check_own(folder: Path) -> None:
    if sys.platform == "win32":
        return
    # The owner of the root folder is the system, also in a container that maps it to another number.
    trusted = {os.geteuid(), 0, Path("/").stat().st_uid}
    for place in (*reversed(folder.parents), folder):
        try:
            status = place.lstat()
        except FileNotFoundError:
            return
        if status.st_uid not in trusted:
            raise PermissionError(errno.EPERM, f"{place} belongs to user {status.st_uid}", str(folder))
        writers = status.st_mode & (stat.S_IWOTH if status.st_gid == _own_group() else stat.S_IWOTH | stat.S_IWGRP)
        keeps_entries = place != folder and status.st_mode & stat.S_ISVTX
        if writers and not keeps_entries and not stat.S_ISLNK(status.st_mode):
            raise PermissionError(errno.EPERM, f"other users may write {place}", str(folder))


@cache
def _own_group() -> int | None:
    """The user's private group (with no other member), as many systems make one for each; None without."""
    try:
        user = pwd.getpwuid(os.geteuid())
        group = grp.getgrgid(user.pw_gid)
    except KeyError:
        return None
    return group.gr_gid if group.gr_name == user.pw_name and {*group.gr_mem} <= {user.pw_name} else None


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
