"""A CSV table of operators in, the same table with predictions out.

The columns are those of measured tables (see ``operator_kinds``); the kind of all rows is given, or a column ``op`` says
it row by row. A column ``precision`` (or ``dtype``) says in what a row is computed, where that is not as in all others.
Columns that are no sizes are kept and otherwise ignored, so that a table of measurements can be predicted
as it is; one that has the name of a predicted column goes on as ``input_NAME``.
"""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from iossim.errors import IossimError, did_you_mean
from iossim.ir.types import Precision
from iossim.measurements.kinds.kind import RecordError
from iossim.measurements.operator import Operator
from iossim.measurements.operator_kinds import SHAPE_COLUMNS, RecordReader, kind_named
from iossim.prediction.predict import Prediction, rounded
from iossim.user_files import read_text

PREDICTED_COLUMNS = ("gpu_time_us", "low_us", "high_us", "algorithm", "kernels")

#: Columns that say a row's precision: as measured tables call it, and as options do.
PRECISION_COLUMNS = ("precision", "dtype")


class OperatorTableError(IossimError):
    """A table of operators that cannot be read."""


@dataclass(frozen=True)
class OperatorTable:
    """A table as text, and the operator of each of its rows."""

    columns: tuple[str, ...]
    rows: tuple[dict[str, str], ...]
    operators: tuple[Operator, ...]


def read_operators(path: Path, kind: str | None = None, precision: Precision = Precision.FP32) -> OperatorTable:
    """The operators of a table; raises OperatorTableError naming the file, the line and the column.

    ``kind`` is that of all rows; where it is None, the column ``op`` says it. ``precision`` is that of rows which say none.
    """
    where = f"operator table {path}"
    text = read_text(path, "operator table", "give a CSV file with a row for each operator", OperatorTableError)
    lines = text.removeprefix("\ufeff").splitlines(keepends=True)
    # Comment lines, as a measurement set has in front, count as lines.
    first = next((index for index, line in enumerate(lines) if line.strip() and not line.startswith("#")), None)
    if first is None:
        raise OperatorTableError(f"{where} is empty; give a header line and a row for each operator")
    reader = csv.reader(io.StringIO("".join(lines[first:]), newline=""), strict=True)
    rows: list[dict[str, str]] = []
    operators: list[Operator] = []
    columns: tuple[str, ...] = ()
    line = first + 1
    try:
        columns = tuple(cell.strip() for cell in next(reader))
        _check_columns(columns, kind, where)
        read = _RowKinds(columns, kind, precision)
        begin = reader.line_num
        for cells in reader:
            line, begin = first + begin + 1, reader.line_num
            if not any(cell.strip() for cell in cells):
                continue
            if len(cells) != len(columns):
                raise OperatorTableError(
                    f"{where}: line {line} has {len(cells)} cells, the header has {len(columns)}; correct the line"
                )
            row = dict(zip(columns, cells, strict=True))
            operators.append(read(row))
            rows.append(row)
    except RecordError as error:
        place = f"line {line}" + (f", column {error.column}" if error.column else "")
        raise OperatorTableError(f"{where}: {place}: {error}; correct the line") from None
    except csv.Error as error:
        raise OperatorTableError(f"{where}: line {first + reader.line_num} is not CSV: {error}; correct it") from None
    if not rows:
        raise OperatorTableError(f"{where} has no rows; add one for each operator")
    return OperatorTable(columns, tuple(rows), tuple(operators))


def _check_columns(columns: Sequence[str], kind: str | None, where: str) -> None:
    """Refuse a header that names a column twice, or that names no kind or too few columns of it."""
    repeated = [name for index, name in enumerate(columns) if name and name in columns[:index]]
    if repeated:
        raise OperatorTableError(f"{where}: column {repeated[0]!r} is there twice; remove one")
    if set(PRECISION_COLUMNS) <= set(columns):
        raise OperatorTableError(f"{where}: columns {' and '.join(PRECISION_COLUMNS)} say one thing; remove one")
    if kind is None and "op" not in columns:
        raise OperatorTableError(f"{where}: the column 'op' is missing; add it, or give the kind with `op`")
    try:
        if kind is not None:
            RecordReader(kind_named(kind), columns)
    except RecordError as error:
        if error.column == "op":
            raise OperatorTableError(f"{where}: `op`: {error}") from None
        has = [name for name in columns if name in SHAPE_COLUMNS]
        found = f"its columns of sizes are {', '.join(has)}" if has else "it has no column of sizes"
        raise OperatorTableError(
            f"{where}: line 1, column {error.column}: {error}; {found}; add it, or give another kind with `op`"
        ) from None


class _RowKinds:
    """Reads each row by its kind."""

    def __init__(self, columns: Sequence[str], kind: str | None, precision: Precision) -> None:
        self._columns = columns
        self._kind = kind
        self._precision = precision
        self._precision_column = next((name for name in PRECISION_COLUMNS if name in columns), None)
        self._readers: dict[tuple[str, frozenset[str]], RecordReader] = {}

    def __call__(self, row: dict[str, str]) -> Operator:
        name = self._kind if self._kind is not None else row["op"].strip()
        present = row
        if self._kind is None:
            # In a table of several kinds, a cell of another kind's column is empty.
            present = {column: cell for column, cell in row.items() if cell.strip()}
        key = (name, frozenset(present))
        reader = self._readers.get(key)
        if reader is None:
            reader = self._readers[key] = RecordReader(kind_named(name), present)
        return reader(present, self._precision_of(row))

    def _precision_of(self, row: dict[str, str]) -> Precision:
        column = self._precision_column
        name = row[column].strip() if column else ""
        if not name:
            return self._precision
        try:
            return Precision(name)
        except ValueError:
            raise RecordError(
                f"{column} {name!r} is unknown; {did_you_mean(name, list(Precision))}", column
            ) from None


def predicted_csv(table: OperatorTable, predictions: Sequence[Prediction]) -> str:
    """The table with the predicted columns behind its own, as CSV; kernels have ``;`` between them."""
    names = _kept_names(table.columns)
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow([*names, *PREDICTED_COLUMNS])
    for row, prediction in zip(table.rows, predictions, strict=True):
        own = _predicted(prediction)
        writer.writerow([*row.values(), *(own[name] for name in PREDICTED_COLUMNS[:-1]), ";".join(own["kernels"])])
    return stream.getvalue()


def predicted_json(table: OperatorTable, predictions: Sequence[Prediction]) -> str:
    """A list of objects, one a row, numbers as numbers."""
    names = _kept_names(table.columns)
    return json.dumps(
        [
            dict(zip(names, map(_number_or_text, row.values()), strict=True)) | _predicted(prediction)
            for row, prediction in zip(table.rows, predictions, strict=True)
        ],
        indent=1,
    )


def _predicted(prediction: Prediction) -> dict[str, Any]:
    times = {name: rounded(getattr(prediction, name)) for name in PREDICTED_COLUMNS[:3]}
    return times | {"algorithm": prediction.algorithm, "kernels": list(prediction.kernels)}


def _kept_names(columns: Sequence[str]) -> list[str]:
    """The names of the input's columns, where a predicted one has the same: ``input_NAME``."""
    taken = {*columns, *PREDICTED_COLUMNS}
    names = []
    for name in columns:
        kept = name
        while kept in PREDICTED_COLUMNS or (kept != name and kept in taken):
            kept = f"input_{kept}"
        taken.add(kept)
        names.append(kept)
    return names


def _number_or_text(cell: str) -> int | float | str:
    for read in (int, float):
        try:
            value = read(cell)
        except ValueError:
            continue
        if math.isfinite(value):
            return value
    return cell
