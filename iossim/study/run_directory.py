"""Run directory of a study: its files, and exclusive write access to it (layout: :mod:`iossim.study.study_run`).

Each finished piece of work has a file of its own, written whole or not at all, after the schedules that it
names with hashes of their content; a point therefore counts only if all its files are complete, and what a crash
damaged is done again. One process at a time writes there; the system releases the folder however that process ends. The
tables are written at the end, from the finished work alone.
"""

from __future__ import annotations

import csv
import io
import json
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Self

from pydantic import Field, TypeAdapter, ValidationError

from iossim.base.errors import OptionError
from iossim.base.tables import csv_text
from iossim.base.user_files import check_writable, read_text, write_atomically
from iossim.base.values import Value, validated
from iossim.study.points import Point, hash_of
from iossim.study.scenario import Scenario
from iossim.study.scenario_file import write_scenario
from iossim.study.study_run import DEFECTS, SCHEDULES, CrossPrice, Results, Row, StudyRun

try:
    import fcntl
except ImportError:  # not on this system: two concurrent runs go unnoticed
    fcntl = None  # type: ignore[assignment]

SCENARIO, ENVIRONMENT = "scenario.yaml", "environment.json"
#: Folder of finished work, and the file there that identifies the study.
DONE, STUDY = "done", "study.txt"
RESULTS, TABLE, TIMINGS = "results.json", "results.csv", "timings.csv"
REPORT = "report.html"
#: All files that it may contain, in the order in which people read them.
FILES = (REPORT, TABLE, RESULTS, TIMINGS, SCHEDULES, DEFECTS, SCENARIO, ENVIRONMENT, DONE)
#: Fields of a row without a single value, which only results.json has.
NESTED = ("time_by_kind_us", "rules")
_REMEDY = "give a folder that 'iossim study run' wrote"


class Done(Value):
    """A finished piece of work: the rows of a point, or prices at a point of all other points' schedules along an axis;
    its files of schedules by name with their hashes, and search seconds by scheduler.
    """

    #: Key of the point, or :func:`crossing` for prices.
    key: str
    rows: list[Row] = Field(default_factory=list)
    prices: list[CrossPrice] = Field(default_factory=list)
    files: dict[str, str] = Field(default_factory=dict)
    search_s: dict[str, float] = Field(default_factory=dict)


def crossing(axis: str, run_at: int) -> str:
    """Key of the prices at a point along an axis."""
    return f"{axis}-{run_at}"


def locked(folder: Path) -> int | None:
    """Open a folder for writing by this process alone; raises OptionError if another one is writing there."""
    if fcntl is None:
        return None
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(handle)
        remedy = "wait for it, or choose another folder with `out`"
        raise OptionError(f"{folder} is being written by another run; {remedy}") from None
    return handle


