"""Tables for the terminal: numbers to the right, units in the headers, legible at 80 columns and without colour."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from io import StringIO

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

Cell = str | int | float | bool | None

#: A dash stands for what is not known.
ABSENT = "-"
#: No table is wider as text.
_PLAIN_LETTERS = 200
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


def number_of(cell: Cell) -> float:
    """A cell as a number; 0 for what is none."""
    return float(cell) if isinstance(cell, int | float) else 0.0


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
