"""Fused attention as nodes of CUDA graphs, of several devices: time of a graph over its nodes, gaps included.

Columns are ``device``, ``library``, ``batch_size``, ``isl`` (tokens, of queries as of keys), ``num_heads``,
``head_dim`` and ``latency_us``. Nothing is masked.

Long rows do not measure the kernel: above 2^34 floating-point operations (some 100 us) most take two to three times the
time expected from shorter ones, and one shape differs by as much between boards of equal arithmetic.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from pathlib import Path

from evidence.data.formats.graph_products import BOARDS
from evidence.data.formats.sets_of_devices import set_of_device
from iossim.hardware.lowering.kernel import Issue
from iossim.ir.types import Precision
from iossim.measurements.formats import Format
from iossim.measurements.measurement import Header, Measurement, MeasurementSet
from iossim.measurements.operator_kinds import read_record
from iossim.measurements.text_files import header_cells, number, parse_table, read_file

_COLUMNS = {"batch": "batch_size", "heads": "num_heads", "queries": "isl", "keys": "isl", "features": "head_dim"}
#: Beyond this, the boards' state determines the time, not the shape.
_STEADY_FLOPS = 2**34
_TELLING = {"device", "library", *_COLUMNS.values(), "latency_us"}


def steady(measured: MeasurementSet) -> MeasurementSet:
    """The set without its long rows, by their arithmetic alone."""
    rows = measured.measurements
    return replace(measured, measurements=tuple(row for row in rows if _flops(row) <= _STEADY_FLOPS))


def _flops(row: Measurement) -> int:
    operator = row.operator
    return 2 * operator.op.multiply_adds(operator.inputs, operator.outputs)


def _read_sets(path: Path) -> tuple[MeasurementSet, ...]:
    found: defaultdict[str, list[Measurement]] = defaultdict(list)
    for row in parse_table(read_file(path), path).rows:
        record = {"op": "attention", **{name: row.cells[column] for name, column in _COLUMNS.items()}}
        board = str(row.cells["device"])
        measured = Measurement(read_record(record, Precision.BF16), number(row.cells, "latency_us"))
        found[BOARDS.get(board, board)].append(measured)
    return tuple(_set(path, board, rows) for board, rows in sorted(found.items()))


def _set(path: Path, board: str, rows: list[Measurement]) -> MeasurementSet:
    header = Header(
        device=board,
        data_set=f"{path.name.removesuffix('.csv')}.{board}",
        precision=Precision.BF16,
        issue=Issue.GRAPH,
        source="attention in CUDA graphs, aiconfigurator",
    )
    return MeasurementSet(header, tuple(rows))


FORMAT = Format(
    "table of attention in CUDA graphs, of several devices",
    lambda path, head: not head.startswith(("#", "{", "[")) and set(header_cells(head)) == _TELLING,
    lambda path, device: set_of_device(path, _read_sets(path), device),
    _read_sets,
)
