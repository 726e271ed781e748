"""Tables of public data sets: a format for each set of columns, and a measurement set for each board in a table."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Set
from pathlib import Path
from typing import Any

from iossim.ir.types import Precision
from iossim.measurements.formats import Format
from iossim.measurements.kinds import RecordError
from iossim.measurements.measurement import Header, Measurement, MeasurementSet, device_of_product, unusable
from iossim.measurements.text_files import NumberedRow, Row, RowError, header_cells, parse_table, read_file

#: Boards whose names in tables are not those of a driver. Where names are ambiguous, rates identify the board: the
#: element-wise layers of ``a100`` move 1.7 TB/s, which among the A100s only those of 80 GB do; pooling on the Titan X
#: moves 0.23 TB/s, two thirds of the rate of Maxwell's memory and half of Pascal's. V100s of a cloud have SXM2 sockets.
_BOARDS = {
    "A100": "a100-sxm-40gb",
    "a100": "a100-pcie-80gb",
    "H100-SXM5-80GB": "h100-sxm",
    "H200-SXM5-141GB": "h200-sxm",
    "TITANX": "titan-x",
    "V100 (DGX-1)": "v100-sxm2",
    "V100-16GB (GCP n1)": "v100-sxm2",
}

#: A board, and what distinguishes its recordings in the table: the end of the set's name, which may be empty.
Key = tuple[str, str]


class LeftOutError(Exception):
    """A row without an operator here; the text is the reason, equal for all such rows."""


def board_named(name: object) -> str:
    """A board's profile by its name in a table."""
    return _BOARDS.get(str(name)) or device_of_product(str(name))


def sets_of_boards(
    path: Path,
    read: Callable[[Row], tuple[Key, Measurement]],
    prepare: Callable[[list[NumberedRow]], Iterable[NumberedRow]] = iter,
    **header: Any,
) -> tuple[MeasurementSet, ...]:
    """Sets of a table, by the keys that ``read`` finds in its rows, in the order of their first rows.

    ``prepare`` replaces the rows; ``header`` are the fields of all headers. Rows for which ``read`` raises RowError or
    RecordError are dropped, those with :class:`LeftOutError` counted; the first set's notes say so.
    """
    table = parse_table(read_file(path), path)
    left_out: Counter[str] = Counter()
    found: dict[Key, list[Measurement]] = {}
    for row in prepare(table.rows):
        try:
            key, measurement = read(row.cells)
        except LeftOutError as reason:
            left_out[str(reason)] += 1
            continue
        except (RowError, RecordError) as error:
            table.sieve.drop(row.line, str(error))
        else:
            found.setdefault(key, []).append(measurement)
        table.sieve.total += 1
    notes = (*table.sieve.notes(), *(f"{count:,} rows left out: {why}" for why, count in left_out.items()))
    sets: list[MeasurementSet] = []
    for (board, recording), rows in found.items():
        precisions = {row.operator.precision for row in rows}
        default = precisions.pop() if len(precisions) == 1 else Precision.FP32
        name = ".".join(filter(None, (path.name.removesuffix(".csv"), recording)))
        fields = {"device": board, "data_set": name, "precision": default} | header
        sets.append(MeasurementSet(Header(**fields), tuple(rows), (), () if sets else notes))
    return tuple(sets)


def table_format(
    title: str, is_such: Callable[[Set[str]], bool], read_sets: Callable[[Path], tuple[MeasurementSet, ...]]
) -> Format:
    """Format of the CSV files whose columns fulfil a condition."""

    def recognises(path: Path, head: str) -> bool:
        return not head.startswith(("#", "{", "[")) and is_such(set(header_cells(head)))

    return Format(title, recognises, lambda path, device: _of_device(path, read_sets(path), device), read_sets)


def _of_device(path: Path, sets: tuple[MeasurementSet, ...], device: str | None) -> MeasurementSet:
    """The set of a device in a file, or its only one. Raises MeasurementError naming the devices."""
    chosen = [one for one in sets if device in (None, one.device)]
    if len(chosen) == 1:
        return chosen[0]
    names = ", ".join(one.device for one in sets) or "no device"
    said = (
        "; give one of them with `device`" if device is None else f", not on {device}; give `device` with one of them"
    )
    raise unusable(path, f"recorded on {names}{said}")
