"""Bars in groups, a bar a scheduler: what several kinds of figures share."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import floor, log10

from iossim.base.tables import Cell, Column
from iossim.report.figures.bars import bar_legend, bar_record, bar_specification, share_scales
from iossim.report.figures.figure import Figure, LegendEntry, Panel
from iossim.report.figures.specifications import scheduler_legend
from iossim.report.study.axes import (
    POINT,
    Layout,
    axis_columns,
    best_of,
    coordinates,
    layout,
    panel_title,
    point_label,
    points,
    values_of,
    varying,
)
from iossim.study.scenario import AXES
from iossim.study.study_run import Row, StudyRun

#: What whiskers span.
WHISKERS = "expected (nine of ten measurements)"


@dataclass(frozen=True, slots=True)
class Bars:
    """What bars are of: a column's key and name, the axis's title, how its numbers are written, and where the whiskers end."""

    key: str
    name: str
    title: str
    value: Callable[[Row], float | None]
    written: Callable[[float], str]
    #: From and to, None without whiskers.
    interval: Callable[[Row], tuple[float, float] | None] = lambda row: None
    published: Callable[[Row], float | None] = lambda row: None
    digits: int = 3
    #: What is asked of the values, drawn as a line.
    limit: float | None = None


def bar_figure(
    run: StudyRun, bars: Bars, *, name: str, title: str, finding: str, caption: str, alt: str, command: str
) -> Figure | None:
    """The figure of all rows; None where no row has a value."""
    rows = [row for row in run.results.rows if row.status == "failed" or bars.value(row) is not None]
    if all(bars.value(row) is None for row in rows):
        return None
    schedulers = [str(value) for value in values_of(rows, "scheduler")]
    dealt = layout(rows)
    ties = _ties(run)
    axes = varying(rows)
    records = tuple(_record(row, bars, dealt, axes, id(row) in ties) for row in rows)
    groups = list(dict.fromkeys(record["group"] for record in records))
    kept = dealt.panel
    places: list[Cell] = values_of(rows, kept) if kept else [None]
    share_scales(records, [choice.key for choice in dealt.choices], kept)
    spec = bar_specification(bars.key, bars.title, schedulers, records, groups, bars.limit)
    panels = tuple(Panel(panel_title(kept, place), spec, {kept: place} if kept else {}) for place in places)
    return Figure(
        name=name,
        title=title,
        finding=finding,
        caption=caption,
        alt=alt,
        columns=(
            *axis_columns([axis for axis in AXES if axis in axes] or ["model"]),
            Column("scheduler"),
            Column(bars.key, bars.name, digits=bars.digits),
            *_interval_columns(records),
            Column("published_ms", "published", digits=3),
            Column("note"),
        ),
        records=records,
        panels=panels,
        command=command,
        choices=dealt.choices,
        legend=(*scheduler_legend(schedulers), *bar_legend(records, WHISKERS), *_limit_legend(bars)),
    )


def _ties(run: StudyRun) -> set[int]:
    """The rows that tie with the best of their point, by identity."""
    found: set[int] = set()
    for rows in points(run).values():
        best = best_of(rows)
        found |= {id(row) for row in rows if best is not None and row is not best and row.scheduler in best.ties}
    return found


def _record(row: Row, bars: Bars, dealt: Layout, axes: Sequence[str], is_tie: bool) -> dict[str, Cell]:
    value = bars.value(row)
    group = point_label(row, axes) if dealt.group == POINT else panel_title(dealt.group, getattr(row, dealt.group))
    text = "failed" if value is None else bars.written(value) + (" ≈" if is_tie else "")
    note = "failed" if value is None else "tie with the best" if is_tie else ""
    return {
        **coordinates(row, axes or ["model"]),
        "group": group,
        "scheduler": row.scheduler,
        bars.key: value,
        "note": note if value is not None or not row.reason else f"failed: {row.reason}",
        **bar_record(value, text, bars.interval(row), bars.published(row)),
    }


def _interval_columns(records: Sequence[Mapping[str, Cell]]) -> tuple[Column, ...]:
    if all(record["low_ms"] is None for record in records):
        return ()
    return (Column("low_ms", "expected from", digits=3), Column("high_ms", "expected to", digits=3))


def _limit_legend(bars: Bars) -> tuple[LegendEntry, ...]:
    if bars.limit is None:
        return ()
    return (LegendEntry(f"asked for: at most {bars.limit:g} ms", "currentColor", "dashes"),)


def three_digits(value: float) -> str:
    """A number with three significant digits, trailing zeros and thousands apart: 0.880, 4.40, 1,230."""
    digits = max(0, 2 - floor(log10(value))) if value > 0 else 2
    return f"{value:,.{digits}f}"
