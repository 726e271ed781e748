"""Locations of a user's own files: kept data (measurements, profiles of the machine) and rebuildable caches."""

from __future__ import annotations

import atexit
import errno
import os
import shutil
import stat
import sys
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path

from iossim.base.errors import warn_once

if sys.platform != "win32":
    import grp
    import pwd


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


def warn_uncached(why: str) -> None:
    warn_once(f"compiled code is not kept, and every command compiles anew: {why}; free space or set IOSSIM_CACHE_DIR")


@cache
def code_folder(name: str) -> Path | None:
    """The folder ``name`` of compiled code, which nobody else can write; None, with a warning, if there is none."""
    problems: list[str] = []
    for root in _roots():
        try:
            folder = own_folder(root / name)
            with tempfile.TemporaryFile(dir=folder):
                if problems:
                    warn_once(
                        f"compiled code is kept in {root}, where it may not stay: the cache folder cannot be used "
                        f"({problems[0]}); set IOSSIM_CACHE_DIR to a folder that you alone can write"
                    )
                return folder
        except OSError as error:
            problems.append(f"{root}: {error.strerror}")
    warn_uncached(", ".join(problems))
    return None


def _roots() -> Iterator[Path]:
    """Folders for compiled code: the cache folder, a folder that persists for a while, and one of this process."""
    yield user_cache()
    user = os.geteuid() if hasattr(os, "geteuid") else os.environ.get("USERNAME", "user")
    yield Path(tempfile.gettempdir()) / f"iossim-{user}"
    with suppress(OSError):
        yield _process_folder()


@cache
def _process_folder() -> Path:
    folder = tempfile.mkdtemp(prefix="iossim-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return Path(folder)
