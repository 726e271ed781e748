"""Results of a study as values: one row per point and scheduler, and what was derived from the rows.

A run directory stores them as files (:mod:`iossim.study.run_directory` writes and reads them)::

    scenario.yaml      the scenario, all defaults filled in
    environment.json   versions, machine, command, workers and times: the only differences between equal runs
    results.csv        one line per row; results.json: all of the values below
    timings.csv        seconds of each search
    schedules/*.json   the schedule of every row
    traces/*.json      if requested
    defects/*.txt      tracebacks of rows whose failure was not the user's mistake
    report.html
    journal.jsonl      finished work: a killed study resumes from here

``results.*`` and ``schedules/`` of equal scenarios are identical byte for byte, whatever the number of workers.

The journal has one line per finished piece of work, appended at once: it is on disk before the next piece counts as
done. Lines torn by a crash are ignored: from the first incomplete line on, work is repeated. One process at a time
writes a journal; the system releases it however that process ends.
"""

from __future__ import annotations

import hashlib
import os
import traceback
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from io import BufferedRandom
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, TypeAdapter, ValidationError

from iossim.base.display import Printed
from iossim.base.errors import IossimError, OptionError
from iossim.base.values import Value
from iossim.study.axes import GUESTS_METRICS, KINDS
from iossim.study.scenario import Scenario
from iossim.study.study_kind import add_fields


class BlockTime(Value):
    """Time of a block of a schedule."""

    name: str
    latency_us: float
    stages: int


class Row(Value):
    """One schedule of one point. Figures are None where ``status`` is ``failed`` or they were not requested."""

    #: Point (counted from 0 in the scenario's order), and the labels of its values by axis.
    point: int
    model: str
    device: str
    batch: int
    dtype: str
    engine: str
    cost_model: str
    search: str
    #: The defaults are for runs from before these axes existed: networks as given, no limit.
    rewrite: str = "as given"
    micro_batch: int | str = 1
    workspace: str = "any workspace"
    add_fields(vars(), {kind.axis.name: str for kind in KINDS}, {kind.axis.name: kind.axis.usual for kind in KINDS})
    scheduler: str
    status: Literal["ok", "failed"] = "ok"
    #: Reason of the failure, in one line.
    reason: str = ""
    latency_ms: float | None = None
    #: Interval of nine in ten expected measurements; None if the prices are no prediction.
    low_ms: float | None = None
    high_ms: float | None = None
    throughput_per_s: float | None = None
    #: Speed-up over the sequential schedule of the point (on an edge device: vanilla), or over the slowest without one;
    #: for several edge devices, over one device.
    speedup: float | None = None
    #: Schedulers of the point whose schedules differ from this one by less than the noise.
    ties: list[str] = Field(default_factory=list)
    stages: int | None = None
    streams: int | None = None
    merged_stages: int | None = None
    #: Gap between the latency and the proven lower bound, as a fraction.
    gap: float | None = None
    weights_mib: float | None = None
    #: Figures of the network as scheduled, its units one by one: kernels, 10^9 multiply-adds, and memory traffic.
    kernels: int | None = None
    gmacs: float | None = None
    traffic_mib: float | None = None
    #: Weights and the arena of the activations together, by the memory planner (measure ``peak_memory``).
    peak_memory_mib: float | None = None
    add_fields(vars(), dict.fromkeys(GUESTS_METRICS, float | None), dict.fromkeys(GUESTS_METRICS))
    #: Average over the run and all SMs (measure ``active_warps``).
    active_warps: float | None = None
    #: Board power and fp32 peak of the device, whatever the precision: the sizes by which devices are ordered.
    board_power_w: float | None = None
    peak_tflops: float | None = None
    #: Latency measured by the authors of the publication, if known.
    published_ms: float | None = None
    #: True where the device's parameters were fitted to published figures of the model, so that ``latency_ms`` is
    #: in-sample; None where nothing is published.
    in_sample: bool | None = None
    #: True where all constraints of the scenario hold; None without constraints.
    meets: bool | None = None
    #: Breakdown of the time: by block, and by kind of op (``boundaries`` for gaps between stages), in us.
    blocks: list[BlockTime] = Field(default_factory=list)
    time_by_kind_us: dict[str, float] = Field(default_factory=dict)
    #: Rules by which the network was rewritten, and the number of applications of each.
    rules: dict[str, int] = Field(default_factory=dict)
    #: File of the schedule, relative to the run directory.
    schedule: str | None = None


class CrossPrice(Value):
    """A schedule of one point priced at another that differs in one axis."""

    axis: Literal["device", "batch"]
    scheduler: str
    #: Points (as in :class:`Row`): where the schedule was made, and where it is run.
    made_for: int
    run_at: int
    latency_ms: float | None = None
    #: True where it ties with the schedule made for ``run_at``: the difference is within the noise.
    tie: bool = False
    reason: str = ""


class Answer(Value):
    """A question or claim of the scenario, and its answer from the rows."""

    question: str
    #: One sentence with figures.
    answer: str
    #: The same as a table, one record per separately answered case: columns in words.
    cases: list[dict[str, str]] = Field(default_factory=list)
    #: Verdict on a claim; None for a question, or if the rows do not determine it.
    holds: bool | None = None
    #: True where a claim holds, but by less than the noise in every case.
    within_noise: bool = False
    source: str = ""
    #: Rows of the answer, as indices into ``rows``.
    rows: list[int] = Field(default_factory=list)


class Results(Value):
    """All results of a study; equal scenarios have equal results."""

    format_version: Literal[1] = 1
    scenario: Scenario
    rows: list[Row]
    cross: list[CrossPrice] = Field(default_factory=list)
    answers: list[Answer] = Field(default_factory=list)


@dataclass(frozen=True, eq=False)
class StudyRun(Printed):
    """A run directory in memory."""

    drawn_by: ClassVar[str] = "iossim.study.report.report"
    folder: Path
    results: Results
    environment: dict[str, Any]
    #: Seconds of each search by point and scheduler.
    search_s: dict[tuple[int, str], float]

    def __repr__(self) -> str:
        return f"<StudyRun {self.results.scenario.name}: {len(self.results.rows):,} rows, in {self.folder}>"


#: Folders in that of a run; defects are tracebacks.
SCHEDULES, TRACES, DEFECTS = "schedules", "traces", "defects"


@dataclass
class Failures:
    """Failures in one piece of work; ``tracebacks`` are texts by the name of their file in the run's folder."""

    tracebacks: dict[str, str] = field(default_factory=dict)

    def reason(self, error: Exception) -> str:
        """Reason in one line; of other errors than :class:`IossimError` with the class, and the traceback's file."""
        text = " ".join(str(error).split())
        if isinstance(error, IossimError):
            return text
        told = "".join(traceback.format_exception(error))
        name = f"{DEFECTS}/{hashlib.sha256(told.encode()).hexdigest()[:12]}.txt"
        self.tracebacks[name] = told
        return f"{type(error).__name__}: {text} (a defect of iossim; its traceback is in {name})"


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
