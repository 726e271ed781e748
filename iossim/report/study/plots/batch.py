"""Latency and throughput against batch size (thesis, figure 4.9)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from iossim.base.tables import Cell, Column
from iossim.report.figures.figure import Figure, LegendEntry, Panel
from iossim.report.figures.vega import (
    PUBLISHED,
    dodged,
    layer,
    log_ticks,
    names_axis,
    need_altair,
    scheduler_legend,
    scheduler_scale,
    shape_scale,
    specification,
)
from iossim.report.study import layout
from iossim.report.study.plots import Plot
from iossim.report.study.plots.bars import WHISKERS
from iossim.study.study_run import Row, StudyRun

_HEIGHT_PIXELS = 250

_NAME = "batch"


def fits(run: StudyRun) -> bool:
    """Two sizes among other things that vary make no line."""
    axes = layout.varying(run.results.rows)
    return "batch" in axes and (axes == ["batch"] or len(layout.values_of(run.results.rows, "batch")) > 2)


def draw(run: StudyRun) -> Figure | None:
    rows = [row for row in run.results.rows if row.latency_ms is not None]
    if not rows:
        return None
    schedulers = [str(value) for value in layout.values_of(run.results.rows, "scheduler")]
    panel, choices = layout.panels_and_choices(rows, ["batch"])
    axes = layout.varying(run.results.rows)
    sizes = sorted({row.batch for row in rows})
    records = tuple(_record(row, axes, sizes, schedulers) for row in rows)
    published = any(row.published_ms is not None for row in rows)
    ticks = log_ticks(row.latency_ms or 0.0 for row in rows)
    throughput = _specification("throughput", "throughput (samples/s)", schedulers, sizes, published)
    latency = _specification("latency_ms", "latency (ms), log scale", schedulers, sizes, published, ticks)
    panels: list[Panel] = []
    for before, where in layout.sides(rows, panel):
        panels += [Panel(f"{before}throughput", throughput, where), Panel(f"{before}latency", latency, where)]
    whiskers = any(row.low_ms is not None for row in rows)
    return Figure(
        name=_NAME,
        title="Throughput and latency against batch size",
        finding=_finding(run, axes),
        caption=(
            "Samples of one batch over its latency, and the latency itself. Whiskers are 90% intervals of "
            "measurements, where the prices are a prediction; markers of one batch size stand side by side so that "
            "they can be told apart."
        ),
        alt="Lines of throughput and of latency against the batch size, a line a scheduler.",
        columns=(
            *layout.axis_columns(axes),
            Column("scheduler"),
            Column("throughput", "throughput, samples/s", digits=1),
            Column("low_throughput", "expected from", digits=1),
            Column("high_throughput", "expected to", digits=1),
            *layout.metric_columns("latency_ms", "low_ms", "high_ms", "published_ms"),
        ),
        records=records,
        panels=tuple(panels),
        choices=choices,
        legend=(
            *scheduler_legend(schedulers, lines=True),
            *((LegendEntry(WHISKERS, "currentColor", "whisker"),) if whiskers else ()),
            *((LegendEntry("published measurement", "currentColor", PUBLISHED),) if published else ()),
        ),
    )


def _record(row: Row, axes: Sequence[str], sizes: Sequence[int], schedulers: Sequence[str]) -> dict[str, Cell]:
    latency_ms = row.latency_ms or 0.0
    return {
        **layout.coordinates(row, axes),
        "batch": row.batch,
        "scheduler": row.scheduler,
        "place": dodged(sizes, row.batch, schedulers, row.scheduler),
        "throughput": _per_s(row.batch, latency_ms),
        "low_throughput": _per_s(row.batch, row.high_ms),
        "high_throughput": _per_s(row.batch, row.low_ms),
        "published_throughput": _per_s(row.batch, row.published_ms),
        "latency_ms": latency_ms,
        "low_ms": row.low_ms,
        "high_ms": row.high_ms,
        "published_ms": row.published_ms,
    }


def _per_s(batch: int, latency_ms: float | None) -> float | None:
    return 1e3 * batch / latency_ms if latency_ms else None


def _specification(
    key: str,
    title: str,
    schedulers: Sequence[str],
    sizes: Sequence[int],
    has_published: bool,
    ticks: Sequence[float] = (),
) -> Mapping[str, Any]:
    alt = need_altair()
    unit = "ms" if key == "latency_ms" else "throughput"
    scale = alt.Scale(type="log", nice=False, padding=12) if key == "latency_ms" else alt.Scale(zero=True, nice=True)
    x = names_axis("place", "batch size", sizes)
    colour = alt.Color("scheduler:N", scale=alt.Scale(**scheduler_scale(schedulers)), sort=list(schedulers))
    shape = alt.Shape("scheduler:N", scale=alt.Scale(**shape_scale(schedulers)), sort=list(schedulers))
    axis = alt.Axis(values=list(ticks), format="~g") if ticks else alt.Axis(tickCount=5, format=",.3~r")
    y = alt.Y(f"{key}:Q", title=title, scale=scale, axis=axis)
    tooltip = [
        alt.Tooltip("scheduler:N", title="scheduler"),
        alt.Tooltip("batch:O", title="batch size"),
        alt.Tooltip(f"{key}:Q", title=title.split(",", maxsplit=1)[0], format=",.4~r"),
        alt.Tooltip(f"low_{unit}:Q", title="expected from", format=",.4~r"),
        alt.Tooltip(f"high_{unit}:Q", title="expected to", format=",.4~r"),
        alt.Tooltip(f"published_{unit}:Q", title="published", format=",.4~r"),
    ]
    base = layer().encode(x=x, color=colour)
    whiskers = base.mark_rule(strokeWidth=1.1, opacity=0.7).encode(y=alt.Y(f"low_{unit}:Q"), y2=f"high_{unit}:Q")
    lines = base.mark_line().encode(y=y)
    markers = base.mark_point(size=44).encode(y=y, shape=shape, tooltip=tooltip)
    published = layer().mark_point(style=PUBLISHED).encode(x=x, y=alt.Y(f"published_{unit}:Q"), tooltip=tooltip)
    return specification(lines, whiskers, *([published] if has_published else []), markers, height=_HEIGHT_PIXELS)


def _finding(run: StudyRun, axes: Sequence[str]) -> str:
    bests = [best for rows in layout.points(run).values() if (best := layout.best_of(rows)) is not None]
    top = max(bests, key=lambda row: row.throughput_per_s or 0.0)
    return (
        f"The highest throughput is {top.throughput_per_s:,.0f} samples/s: {layout.point_label(top, axes)}, "
        f"{top.scheduler}, {top.latency_ms:.3g} ms a batch."
    )


PLOTS = (Plot(_NAME, 30, fits, draw),)
