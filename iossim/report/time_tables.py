"""Times as tables: predicted of a network's units or ops, and measured of schedules side by side, with the errors of
predictions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from rich.table import Table

from iossim.base.display import counted
from iossim.base.tables import Cell, described_table, keyed_table
from iossim.execution.measured_run import MeasuredRow
from iossim.prediction.tables import NetworkTable
from iossim.schedule.batch import Strategy
from iossim.schedule.schedule import Schedule


def disturbance(rows: Sequence[MeasuredRow]) -> str | None:
    """A note on rounds that other work on the machine disturbed; None if there were none."""
    rejected = sum(row.samples.rejected for row in rows)
    kept = sum(int(row.samples.conditions.get("disturbed_but_kept", 0)) for row in rows)
    if kept:
        what = f"{kept} disturbed rounds were kept because too few were quiet, {rejected} were rejected"
        return f"the machine was busy: {what}"
    return f"{counted(rejected, 'round')} rejected, which other work disturbed" if rejected else None


def measured_table(rows: Sequence[MeasuredRow]) -> Table:
    """Medians over rounds, the spread from the 10th to the 90th percentile, and the speed-up over the first row."""
    records: list[dict[str, Cell]] = [
        {
            "schedule": row.name,
            "median_ms": row.samples.median_us / 1e3,
            "spread_ms": row.samples.spread_us / 1e3,
            "speedup_x": row.speedup.value,
            "interval": f"{row.speedup.low:.2f} to {row.speedup.high:.2f}" if row is not rows[0] else "",
            "predicted_ms": None if row.predicted_us is None else row.predicted_us / 1e3,
            "error_percent": row.error_percent,
        }
        for row in rows
    ]
    return described_table(__package__, "measured", "", records)


@dataclass(frozen=True, slots=True)
class StageRow:
    """One stage: its predicted and measured times, without boundaries."""

    stage: int
    units: tuple[tuple[str, ...], ...]
    strategy: Strategy
    predicted_us: float
    measured_us: float

    @property
    def error_percent(self) -> float | None:
        """Relative error of the prediction; None for a stage that takes no time."""
        return 100 * (self.predicted_us / self.measured_us - 1) if self.measured_us else None


def stage_rows(predicted: Schedule, measured: Schedule) -> list[StageRow]:
    """Two prices of one schedule, stage by stage."""
    return [
        StageRow(number, tuple(map(tuple, stage.groups)), stage.strategy, before.latency_us, stage.latency_us)
        for number, (before, stage) in enumerate(zip(predicted.stages, measured.stages, strict=True))
    ]


def stage_table(rows: Sequence[StageRow]) -> Table:
    """One line per stage, and within it one line per group."""
    records: list[Mapping[str, Cell]] = [
        {
            "stage": row.stage,
            "predicted_us": row.predicted_us,
            "measured_us": row.measured_us,
            "error_percent": row.error_percent,
            "groups": "\n".join(
                (" + " if row.strategy is Strategy.MERGE else " > ").join(group) for group in row.units
            ),
        }
        for row in rows
    ]
    return described_table(__package__, "stage_by_stage", "Stage by stage", records)


def median_stage_error_percent(rows: Sequence[StageRow]) -> float | None:
    """Median absolute error of the prediction over stages that take time; None without any."""
    errors = [abs(row.error_percent) for row in rows if row.error_percent is not None]
    return float(np.median(errors)) if errors else None


#: A table of at most this many rows is shown whole; a longer one shows this many of the most expensive.
_ROWS_READ, _ROWS_SHOWN = 24, 16


def predicted_table(table: NetworkTable, all_by: str = "") -> Table:
    """Rows in the model's order, and the total. If there are many, only the slowest, where the words ``all_by`` say how
    to see all.
    """
    network, rows = table.network, list(table.rows)
    what = "unit" if any(len(row.ops) > 1 for row in rows) else "op"
    where = (
        f"{network.name} on {table.device}, batch {network.source.batch}, {network.precision}, {table.engine} engine, "
        f"weights {table.weights}"
    )
    title = f"{where}: {counted(len(rows), what)}"
    rest: list[dict[str, Cell]] = []
    if len(rows) > _ROWS_READ and all_by:
        rows.sort(key=lambda row: -row.prediction.gpu_time_us)  # ties: the first in the model
        rows, others = rows[:_ROWS_SHOWN], rows[_ROWS_SHOWN:]
        title += f", the {_ROWS_SHOWN} slowest ({all_by})"
        us, share = sum(row.prediction.gpu_time_us for row in others), sum(row.share for row in others)
        rest = [{"name": f"{len(others)} more", "gpu_time_us": us, "share_percent": 100 * share}]
    shown: list[dict[str, Cell]] = [
        {
            "name": row.name,
            "kind": row.kind,
            "output_shape": ", ".join(row.output_shapes),
            "gpu_time_us": row.prediction.gpu_time_us,
            "low_us": row.prediction.low_us,
            "high_us": row.prediction.high_us,
            "share_percent": 100 * row.share,
            "algorithm": row.prediction.algorithm,
        }
        for row in rows
    ]
    interval = table.interval
    total: dict[str, Cell] = {
        "name": "total",
        "gpu_time_us": table.total_us,
        "low_us": interval.low_us,
        "high_us": interval.high_us,
        "share_percent": 100.0,
    }
    long = ("name", "output_shape", "algorithm")
    return keyed_table(title, [*shown, *rest, total], shortens=long, digits=1)


def remarks(table: NetworkTable) -> list[str]:
    """Notes on what the network leaves unknown, and on units that are priced by their memory traffic alone."""
    names = [row.name for row in table.rows if row.remark]
    unknown = [f"Priced by their memory traffic alone: {', '.join(names)}."] if names else []
    return [*table.network.remarks, *unknown]
