"""Location and reading of the tables of concurrent kernels: every row counts, and an unreadable one is an error."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from evidence.data.data_sets import shared_data
from iossim.measurements.measurement import unusable
from iossim.measurements.text_files import NumberedRow, RowError, parse_table, read_file

T = TypeVar("T")


def concurrency_data() -> Path:
    """Folder of the tables, which may not exist."""
    return shared_data() / "concurrency"


def rows_of(path: Path) -> list[NumberedRow]:
    """Rows of a table, with their lines; raises MeasurementError for a row whose width differs from the header's."""
    table = parse_table(read_file(path), path)
    for reason, lines in table.sieve.dropped.items():
        raise unusable(path, f"line {lines[0]}: {reason}; correct the line")
    return table.rows


def read_rows(path: Path, read: Callable[[NumberedRow], T]) -> list[T]:
    """Results of ``read`` for each row; raises MeasurementError naming the line of one that it cannot read."""
    found = []
    for row in rows_of(path):
        try:
            found.append(read(row))
        except RowError as error:
            raise unusable(path, f"line {row.line}: {error}; correct the line") from None
        except KeyError as error:
            raise unusable(path, f"there is no column {error}; give the table as it was") from None
    return found
