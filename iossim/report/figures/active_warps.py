"""Active warps over time: one run of a network above another, on one scale of time (thesis, figure 4.3)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from iossim.base.tables import Cell
from iossim.execution.execution import Execution
from iossim.report.figures.figure import Figure, Panel
from iossim.report.figures.specifications import layer, need_altair, specification
from iossim.report.scheduler_colours import scheduler_marks

_WIDTH_PIXELS, _PANEL_PIXELS = 720, 140


def active_warps_figure(title: str, runs: Mapping[str, Execution]) -> Figure:
    """A panel for each run, from top to bottom, with the mean over its own time as a dashed line.

    Means after the first are also given over the first's.
    """
    latest_ms = max((run.latency_us for run in runs.values()), default=0.0) / 1e3 or 1.0
    most = max((int(run.active_warps.max(initial=0)) for run in runs.values()), default=0) or 1
    marks = scheduler_marks(list(runs))
    first = next(iter(runs.values()), None)
    records: list[dict[str, Cell]] = []
    panels = []
    for name, run in runs.items():
        mean = f"{run.mean_active_warps:,.0f} warps on average"
        if run is not first and first is not None and first.mean_active_warps:
            mean += f", {run.mean_active_warps / first.mean_active_warps:.2f}x"
        records += _records(name, run)
        spec = _specification(marks[name][0], run, [0, latest_ms * 1.01], [0, most * 1.06])
        panels.append(Panel(f"{name}: {run.latency_us / 1000:.3f} ms, {mean}", spec, {"run": name}))
    return Figure(
        name="active_warps",
        title=title,
        finding="active warps on all SMs together; dashed: the mean over the run",
        records=tuple(records),
        panels=tuple(panels),
        stacked=True,
        panel_pixels=_WIDTH_PIXELS,
    )


def _records(name: str, run: Execution) -> list[dict[str, Cell]]:
    """The value at each change; at the end nothing is active."""
    values = [*run.active_warps.tolist(), 0]
    return [
        {"run": name, "time_ms": time_us / 1e3, "warps": value}
        for time_us, value in zip(run.time_us.tolist(), values, strict=True)
    ]


def _specification(colour: str, run: Execution, times_ms: Sequence[float], warps: Sequence[float]) -> dict[str, Any]:
    alt = need_altair()
    x = alt.X("time_ms:Q", title="time (ms)", scale=alt.Scale(domain=list(times_ms), nice=False))
    y = alt.Y("warps:Q", title="active warps", scale=alt.Scale(domain=list(warps), nice=False))
    area = {"interpolate": "step-after", "color": colour}
    return specification(
        layer().mark_area(opacity=0.35, **area).encode(x=x, y=y),
        layer().mark_line(strokeWidth=0.9, **area).encode(x=x, y=y),
        layer()
        .mark_rule(strokeDash=[5, 3])
        .encode(y=alt.datum(run.mean_active_warps), x=alt.datum(0), x2=alt.datum(run.latency_us / 1e3)),
        layer()
        .mark_rule()
        .encode(x=alt.datum(run.latency_us / 1e3), y=alt.datum(0), y2=alt.datum(run.mean_active_warps)),
        height=_PANEL_PIXELS,
    )
