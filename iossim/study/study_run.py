"""Results of a study as values: one row per point and scheduler, and what was derived from the rows.

A run directory stores them as files (:mod:`iossim.study.run_directory` writes and reads them)::

    scenario.yaml      the scenario, all defaults filled in
    environment.json   versions, machine, command, workers and times: the only differences between equal runs
    results.csv        one line per row; results.json: all of the values below
    timings.csv        seconds of each search
    schedules/*.json   the schedule of every row
    defects/*.txt      tracebacks of rows whose failure was not the user's mistake
    report.html
    done/*.json        finished work: a killed study goes on from there

``results.*`` and ``schedules/`` of equal scenarios are identical byte for byte, whatever the number of workers.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field

from iossim.base.display import Printed
from iossim.base.values import Value
from iossim.study.axes import AXES, METRICS
from iossim.study.scenario import CrossAxis, Scenario
from iossim.study.study_kind import Label, add_fields

#: Folders in that of a run; defects are tracebacks.
SCHEDULES, DEFECTS = "schedules", "defects"


class Row(Value):
    """One schedule of one point: a field for each axis, its label there, and for each metric (``metrics.yaml``), its
    figure. Figures are None where ``status`` is ``failed`` or they were not requested.
    """

    #: Point, counted from 0 in the scenario's order.
    point: int
    add_fields(vars(), dict.fromkeys(AXES, Label), {name: axis.usual for name, axis in AXES.items() if axis.usual})
    scheduler: str
    status: Literal["ok", "failed"] = "ok"
    #: Reason of the failure, in one line.
    reason: str = ""
    add_fields(vars(), dict.fromkeys(METRICS, int | float | None), dict.fromkeys(METRICS))
    #: Schedulers of the point whose schedules differ from this one by less than the noise.
    ties: list[str] = Field(default_factory=list)
    #: True where the device's parameters were fitted to published figures of the model, so that ``latency_ms`` is
    #: in-sample; None where nothing is published.
    in_sample: bool | None = None
    #: The memory that the network needs, where the device has less; empty elsewhere.
    remark: str = ""
    #: Breakdown of the time by kind of op (``boundaries`` for gaps between stages), in us.
    time_by_kind_us: dict[str, float] = Field(default_factory=dict)
    #: Rules by which the network was rewritten, and the number of applications of each.
    rules: dict[str, int] = Field(default_factory=dict)
    #: File of the schedule, relative to the run directory.
    schedule: str | None = None

    if TYPE_CHECKING:

        def __getattr__(self, axis_or_metric: str) -> Any: ...


class CrossPrice(Value):
    """A schedule of one point priced at another that differs in one axis."""

    axis: CrossAxis
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

    format_version: Literal[2] = 2
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