class RunDirectory:
    """A folder that a study is being written to. Use it as a context: on exit, other processes may write there."""

    def __init__(self, folder: Path, scenario: Scenario, points: Sequence[Point], resume: bool) -> None:
        """Create or open the folder; raises OptionError if it is not writable, or holds a run not to be resumed."""
        check_writable(folder)
        # All that the rows of a study depend on; questions and words may change from one run to the next.
        parts = [[point.key, *point.labels.values()] for point in points]
        key = hash_of(json.dumps([scenario.schedulers, parts]).encode())
        known = [name for name in (RESULTS, TABLE, SCENARIO, SCHEDULES) if (folder / name).exists()]
        if known and not (folder / DONE).exists():
            raise OptionError(f"{folder} holds {known[0]} of something else; choose another folder with `out`")
        for name in (DONE, SCHEDULES):
            (folder / name).mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self._lock = locked(folder)
        try:
            self._claim(f"{scenario.name}\n{key}\n", resume)
        except BaseException:
            self.__exit__()
            raise
        for name in ("", DONE, SCHEDULES):
            for unfinished in (folder / name).glob(".*.json.*"):  # a process was killed while it wrote
                unfinished.unlink()
        write_scenario(scenario, folder / SCENARIO)

    def _claim(self, study: str, resume: bool) -> None:
        """Write the identity of the study, a line with its name and one with its key, unless another one is there."""
        path = self.folder / DONE / STUDY
        found = path.read_text(encoding="utf-8") if path.exists() else ""
        if found not in ("", study):
            (name, *_), (own, *_) = found.splitlines(), study.splitlines()
            what = f"study {name!r}" if name != own else "another version of this study"
            raise OptionError(f"{self.folder} holds results of {what}; choose another folder with `out`")
        if found and not resume:
            state = "the finished results" if (self.folder / RESULTS).exists() else "an unfinished run"
            remedy = "give `resume` to go on from there, or choose another folder with `out`"
            raise OptionError(f"{self.folder} holds {state} of this study; {remedy}")
        write_atomically(path, study)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        if self._lock is not None:
            os.close(self._lock)

    def done(self) -> dict[str, Done]:
        """Finished work by key: all its files are complete."""
        found = {}
        for path in (self.folder / DONE).iterdir():
            with suppress(OSError, ValidationError):
                entry = Done.model_validate_json(path.read_bytes())
                if all(self._is_whole(*file) for file in entry.files.items()):
                    found[entry.key] = entry
        return found

    def _is_whole(self, name: str, kept: str) -> bool:
        return hash_of((self.folder / name).read_bytes()) == kept

    def add(self, entry: Done, texts: Mapping[str, str]) -> None:
        """Keep the files of a finished piece of work, then the piece itself."""
        for name, text in {**texts, f"{DONE}/{entry.key}.json": entry.model_dump_json()}.items():
            (self.folder / name).parent.mkdir(exist_ok=True)
            write_atomically(self.folder / name, text)

    def schedule_text(self, name: str | None) -> str | None:
        """A schedule that was written; None where a row has none."""
        remedy = "run the study again with `resume`"
        return None if name is None else read_text(self.folder / name, "schedule", remedy, OptionError)

    def earlier_attempts(self) -> list[object]:
        """Earlier attempts recorded in the environment; none if it was lost."""
        with suppress(OptionError):
            attempts = _read_environment(self.folder).get("attempts")
            return attempts if isinstance(attempts, list) else []
        return []

    def write_environment(self, environment: Mapping[str, object]) -> None:
        write_atomically(self.folder / ENVIRONMENT, json.dumps(environment, indent=1) + "\n")

    def write_results(self, results: Results, search_s: Mapping[tuple[int, str], float]) -> None:
        """Write the tables; results.json comes last, so that its presence implies all others."""
        columns = [name for name in Row.model_fields if name not in NESTED]
        lines = [[_cell(getattr(row, name)) for name in columns] for row in results.rows]
        write_atomically(self.folder / TABLE, csv_text([columns, *lines]))
        keys = [key for row in results.rows if (key := (row.point, row.scheduler)) in search_s]
        timings = csv_text([("point", "scheduler", "search_s"), *((*key, search_s[key]) for key in keys)])
        write_atomically(self.folder / TIMINGS, timings)
        write_atomically(self.folder / RESULTS, results.model_dump_json(indent=1) + "\n")


def _cell(value: object) -> object:
    """A value of a row in results.csv: ties are joined by semicolons."""
    if isinstance(value, list):
        return ";".join(value)
    return ("yes" if value else "no") if isinstance(value, bool) else value


def read_run(folder: Path | str) -> StudyRun:
    """Read a finished run; raises OptionError naming the file and its fault."""
    folder = Path(folder)
    if not folder.is_dir():
        raise OptionError(f"{folder} is not a folder; {_REMEDY}")
    if not (folder / RESULTS).exists() and (folder / DONE).exists():
        raise OptionError(
            f"{folder} holds an unfinished run; end it with 'iossim study run SCENARIO --out {folder} --resume'"
        )
    path = folder / RESULTS
    text = read_text(path, "results", _REMEDY, OptionError)
    results = validated(Results, text, f"results {path} are not valid", _REMEDY, OptionError)
    environment, timings = _read_environment(folder), read_text(folder / TIMINGS, "timings", _REMEDY, OptionError)
    try:
        lines = csv.DictReader(io.StringIO(timings))
        search_s = {(int(line["point"]), line["scheduler"]): float(line["search_s"]) for line in lines}
    except (KeyError, TypeError, ValueError):
        raise OptionError(f"timings {folder / TIMINGS} are not point, scheduler, search_s; {_REMEDY}") from None
    return StudyRun(folder, results, environment, search_s)


def _read_environment(folder: Path) -> dict[str, object]:
    text = read_text(folder / ENVIRONMENT, "environment", _REMEDY, OptionError)
    try:
        return TypeAdapter(dict[str, object]).validate_json(text)
    except ValidationError:
        raise OptionError(f"environment {folder / ENVIRONMENT} is no JSON object; {_REMEDY}") from None
