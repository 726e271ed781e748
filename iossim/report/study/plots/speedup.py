"""Speed-up bars: what each scheduler is worth over running the units one by one (thesis, figure 4.1)."""

from __future__ import annotations

from math import exp, log

from iossim.report.figures.figure import Figure
from iossim.report.study.axes import points
from iossim.report.study.bars import Bars, bar_figure
from iossim.report.study.commands import figure_command
from iossim.report.study.plot import Plot
from iossim.study.study_run import StudyRun

_NAME = "speedup"


def fits(run: StudyRun) -> bool:
    """Two schedulers make a comparison."""
    return len({row.scheduler for row in run.results.rows}) > 1


def draw(run: StudyRun) -> Figure | None:
    baseline = baseline_of(run)
    return bar_figure(
        run,
        Bars(
            "speedup_x",
            "speed-up",
            f"speed-up over {baseline} (×)",
            lambda row: row.speedup,
            lambda value: f"{value:.2f}×",
            digits=2,
        ),
        name=_NAME,
        title="Speed-up by scheduler",
        finding=_finding(run, baseline),
        caption=(
            f"Latency of {baseline} over that of each scheduler, at the same point; longer is faster. ≈ marks what ties with "
            "the fastest of its point: measured, either may win. Errors of two predictions at one point go together, so the "
            "intervals of the latencies are no error bars of a speed-up; ties are judged on the difference."
        ),
        alt=f"Bars of the speed-up of each scheduler over {baseline}.",
        command=figure_command(run, _NAME),
    )


def baseline_of(run: StudyRun) -> str:
    """What speed-ups are against, in words."""
    rows = run.results.rows
    if any(row.waited_ms is not None for row in rows):
        return "one device"
    return next(
        (name for name in ("sequential", "vanilla") if any(row.scheduler == name for row in rows)),
        "the slowest schedule",
    )


def _finding(run: StudyRun, baseline: str) -> str:
    """The scheduler with the highest mean speed-up over all points, and the range of its speed-ups."""
    found: dict[str, list[float]] = {}
    for rows in points(run).values():
        for row in rows:
            if row.speedup is not None and row.scheduler != baseline:
                found.setdefault(row.scheduler, []).append(row.speedup)
    if not found:
        return "No scheduler finished."
    means = {name: exp(sum(map(log, values)) / len(values)) for name, values in found.items()}
    # Of equals the last, which searched the larger space.
    best = max(reversed(list(means)), key=lambda name: round(means[name], 9))
    values = found[best]
    if len(values) == 1:
        return f"{best} is {values[0]:.2f} times as fast as {baseline}."
    return (
        f"{best} is {means[best]:.2f} times as fast as {baseline} in the geometric mean of {len(values)} points "
        f"({min(values):.2f} to {max(values):.2f})."
    )


PLOTS = (Plot(_NAME, 10, fits, draw),)
