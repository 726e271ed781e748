"""Active warps by scheduler: how full the device is over a whole run (thesis, figure 4.3)."""

from __future__ import annotations

from iossim.report.figures.figure import Figure
from iossim.report.study.axes import points
from iossim.report.study.bars import Bars, bar_figure
from iossim.report.study.commands import figure_command
from iossim.report.study.plot import Plot
from iossim.study.study_run import StudyRun

_NAME = "active_warps"


def fits(run: StudyRun) -> bool:
    return any(row.active_warps is not None for row in run.results.rows)


def draw(run: StudyRun) -> Figure | None:
    return bar_figure(
        run,
        Bars(
            "active_warps",
            "active warps",
            "active warps, mean over the run",
            lambda row: row.active_warps,
            lambda value: f"{value:,.0f}",
            digits=0,
        ),
        name=_NAME,
        title="Active warps",
        finding=_finding(run),
        caption=(
            "Warps that are resident on all SMs together, averaged over the whole run with its gaps, by the event-driven "
            "simulator. A scheduler that fills the device better has more of them for a shorter time."
        ),
        alt="Bars of the mean number of active warps of each scheduler's schedule.",
        command=figure_command(run, _NAME),
    )


def _finding(run: StudyRun) -> str:
    """The most that any schedule has over the sequential one of its point."""
    ratios = []
    for rows in points(run).values():
        base = next((row.active_warps for row in rows if row.scheduler == "sequential" and row.active_warps), None)
        ratios += [
            (row.active_warps / base, row)
            for row in rows
            if base and row.active_warps and row.scheduler != "sequential"
        ]
    if not ratios:
        return "There is no sequential schedule to compare with."
    ratio, row = max(ratios, key=lambda found: found[0])
    return f"{row.scheduler} has up to {ratio:.2f} times the active warps of sequential ({row.model}, batch {row.batch})."


PLOTS = (Plot(_NAME, 60, fits, draw),)
