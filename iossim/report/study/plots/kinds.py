"""Where the time goes, by kind of op: a stacked bar a scheduler."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from iossim.base.tables import Cell, Column
from iossim.calibration.prediction.schedule_interval import BOUNDARIES
from iossim.report.figures.figure import Figure, LegendEntry, Panel
from iossim.report.figures.specifications import layer, need_altair, specification
from iossim.report.kind_colours import kind_colours
from iossim.report.study.axes import axis_columns, best_of, coordinates, point_label, points, varying
from iossim.report.study.commands import figure_command
from iossim.report.study.plot import Plot
from iossim.study.study_run import Row, StudyRun

_BAR_PIXELS = 24
#: A figure of more points would outgrow the page; then the first points are shown.
_MOST_RECORDS = 20_000

_NAME = "kinds"


def fits(run: StudyRun) -> bool:
    return any(row.time_by_kind_us for row in run.results.rows)


def draw(run: StudyRun) -> Figure | None:
    rows = [row for row in run.results.rows if row.time_by_kind_us]
    shown, left_out = _first_points(rows)
    if not shown:
        return None
    axes = varying(rows)
    colours = kind_colours(kind for row in run.results.rows for kind in row.time_by_kind_us)
    choices = tuple(Column(axis) for axis in axes)
    records = tuple(record for row in shown for record in _records(row, axes, colours))
    schedulers = list(dict.fromkeys(row.scheduler for row in shown))
    return Figure(
        name=_NAME,
        title="Where the time goes, by kind of op",
        finding=_finding(run),
        caption=(
            "Time of each stage, dealt to its ops; “boundaries” is what stands between stages: launches and synchronisation."
            + (
                f" Shown are the first {len({row.point for row in shown})} points; results.csv has all."
                if left_out
                else ""
            )
        ),
        alt="Stacked bars of the time of each scheduler's schedule by kind of op.",
        columns=(
            *axis_columns(axes),
            Column("scheduler"),
            Column("kind"),
            Column("time_ms", "time", digits=4),
            Column("share_percent", "share", digits=1),
        ),
        records=records,
        panels=(Panel("", _specification(schedulers, colours)),),
        command=figure_command(run, _NAME),
        choices=choices,
        legend=tuple(LegendEntry(kind, colour) for kind, colour in colours.items()),
    )


def _first_points(rows: Sequence[Row]) -> tuple[list[Row], bool]:
    count = 0
    for place, row in enumerate(rows):
        count += len(row.time_by_kind_us)
        if count > _MOST_RECORDS:
            return [kept for kept in rows[:place] if kept.point != row.point], True
    return list(rows), False


def _records(row: Row, axes: Sequence[str], colours: Mapping[str, str]) -> list[dict[str, Cell]]:
    total_us = sum(row.time_by_kind_us.values())
    places = {kind: place for place, kind in enumerate(colours)}
    return [
        {
            **coordinates(row, axes),
            "scheduler": row.scheduler,
            "kind": kind,
            "order": places[kind],
            "time_ms": time_us / 1e3,
            "share_percent": 100 * time_us / total_us if total_us else 0.0,
        }
        for kind, time_us in sorted(row.time_by_kind_us.items(), key=lambda found: places[found[0]])
    ]


def _specification(schedulers: Sequence[str], colours: Mapping[str, str]) -> dict[str, Any]:
    alt = need_altair()
    bars = (
        layer()
        .mark_bar(stroke="#ffffff", strokeWidth=0.4)
        .encode(
            y=alt.Y("scheduler:N", sort=list(schedulers), title=None),
            x=alt.X("time_ms:Q", title="time (ms)", stack="zero", scale=alt.Scale(domainMin=0)),
            color=alt.Color(
                "kind:N", sort=list(colours), scale=alt.Scale(domain=list(colours), range=list(colours.values()))
            ),
            order=alt.Order("order:Q"),
            tooltip=[
                alt.Tooltip("scheduler:N", title="scheduler"),
                alt.Tooltip("kind:N", title="kind"),
                alt.Tooltip("time_ms:Q", title="time, ms", format=",.4~r"),
                alt.Tooltip("share_percent:Q", title="share, %", format=".1f"),
            ],
        )
    )
    return specification(bars, height={"step": _BAR_PIXELS})


def _finding(run: StudyRun) -> str:
    """What the best schedule of the first point spends its time on."""
    for rows in points(run).values():
        best = best_of(rows)
        if best is None or not best.time_by_kind_us:
            continue
        total_us = sum(best.time_by_kind_us.values())
        kind, most_us = max(best.time_by_kind_us.items(), key=lambda found: found[1])
        between = best.time_by_kind_us.get(BOUNDARIES, 0.0)
        return (
            f"{point_label(best, varying(run.results.rows))}, {best.scheduler}: {100 * most_us / total_us:.0f} % of the time is "
            f"{kind}, {100 * between / total_us:.0f} % stands between stages."
        )
    return ""


PLOTS = (Plot(_NAME, 80, fits, draw),)
