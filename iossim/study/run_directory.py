"""Run directory of a study: its files, and exclusive write access to it (layout: :mod:`iossim.study.study_run`).

The journal has one line per finished piece of work, appended at once: it is on disk before the next piece counts as
done. Files of schedules are written before, with a hash of their content in the line; a point therefore counts only if
all its files are complete. Lines torn by a crash are ignored: from the first incomplete line on, work is repeated. One
process at a time writes a journal; the system releases it however that process ends. The tables are written at the end,
from the journal alone.
"""

from __future__ import annotations

import csv
import io
import json
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from io import BufferedRandom
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, TypeAdapter, ValidationError

from iossim.base.errors import OptionError
from iossim.base.tables import csv_text
from iossim.base.user_files import check_writable, read_text, write_atomically
from iossim.base.values import Value, first_problem
from iossim.study.points import Point, hash_of
from iossim.study.scenario import Scenario
from iossim.study.scenario_file import write_scenario
from iossim.study.study_run import DEFECTS, SCHEDULES, TRACES, CrossPrice, Results, Row, StudyRun

try:
    import fcntl
except ImportError:  # not on this system: two concurrent runs go unnoticed
    fcntl = None  # type: ignore[assignment]

SCENARIO, ENVIRONMENT, JOURNAL = "scenario.yaml", "environment.json", "journal.jsonl"
RESULTS, TABLE, TIMINGS = "results.json", "results.csv", "timings.csv"
REPORT = "report.html"
#: All files that it may contain, in the order in which people read them.
FILES = (REPORT, TABLE, RESULTS, TIMINGS, SCHEDULES, TRACES, DEFECTS, SCENARIO, ENVIRONMENT, JOURNAL)
#: Fields of a row without a single value, which only results.json has.
NESTED = ("blocks", "time_by_kind_us", "rules")
_REMEDY = "give a folder that 'iossim study run' wrote"


class Begin(Value):
    """The first line of a journal, which identifies the study."""

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


def open_journal(path: Path) -> BufferedRandom:
    """Open or create a journal; raises OptionError if it cannot be written, or another process is writing it."""
    try:
        file: BufferedRandom = open(path, "r+b" if path.exists() else "w+b")  # noqa: SIM115
    except OSError as error:
        raise OptionError(f"cannot write {path}: {error.strerror}; choose another folder with `out`") from None
    if fcntl is not None:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            file.close()
            raise OptionError(
                f"{path.parent} is being written by another run; wait for it, or choose another folder with `out`"
            ) from None
    return file


def whole_entries(data: bytes) -> tuple[list[Entry], int]:
    """Entries of a journal, the first of kind ``study``, up to the first torn or damaged line; their size in bytes."""
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


