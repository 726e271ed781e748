"""Location and reading of the tables of concurrent kernels: every row counts, and an unreadable one is an error."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import pandas

from evidence.data.data_sets import shared_data
from iossim.measurements.measurement import unusable
from iossim.measurements.text_files import (
    NumberedRow,
    Row,
    RowError,
    number,
    optional_count,
    optional_number,
    parse_table,
    read_file,
)

T = TypeVar("T")


def concurrency_data() -> Path:
    """Folder of the tables, which may not exist."""
    return shared_data() / "concurrency"


def read_rows(path: Path, read: Callable[[NumberedRow], T]) -> list[T]:
    """Results of ``read`` for each row; raises MeasurementError naming the line of one that it cannot read, or that is
    not as wide as the header.
    """
    if not path.exists():
        raise unusable(path, "there is no such table; name the folder of the tables with IOSSIM_SHARED")
    table = parse_table(read_file(path), path)
    for reason, lines in table.sieve.dropped.items():
        raise unusable(path, f"line {lines[0]}: {reason}; correct the line")
    found = []
    for row in table.rows:
        try:
            found.append(read(row))
        except RowError as error:
            raise unusable(path, f"line {row.line}: {error}; correct the line") from None
        except KeyError as error:
            raise unusable(path, f"there is no column {error}; give the table as it was") from None
    return found


def count(cells: Row, column: str) -> int:
    """A whole number of 0 or more; raises RowError."""
    found = optional_count(cells, column)
    if found is None:
        raise RowError(f"{column} is empty")
    return found


def read_table(
    path: Path,
    counts: Sequence[str] = (),
    numbers: Sequence[str] = (),
    optional: Sequence[str] = (),
    among: Callable[[Row], bool] = lambda cells: True,
) -> pandas.DataFrame:
    """A table with whole numbers in ``counts``, positive ones in ``numbers``, and ones or nan in ``optional``.

    Other columns are text, and rows other than those ``among`` are left out. Columns of ``ms`` become ``us``. Raises
    MeasurementError naming the line of a row that cannot be read.
    """

    def read(row: NumberedRow) -> dict[str, Any] | None:
        if not among(row.cells):
            return None
        cells = dict(row.cells)
        for columns, convert in ((counts, count), (numbers, number), (optional, optional_number)):
            cells |= {name: convert(row.cells, name) for name in columns}
        return cells

    table = pandas.DataFrame([cells for cells in read_rows(path, read) if cells is not None])
    table[list(optional)] = table[list(optional)].astype(float)
    times = [name for name in numbers if name.endswith("_ms")]
    table[times] *= 1e3
    return table.rename(columns={name: f"{name.removesuffix('_ms')}_us" for name in times})
