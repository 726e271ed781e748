"""Predictions for a CSV table of operators, added as columns.

The columns are those of measured tables (see ``operator_kinds``); the kind is given for all rows, or a column ``op``
has it for each. A column ``precision`` (or ``dtype``) has the precision of rows that differ from the default. Other
columns are kept and otherwise ignored, so that a table of measurements can be predicted unchanged; one with the name of
a predicted column is renamed ``input_NAME``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from iossim.base.errors import IossimError
from iossim.base.tables import csv_text
from iossim.base.user_files import LARGEST, NumberError, read_number, read_text
from iossim.ir.types import Precision
from iossim.measurements.kinds import RecordError
from iossim.measurements.measurement import Operator
from iossim.measurements.operator_kinds import (
    PRECISION_COLUMNS,
    SHAPE_COLUMNS,
    OperatorReader,
    kind_named,
    missing_columns,
)
from iossim.measurements.text_files import CsvCells, CsvError, csv_rows
from iossim.prediction.predict import Prediction, rounded

PREDICTED_COLUMNS = ("gpu_time_us", "low_us", "high_us", "algorithm", "weights", "kernels")


class OperatorTableError(IossimError):
    """A table of operators that cannot be read."""


@dataclass(frozen=True)
class OperatorTable:
    """A table as text, and the operator of each of its rows."""

    columns: tuple[str, ...]
    rows: tuple[CsvCells, ...]
    operators: tuple[Operator, ...]


def read_operators(path: Path, kind: str | None = None, precision: Precision = Precision.FP32) -> OperatorTable:
    """Operators of a table; raises OperatorTableError naming the file, the line and the column.

    ``kind`` is that of all rows; with None the column ``op`` has it. ``precision`` applies to rows without one.
    """
    where = f"operator table {path}"
    text = read_text(path, "operator table", "give a CSV file with a row for each operator", OperatorTableError)
    try:
        table = csv_rows(text)
    except CsvError as error:
        place = where if error.line is None else f"{where}: line {error.line}"
        raise OperatorTableError(f"{place} {error.reason}; {error.remedy}") from None
    _check_columns(table.columns, kind, where)
    read = OperatorReader(kind, precision)
    operators: list[Operator] = []
    for row in table.rows:
        try:
            operators.append(read(row.cells))
        except RecordError as error:
            place = f"line {row.line}" + (f", column {error.column}" if error.column else "")
            raise OperatorTableError(f"{where}: {place}: {error}; correct the line") from None
    return OperatorTable(table.columns, tuple(row.cells for row in table.rows), tuple(operators))


def _check_columns(columns: Sequence[str], kind: str | None, where: str) -> None:
    if set(PRECISION_COLUMNS) <= set(columns):
        raise OperatorTableError(f"{where}: columns {' and '.join(PRECISION_COLUMNS)} say one thing; remove one")
    if kind is None and "op" not in columns:
        raise OperatorTableError(f"{where}: the column 'op' is missing; add it, or give the kind with `op`")
    if kind is None:
        return
    try:
        missing = missing_columns(kind_named(kind), columns)
    except RecordError as error:
        raise OperatorTableError(f"{where}: `op`: {error}") from None
    if missing:
        has = [name for name in columns if name in SHAPE_COLUMNS]
        found = f"its columns of sizes are {', '.join(has)}" if has else "it has no column of sizes"
        raise OperatorTableError(
            f"{where}: line 1, column {missing[0]}: {kind} needs the column {missing[0]}; {found}; add it, or give "
            "another kind with `op`"
        )


def predicted_csv(table: OperatorTable, predictions: Sequence[Prediction]) -> str:
    """The table with the predicted columns after its own, as CSV; kernels are separated by ``;``."""
    rows: list[list[object]] = [[*_kept_names(table.columns), *PREDICTED_COLUMNS]]
    for row, prediction in zip(table.rows, predictions, strict=True):
        own = _predicted(prediction)
        rows.append([*row.values(), *(own[name] for name in PREDICTED_COLUMNS[:-1]), ";".join(prediction.kernels)])
    return csv_text(rows)


def predicted_json(table: OperatorTable, predictions: Sequence[Prediction]) -> str:
    """A list of objects, one per row, numbers as numbers."""
    names = _kept_names(table.columns)
    return json.dumps(
        [
            dict(zip(names, map(_number_or_text, row.values()), strict=True)) | _predicted(prediction)
            for row, prediction in zip(table.rows, predictions, strict=True)
        ],
        indent=1,
    )


def _predicted(prediction: Prediction) -> dict[str, object]:
    times = {name: rounded(getattr(prediction, name)) for name in PREDICTED_COLUMNS[:3]}
    chosen = {"algorithm": prediction.algorithm, "weights": prediction.weights}
    return times | chosen | {"kernels": list(prediction.kernels)}


def _kept_names(columns: Sequence[str]) -> list[str]:
    """Names of the input's columns, ``input_NAME`` if a predicted one has the same name."""
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
    try:
        value = read_number(cell, least=-LARGEST)
    except NumberError:
        return cell
    return int(cell) if re.fullmatch(r"\s*[+-]?\d+\s*", cell) else value
