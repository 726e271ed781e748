"""The text of measurement files, and the rows of those that are CSV.

:func:`parse_table` reads recordings, which occasionally have a bad row: it drops that into a sieve, and detects a
truncated file. :func:`csv_rows` reads tables written by hand, and refuses the first invalid line. Both skip
lines before the header that are empty or begin with ``#``, but count them.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from iossim.base.user_files import read_text
from iossim.measurements.measurement import MeasurementError, unusable
from iossim.measurements.other_exports import binary_export
from iossim.measurements.rows import NumberedRow, Sieve


def read_file(path: Path) -> str:
    """The text of a file, unzipped; raises MeasurementError."""
    remedy = "give a file of measurements"
    text = read_text(path, "measurements", remedy, MeasurementError, binary_export)
    if not text.strip():
        raise unusable(path, f"the file is empty; {remedy}")
    return text


def header_cells(head: str) -> list[str]:
    """The column names in the first line that is not a comment; empty if that is not CSV."""
    return [cell.strip() for cell in next(csv.reader([header_line(head)]), [])]


@dataclass(frozen=True)
class Table:
    """A CSV file: its ``# key: value`` lines, its columns, its rows. Uneven rows are dropped into ``sieve``."""

    preamble: dict[str, str]
    columns: tuple[str, ...]
    rows: list[NumberedRow]
    sieve: Sieve


def parse_table(text: str, path: Path) -> Table:
    """The table of CSV text; raises MeasurementError if it ends in the middle of a row."""
    lines = text.splitlines(keepends=True)
    skipped = 0
    preamble: dict[str, str] = {}
    while skipped < len(lines) and (lines[skipped].startswith("#") or not lines[skipped].strip()):
        key, colon, value = lines[skipped].lstrip("#").partition(":")
        if colon:
            preamble[key.strip()] = value.strip()
        skipped += 1
    reader = csv.reader(io.StringIO("".join(lines[skipped:]), newline=""))
    sieve = Sieve(path)
    columns: tuple[str, ...] = ()
    rows: list[NumberedRow] = []
    uneven: list[tuple[int, Sequence[str]]] = []
    last = 0
    try:
        columns = tuple(cell.strip() for cell in next(reader, []))
        begin = reader.line_num
        for cells in reader:
            line, begin = skipped + begin + 1, reader.line_num
            if not any(cells):
                continue
            last = line
            if len(cells) == len(columns):
                rows.append(NumberedRow(line, dict(zip(columns, cells, strict=True))))
            else:
                uneven.append((line, cells))
    except csv.Error as error:
        raise unusable(path, f"line {skipped + reader.line_num} is not CSV: {error}; correct the file") from None
    repeated = [name for index, name in enumerate(columns) if name and name in columns[:index]]
    if repeated:
        raise unusable(path, f"column {repeated[0]!r} is there twice; remove one")
    ends_whole = text.endswith(("\n", "\r"))
    for line, short in uneven:
        if line == last and len(short) < len(columns) and not ends_whole:
            problem = f"cut short at line {line}, which has {len(short)} of {len(columns)} columns"
            raise unusable(path, f"{problem}; copy or record the file again")
        sieve.total += 1
        sieve.drop(line, f"the row has not the {len(columns)} cells of the header")
    if rows and rows[-1].line == last and not ends_whole:
        # Its last number may have lost digits, which would go unnoticed.
        rows.pop()
        sieve.total += 1
        sieve.drop(last, "the file does not end with an end of line, so its last row may be cut short")
    return Table(preamble, columns, rows, sieve)


class CsvError(ValueError):
    """Reason why a text is no table: ``reason`` for ``line``, or for the whole if that is None, and the ``remedy``."""

    def __init__(self, reason: str, remedy: str, line: int | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.remedy = remedy
        self.line = line


@dataclass(frozen=True)
class CsvRows:
    """The columns of a table, and its non-empty rows: text by column."""

    columns: tuple[str, ...]
    rows: tuple[NumberedRow, ...]


def header_line(text: str) -> str:
    """The first line that is neither empty nor a comment; empty if there is none."""
    return next((line for line in text.splitlines() if line.strip() and not line.startswith("#")), "")


def csv_rows(text: str) -> CsvRows:
    """The rows of a table; raises CsvError if there is no header or no row, for a repeated column, and
    for a line whose number of cells differs from the header's.
    """
    lines = text.removeprefix("\ufeff").splitlines(keepends=True)
    first = next((index for index, line in enumerate(lines) if line.strip() and not line.startswith("#")), None)
    if first is None:
        raise CsvError("is empty", "give a header line and a row for each")
    reader = csv.reader(io.StringIO("".join(lines[first:]), newline=""), strict=True)
    rows: list[NumberedRow] = []
    try:
        columns = tuple(cell.strip() for cell in next(reader))
        repeated = [name for index, name in enumerate(columns) if name and name in columns[:index]]
        if repeated:
            raise CsvError(f"column {repeated[0]!r} is there twice", "remove one", first + 1)
        begin = reader.line_num
        for cells in reader:
            line, begin = first + begin + 1, reader.line_num
            if not any(cell.strip() for cell in cells):
                continue
            if len(cells) != len(columns):
                raise CsvError(f"has {len(cells)} cells, the header has {len(columns)}", "correct the line", line)
            rows.append(NumberedRow(line, dict(zip(columns, cells, strict=True))))
    except csv.Error as error:
        raise CsvError(f"is not CSV: {error}", "correct it", first + reader.line_num) from None
    if not rows:
        raise CsvError("has no rows", "add one for each")
    return CsvRows(columns, tuple(rows))
