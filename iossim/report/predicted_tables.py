"""A network's predicted units or ops as a table, and what is unknown of them."""

from __future__ import annotations

from rich.table import Table

from iossim.base.tables import Cell, Column, records_table
from iossim.prediction.network_table import NetworkTable

#: A table of at most this many rows is shown whole; a longer one shows this many of the most expensive.
_ROWS_READ, _ROWS_SHOWN = 24, 16


def predicted_table(table: NetworkTable, all_by: str = "") -> Table:
    """Rows in the model's order, and the total. If there are many, only the slowest, where the words ``all_by`` say how
    to see all.
    """
    network, rows = table.network, list(table.rows)
    what = "units" if any(len(row.ops) > 1 for row in rows) else "ops"
    where = (
        f"{network.name} on {table.device}, batch {network.source.batch}, {network.precision}, {table.engine} engine, "
        f"weights {table.weights}"
    )
    title = f"{where}: {len(rows)} {what}"
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
    columns = [Column(key, digits=1, shortens=key in long) for key in shown[0]] if shown else []
    return records_table(title, [*shown, *rest, total], columns)


def remarks(table: NetworkTable) -> list[str]:
    """Notes on what the network leaves unknown, and on units that are priced by their memory traffic alone."""
    names = [row.name for row in table.rows if row.remark]
    unknown = [f"Priced by their memory traffic alone: {', '.join(names)}."] if names else []
    return [*table.network.remarks, *unknown]
