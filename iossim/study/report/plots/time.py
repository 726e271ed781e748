"""Breakdown of time: by block of the network (thesis, figure 4.8), and by kind of op."""

from __future__ import annotations

from collections.abc import Sequence

from iossim.base.tables import number_of
from iossim.report.colours import kind_colours, legend_colours
from iossim.report.figures.figure import Figure, LegendEntry
from iossim.report.figures.vega import colour_scale, described, scheduler_legend, scheduler_scale
from iossim.study.report.layout import Layout, Record, axis_columns, coordinates, most, place_of, values_of, varying
from iossim.study.report.plots import Plot, figure_of
from iossim.study.study_run import Row, StudyRun

#: More records would outgrow the page; then only the first points are shown.
_MOST_BLOCKS, _MOST_KINDS = 12_000, 20_000


def _draw_blocks(run: StudyRun) -> Figure | None:
    rows = [row for row in run.results.rows if row.blocks]
    shown, note = _first_points(rows, "blocks", _MOST_BLOCKS)
    if not shown:
        return None
    axes = varying(rows)
    base_us = {
        (row.point, block.name): block.latency_us
        for row in rows
        if row.scheduler == "sequential"
        for block in row.blocks
    }
    records: list[Record] = []
    for row in shown:
        for place, block in enumerate(row.blocks):
            own_us, alone_us = block.latency_us, base_us.get((row.point, block.name))
            cells: Record = {"block": block.name, "place": place, "time_ms": own_us / 1e3, "stages": block.stages}
            speedup = alone_us / own_us if alone_us is not None and own_us else None
            records.append({**coordinates(row, axes), "scheduler": row.scheduler, **cells, "speedup_x": speedup})
    top = most(records, "speedup_x")
    gain = f"{number_of(top['speedup_x']):.2f} times as fast as sequential"
    schedulers = [str(name) for name in values_of(shown, "scheduler")]
    spec = described(__package__, "blocks", schedulers=schedulers, colours=scheduler_scale(schedulers))
    return figure_of(
        "blocks",
        Layout(axes, axis_columns(axes)),
        records,
        {"": spec},
        {"left_out": note},
        finding=f"{top['block']} gains most: {gain}{_by(top, axes)}.",
        legend=scheduler_legend(schedulers),
    )


def _draw_kinds(run: StudyRun) -> Figure | None:
    rows = [row for row in run.results.rows if row.time_by_kind_us]
    shown, note = _first_points(rows, "time_by_kind_us", _MOST_KINDS)
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


def _first_points(rows: list[Row], field: str, limit: int) -> tuple[list[Row], str]:
    """Rows of the first points that have at most so many parts together, and a note on those left out."""
    count = 0
    for place, row in enumerate(rows):
        count += len(getattr(row, field))
        if count > limit:
            shown = [kept for kept in rows[:place] if kept.point != row.point]
            return shown, f" Shown are the first {len({row.point for row in shown})} points; results.json has all."
    return rows, ""


def _by(record: Record, axes: Sequence[str]) -> str:
    return f", by {record['scheduler']}" + (f" ({place_of(record, axes)})" if axes else "")


PLOTS = (
    # A network of one block has nothing to show block by block.
    Plot("blocks", 70, lambda run: any(len(row.blocks) > 1 for row in run.results.rows), _draw_blocks),
    Plot("kinds", 80, None, _draw_kinds),
)
