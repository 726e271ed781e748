"""Tables of one kind of operator without a header: ``KIND.DEVICE.csv``.

The file's name gives the kind of its rows. Optional columns are those of iossim's own format, such as ``algorithm``;
``grid_x`` ... ``block_z`` are of the main kernel. A table with the column ``row`` was recorded through a framework,
call by call in that order: its times include the host's overhead, which drifts if the framework searches for the
fastest algorithm of each new shape. Any other table has back-to-back direct calls, without the host's overhead.
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from iossim.measurements.formats import Format
from iossim.measurements.measurement import Header, MeasurementSet, device_of, unusable
from iossim.measurements.operator_kinds import ALIASES, KINDS, SHAPE_COLUMNS, kind_named, missing_columns
from iossim.measurements.text_files import SET_READERS, RowReader, Table, header_cells, parse_table, read_file

#: Kinds for which frameworks search for an algorithm, so that the host's overhead drifts.
_DRIFTING = ("conv",)


def _said_by_name(path: Path) -> tuple[str | None, str | None]:
    """The kind and the device in ``KIND.DEVICE.csv``; None for the parts missing in the name."""
    kind, _, rest = path.name.partition(".")
    if kind not in KINDS and kind not in ALIASES:
        return None, None
    device, dot, _ = rest.partition(".")
    return kind, device if dot and device else None


def is_table_of_operators(head: str) -> bool:
    """True where the first line of a file names columns of operators."""
    if head.lstrip().startswith(("{", "[")):
        return False
    columns = header_cells(head)
    if "duration_ns" in columns or {"kernel_index", "torch_op"} <= set(columns):
        return False  # operators or kernels of networks are other formats
    return len(columns) > 1 and any(column in SHAPE_COLUMNS for column in columns)


def kind_of_table(path: Path, columns: Collection[str]) -> str:
    """The kind of all rows, by the file's name; raises MeasurementError if it names none, or columns are missing."""
    named, _ = _said_by_name(path)
    if named is None:
        raise unusable(path, "nothing says which operators it is of; name it KIND.DEVICE.csv, or add a column 'op'")
    if missing := missing_columns(kind_named(named), columns):
        fitting = ", ".join(kind.name for kind in KINDS.values() if not missing_columns(kind, columns))
        hint = f"its columns are those of {fitting}; name it so" if fitting else "add it"
        raise unusable(path, f"named a table of {named}, but the column {missing[0]} is missing; {hint}")
    return named


def _recognises(path: Path, head: str) -> bool:
    return not head.startswith("#") and is_table_of_operators(head)


def _read(path: Path, device: str | None) -> MeasurementSet:
    table = parse_table(read_file(path), path)
    through_framework = "row" in table.columns
    _require_latency(table, path)
    kind = None if "op" in table.columns else kind_of_table(path, table.columns)
    header = Header(
        device=device_of(path, _said_by_name(path)[1], device),
        data_set=path.name.removesuffix(".csv"),
        includes_host_overhead=through_framework,
        host_overhead_drifts=through_framework and kind in _DRIFTING,
        resolution_us=_resolution_us(table),
        source=f"table of operators {'timed through a framework' if through_framework else 'called directly'}",
    )
    measurements = tuple(table.sieve.keep(table.rows, RowReader(header, kind).measurement))
    return MeasurementSet(header, measurements, (), table.sieve.notes())


def _require_latency(table: Table, path: Path) -> None:
    if "latency_us" in table.columns:
        return
    other = next((name for name in table.columns if name.startswith(("latency", "time", "duration"))), None)
    hint = f"is it {other!r}? give microseconds in a column of that name" if other else "add it"
    raise unusable(path, f"the column latency_us is missing; {hint}")


def _resolution_us(table: Table) -> float:
    """Resolution of the times: the last decimal that is used."""
    decimals = 0
    for row in table.rows:
        fraction = str(row.cells["latency_us"]).partition(".")[2].rstrip("0")
        decimals = max(decimals, len(fraction))
    return float(10.0**-decimals)


_READERS = f"'iossim predict' reads it; {SET_READERS}, too, if it has a column latency_us"
FORMAT = Format("a table KIND.DEVICE.csv of operators", _recognises, _read, readers=_READERS)
