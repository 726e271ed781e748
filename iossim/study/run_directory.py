"""Run directory of a study: its files, and exclusive write access to it (layout: :mod:`iossim.study.study_run`).

Files of schedules are written before the journal records their point as done, with a hash of their content; a point
therefore counts only if all its files are complete. The tables are written at the end, from the journal alone.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from pydantic import TypeAdapter, ValidationError

from iossim.base.errors import OptionError
from iossim.base.tables import csv_text
from iossim.base.user_files import check_writable, read_text, write_atomically
from iossim.base.values import first_problem
from iossim.study.points import Point, hash_of
from iossim.study.scenario import Scenario
from iossim.study.scenario_file import write_scenario
from iossim.study.study_run import (
    DEFECTS,
    SCHEDULES,
    TRACES,
    Begin,
    CrossDone,
    Entry,
    Journal,
    PointDone,
    Results,
    Row,
    StudyRun,
    points_done,
)

SCENARIO, ENVIRONMENT, JOURNAL = "scenario.yaml", "environment.json", "journal.jsonl"
RESULTS, TABLE, TIMINGS = "results.json", "results.csv", "timings.csv"
REPORT = "report.html"
#: All files that it may contain, in the order in which people read them.
FILES = (REPORT, TABLE, RESULTS, TIMINGS, SCHEDULES, TRACES, DEFECTS, SCENARIO, ENVIRONMENT, JOURNAL)
#: Fields of a row without a single value, which only results.json has.
NESTED = ("blocks", "time_by_kind_us", "rules")
_COLUMNS = [name for name in Row.model_fields if name not in NESTED]
_REMEDY = "give a folder that 'iossim study run' wrote"


class RunDirectory:
    """A folder that a study is being written to. Use it as a context: on exit, other processes may write there."""

    def __init__(self, folder: Path, scenario: Scenario, points: Sequence[Point], resume: bool) -> None:
        """Create or open the folder; raises OptionError if it is not writable, or holds a run not to be resumed."""
        check_writable(folder)
        # All that the rows of a study depend on; questions and words may change from one run to the next.
        parts = [[point.key, *point.labels.values()] for point in points]
        key = hash_of(json.dumps([scenario.schedulers, scenario.cross_evaluate, parts]).encode())
        begin = Begin(name=scenario.name, key=key)
        known = [name for name in (RESULTS, TABLE, SCENARIO, SCHEDULES) if (folder / name).exists()]
        if known and not (folder / JOURNAL).exists():
            raise OptionError(f"{folder} holds {known[0]} of something else; choose another folder with `out`")
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self._journal = Journal(folder / JOURNAL)
        try:
            self._claim(begin, resume)
        except BaseException:
            self._journal.close()
            raise
        (folder / SCHEDULES).mkdir(exist_ok=True)
        for place in (folder, folder / SCHEDULES, folder / TRACES):
            for unfinished in place.glob(".*.json.*"):  # a process was killed while it wrote
                unfinished.unlink()
        write_scenario(scenario, folder / SCENARIO)

    def _claim(self, begin: Begin, resume: bool) -> None:
        found = self._journal.entries[0] if self._journal.entries else None
        if isinstance(found, Begin) and found != begin:
            what = f"study {found.name!r}" if found.name != begin.name else "another version of this study"
            raise OptionError(f"{self.folder} holds results of {what}; choose another folder with `out`")
        if not resume and (found or (self.folder / SCENARIO).exists()):
            state = "the finished results" if (self.folder / RESULTS).exists() else "an unfinished run"
            remedy = "give `resume` to go on from there, or choose another folder with `out`"
            raise OptionError(f"{self.folder} holds {state} of this study; {remedy}")
        if found is None:
            self._journal.append(begin)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self._journal.close()

    def done(self, traces: bool) -> dict[str, PointDone]:
        """Finished points by key: all their files are complete, including traces where requested."""
        return {
            key: entry
            for key, entry in points_done(self._journal.entries).items()
            if (entry.traces or not traces) and all(self._is_whole(name, kept) for name, kept in entry.files.items())
        }

    def crossed(self) -> dict[tuple[str, int], CrossDone]:
        """Finished cross prices by axis and point."""
        return {(entry.axis, entry.run_at): entry for entry in self._journal.entries if isinstance(entry, CrossDone)}

    def add(self, entry: Entry, texts: Mapping[str, str]) -> None:
        """Keep the files of a finished piece of work, then its entry in the journal."""
        for name, text in texts.items():
            (self.folder / name).parent.mkdir(exist_ok=True)
            write_atomically(self.folder / name, text)
        self._journal.append(entry)

    def _is_whole(self, name: str, kept: str) -> bool:
        try:
            return hash_of((self.folder / name).read_bytes()) == kept
        except OSError:
            return False

    def schedule_text(self, name: str) -> str:
        return read_text(self.folder / name, "schedule", "run the study again with `resume`", OptionError)

    def earlier_attempts(self) -> list[dict[str, Any]]:
        """Earlier attempts recorded in the environment; none if it was lost."""
        try:
            attempts = _read_environment(self.folder).get("attempts")
        except OptionError:
            attempts = None
        return attempts if isinstance(attempts, list) else []

    def write_environment(self, environment: Mapping[str, Any]) -> None:
        write_atomically(self.folder / ENVIRONMENT, json.dumps(environment, indent=1) + "\n")

    def write_results(self, results: Results, search_s: Mapping[tuple[int, str], float]) -> None:
        """Write the tables; results.json comes last, so that its presence implies all others."""
        write_atomically(self.folder / TABLE, rows_as_csv(results.rows))
        keys = [key for row in results.rows if (key := (row.point, row.scheduler)) in search_s]
        timings = csv_text([("point", "scheduler", "search_s"), *((*key, search_s[key]) for key in keys)])
        write_atomically(self.folder / TIMINGS, timings)
        write_atomically(self.folder / RESULTS, results.model_dump_json(indent=1) + "\n")


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
    return StudyRun(folder, results, _read_environment(folder), _read_timings(folder))


def rows_as_csv(rows: Sequence[Row]) -> str:
    """One line per row: its fields with ties joined by semicolons, without those of no single value."""

    def cell(value: Any) -> Any:
        if isinstance(value, list):
            return ";".join(value)
        return ("yes" if value else "no") if isinstance(value, bool) else value

    return csv_text([_COLUMNS, *([cell(getattr(row, name)) for name in _COLUMNS] for row in rows)])


def _read_timings(folder: Path) -> dict[tuple[int, str], float]:
    text = read_text(folder / TIMINGS, "timings", _REMEDY, OptionError)
    try:
        return {
            (int(line["point"]), line["scheduler"]): float(line["search_s"])
            for line in csv.DictReader(io.StringIO(text))
        }
    except (KeyError, TypeError, ValueError):
        raise OptionError(f"timings {folder / TIMINGS} are not point, scheduler, search_s; {_REMEDY}") from None


def _read_environment(folder: Path) -> dict[str, Any]:
    text = read_text(folder / ENVIRONMENT, "environment", _REMEDY, OptionError)
    try:
        return TypeAdapter(dict[str, Any]).validate_json(text)
    except ValidationError:
        raise OptionError(f"environment {folder / ENVIRONMENT} is no JSON object; {_REMEDY}") from None
