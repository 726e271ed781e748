"""The text of measurement files, the rows of those that are CSV, and the conversion of rows to measurements.

:func:`parse_table` reads recordings, which occasionally have a bad row: it drops that into a :class:`Sieve`, and
detects a truncated file; a few bad rows are noted, many cause a refusal. :func:`csv_rows` reads tables written by hand,
and refuses the first invalid line. Both skip lines before the header that are empty or begin with ``#``, and count
them.

Of a file that no reader accepts, ``other_exports.yaml`` has the description, and the export to use instead.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from iossim.base.shipped_yaml import shipped
from iossim.base.user_files import LARGEST, NumberError, read_json, read_number, read_text
from iossim.base.values import LONGEST_US
from iossim.measurements.kinds import RecordError
from iossim.measurements.measurement import (
    SCHEMA,
    Extent,
    Header,
    Measurement,
    MeasurementError,
    StageMeasurement,
    unusable,
)
from iossim.measurements.operator_kinds import OperatorReader, read_record

#: Fraction of rows that may be dropped before the whole file is refused.
LARGEST_DROPPED_PART = 0.1
#: Fewer usable rows than this are not representative of a device.
FEWEST_ROWS = 5

T = TypeVar("T")
#: The cells of a row by column: values of JSON, or text in a CSV file.
Row = Mapping[str, object]
CsvCells = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class NumberedRow:
    """A row, and its line number in the file."""

    line: int
    cells: Row


@dataclass(frozen=True, slots=True)
class CsvRow(NumberedRow):
    """A row of a CSV file."""

    cells: CsvCells


class RowError(ValueError):
    """Reason why a row is not usable; the text is the same for all rows with the same fault."""


@dataclass
class Sieve:
    """Keeps the readable rows, counts the others by reason."""

    path: Path
    total: int = 0
    dropped: dict[str, list[int]] = field(default_factory=dict)

    def keep(self, rows: Iterable[NumberedRow], read: Callable[[Row], T]) -> list[T]:
        kept: list[T] = []
        for row in rows:
            self.total += 1
            try:
                kept.append(read(row.cells))
            except (RowError, RecordError) as error:
                self.drop(row.line, str(error))
        return kept

    def drop(self, line: int, reason: str) -> None:
        self.dropped.setdefault(reason, []).append(line)

    def notes(self) -> tuple[str, ...]:
        """The dropped rows, a line for each reason; raises MeasurementError if there are too many."""
        count = sum(map(len, self.dropped.values()))
        if count > LARGEST_DROPPED_PART * self.total:
            reason, lines = max(self.dropped.items(), key=lambda item: len(item[1]))
            problem = f"{count:,} of {self.total:,} rows are not usable, more than {LARGEST_DROPPED_PART:.0%}"
            raise unusable(self.path, f"{problem}; line {lines[0]}: {reason}; correct or remove them")
        return tuple(
            f"{len(lines):,} of {self.total:,} rows dropped: {reason} (first: line {lines[0]})"
            for reason, lines in self.dropped.items()
        )


def require_rows(path: Path, count: int, fewest: int = FEWEST_ROWS) -> None:
    """Raise MeasurementError if a file has fewer usable rows."""
    if count < fewest:
        raise unusable(path, f"{count} usable rows, at least {fewest} are needed; measure more operators")


def number(cells: Row, column: str) -> float:
    """A positive number, a time if the column's name ends in ``_us``; raises RowError."""
    try:
        return read_number(cells.get(column), positive=True, most=LONGEST_US if column.endswith("_us") else LARGEST)
    except NumberError as error:
        raise RowError(f"{column} {error}") from None


def optional_number(cells: Row, column: str) -> float | None:
    """The same or 0, or None if the cell is empty; raises RowError."""
    value = cells.get(column)
    if value in ("", None):
        return None
    return 0.0 if value in (0, "0", "0.0") else number(cells, column)


def optional_count(cells: Row, column: str) -> int | None:
    """An integer, or None if the cell is empty; raises RowError."""
    value = optional_number(cells, column)
    if value is not None and value != int(value):
        raise RowError(f"{column} is not a whole number")
    return None if value is None else int(value)


def extent(cells: Row, name: str) -> Extent | None:
    """``name`` as three numbers, or ``name_x``, ``name_y`` and ``name_z``; None if they are left out."""
    listed = cells.get(name)
    values: Sequence[Any] = listed if isinstance(listed, list) else [cells.get(f"{name}_{axis}") for axis in "xyz"]
    if all(value in ("", None) for value in values):
        return None
    try:
        x, y, z = (int(value) for value in values)
    except (TypeError, ValueError, OverflowError):
        raise RowError(f"{name} is not three whole numbers") from None
    if min(x, y, z) < 1:
        raise RowError(f"{name} is not three positive numbers")
    return Extent(x, y, z)


