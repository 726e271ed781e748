"""Convolutions among the kernels of whole networks, one per row in launch order, by PyTorch's profiler.

Columns are ``network``, ``torch_op``, ``torch_op_index_of_its_kind``, ``kernel_name``, ``duration_us`` and the shape of
the operator (``shape_in_c`` ...) in one row of it. A convolution takes the sum of its kernels. Their names show that
they multiply in TF32. An operator of several product kernels holds the trials of cuDNN's benchmark, which runs at the
first of each shape; each batch is a separate network; both are left out, as are operators without a shape.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from evidence.data.formats.tables_of_boards import Key, LeftOutError, board_named, sets_of_boards, table_format
from iossim.hardware.lowering.kernel import Issue
from iossim.ir.types import Precision
from iossim.measurements.measurement import Measurement, MeasurementSet
from iossim.measurements.operator_kinds import read_record
from iossim.measurements.text_files import NumberedRow, Row, number

_TELLING = {"kernel_index", "torch_op", "kernel_name", "duration_us"}
#: Prefixes of the names of kernels that multiply, and of those around them.
_PRODUCTS = ("Kernel", "sm8", "cudnn", "implicit_convolve", "precomputed_convolve")
_COLUMNS = {
    "in_channels": "in_c",
    "out_channels": "out_c",
    "in_h": "in_h",
    "in_w": "in_w",
    "kernel": "kernel",
    "stride": "stride",
    "padding": "pad",
    "groups": "groups",
}


def _calls(rows: list[NumberedRow]) -> Iterator[NumberedRow]:
    """A row for each call of a convolution, with its ``kernels``."""
    calls: dict[tuple[str, str], list[NumberedRow]] = {}
    for row in rows:
        if row.cells["torch_op"] == "aten::conv2d":
            key = str(row.cells["network"]), str(row.cells["torch_op_index_of_its_kind"])
            calls.setdefault(key, []).append(row)
    for several in calls.values():
        yield NumberedRow(several[0].line, {"kernels": [row.cells for row in several]})


def _measurement(call: Row) -> tuple[Key, Measurement]:
    kernels: Any = call["kernels"]
    shape = next((cells for cells in kernels if cells.get("shape_in_c")), None)
    if shape is None or sum(str(cells["kernel_name"]).startswith(_PRODUCTS) for cells in kernels) > 1:
        raise LeftOutError("convolutions with trials, or without a shape")
    record: dict[str, Any] = {"op": "conv", "batch": shape["batch"]}
    record |= {name: shape[f"shape_{column}"] for name, column in _COLUMNS.items()}
    duration_us = sum(number(cells, "duration_us") for cells in kernels)
    return (board_named(shape["device"]), ""), Measurement(read_record(record, Precision.TF32), duration_us)


def _read_sets(path: Path) -> tuple[MeasurementSet, ...]:
    return sets_of_boards(
        path,
        _measurement,
        _calls,
        libraries={"pytorch": "unknown", "cudnn": "8"},
        includes_gaps=False,
        issue=Issue.STREAM,
        resolution_us=1.0,
        source="kernels of networks by PyTorch's profiler",
    )


FORMAT = table_format(
    "kernels of networks in the order of their launch", lambda columns: columns >= _TELLING, _read_sets
)
