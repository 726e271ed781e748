"""What a calibration found, as tables for the terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.table import Table

from iossim.base.tables import Cell, Column, records_table
from iossim.hardware.provenance import KindError


def error_table(title: str, errors: Sequence[KindError]) -> Table:
    """A row for each kind of operators of each data set."""
    columns = [
        Column("data_set", "data set", wraps=True),
        Column("kind"),
        Column("rows"),
        Column("mape_percent", "mean error", digits=1),
        Column("median_error_percent", "median", digits=1),
        Column("kendall_tau", "rank\ncorrelation", digits=3),
    ]
    return records_table(title, [error.model_dump() for error in errors], columns)


def parameter_table(title: str, rows: Sequence[Mapping[str, float | str | bool | None]]) -> Table:
    """A row for each parameter: value, bootstrapped spread where there is one, bounds, and what to think of it."""
    records: list[dict[str, Cell]] = []
    for row in rows:
        remarks = ["not fitted"] * (not row["fitted"])
        remarks += ["at bound"] * bool(row["at_bound"]) + ["not identified"] * bool(row["unidentified"])
        numbers = {name: f"{row[name]:.4g}" for name in ("value", "lower", "upper")}
        records.append(
            {
                "parameter": row["parameter"],
                "value": numbers["value"],
                "spread": "" if row["spread"] is None else f"{row['spread']:.2g}",
                "bounds": f"{numbers['lower']} to {numbers['upper']}",
                "remark": ", ".join(remarks),
            }
        )
    columns = [Column(name) for name in ("parameter", "value", "spread", "bounds")]
    return records_table(title, records, [*columns, Column("remark", wraps=True)])
