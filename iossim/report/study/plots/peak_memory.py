"""Peak memory by scheduler: weights and the arena of the activations."""

from __future__ import annotations

from iossim.report.figures.figure import Figure
from iossim.report.study.bars import Bars, bar_figure
from iossim.report.study.commands import figure_command
from iossim.report.study.plot import Plot
from iossim.study.study_run import StudyRun

_NAME = "peak_memory"


def fits(run: StudyRun) -> bool:
    return any(row.peak_memory_mib is not None for row in run.results.rows)


def draw(run: StudyRun) -> Figure | None:
    return bar_figure(
        run,
        Bars(
            "peak_memory_mib",
            "peak memory",
            "peak memory (MiB)",
            lambda row: row.peak_memory_mib,
            lambda value: f"{value:,.0f} MiB",
            digits=1,
        ),
        name=_NAME,
        title="Peak memory",
        finding=_finding(run),
        caption="Weights and the arena of the activations together, by the memory planner. What runs side by side must be alive together.",
        alt="Bars of the peak memory of each scheduler's schedule.",
        command=figure_command(run, _NAME),
    )


def _finding(run: StudyRun) -> str:
    found = [(row.peak_memory_mib, row) for row in run.results.rows if row.peak_memory_mib is not None]
    most, row = max(found, key=lambda pair: pair[0], default=(0.0, None))
    return "" if row is None else f"The most is {most:,.0f} MiB: {row.model}, batch {row.batch}, {row.scheduler}."


PLOTS = (Plot(_NAME, 65, fits, draw),)
