"""What a study found, as values: a row for each point and scheduler, and what was made of the rows.

A run directory holds it as files (:mod:`iossim.study.run_directory` writes and reads them)::

    scenario.yaml      the scenario, all defaults filled in
    environment.json   versions, machine, command, workers and times: all that may differ between two equal runs
    results.csv        the rows, a line each; results.json: all of the values below;
                       results.parquet where pyarrow is installed
    timings.csv        how long each search took
    schedules/*.json   the schedule of every row
    traces/*.json      where asked for
    defects/*.txt      tracebacks of rows that failed by no mistake in what was given
    report.html
    journal.jsonl      what is done so far: a killed study goes on from here

``results.*`` and ``schedules/`` of equal scenarios are equal byte for byte, whatever the number of workers.
"""

from __future__ import annotations

import hashlib
import traceback
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from iossim.base.display import Printed
from iossim.base.errors import IossimError
from iossim.base.values import Value
from iossim.study.scenario import Scenario


class BlockTime(Value):
    """What a block of a schedule takes."""

    name: str
    latency_us: float
    stages: int


class Row(Value):
    """One schedule of one point. Figures are None where ``status`` is ``failed`` or nobody asked for them."""

    #: Which point (counted from 0 in the scenario's order), and the labels of its values by axis.
    point: int
    model: str
    device: str
    batch: int
    dtype: str
    engine: str
    cost_model: str
    search: str
    #: The defaults are for runs from before there were these axes: networks as given, no limit, no edge devices.
    rewrite: str = "as given"
    micro_batch: int | str = 1
    workspace: str = "any workspace"
    dataflow: str = "no dataflow"
    scheduler: str
    status: Literal["ok", "failed"] = "ok"
    #: Why it failed, in one line.
    reason: str = ""
    latency_ms: float | None = None
    #: The interval in which nine of ten measurements are expected; None if the prices are no prediction.
    low_ms: float | None = None
    high_ms: float | None = None
    throughput_per_s: float | None = None
    #: Against the sequential schedule of the point (on an edge device: vanilla), or the slowest where there is none;
    #: of several edge devices against one.
    speedup: float | None = None
    #: Schedulers of the point whose schedules differ from this one by less than the noise.
    ties: list[str] = Field(default_factory=list)
    stages: int | None = None
    streams: int | None = None
    merged_stages: int | None = None
    #: How far the latency is above the proven lower bound, as a fraction.
    gap: float | None = None
    weights_mib: float | None = None
    #: Figures of the network as it is scheduled, its units one by one: kernels, 10^9 multiply-adds, and memory
    #: traffic.
    kernels: int | None = None
    gmacs: float | None = None
    traffic_mib: float | None = None
    #: Weights and the arena of the activations together, by the memory planner (measure ``peak_memory``).
    peak_memory_mib: float | None = None
    #: Figures of the convolutions alone, one after another, their batches in micro-batches (measure
    #: ``micro_batches``): their time, the same undivided under the same limits, the gain of all and of the one that
    #: gains most, and the size of all workspaces.
    convolutions_ms: float | None = None
    undivided_ms: float | None = None
    micro_batch_gain: float | None = None
    largest_gain: float | None = None
    workspace_mib: float | None = None
    #: Figures of edge devices: the most that is in use at a time of a unit's own memory, of the shared and of the
    #: external one, on any one device; and for several devices what they send one another, and how long they wait for
    #: it.
    private_mib: float | None = None
    shared_mib: float | None = None
    external_mib: float | None = None
    sent_mib: float | None = None
    waited_ms: float | None = None
    #: Average over the run and all SMs (measure ``active_warps``).
    active_warps: float | None = None
    #: The device's board power and its fp32 peak, whatever the precision: the sizes that devices are ordered by.
    board_power_w: float | None = None
    peak_tflops: float | None = None
    #: Measured by the authors of the publication, where it is known.
    published_ms: float | None = None
    #: Whether the device's parameters were fitted to published figures of the model, so that ``latency_ms`` is
    #: in-sample; None where nothing is published.
    in_sample: bool | None = None
    #: Whether all constraints of the scenario hold; None without constraints.
    meets: bool | None = None
    #: Where the time goes: by block, and by kind of op (``boundaries`` for what stands between stages), in us.
    blocks: list[BlockTime] = Field(default_factory=list)
    time_by_kind_us: dict[str, float] = Field(default_factory=dict)
    #: The rules that the network was rewritten by, and how often each was applied.
    rules: dict[str, int] = Field(default_factory=dict)
    #: The schedule's file, relative to the run directory.
    schedule: str | None = None


class CrossPrice(Value):
    """The schedule of one point priced at another that differs in one axis."""

    axis: Literal["device", "batch"]
    scheduler: str
    #: Points (as in :class:`Row`): where the schedule was made, and where it is run.
    made_for: int
    run_at: int
    latency_ms: float | None = None
    #: A tie with the schedule made for ``run_at``: the difference is inside the noise.
    tie: bool = False
    reason: str = ""


class Answer(Value):
    """A question or claim of the scenario, and what the rows say."""

    question: str
    #: One sentence with figures.
    answer: str
    #: The same as a table, a record for each case that is answered on its own: columns in words.
    cases: list[dict[str, str]] = Field(default_factory=list)
    #: Whether a claim holds; None for a question, or if the rows cannot tell.
    holds: bool | None = None
    #: Whether a claim that holds does so by less than the noise in every case.
    within_noise: bool = False
    source: str = ""
    #: The rows behind it, by their place in ``rows``.
    rows: list[int] = Field(default_factory=list)


class Results(Value):
    """All that a study found; equal scenarios have equal results."""

    format_version: Literal[1] = 1
    scenario: Scenario
    rows: list[Row]
    cross: list[CrossPrice] = Field(default_factory=list)
    answers: list[Answer] = Field(default_factory=list)


@dataclass(frozen=True, eq=False)
class StudyRun(Printed):
    """A run directory, read."""

    folder: Path
    results: Results
    environment: dict[str, Any]
    #: Seconds of each search by point and scheduler.
    search_s: dict[tuple[int, str], float]

    def __repr__(self) -> str:
        return f"<StudyRun {self.results.scenario.name}: {len(self.results.rows):,} rows, in {self.folder}>"


#: The folder of tracebacks in that of a run.
DEFECTS = "defects"


@dataclass
class Failures:
    """What failed in one piece of work; ``tracebacks`` are texts by the name of their file in the run's folder."""

    tracebacks: dict[str, str] = field(default_factory=dict)

    def reason(self, error: Exception) -> str:
        """One line. Of what is no :class:`IossimError` it says of what class it is, and where its traceback is.

        Equal tracebacks are one file, whichever worker met them.
        """
        text = " ".join(str(error).split())
        if isinstance(error, IossimError):
            return text
        told = "".join(traceback.format_exception(error))
        name = f"{DEFECTS}/{hashlib.sha256(told.encode()).hexdigest()[:12]}.txt"
        self.tracebacks[name] = told
        return f"{type(error).__name__}: {text} (a defect of iossim; its traceback is in {name})"
