"""Bars in groups, a bar a scheduler: the figure that shows one metric of every row."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import floor, log10

from iossim.base.tables import Cell, Column
from iossim.report.figures.bars import bar_legend, bar_record, bar_specification, share_scales
from iossim.report.figures.figure import Figure, LegendEntry
from iossim.report.figures.specifications import scheduler_legend
from iossim.report.study.layout import (
    POINT,
    Layout,
    axis_columns,
    best_of,
    coordinates,
    layout,
    panel_title,
    panels,
    point_label,
    points,
    values_of,
    varying,
)
from iossim.study.axes import AXES
from iossim.study.metrics import METRICS
from iossim.study.study_run import Row, StudyRun

#: What whiskers span.
WHISKERS = "expected on hardware (90% interval)"


@dataclass(frozen=True, slots=True)
class Bars:
    """A figure of one metric.

    ``axis``, ``caption`` and ``alt`` are texts that may name the ``{baseline}`` of speed-ups.
    """

    name: str
    metric: str
    title: str
    #: The title of the axis of values.
    axis: str
    #: The sentence that says what is to be seen.
    finding: Callable[[StudyRun], str]
    caption: str
    alt: str
    written: Callable[[float], str]
    #: Whether bars have the whiskers of the expected latency, and the published one beside them.
    has_interval: bool = False
    #: The limit that is asked of the values, drawn as a line.
    limit: Callable[[StudyRun], float | None] = lambda run: None


def bar_figure(run: StudyRun, bars: Bars) -> Figure | None:
    """The figure of all rows; None where no row has a value."""
    rows = [row for row in run.results.rows if row.status == "failed" or getattr(row, bars.metric) is not None]
    if all(getattr(row, bars.metric) is None for row in rows):
        return None
    shown = METRICS[bars.metric].column
    assert shown is not None
    schedulers = [str(value) for value in values_of(rows, "scheduler")]
    dealt = layout(rows)
    ties = _ties(run)
    axes = varying(rows)
    records = tuple(_record(row, bars, shown.key, dealt, axes, id(row) in ties) for row in rows)
    groups = list(dict.fromkeys(record["group"] for record in records))
    limit = bars.limit(run)
    told = {"baseline": baseline_of(run)}
    share_scales(records, [choice.key for choice in dealt.choices], dealt.panel)
    spec = bar_specification(shown.key, bars.axis.format(**told), schedulers, records, groups, limit)
    asked = (LegendEntry(f"asked for: at most {limit:g} ms", "currentColor", "dashes"),) if limit is not None else ()
    return Figure(
        name=bars.name,
        title=bars.title,
        finding=bars.finding(run),
        caption=bars.caption.format(**told),
        alt=bars.alt.format(**told),
        columns=(
            *axis_columns([axis for axis in AXES if axis in axes] or ["model"]),
            Column("scheduler"),
            shown,
            *_interval_columns(records),
            Column("published_ms", "published", digits=3),
            Column("note"),
        ),
        records=records,
        panels=panels(rows, dealt.panel, spec),
        choices=dealt.choices,
        legend=(*scheduler_legend(schedulers), *bar_legend(records, WHISKERS), *asked),
    )


def baseline_of(run: StudyRun) -> str:
    """The baseline of speed-ups, in words."""
    rows = run.results.rows
    if any(row.waited_ms is not None for row in rows):
        return "one device"
    schedulers = {row.scheduler for row in rows}
    return next((name for name in ("sequential", "vanilla") if name in schedulers), "the slowest schedule")


def three_digits(value: float) -> str:
    """A number with three significant digits, trailing zeros and thousands apart: 0.880, 4.40, 1,230."""
    digits = max(0, 2 - floor(log10(value))) if value > 0 else 2
    return f"{value:,.{digits}f}"


def _ties(run: StudyRun) -> set[int]:
    """The rows that tie with the best of their point, by identity."""
    found: set[int] = set()
    for rows in points(run).values():
        best = best_of(rows)
        found |= {id(row) for row in rows if best is not None and row is not best and row.scheduler in best.ties}
    return found


def _record(row: Row, bars: Bars, key: str, dealt: Layout, axes: Sequence[str], is_tie: bool) -> dict[str, Cell]:
    value: float | None = getattr(row, bars.metric)
    group = point_label(row, axes) if dealt.group == POINT else panel_title(dealt.group, getattr(row, dealt.group))
    text = "failed" if value is None else bars.written(value) + (" ≈" if is_tie else "")
    note = "failed" if value is None else "tie with the best" if is_tie else ""
    interval = None if row.low_ms is None or row.high_ms is None else (row.low_ms, row.high_ms)
    beside = (interval, row.published_ms) if bars.has_interval else (None, None)
    return {
        **coordinates(row, axes or ["model"]),
        "group": group,
        "scheduler": row.scheduler,
        key: value,
        "note": note if value is not None or not row.reason else f"failed: {row.reason}",
        **bar_record(value, text, *beside),
    }


def _interval_columns(records: Sequence[Mapping[str, Cell]]) -> tuple[Column, ...]:
    if all(record["low_ms"] is None for record in records):
        return ()
    return (Column("low_ms", "expected from", digits=3), Column("high_ms", "expected to", digits=3))