class RunDirectory:
    """A folder that a study is being written to. Use it as a context: on exit, other processes may write there."""

    def __init__(self, folder: Path, scenario: Scenario, points: Sequence[Point], resume: bool) -> None:
        """Create or open the folder; raises OptionError if it is not writable, or holds a run not to be resumed."""
        check_writable(folder)
        # All that the rows of a study depend on; questions and words may change from one run to the next.
        parts = [[point.key, *point.labels.values()] for point in points]
        key = hash_of(json.dumps([scenario.schedulers, scenario.cross_evaluate, parts]).encode())
        known = [name for name in (RESULTS, TABLE, SCENARIO, SCHEDULES) if (folder / name).exists()]
        if known and not (folder / JOURNAL).exists():
            raise OptionError(f"{folder} holds {known[0]} of something else; choose another folder with `out`")
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self._journal = open_journal(folder / JOURNAL)
        try:
            self._entries, whole = whole_entries(self._journal.read())
            self._journal.truncate(whole)
            self._journal.seek(whole)
            self._claim(Begin(name=scenario.name, key=key), resume)
        except BaseException:
            self.__exit__()
            raise
        (folder / SCHEDULES).mkdir(exist_ok=True)
        for place in (folder, folder / SCHEDULES, folder / TRACES):
            for unfinished in place.glob(".*.json.*"):  # a process was killed while it wrote
                unfinished.unlink()
        write_scenario(scenario, folder / SCENARIO)

    def _claim(self, begin: Begin, resume: bool) -> None:
        found = self._entries[0] if self._entries else None
        if isinstance(found, Begin) and found != begin:
            what = f"study {found.name!r}" if found.name != begin.name else "another version of this study"
            raise OptionError(f"{self.folder} holds results of {what}; choose another folder with `out`")
        if not resume and (found or (self.folder / SCENARIO).exists()):
            state = "the finished results" if (self.folder / RESULTS).exists() else "an unfinished run"
            remedy = "give `resume` to go on from there, or choose another folder with `out`"
            raise OptionError(f"{self.folder} holds {state} of this study; {remedy}")
        if found is None:
            self.add(begin, {})

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        with suppress(OSError):  # for a line that could not be written, as reported when it was appended
            self._journal.close()

    def done(self, traces: bool) -> dict[str, PointDone]:
        """Finished points by key, the last of each: all their files are complete, with traces where requested."""
        found = {entry.key: entry for entry in self._entries if isinstance(entry, PointDone)}
        return {
            key: entry
            for key, entry in found.items()
            if (entry.traces or not traces) and all(self._is_whole(name, kept) for name, kept in entry.files.items())
        }

    def _is_whole(self, name: str, kept: str) -> bool:
        try:
            return hash_of((self.folder / name).read_bytes()) == kept
        except OSError:
            return False

    def crossed(self) -> dict[tuple[str, int], CrossDone]:
        """Finished cross prices by axis and point."""
        return {(entry.axis, entry.run_at): entry for entry in self._entries if isinstance(entry, CrossDone)}

    def add(self, entry: Entry, texts: Mapping[str, str]) -> None:
        """Keep the files of a finished piece of work, then its entry in the journal, which is on disk on return."""
        for name, text in texts.items():
            (self.folder / name).parent.mkdir(exist_ok=True)
            write_atomically(self.folder / name, text)
        try:
            self._journal.write(entry.model_dump_json().encode() + b"\n")
            self._journal.flush()
            os.fsync(self._journal.fileno())
        except OSError as error:
            error.filename = self._journal.name
            raise
        self._entries.append(entry)

    def schedule_text(self, name: str | None) -> str | None:
        """A schedule that was written; None where a row has none."""
        remedy = "run the study again with `resume`"
        return None if name is None else read_text(self.folder / name, "schedule", remedy, OptionError)

    def earlier_attempts(self) -> list[Any]:
        """Earlier attempts recorded in the environment; none if it was lost."""
        with suppress(OptionError):
            attempts = _read_environment(self.folder).get("attempts")
            return attempts if isinstance(attempts, list) else []
        return []

    def write_environment(self, environment: Mapping[str, Any]) -> None:
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


def _cell(value: Any) -> Any:
    """A value of a row in results.csv: ties are joined by semicolons."""
    if isinstance(value, list):
        return ";".join(value)
    return ("yes" if value else "no") if isinstance(value, bool) else value


def read_run(folder: Path | str) -> StudyRun:
    """Read a finished run; raises OptionError naming the file and its fault."""
    folder = Path(folder)
    if not folder.is_dir():
        raise OptionError(f"{folder} is not a folder; {_REMEDY}")
    if not (folder / RESULTS).exists() and (folder / JOURNAL).exists():
        raise OptionError(
            f"{folder} holds an unfinished run; end it with 'iossim study run SCENARIO --out {folder} --resume'"
        )
    text = read_text(folder / RESULTS, "results", _REMEDY, OptionError)
    try:
        results = Results.model_validate_json(text)
    except ValidationError as error:
        raise OptionError(f"results {folder / RESULTS} are not valid: {first_problem(error)}; {_REMEDY}") from None
    environment, timings = _read_environment(folder), read_text(folder / TIMINGS, "timings", _REMEDY, OptionError)
    try:
        lines = csv.DictReader(io.StringIO(timings))
        search_s = {(int(line["point"]), line["scheduler"]): float(line["search_s"]) for line in lines}
    except (KeyError, TypeError, ValueError):
        raise OptionError(f"timings {folder / TIMINGS} are not point, scheduler, search_s; {_REMEDY}") from None
    return StudyRun(folder, results, environment, search_s)


def _read_environment(folder: Path) -> dict[str, Any]:
    text = read_text(folder / ENVIRONMENT, "environment", _REMEDY, OptionError)
    try:
        return TypeAdapter(dict[str, Any]).validate_json(text)
    except ValidationError:
        raise OptionError(f"environment {folder / ENVIRONMENT} is no JSON object; {_REMEDY}") from None
