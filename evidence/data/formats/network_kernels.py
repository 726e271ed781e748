"""Operators of networks by Nsight Compute, in sequence: one row per operator, ``duration_ns``.

Columns are ``device``, ``network``, ``index``, ``batch``, ``dtype``, ``op``, the shape (``in_c``, ``in_h``, ``in_w``,
``out_c``, ``kernel``, ``stride``, ``pad``, ``groups``) and ``duration_ns`` of the kernel. The framework's libraries
ran: convolutions are cuDNN 7.6's, depthwise ones PyTorch's own.

Nsight Compute flushes caches before each kernel by default, and locks the clock to its base. Batch normalisation as a
separate operator has no columns and is left out.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

from iossim.hardware.lowering.kernel import Issue
from iossim.ir.types import Precision
from iossim.measurements.formats import Format
from iossim.measurements.kinds import RecordError
from iossim.measurements.measurement import Header, Measurement, MeasurementSet, device_of, unusable
from iossim.measurements.operator_kinds import read_record
from iossim.measurements.text_files import Row, header_cells, number, parse_table, read_file

_TELLING = {"device", "network", "op", "in_c", "out_c", "duration_ns"}
#: Names of boards in such tables; those of this cloud have 16 GB and SXM2 sockets.
_BOARDS = {"V100-16GB (GCP n1)": "v100-sxm2"}
_BASE_CLOCK_GHZ = 1.29
_WINDOW = {"kernel": "kernel", "stride": "stride", "padding": "pad"}
_IMAGE = {"batch": "batch", "in_h": "in_h", "in_w": "in_w"}
_CONVOLUTION = {**_IMAGE, **_WINDOW, "in_channels": "in_c", "out_channels": "out_c", "groups": "groups"}
_KINDS = {
    "conv": ("conv", _CONVOLUTION),
    "depthwise conv": ("conv", _CONVOLUTION),
    "max pool": ("max_pool", {**_IMAGE, **_WINDOW, "channels": "in_c"}),
    "relu": ("relu", {}),
    "relu6": ("relu", {}),
    "residual add": ("add", {}),
}
_LEFT_OUT = "batch norm (inference)"
_PRECISIONS = {"fp32": Precision.FP32, "fp16": Precision.FP16}


def is_table_of_networks(head: str) -> bool:
    """True where a file that begins with this text is such a table."""
    return not head.startswith(("#", "{", "[")) and set(header_cells(head)) >= _TELLING


def _measurement(cells: Row) -> Measurement:
    """Convert a row; raises RowError or RecordError."""
    name, dtype = str(cells.get("op")), str(cells.get("dtype"))
    if name not in _KINDS or dtype not in _PRECISIONS:
        raise RecordError(f"op {name!r} of {dtype} is unknown", "op")
    kind, columns = _KINDS[name]
    record: dict[str, Any] = {"op": kind} | {column: cells.get(source) for column, source in columns.items()}
    if not columns:
        images = int(number(cells, "batch")) * int(number(cells, "in_c"))
        record |= {"rows": images, "cols": int(number(cells, "in_h")) * int(number(cells, "in_w"))}
    kernel = str(cells.get("kernel_name") or "")
    return Measurement(
        read_record(record, _PRECISIONS[dtype]),
        1e-3 * number(cells, "duration_ns"),
        kernels=(kernel,) if kernel else (),
    )


def _read(path: Path, device: str | None) -> MeasurementSet:
    table = parse_table(read_file(path), path)
    left_out = Counter(row.cells["op"] for row in table.rows if row.cells["op"] == _LEFT_OUT)
    found = table.sieve.keep((row for row in table.rows if row.cells["op"] != _LEFT_OUT), _measurement)
    boards = sorted({str(row.cells["device"]) for row in table.rows})
    if len(boards) != 1:
        raise unusable(path, f"of {len(boards)} devices; split the table, a file a device")
    (board,) = boards
    notes = (*table.sieve.notes(), *(f"{count:,} rows left out: {op} has no columns" for op, count in left_out.items()))
    return MeasurementSet(
        Header(
            device=device_of(path, _BOARDS.get(board, board), device),
            data_set=path.name.removesuffix(".csv"),
            libraries={"cudnn": "7.6.5", "pytorch": "unknown"},
            includes_gaps=False,
            issue=Issue.PROFILER,
            clock_ghz=_BASE_CLOCK_GHZ,
            resolution_us=0.001,
            source="operators of networks by Nsight Compute",
        ),
        tuple(found),
        (),
        notes,
    )


FORMAT = Format(
    "table of operators of networks by Nsight Compute, with durations in ns",
    lambda path, head: is_table_of_networks(head),
    _read,
)
