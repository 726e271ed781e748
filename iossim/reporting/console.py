"""Tables for the terminal: numbers to the right, units in the headers, legible at 80 columns and without colour."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from io import StringIO

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from iossim.reporting.comparison import ComparisonRow, best_row
from iossim.schedule.schedule import Schedule
from iossim.schedule.strategy import Strategy

Cell = str | int | float | bool | None

#: A dash stands for what is not known.
ABSENT = "-"
#: No table is wider as text.
_PLAIN_LETTERS = 200
#: Behind a scheduler whose schedule differs from the best by less than the noise.
TIE = "≈"
#: The last part of a column's name, where it is a unit, goes to the second line of the header.
_UNITS = {
    "us": "us",
    "ms": "ms",
    "s": "s",
    "percent": "%",
    "x": "x",
    "ghz": "GHz",
    "mhz": "MHz",
    "gbps": "GB/s",
    "bytes": "bytes",
    "kib": "KiB",
    "mib": "MiB",
    "gib": "GiB",
    "gmacs": "GMACs",
    "tflops": "TFLOP/s",
}


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table: ``key`` names the cell of each row, and by its ending the unit.

    ``digits`` are the decimals of floats; ``wraps`` lets long text go on in the next line.
    """

    key: str
    title: str = ""
    digits: int = 2
    wraps: bool = False

    @property
    def header(self) -> str:
        """Title, and the unit below it."""
        stem, _, unit = self.key.rpartition("_")
        known = stem and unit in _UNITS
        title = self.title or (stem if known else self.key).replace("_", " ")
        return f"{title}\n{_UNITS[unit]}" if known else title


def records_table(title: str, rows: Sequence[Mapping[str, Cell]], columns: Sequence[Column] = ()) -> Table:
    """A table with a row for each record; by default a column for each key of the first one.

    A column is aligned to the right if all it holds are numbers. A column that holds nothing is left out. A record
    without a column's key has an empty cell there, one with None a dash.
    """
    table = Table(
        title=Text(title) if title else None,
        title_justify="left",
        title_style="bold",
        box=box.SIMPLE_HEAD,
        show_edge=False,
        pad_edge=False,
        padding=0,
        header_style="bold",
    )
    chosen = columns or [Column(key) for key in (rows[0] if rows else {})]
    kept = [column for column in chosen if not rows or any(row.get(column.key) is not None for row in rows)]
    for column in kept:
        words = any(isinstance(row.get(column.key), str) for row in rows)
        table.add_column(
            Text(column.header),
            justify="left" if words else "right",
            overflow="fold",
            no_wrap=words and not column.wraps,
            vertical="top",
        )
    for row in rows:
        table.add_row(
            *(Text(spelled(row[column.key], column.digits) if column.key in row else "") for column in kept)
        )
    return table


def plain_text(table: Table) -> str:
    """A table as text without colour, as wide as it needs to be."""
    written = StringIO()
    Console(file=written, width=_PLAIN_LETTERS, no_color=True).print(table)
    return "\n".join(line.rstrip() for line in written.getvalue().splitlines())


def spelled(value: Cell, digits: int = 2) -> str:
    """A cell as text: thousands apart, counts beyond twelve digits as powers of ten."""
    if value is None:
        return ABSENT
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}" if abs(value) < 10**12 else f"{value:.3e}"
    if isinstance(value, float):
        return f"{value:,.{digits}f}" if abs(value) < 1e12 else f"{value:.3e}"
    return value


def cases_table(cases: Sequence[Mapping[str, str]]) -> Table:
    """An answer case by case; cells that do not fit go on in the next line."""
    keys = dict.fromkeys(key for case in cases for key in case)
    return records_table(
        "",
        [{key: case.get(key, "") for key in keys} for case in cases],
        [Column(key, key, wraps=True) for key in keys],
    )


def comparison_table(title: str, rows: Sequence[ComparisonRow]) -> Table:
    """Schedulers side by side; ties with the best are marked. Bounds and published figures appear where one is known: the
    error of a figure that took part in the fit is in-sample, and beside it stands that of a fit without the network."""
    best = best_row(rows)
    columns = [
        Column("scheduler"),
        Column("latency_ms", digits=3),
        Column("speedup_x", "gain"),
        Column("stages"),
        Column("streams"),
        Column("search_s"),
        Column("bound_ms", digits=3),
        Column("gap_percent", digits=1),
        Column("published_ms", "pub-\nlished"),
        Column("error_percent", digits=1),
        Column("in_sample_percent", "in-\nsample", digits=1),
        Column("left_out_percent", "left\nout", digits=1),
    ]
    return records_table(title, [_comparison_record(row, best) for row in rows], columns)


def _comparison_record(row: ComparisonRow, best: ComparisonRow | None) -> dict[str, Cell]:
    is_tie = best is not None and row is not best and row.scheduler in best.ties
    return {
        "scheduler": f"{row.scheduler} {TIE}" if is_tie else row.scheduler,
        "latency_ms": row.latency_us / 1000,
        "speedup_x": row.speedup,
        "stages": row.stages,
        "streams": row.streams,
        "search_s": row.search_s,
        "bound_ms": None if row.lower_bound_us is None else row.lower_bound_us / 1000,
        "gap_percent": row.gap_percent,
        "published_ms": None if row.published_us is None else row.published_us / 1000,
        "error_percent": row.error_percent if row.left_out_us is None else None,
        "in_sample_percent": None if row.left_out_us is None else row.error_percent,
        "left_out_percent": row.left_out_percent,
    }


def schedule_table(schedule: Schedule) -> Table:
    """A schedule stage by stage: what runs side by side (a line a group), and what it costs."""
    rows: list[dict[str, Cell]] = []
    number = 0
    for block in schedule.blocks:
        for index, stage in enumerate(block.stages):
            rows.append(
                {
                    "stage": number,
                    "block": "" if index else block.name,
                    "boundary_us": stage.boundary_us,
                    "latency_us": stage.latency_us,
                    "groups": "\n".join(_group_line(group, stage.strategy) for group in stage.groups),
                }
            )
            number += 1
    columns = [
        Column("stage"),
        Column("block"),
        Column("boundary_us", "before", digits=1),
        Column("latency_us", digits=1),
        Column("groups", "groups (one a line, > in order)", wraps=True),
    ]
    title = (
        f"{schedule.network} on {schedule.device}, batch {schedule.source.batch}, {schedule.precision}, "
        f"{schedule.scheduler}: {schedule.latency_us / 1000:.3f} ms"
    )
    return records_table(title, rows, columns)


def _group_line(group: Sequence[str], strategy: Strategy) -> str:
    return "merge: " + " + ".join(group) if strategy is Strategy.MERGE else " > ".join(group)
