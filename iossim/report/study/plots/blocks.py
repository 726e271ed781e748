"""Where the time goes, block by block (thesis, figure 4.8)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from iossim.base.tables import Cell, Column
from iossim.report.figures.figure import Figure, Panel
from iossim.report.figures.specifications import (
    layer,
    need_altair,
    scheduler_legend,
    scheduler_scale,
    specification,
)
from iossim.report.study.axes import axis_columns, best_of, coordinates, point_label, points, varying
from iossim.report.study.commands import figure_command
from iossim.report.study.plot import Plot
from iossim.study.study_run import Row, StudyRun

_BAR_PIXELS = 9
#: Of the whole time: what sums of floats may differ by and no block saves.
_ROUNDING = 1e-6
_MOST_RECORDS = 12_000

_NAME = "blocks"


def fits(run: StudyRun) -> bool:
    """One block is the whole."""
    return any(len(row.blocks) > 1 for row in run.results.rows)


def draw(run: StudyRun) -> Figure | None:
    rows = [row for row in run.results.rows if row.blocks]
    shown: list[Row] = []
    count = 0
    for row in rows:
        count += len(row.blocks)
        if count > _MOST_RECORDS:
            shown = [kept for kept in shown if kept.point != row.point]
            break
        shown.append(row)
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
    left_out = len(shown) < len(rows)
    return Figure(
        name=_NAME,
        title="Where the time goes, block by block",
        finding=_finding(run, base),
        caption=(
            "Time of each block of the network in execution order, with the boundaries before its stages."
            + (
                f" Shown are the first {len({row.point for row in shown})} points; results.json has all."
                if left_out
                else ""
            )
        ),
        alt="Bars of the time of each block of the network, a bar a scheduler.",
        columns=(
            *axis_columns(axes),
            Column("block"),
            Column("scheduler"),
            Column("time_ms", "time", digits=4),
            Column("speedup_x", "speed-up"),
            Column("stages"),
        ),
        records=records,
        printed=tuple(
            sorted(records, key=lambda record: (*(str(record[a]) for a in axes), int(record["place"] or 0)))
        ),
        panels=(Panel("", _specification(schedulers)),),
        command=figure_command(run, _NAME),
        choices=tuple(Column(axis) for axis in axes),
        legend=scheduler_legend(schedulers),
    )


def _ratio(base_us: float | None, latency_us: float) -> float | None:
    return base_us / latency_us if base_us is not None and latency_us else None


def _specification(schedulers: Sequence[str]) -> dict[str, Any]:
    alt = need_altair()
    bars = (
        layer()
        .mark_bar()
        .encode(
            y=alt.Y(
                "block:N",
                sort=alt.EncodingSortField("place", op="min"),
                title=None,
                scale=alt.Scale(paddingInner=0.25),
            ),
            yOffset=alt.YOffset("scheduler:N", sort=list(schedulers)),
            x=alt.X("time_ms:Q", title="time (ms)"),
            color=alt.Color("scheduler:N", sort=list(schedulers), scale=alt.Scale(**scheduler_scale(schedulers))),
            tooltip=[
                alt.Tooltip("block:N", title="block"),
                alt.Tooltip("scheduler:N", title="scheduler"),
                alt.Tooltip("time_ms:Q", title="time, ms", format=",.4~r"),
                alt.Tooltip("speedup_x:Q", title="speed-up over sequential", format=".2f"),
                alt.Tooltip("stages:Q", title="stages"),
            ],
        )
    )
    return specification(bars, height={"step": _BAR_PIXELS, "for": "offset"})


def _finding(run: StudyRun, base: dict[tuple[int, str], float]) -> str:
    """The block of the first point whose best schedule saves most time."""
    for number, rows in points(run).items():
        best = best_of(rows)
        if best is None or len(best.blocks) < 2:
            continue
        saved = [
            (base.get((number, block.name), block.latency_us) - block.latency_us, block) for block in best.blocks
        ]
        most_us, block = max(saved, key=lambda found: found[0])
        where = point_label(best, varying(run.results.rows))
        if most_us <= _ROUNDING * sum(block.latency_us for block in best.blocks):
            return f"{where}: no block is faster than sequential."
        return (
            f"{where}: {best.scheduler} saves most in {block.name}, {most_us / 1e3:.3g} ms "
            f"({_ratio(base[number, block.name], block.latency_us) or 1:.2f} times as fast as sequential)."
        )
    return ""


PLOTS = (Plot(_NAME, 70, fits, draw),)
