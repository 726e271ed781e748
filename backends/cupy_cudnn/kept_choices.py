"""Choices of algorithms in a file, so that a later process need not time them again.

A choice holds where all that it depends on is the same: the device, the precision, the versions of cuDNN and its front end,
the options that restrict it. The file may hold those of several such places, and processes may share it: what one has kept
since is read before a choice is given up, and before the file is written anew.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from iossim.base.errors import OptionError
from iossim.base.user_files import read_text, write_atomically
from iossim.execution.backend import BackendError

FORMAT = "iossim choices of cuDNN's plans, 1"
_REMEDY = "name another file, or remove this one"


@dataclass(frozen=True, slots=True)
class Kept:
    """A choice as the backend names it (``fused:PLAN``), and how long a run took by it when it was made."""

    algorithm: str
    time_us: float


class KeptChoices:
    """The choices of one place in the file at ``path``, which need not be there yet.

    Raises OptionError where there is a file of something else, or no folder for it; such a file is never written over.
    """

    def __init__(self, path: Path, where: Mapping[str, str]) -> None:
        self._path, self._where = path, json.dumps(dict(where), sort_keys=True)
        self._places: dict[str, dict[str, dict[str, Any]]] = {}
        self._read_at: tuple[int, int] | None = None
        if not path.parent.is_dir():
            raise OptionError(
                f"backend option choices: there is no folder {path.parent}; make it, or name another file"
            )
        self._read()

    def find(self, key: Hashable) -> Kept | None:
        """The choice that is kept for equal work, by this process or another."""
        name = _name(key)
        if name not in self._own:
            self._read()
        found = self._own.get(name)
        return None if found is None else Kept(str(found["algorithm"]), float(found["time_us"]))

    def keep(self, key: Hashable, about: str, algorithm: str, time_us: float) -> None:
        """Add a choice; when this returns it is in the file. Raises BackendError where that cannot be written."""
        self._read()
        self._own[_name(key)] = {"of": about, "algorithm": algorithm, "time_us": round(time_us, 3)}
        places = [{"where": json.loads(where), "choices": choices} for where, choices in sorted(self._places.items())]
        text = json.dumps({"format": FORMAT, "places": places}, indent=1, sort_keys=True) + "\n"
        try:
            write_atomically(self._path, text)
        except OSError as error:
            raise BackendError(
                f"choices of algorithms cannot be kept in {self._path}: {error.strerror}; leave out option choices, or "
                "name another file"
            ) from None

    @property
    def _own(self) -> dict[str, dict[str, Any]]:
        return self._places.setdefault(self._where, {})

    def _read(self) -> None:
        """Take over what the file holds, if it was written since it was read last."""
        try:
            facts = self._path.stat()
        except OSError:
            return
        if (facts.st_mtime_ns, facts.st_size) == self._read_at:
            return
        self._read_at = facts.st_mtime_ns, facts.st_size
        text = read_text(self._path, "backend option choices:", _REMEDY, OptionError)
        try:
            found = json.loads(text)
            if found["format"] != FORMAT:
                raise ValueError(f"its format is {found['format']!r}")
            for place in found["places"]:
                choices = self._places.setdefault(json.dumps(place["where"], sort_keys=True), {})
                for name, kept in place["choices"].items():
                    Kept(str(kept["algorithm"]), float(kept["time_us"]))
                    choices[name] = dict(kept)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            reason = " ".join(str(error).split())[:100]
            raise OptionError(
                f"backend option choices: {self._path} is no file of choices ({reason}); {_REMEDY}"
            ) from None


def _name(key: Hashable) -> str:
    """The same for equal work in every process."""
    return hashlib.sha256(repr(key).encode()).hexdigest()[:24]
