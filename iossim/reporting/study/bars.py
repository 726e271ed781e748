"""Bars in groups, a bar a scheduler: what several kinds of figures share."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import floor, log10
from typing import Any

from iossim.reporting.study.axes import (
    POINT,
    Layout,
    axis_columns,
    coordinates,
    layout,
    panel_title,
    point_label,
    points,
    values_of,
    varying,
)
from iossim.reporting.study.figure import Figure, LegendEntry, Panel
from iossim.reporting.study.specifications import layer, need_altair, scheduler_legend, scheduler_scale, specification
from iossim.reporting.study.theme import HALO, PUBLISHED
from iossim.study.scenario import AXES
from iossim.study.study_run import Row, StudyRun
from iossim.tables import Cell, Column

_BAR_PIXELS = 15
#: What the longest text behind a bar takes.
_TEXT_PIXELS = 64
#: Panels whose longest bars differ by less than this have one scale.
_ALIKE = 3.0


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
    best = _best_value_rows(run)
    axes = varying(rows)
    records = tuple(_record(row, bars, dealt, axes, id(row) in best) for row in rows)
    groups = list(dict.fromkeys(record["group"] for record in records))
    kept = dealt.panel
    places: list[Cell] = values_of(rows, kept) if kept else [None]
    _share_scales(records, [choice.key for choice in dealt.choices], kept)
    spec = _specification(bars, schedulers, groups, records)
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
        legend=(*scheduler_legend(schedulers), *_extra_legend(records), *_limit_legend(bars)),
    )


def _best_value_rows(run: StudyRun) -> dict[int, set[str]]:
    """The rows that tie with the best of their point, by identity."""
    from iossim.reporting.study.axes import best_of

    ties: dict[int, set[str]] = {}
    for rows in points(run).values():
        best = best_of(rows)
        for row in rows:
            if best is not None and row is not best and row.scheduler in best.ties:
                ties[id(row)] = set(best.ties)
    return ties


def _record(row: Row, bars: Bars, dealt: Layout, axes: Sequence[str], is_tie: bool) -> dict[str, Cell]:
    value = bars.value(row)
    interval = bars.interval(row)
    published = bars.published(row)
    low, high = interval or (None, None)
    group = point_label(row, axes) if dealt.group == POINT else panel_title(dealt.group, getattr(row, dealt.group))
    note = "failed" if value is None else "tie with the best" if is_tie else ""
    return {
        **coordinates(row, axes or ["model"]),
        "group": group,
        "scheduler": row.scheduler,
        bars.key: value,
        "low_ms": low,
        "high_ms": high,
        "published_ms": published,
        "note": note if value is not None or not row.reason else f"failed: {row.reason}",
        "text": "failed" if value is None else bars.written(value) + (" ≈" if is_tie else ""),
        "right": max(value or 0.0, high or 0.0, published or 0.0),
    }


def _specification(
    bars: Bars, schedulers: Sequence[str], groups: Sequence[Cell], records: Sequence[Mapping[str, Cell]]
) -> Mapping[str, Any]:
    alt = need_altair()
    key = bars.key
    y = alt.Y(
        "group:N", sort=list(groups), title=None, axis=alt.Axis(labelLimit=190), scale=alt.Scale(paddingInner=0.22)
    )
    offset = alt.YOffset("scheduler:N", sort=list(schedulers), scale=alt.Scale(paddingInner=0.12))
    scale = alt.Scale(zero=True, nice=False)
    x = alt.X(f"{key}:Q", title=bars.title, scale=scale)
    tooltip = [
        alt.Tooltip("group:N", title="point"),
        alt.Tooltip("scheduler:N", title="scheduler"),
        alt.Tooltip("text:N", title=bars.title),
    ]
    parts = {"low_ms": "expected from", "high_ms": "expected to", "published_ms": "published"}
    parts = {part: words for part, words in parts.items() if any(record[part] is not None for record in records)}
    tooltip += [alt.Tooltip(f"{part}:Q", title=f"{words}, ms", format=".3~f") for part, words in parts.items()]
    colour = alt.Color(
        "scheduler:N", scale=alt.Scale(**scheduler_scale(schedulers)), title="scheduler", sort=list(schedulers)
    )
    base = layer().encode(y=y, yOffset=offset)
    layers = [base.mark_bar(cornerRadiusEnd=1).encode(x=x, color=colour, tooltip=tooltip)]
    if "low_ms" in parts:
        layers += [
            base.mark_rule(strokeWidth=1.1).encode(x=alt.X("low_ms:Q"), x2="high_ms:Q"),
            base.mark_tick(size=6, thickness=1.1).encode(x=alt.X("low_ms:Q")),
            base.mark_tick(size=6, thickness=1.1).encode(x=alt.X("high_ms:Q")),
        ]
    if "published_ms" in parts:
        marker = base.mark_point(style=PUBLISHED, size=46, strokeWidth=1)
        layers.append(marker.encode(x=alt.X("published_ms:Q"), tooltip=tooltip))
    if bars.limit is not None:
        layers.append(layer().mark_rule(strokeDash=[5, 4], strokeWidth=1.3).encode(x=alt.datum(bars.limit)))
    # Neither that line nor one of the grid strikes a label through: each has the page's colour around it.
    label = {"align": "left", "baseline": "middle", "dx": 5}
    behind = base.encode(x=alt.X("right:Q"), text="text:N")
    layers += [behind.mark_text(style=HALO, **label), behind.mark_text(**label)]
    # Nothing to be seen, where there is room for the text behind the longest bar.
    room = f"datum.longest * width / max(60, width - {_TEXT_PIXELS})"
    layers.append(base.transform_calculate(room=room).mark_point(opacity=0).encode(x=alt.X("room:Q")))
    return specification(*layers, height={"step": _BAR_PIXELS, "for": "offset"})


def _share_scales(records: Sequence[dict[str, Cell]], choices: Sequence[str], panel: str | None) -> None:
    """Tell each record how long the longest bar on its scale is: one scale for panels that are seen together, unless one
    of them would be hard to see.
    """
    together: dict[tuple[Cell, ...], dict[Cell, float]] = {}
    for record in records:
        panels = together.setdefault(tuple(record[key] for key in choices), {})
        place = record[panel] if panel else None
        panels[place] = max(panels.get(place, 0.0), _number(record["right"]))
    for record in records:
        panels = together[tuple(record[key] for key in choices)]
        longest = max(panels.values())
        is_alike = longest <= _ALIKE * min(panels.values())
        record["longest"] = (longest if is_alike else panels[record[panel] if panel else None]) or 1.0


def _interval_columns(records: Sequence[Mapping[str, Cell]]) -> tuple[Column, ...]:
    if all(record["low_ms"] is None for record in records):
        return ()
    return (Column("low_ms", "expected from", digits=3), Column("high_ms", "expected to", digits=3))


def _extra_legend(records: Sequence[Mapping[str, Cell]]) -> tuple[LegendEntry, ...]:
    extra: list[LegendEntry] = []
    if any(record["low_ms"] is not None for record in records):
        extra.append(LegendEntry("expected (nine of ten measurements)", "currentColor", "whisker"))
    if any(record["published_ms"] is not None for record in records):
        extra.append(LegendEntry("published measurement", "currentColor", PUBLISHED))
    return tuple(extra)


def _limit_legend(bars: Bars) -> tuple[LegendEntry, ...]:
    if bars.limit is None:
        return ()
    return (LegendEntry(f"asked for: at most {bars.limit:g} ms", "currentColor", "dashes"),)


def three_digits(value: float) -> str:
    """A number with three significant digits, trailing zeros and thousands apart: 0.880, 4.40, 1,230."""
    digits = max(0, 2 - floor(log10(value))) if value > 0 else 2
    return f"{value:,.{digits}f}"


def _number(cell: Cell) -> float:
    return float(cell) if isinstance(cell, int | float) else 0.0
