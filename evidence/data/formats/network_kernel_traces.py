"""Convolutions among the kernels of whole networks, one per row in launch order, by PyTorch's profiler.

Columns are ``network``, ``torch_op``, ``torch_op_index_of_its_kind``, ``kernel_name``, ``duration_us`` and the shape of
the operator (``shape_in_c`` ...) in one row of it. A convolution takes the sum of its kernels. Their names show that
they multiply in TF32. An operator of several product kernels holds the trials of cuDNN's benchmark, which runs at the
first of each shape; each batch is a separate network; both are left out, as are operators without a shape.
"""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Any

from iossim.hardware.lowering.kernel import Issue
from iossim.ir.types import Precision
from iossim.measurements.formats import Format
from iossim.measurements.measurement import Header, Measurement, MeasurementSet, device_of
from iossim.measurements.operator_kinds import read_record
from iossim.measurements.text_files import Row, header_cells, number, parse_table, read_file

_TELLING = {"kernel_index", "torch_op", "kernel_name", "duration_us"}
_BOARDS = {"RTX A5000": "rtx-a5000"}
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


def is_trace_of_kernels(head: str) -> bool:
    """True where a file that begins with this text is such a table."""
    return not head.startswith(("#", "{", "[")) and set(header_cells(head)) >= _TELLING


def _read(path: Path, device: str | None) -> MeasurementSet:
    calls: defaultdict[tuple[str, str], list[Row]] = defaultdict(list)
    rows = parse_table(read_file(path), path).rows
    for row in rows:
        if row.cells["torch_op"] == "aten::conv2d":
            calls[str(row.cells["network"]), str(row.cells["torch_op_index_of_its_kind"])].append(row.cells)
    found, trials = [], 0
    for kernels in calls.values():
        shape = next((cells for cells in kernels if cells.get("shape_in_c")), None)
        products = sum(str(cells["kernel_name"]).startswith(_PRODUCTS) for cells in kernels)
        if shape is None or products > 1:
            trials += 1
            continue
        record: dict[str, Any] = {"op": "conv", "batch": shape["batch"]}
        record |= {name: shape[f"shape_{column}"] for name, column in _COLUMNS.items()}
        duration_us = sum(number(cells, "duration_us") for cells in kernels)
        found.append(Measurement(read_record(record, Precision.TF32), duration_us))
    board = str(rows[0].cells["device"]) if rows else ""
    header = Header(
        device=device_of(path, _BOARDS.get(board, board), device),
        data_set=path.name.removesuffix(".csv"),
        libraries={"pytorch": "unknown", "cudnn": "8"},
        precision=Precision.TF32,
        includes_gaps=False,
        issue=Issue.STREAM,
        resolution_us=1.0,
        source="kernels of networks by PyTorch's profiler",
    )
    return MeasurementSet(
        header, tuple(found), (), (f"{trials} convolutions left out: with trials, or without a shape",)
    )


FORMAT = Format("kernels of networks in the order of their launch", lambda path, head: is_trace_of_kernels(head), _read)
