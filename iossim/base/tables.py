"""Tables for the terminal: numbers to the right, units in the headers, legible at 80 columns and without colour.

If a table is wider than the terminal, names lose their beginning first (replaced by an ellipsis), then long texts
wrap. Numbers are never cut.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from io import StringIO

from rich import box
from rich.console import Console, ConsoleOptions, RenderResult
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

Cell = str | int | float | bool | None

#: A dash marks an unknown value.
ABSENT = "-"
#: Upper limit of a plain-text table's width.
_PLAIN_LETTERS = 200
#: Least width of a column of shortened names, and of one of wrapped texts, in characters.
_LEAST_LETTERS, _LEAST_WRAPPED = 12, 7
#: If the last part of a column's name is a unit, it goes to the second line of the header.
_UNITS = {
    "us": "us", "ms": "ms", "s": "s", "percent": "%", "x": "x", "ghz": "GHz", "mhz": "MHz", "gbps": "GB/s",
    "bytes": "bytes", "kib": "KiB", "mib": "MiB", "gib": "GiB", "gmacs": "GMACs", "tflops": "TFLOP/s",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table: ``key`` names the cell of each row, and by its ending the unit.

    ``digits`` are the decimals of floats; ``wraps`` lets long text continue on the next line; ``shortens`` lets names
    lose their beginning, so that a row stays on one line.
    """

    key: str
    title: str = ""
    digits: int = 2
    wraps: bool = False
    shortens: bool = False

    @property
    def header(self) -> str:
        """The title, and the unit below it."""
        stem, _, unit = self.key.rpartition("_")
        known = stem and unit in _UNITS
        title = self.title or (stem if known else self.key).replace("_", " ")
        return f"{title}\n{_UNITS[unit]}" if known else title


def records_table(title: str, rows: Sequence[Mapping[str, Cell]], columns: Sequence[Column] = ()) -> Table:
    """A table with a row for each record; by default a column for each key of the first one.

    A column of numbers only is aligned to the right. A column without values is left out. A record without a
    column's key has an empty cell there, one with None a dash.
    """
    table = _Records(
        title=Text(title) if title else None,
        title_justify="left",
        title_style="bold",
        box=box.SIMPLE_HEAD,
        show_edge=False,
        pad_edge=False,
        padding=0,
        header_style="bold",
    )
    table.gives_way = []
    chosen = columns or [Column(key) for key in (rows[0] if rows else {})]
    kept = [column for column in chosen if not rows or any(row.get(column.key) is not None for row in rows)]
    cells = [[spelled(row[each.key], each.digits) if each.key in row else "" for each in kept] for row in rows]
    for index, column in enumerate(kept):
        lines = [line for text in (column.header, *(row[index] for row in cells)) for line in text.split("\n")]
        table.add_column(
            Text(column.header),
            justify="left" if any(isinstance(row.get(column.key), str) for row in rows) else "right",
            overflow="fold",
            vertical="top",
        )
        table.gives_way.append(_GivesWay(max(map(len, lines)), column.wraps, column.shortens))
    for row in cells:
        table.add_row(*(_Name(text) if each.shortens else Text(text) for each, text in zip(kept, row, strict=True)))
    return table


def keyed_table(
    title: str,
    rows: Sequence[Mapping[str, Cell]],
    *,
    titles: Mapping[str, str] | None = None,
    wraps: Sequence[str] = (),
    shortens: Sequence[str] = (),
    digits: Mapping[str, int] | int = 2,
) -> Table:
    """A table with a column for each key of the first row; a :class:`Column`'s options by key."""
    of_floats = {} if isinstance(digits, int) else digits
    usual = digits if isinstance(digits, int) else 2
    columns = [
        Column(key, (titles or {}).get(key, ""), of_floats.get(key, usual), key in wraps, key in shortens)
        for key in (rows[0] if rows else ())
    ]
    return records_table(title, rows, columns)


def described_table(package: str, name: str, title: str, rows: Sequence[Mapping[str, Cell]], **more: object) -> Table:
    """A table with a column for each key of the rows, the longest first, as ``tables.yaml`` and ``more`` say."""
    from iossim.base.shipped_yaml import shipped

    options = shipped(package, "tables.yaml")[name] | more
    keys = dict.fromkeys(key for row in sorted(rows, key=len, reverse=True) for key in row)
    columns = [Column(key, **options.get(key, {})) for key in keys]
    return records_table(title, rows, columns)


@dataclass(frozen=True, slots=True)
class _GivesWay:
    """Full width of a column, and how it shrinks when there is no room."""

    letters: int
    wraps: bool
    shortens: bool

    @property
    def least(self) -> int:
        if self.shortens:
            return min(self.letters, _LEAST_LETTERS)
        return min(self.letters, _LEAST_WRAPPED) if self.wraps else self.letters


class _Records(Table):
    """A table that fits the console it is printed on."""

    gives_way: list[_GivesWay]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        widths = [each.letters for each in self.gives_way]
        room = options.max_width - len(widths) + 1
        while sum(widths) > room:
            longest = max(
                (index for index, each in enumerate(self.gives_way) if each.shortens and widths[index] > each.least),
                key=widths.__getitem__,
                default=None,
            )
            if longest is None:
                break
            widths[longest] -= 1
        # In a terminal too narrow for the numbers, they fold, so that none loses a digit.
        fits = sum(each.least for each in self.gives_way) <= room
        for column, each, width in zip(self.columns, self.gives_way, widths, strict=True):
            column.width = width if each.shortens and fits else None
            column.no_wrap = fits and not each.wraps
        return super().__rich_console__(console, options)


@dataclass(frozen=True, slots=True)
class _Name:
    """A name on one line; if there is no room for all of it, its end is shown."""

    text: str

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        return Measurement(min(len(self.text), _LEAST_LETTERS), len(self.text))

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        width = options.max_width
        yield Text(self.text if len(self.text) <= width else f"…{self.text[len(self.text) - width + 1 :]}")


def number_of(cell: Cell) -> float:
    """A cell as a number; 0 for other cells."""
    return float(cell) if isinstance(cell, int | float) else 0.0


def csv_text(rows: Iterable[Iterable[object]]) -> str:
    """Rows of cells as CSV."""
    written = StringIO()
    csv.writer(written, lineterminator="\n").writerows(rows)
    return written.getvalue()


def plain_text(table: Table) -> str:
    """A table as text without colour, at its natural width."""
    written = StringIO()
    Console(file=written, width=_PLAIN_LETTERS, no_color=True).print(table)
    return "\n".join(line.rstrip() for line in written.getvalue().splitlines())


def spelled(value: Cell, digits: int = 2) -> str:
    """A cell as text: thousands separated, counts beyond twelve digits as powers of ten."""
    if value is None:
        return ABSENT
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}" if abs(value) < 10**12 else f"{value:.3e}"
    if isinstance(value, float):
        return f"{value:,.{digits}f}" if abs(value) < 1e12 else f"{value:.3e}"
    return value
