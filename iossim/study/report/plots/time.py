"""Breakdown of time by kind of op."""

from __future__ import annotations

from collections.abc import Sequence

from iossim.base.tables import number_of
from iossim.report.colours import kind_colours, legend_colours
from iossim.report.figures.figure import Figure, LegendEntry
from iossim.report.figures.vega import colour_scale, described
from iossim.study.report.layout import Layout, Record, axis_columns, coordinates, most, place_of, values_of, varying
from iossim.study.report.plots import Plot, figure_of
from iossim.study.study_run import Row, StudyRun

#: More records would outgrow the page; then only the first points are shown.
_MOST_KINDS = 20_000


def _draw_kinds(run: StudyRun) -> Figure | None:
    rows = [row for row in run.results.rows if row.time_by_kind_us]
    shown, note = _first_points(rows)
    if not shown:
        return None
    axes = varying(rows)
    colours = kind_colours(kind for row in rows for kind in row.time_by_kind_us)
    records: list[Record] = []
    for row in shown:
        total_us = sum(row.time_by_kind_us.values())
        for order, kind in enumerate(colours):
            if (time_us := row.time_by_kind_us.get(kind)) is not None:
                share = 100 * time_us / total_us if total_us else 0.0
                cells: Record = {"kind": kind, "order": order, "time_ms": time_us / 1e3, "share_percent": share}
                records.append({**coordinates(row, axes), "scheduler": row.scheduler, **cells})
    top = most(records, "share_percent")
    values = {"schedulers": values_of(shown, "scheduler"), "kinds": list(colours), "colours": colour_scale(colours)}
    return figure_of(
        "kinds",
        Layout(axes, axis_columns(axes)),
        records,
        {"": described(__package__, "kinds", **values)},
        {"left_out": note},
        finding=f"{top['kind']} takes {number_of(top['share_percent']):.0f} % of the time{_by(top, axes)}.",
        legend=tuple(LegendEntry(*entry) for entry in legend_colours(colours).items()),
    )


def _first_points(rows: list[Row]) -> tuple[list[Row], str]:
    """Rows of the first points that have at most :data:`_MOST_KINDS` records together, and a note on those left out."""
    count = 0
    for place, row in enumerate(rows):
        count += len(row.time_by_kind_us)
        if count > _MOST_KINDS:
            shown = [kept for kept in rows[:place] if kept.point != row.point]
            return shown, f" Shown are the first {len({row.point for row in shown})} points; results.json has all."
    return rows, ""


def _by(record: Record, axes: Sequence[str]) -> str:
    return f", by {record['scheduler']}" + (f" ({place_of(record, axes)})" if axes else "")


PLOTS = (Plot("kinds", 80, None, _draw_kinds),)