def _kernels(cells: Row, column: str) -> tuple[str, ...]:
    """Names in a list, or in a text with ``;`` between them."""
    names = cells.get(column) or ()
    if isinstance(names, str):
        names = names.split(";")
    if not isinstance(names, Sequence) or not all(isinstance(name, str) for name in names):
        raise RowError(f"{column} are not names")
    return tuple(names)


#: Columns of measurements and of stages besides their operators, in the order of files, and how a cell is read. Each
#: is a field of the value, which has its default where the cell is left out.
MEASUREMENT: dict[str, Callable[[Row, str], Any]] = {
    "latency_us": number,
    "spread_us": optional_number,
    "samples": optional_count,
    "algorithm": lambda cells, column: str(cells.get(column) or ""),
    "kernels": _kernels,
    "grid": extent,
    "block": extent,
    "is_cold": lambda cells, column: cells.get(column) in (True, "true", "True", "1"),
    "row": optional_count,
}
STAGE: dict[str, Callable[[Row, str], Any]] = {
    "latency_us": number,
    "serial_us": optional_number,
    "spread_us": optional_number,
    "samples": optional_count,
    "row": optional_count,
}


def written(found: Measurement | StageMeasurement) -> dict[str, object]:
    """The cells of a measurement or a stage besides its operators, without unknown ones."""
    cells = ((name, getattr(found, name)) for name in (MEASUREMENT if isinstance(found, Measurement) else STAGE))
    return {name: cell for name, cell in cells if cell is not None and cell is not False and cell not in ("", ())}


class RowReader:
    """Makes measurements from rows that name their operator in columns; ``kind`` is used if they have no ``op``."""

    def __init__(self, header: Header, kind: str | None = None) -> None:
        self._operator = OperatorReader(kind, header.precision)

    def measurement(self, cells: Row) -> Measurement:
        """The measurement in a row; raises RowError or RecordError."""
        return Measurement(self._operator(cells), **{name: read(cells, name) for name, read in MEASUREMENT.items()})

    def stage(self, cells: Row) -> StageMeasurement:
        """The stage in a row, lists of records; raises RowError or RecordError."""
        groups, precision = cells["stage"], self._operator.precision_of(cells)
        if not isinstance(groups, list) or not all(isinstance(group, list) for group in groups):
            raise RowError("stage is not lists of operators")
        if not all(isinstance(record, dict) for group in groups for record in group):
            raise RowError("stage is not lists of operators")
        if not groups or not all(groups):
            raise RowError("a group of the stage is empty")
        operators = tuple(tuple(read_record(record, precision) for record in group) for group in groups)
        return StageMeasurement(operators, **{name: read(cells, name) for name, read in STAGE.items()})


def read_file(path: Path) -> str:
    """The text of a file, unzipped; raises MeasurementError."""
    remedy = "give a file of measurements"
    text = read_text(path, "measurements", remedy, MeasurementError, binary_export)
    if not text.strip():
        raise unusable(path, f"the file is empty; {remedy}")
    return text


def header_cells(head: str) -> list[str]:
    """The column names in the first line that is neither empty nor a comment; empty if that is not CSV."""
    line = next((line for line in head.splitlines() if line.strip() and not line.startswith("#")), "")
    return [cell.strip() for cell in next(csv.reader([line]), [])]


