"""Fused attention as nodes of CUDA graphs, of several devices: time of a graph over its nodes, gaps included.

Columns are ``device``, ``library``, ``batch_size``, ``isl`` (tokens, of queries as of keys), ``num_heads``,
``head_dim`` and ``latency_us``. Nothing is masked.

Long rows do not measure the kernel: above 2^34 floating-point operations (some 100 us) most take two to three times the
time expected from shorter ones, and one shape differs by as much between boards of equal arithmetic.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from evidence.data.formats.tables_of_boards import Key, board_named, sets_of_boards, table_format
from iossim.hardware.lowering.kernel import Issue
from iossim.ir.types import Precision
from iossim.measurements.measurement import Measurement, MeasurementSet
from iossim.measurements.operator_kinds import read_record
from iossim.measurements.text_files import Row, number

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


def _measurement(cells: Row) -> tuple[Key, Measurement]:
    record = {"op": "attention", **{name: cells[column] for name, column in _COLUMNS.items()}}
    board = board_named(cells["device"])
    return (board, board), Measurement(read_record(record, Precision.BF16), number(cells, "latency_us"))


def _read_sets(path: Path) -> tuple[MeasurementSet, ...]:
    return sets_of_boards(path, _measurement, issue=Issue.GRAPH, source="attention in CUDA graphs, aiconfigurator")


FORMAT = table_format(
    "table of attention in CUDA graphs, of several devices", lambda columns: columns == _TELLING, _read_sets
)
