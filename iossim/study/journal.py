"""The journal of a study: one line per finished piece of work, appended at once; a killed study resumes from it.

A line is on disk before the next piece of work counts as done. Lines torn by a crash are ignored: from the first
incomplete line on, work is repeated. One process at a time writes a journal; the system releases it however that
process ends.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from io import BufferedRandom
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, TypeAdapter, ValidationError

from iossim.base.errors import OptionError
from iossim.base.values import Value
from iossim.study.study_run import CrossPrice, Row

try:
    import fcntl
except ImportError:  # not on this system: two concurrent runs go unnoticed
    fcntl = None  # type: ignore[assignment]


class Begin(Value):
    """The first line, which identifies the study."""

    kind: Literal["study"] = "study"
    name: str
    #: Hash of all that its points depend on.
    key: str


class PointDone(Value):
    """A finished point: its rows, the files of schedules and traces by name with their hashes, and search seconds."""

    kind: Literal["point"] = "point"
    key: str
    rows: list[Row]
    files: dict[str, str]
    traces: bool
    search_s: dict[str, float]


class CrossDone(Value):
    """Finished prices at one point of all other points' schedules, along one axis."""

    kind: Literal["cross"] = "cross"
    axis: str
    run_at: int
    prices: list[CrossPrice] = Field(default_factory=list)


Entry = Begin | PointDone | CrossDone
_ENTRY: TypeAdapter[Entry] = TypeAdapter(Annotated[Entry, Field(discriminator="kind")])


class Journal:
    """An open journal; ``entries`` are those found in it, the first of kind ``study``."""

    def __init__(self, path: Path) -> None:
        """Open or create it; raises OptionError if it cannot be written, or another process is writing it."""
        try:
            self._file: BufferedRandom = open(path, "r+b" if path.exists() else "w+b")  # noqa: SIM115
        except OSError as error:
            raise OptionError(f"cannot write {path}: {error.strerror}; choose another folder with `out`") from None
        if fcntl is not None:
            try:
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                self._file.close()
                raise OptionError(
                    f"{path.parent} is being written by another run; wait for it, or choose another folder with `out`"
                ) from None
        self.entries, whole = whole_entries(self._file.read())
        self._file.truncate(whole)
        self._file.seek(whole)

    def append(self, entry: Entry) -> None:
        """Append a line; it is on disk on return. Raises OSError naming the file."""
        try:
            self._file.write(entry.model_dump_json().encode() + b"\n")
            self._file.flush()
            os.fsync(self._file.fileno())
        except OSError as error:
            error.filename = self._file.name
            raise
        self.entries.append(entry)

    def close(self) -> None:
        with suppress(OSError):  # for a line that could not be written, as reported when it was appended
            self._file.close()


def whole_entries(data: bytes) -> tuple[list[Entry], int]:
    """Entries up to the first torn or damaged line, and their size in bytes."""
    entries: list[Entry] = []
    whole = 0
    for line in data.split(b"\n")[:-1]:  # after the last line's end, data are torn or empty
        try:
            entry = _ENTRY.validate_json(line)
        except ValidationError:
            break
        if isinstance(entry, Begin) != (not entries):
            break
        entries.append(entry)
        whole += len(line) + 1
    return entries, whole


def points_done(entries: Sequence[Entry]) -> dict[str, PointDone]:
    """The last finished point of each key."""
    return {entry.key: entry for entry in entries if isinstance(entry, PointDone)}
