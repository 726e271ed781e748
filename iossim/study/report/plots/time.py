"""Breakdown of time: by block of the network (thesis, figure 4.8), and by kind of op."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from iossim.base.tables import Cell, Column, number_of
from iossim.report.colours import kind_colours
from iossim.report.figures.figure import Figure, LegendEntry, Panel
from iossim.report.figures.vega import colour_scale, described, scheduler_legend, scheduler_scale
from iossim.study.report.layout import axis_columns, coordinates, most, place_of, varying
from iossim.study.report.plots import Plot, columns_of, words_of
from iossim.study.study_run import Row, StudyRun

#: More records would outgrow the page; then only the first points are shown.
_MOST_BLOCKS, _MOST_KINDS = 12_000, 20_000


def _first_points(rows: Sequence[Row], parts: Callable[[Row], int], most: int) -> tuple[list[Row], str]:
    """Rows of the first points that have at most so many parts together, and a note on those left out."""
    count = 0
    for place, row in enumerate(rows):
        count += parts(row)
        if count > most:
            shown = [kept for kept in rows[:place] if kept.point != row.point]
            return shown, f" Shown are the first {len({row.point for row in shown})} points; results.json has all."
    return list(rows), ""


def _draw_blocks(run: StudyRun) -> Figure | None:
    rows = [row for row in run.results.rows if row.blocks]
    shown, left_out = _first_points(rows, lambda row: len(row.blocks), _MOST_BLOCKS)
    if not shown:
        return None
    axes = varying(rows)
    base = {
        (row.point, block.name): block.latency_us
        for row in rows
        if row.scheduler == "sequential"
        for block in row.blocks
    }
    records: tuple[dict[str, Cell], ...] = tuple(
        {
            **coordinates(row, axes),
            "scheduler": row.scheduler,
            "block": block.name,
            "place": place,
            "time_ms": block.latency_us / 1e3,
            "stages": block.stages,
            "speedup_x": _ratio(base.get((row.point, block.name)), block.latency_us),
        }
        for row in shown
        for place, block in enumerate(row.blocks)
    )
    schedulers = list(dict.fromkeys(row.scheduler for row in shown))
    top = most(records, "speedup_x") or records[0]
    where = f" ({place_of(top, axes)})" if axes else ""
    spec = described(__package__, "blocks", schedulers=schedulers, colours=scheduler_scale(schedulers))
    return Figure(
        **words_of("blocks", left_out=left_out),
        finding=(
            f"{top['block']} gains most: {number_of(top['speedup_x']):.2f} times as fast as sequential, by "
            f"{top['scheduler']}{where}."
        ),
        columns=columns_of("blocks", *axis_columns(axes)),
        records=records,
        printed=tuple(sorted(records, key=lambda record: (*(str(record[a]) for a in axes), int(record["place"] or 0)))),
        panels=(Panel("", spec),),
        choices=tuple(Column(axis) for axis in axes),
        legend=scheduler_legend(schedulers),
    )


def _ratio(base_us: float | None, latency_us: float) -> float | None:
    return base_us / latency_us if base_us is not None and latency_us else None


def _draw_kinds(run: StudyRun) -> Figure | None:
    rows = [row for row in run.results.rows if row.time_by_kind_us]
    shown, left_out = _first_points(rows, lambda row: len(row.time_by_kind_us), _MOST_KINDS)
    if not shown:
        return None
    axes = varying(rows)
    colours = kind_colours(kind for row in run.results.rows for kind in row.time_by_kind_us)
    schedulers = list(dict.fromkeys(row.scheduler for row in shown))
    records = tuple(record for row in shown for record in _kind_records(row, axes, list(colours)))
    top = most(records, "share_percent") or records[0]
    where = f" ({place_of(top, axes)})" if axes else ""
    spec = described(__package__, "kinds", schedulers=schedulers, kinds=list(colours), colours=colour_scale(colours))
    return Figure(
        **words_of("kinds", left_out=left_out),
        finding=(
            f"{top['kind']} takes {number_of(top['share_percent']):.0f} % of the time, by {top['scheduler']}{where}."
        ),
        columns=columns_of("kinds", *axis_columns(axes)),
        records=records,
        panels=(Panel("", spec),),
        choices=tuple(Column(axis) for axis in axes),
        legend=tuple(LegendEntry(kind, colour) for kind, colour in colours.items()),
    )


def _kind_records(row: Row, axes: Sequence[str], kinds: Sequence[str]) -> list[dict[str, Cell]]:
    total_us = sum(row.time_by_kind_us.values())
    return [
        {
            **coordinates(row, axes),
            "scheduler": row.scheduler,
            "kind": kind,
            "order": order,
            "time_ms": row.time_by_kind_us[kind] / 1e3,
            "share_percent": 100 * row.time_by_kind_us[kind] / total_us if total_us else 0.0,
        }
        for order, kind in enumerate(kinds)
        if kind in row.time_by_kind_us
    ]


PLOTS = (
    # A network of one block has nothing to show block by block.
    Plot("blocks", 70, lambda run: any(len(row.blocks) > 1 for row in run.results.rows), _draw_blocks),
    Plot("kinds", 80, None, _draw_kinds),
)
