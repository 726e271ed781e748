"""Write several files into a folder: all of them, or none."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

from iossim.errors import OptionError


def check_writable(folder: Path) -> None:
    """Raise OptionError now rather than after the work, if the folder cannot be made or written."""
    existing = folder
    while not existing.exists() and existing != existing.parent:
        existing = existing.parent
    if not existing.is_dir():
        raise OptionError(f"output folder {folder}: {existing} is not a folder; choose another with `out`")
    if not os.access(existing, os.W_OK | os.X_OK):
        raise OptionError(f"output folder {folder}: {existing} cannot be written; choose another with `out`")


def write_all(folder: Path, files: Mapping[str, Callable[[Path], None]]) -> list[Path]:
    """Make each file, by name, in a folder inside the final one, then move them up; returns their paths.

    If one of them fails, no file and no folder is left behind. Raises OptionError if the folder cannot be written.
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
