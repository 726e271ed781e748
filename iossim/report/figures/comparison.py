"""Schedulers side by side: a bar of latency each, its lower bound, and the published figure if known."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from iossim.base.tables import Cell
from iossim.report.figures.bars import bar_legend, bar_record, bar_specification, share_scales
from iossim.report.figures.figure import Figure, Panel
from iossim.tasks.comparison import TIE, ComparisonRow, best_row, ties_with

#: What latency, speed-up and sign of a tie take behind a bar.
_TEXT_PIXELS = 130


def comparison_figure(
    title: str, panels: Mapping[str, Sequence[ComparisonRow]], whiskers: str = "expected", name: str = "comparison"
) -> Figure:
    """One panel for each entry (a network, say), its schedulers from top to bottom.

    Bars are labelled with the latency and the speed-up, the best one's in bold, with a sign at those that tie with it;
    whiskers span each row's interval: what that is, the legend says in the words of ``whiskers``.
    """
    records: list[dict[str, Cell]] = []
    for panel, rows in panels.items():
        best = best_row(rows)
        records += [{"panel": panel, **_record(row, best)} for row in rows]
    share_scales(records, ["panel"], None)
    drawn = []
    for panel, rows in panels.items():
        own = [record for record in records if record["panel"] == panel]
        schedulers = [row.scheduler for row in rows]
        spec = bar_specification("latency_ms", "latency (ms)", schedulers, own, text_pixels=_TEXT_PIXELS)
        drawn.append(Panel(panel, spec, {"panel": panel}))
    ties = f", {TIE} a tie with it" if any(row.ties for rows in panels.values() for row in rows) else ""
    return Figure(
        name=name,
        title=title,
        finding=f"latency and speed-up of each scheduler; bold: the best{ties}",
        records=tuple(records),
        panels=tuple(drawn),
        legend=bar_legend(records, whiskers),
        stacked=True,
        panel_pixels=640,
    )


def _record(row: ComparisonRow, best: ComparisonRow | None) -> dict[str, Cell]:
    latency_ms = row.latency_us / 1e3
    text = f"{latency_ms:.3f} ms  {row.speedup:.2f}x{f' {TIE}' if ties_with(best, row) else ''}"
    interval_ms = None if row.interval_us is None else (row.interval_us[0] / 1e3, row.interval_us[1] / 1e3)
    published_ms = None if row.published_us is None else row.published_us / 1e3
    return {
        "scheduler": row.scheduler,
        "latency_ms": latency_ms,
        "best": row is best,
        "bound_ms": None if row.lower_bound_us is None else row.lower_bound_us / 1e3,
        **bar_record(latency_ms, text, interval_ms, published_ms),
    }