class CsvError(ValueError):
    """Reason why a text is no table: ``reason`` for ``line``, or for the whole if that is None, and the ``remedy``."""

    def __init__(self, reason: str, remedy: str, line: int | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.remedy = remedy
        self.line = line


@dataclass(frozen=True)
class Table:
    """A CSV file: its columns, and its rows. Uneven rows are dropped into ``sieve``."""

    columns: tuple[str, ...]
    rows: list[NumberedRow]
    sieve: Sieve


def parse_table(text: str, path: Path) -> Table:
    """The table of CSV text; raises MeasurementError if it ends in the middle of a row."""
    try:
        columns, lines = _read_csv(text, strict=False)
    except CsvError as error:
        raise unusable(path, f"line {error.line} {error.reason}; {error.remedy}") from None
    sieve = Sieve(path)
    rows: list[NumberedRow] = []
    last, is_whole = len(lines) - 1, text.endswith(("\n", "\r"))
    for number, (line, cells) in enumerate(lines):
        is_cut = number == last and not is_whole
        if is_cut and len(cells) < len(columns):
            problem = f"cut short at line {line}, which has {len(cells)} of {len(columns)} columns"
            raise unusable(path, f"{problem}; copy or record the file again")
        if len(cells) == len(columns) and not is_cut:
            rows.append(NumberedRow(line, dict(zip(columns, cells, strict=True))))
            continue
        # The last number of a row that is cut short may have lost digits, which would go unnoticed.
        cut = "the file does not end with an end of line, so its last row may be cut short"
        sieve.total += 1
        sieve.drop(line, cut if is_cut else f"the row has not the {len(columns)} cells of the header")
    return Table(columns, rows, sieve)


@dataclass(frozen=True)
class CsvRows:
    """The columns of a table, and its non-empty rows: text by column."""

    columns: tuple[str, ...]
    rows: tuple[CsvRow, ...]


def csv_rows(text: str) -> CsvRows:
    """The rows of a table; raises CsvError if there is no header or no row, for a repeated column, and
    for a line whose number of cells differs from the header's.
    """
    columns, lines = _read_csv(text, strict=True)
    if not columns:
        raise CsvError("is empty", "give a header line and a row for each")
    for line, cells in lines:
        if len(cells) != len(columns):
            raise CsvError(f"has {len(cells)} cells, the header has {len(columns)}", "correct the line", line)
    if not lines:
        raise CsvError("has no rows", "add one for each")
    return CsvRows(columns, tuple(CsvRow(line, dict(zip(columns, cells, strict=True))) for line, cells in lines))


def _read_csv(text: str, *, strict: bool) -> tuple[tuple[str, ...], list[tuple[int, list[str]]]]:
    """The columns, and each row that is not empty, with its line.

    Raises CsvError for text that is not CSV or has another separator, and for a repeated column.
    """
    lines = text.removeprefix("\ufeff").splitlines(keepends=True)
    begins = (index for index, line in enumerate(lines) if line.strip() and not line.startswith("#"))
    first = next(begins, len(lines))
    reader = csv.reader(io.StringIO("".join(lines[first:]), newline=""), strict=strict)
    rows: list[tuple[int, list[str]]] = []
    try:
        columns = tuple(cell.strip() for cell in next(reader, []))
        begin = reader.line_num
        for cells in reader:
            line, begin = first + begin + 1, reader.line_num
            if any(cell.strip() for cell in cells):
                rows.append((line, cells))
    except csv.Error as error:
        raise CsvError(f"is not CSV: {error}", "correct it", first + reader.line_num) from None
    for separator, name in ((";", "semicolons"), ("\t", "tabs")):
        if len(columns) == 1 and separator in columns[0]:
            raise CsvError(f"has columns separated by {name}", "write commas", first + 1)
    repeated = next((name for index, name in enumerate(columns) if name and name in columns[:index]), None)
    if repeated is not None:
        raise CsvError(f"column {repeated!r} is there twice", "remove one", first + 1)
    return columns, rows


SET_READERS = "'iossim calibrate' and 'iossim validate' read it"
_REPORT_AS_TEXT = re.compile(r"\*\* .*\((\w+)\):")


@cache
def _known(section: str) -> Any:
    return shipped("iossim.measurements", "other_exports.yaml")[section]


def remedy(name: str) -> str:
    """The export to use instead of some files."""
    return str(_known("remedies")[name])


def _told(sentence: str) -> str:
    return sentence.format_map(_known("remedies"))


def binary_export(path: Path, data: bytes) -> str:
    """The name of a binary file's format, with the remedy; empty for an unknown one."""
    for mark, told in _known("binary").items():
        if path.name.endswith(mark) if mark.startswith(".") else data.startswith(mark.encode()):
            return _told(told)
    return ""


def text_export(text: str, expected: str) -> str:
    """The name of a text format that no reader accepts, with the remedy; empty for an unknown one.

    ``expected`` is the remedy for JSON that is neither a profile nor a known document.
    """
    if text.lstrip()[:1] in ("{", "["):
        return _json_export(text, expected)
    lines = text.splitlines()[:200]
    for line in lines:
        if told := _REPORT_AS_TEXT.search(line):
            return f"a report of Nsight Systems as text ({told[1]}); {remedy('nsys')}"
        columns = {re.sub(r"\s*\(.*\)", "", cell.strip()) for cell in next(csv.reader([line]), [])}
        tables = [(needed, _told(told)) for needed, told in _known("tables")]
        of_reports = "Nsight Systems' report {}, which does not have each kernel's start and grid; {}"
        reports = [(needed, of_reports.format(name, remedy("nsys"))) for name, needed in _known("reports").items()]
        for needed, sentence in (tables[0], *reports, *tables[1:]):
            if columns.issuperset(needed):
                return sentence
    return next(
        (_told(told) for pattern, told in _known("lines").items() if any(re.search(pattern, line) for line in lines)),
        "",
    )


def _json_export(text: str, expected: str) -> str:
    if f'"{SCHEMA}' in text[:4096]:
        return f"a set of measurements; {SET_READERS}"
    try:
        document = read_json(text)
    except ValueError as error:
        return f"JSON that is not whole ({error}); record it again, or {expected}"
    several = document if isinstance(document, list) else [document]
    keys = {key for one in several if isinstance(one, dict) for key in one}
    found = next((told for needed, told in _known("json") if keys.issuperset(needed)), None)
    if found:
        return _told(found)
    named = f"with the keys {', '.join(sorted(map(str, keys))[:5])}" if keys else "without any objects"
    return f"JSON {named}; {expected}"
