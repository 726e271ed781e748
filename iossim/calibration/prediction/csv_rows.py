"""CSV tables that people write by hand: their rows, each with the line that it begins on, and what is wrong in a line.

Lines before the header that are empty or begin with ``#`` are passed over, but count. A cell may go on over several lines.
"""

from __future__ import annotations

import csv
import io
from dataclasses import dataclass

from iossim.measurements.rows import NumberedRow


class CsvError(ValueError):
    """Why a text is no table: ``reason`` of ``line``, or of the whole where that is None, and the ``remedy``."""

    def __init__(self, reason: str, remedy: str, line: int | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.remedy = remedy
        self.line = line


@dataclass(frozen=True)
class CsvRows:
    """The columns of a table, and its rows that are not empty: text by column."""

    columns: tuple[str, ...]
    rows: tuple[NumberedRow, ...]


def header_line(text: str) -> str:
    """The first line that is not empty and no comment; empty where there is none."""
    return next((line for line in text.splitlines() if line.strip() and not line.startswith("#")), "")


def csv_rows(text: str) -> CsvRows:
    """The rows of a table; raises CsvError for what has no header or no rows, for a column that is there twice, and for a
    line that has not the header's cells."""
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
