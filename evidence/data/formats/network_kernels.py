"""Operators of networks by Nsight Compute, in sequence: one row per operator, ``duration_ns``.

Columns are ``device``, ``network``, ``index``, ``batch``, ``dtype``, ``op``, the shape (``in_c``, ``in_h``, ``in_w``,
``out_c``, ``kernel``, ``stride``, ``pad``, ``groups``) and ``duration_ns`` of the kernel. The framework's libraries
ran: convolutions are cuDNN 7.6's, depthwise ones PyTorch's own.

Nsight Compute flushes caches before each kernel by default, and locks the clock to its base. Batch normalisation as a
separate operator has no columns and is left out.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from evidence.data.formats.tables_of_boards import Key, LeftOutError, board_named, sets_of_boards, table_format
from iossim.hardware.lowering.kernel import Issue
from iossim.ir.types import Precision
from iossim.measurements.kinds import RecordError
from iossim.measurements.measurement import Measurement, MeasurementSet
from iossim.measurements.operator_kinds import read_record
from iossim.measurements.text_files import Row, number

_TELLING = {"device", "network", "op", "in_c", "out_c", "duration_ns"}
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
_PRECISIONS = {"fp32": Precision.FP32, "fp16": Precision.FP16}


def _measurement(cells: Row) -> tuple[Key, Measurement]:
    name, dtype = str(cells.get("op")), str(cells.get("dtype"))
    if name == "batch norm (inference)":
        raise LeftOutError(f"{name} has no columns")
    if name not in _KINDS or dtype not in _PRECISIONS:
        raise RecordError(f"op {name!r} of {dtype} is unknown", "op")
    kind, columns = _KINDS[name]
    record: dict[str, Any] = {"op": kind} | {column: cells.get(source) for column, source in columns.items()}
    if not columns:
        images = int(number(cells, "batch")) * int(number(cells, "in_c"))
        record |= {"rows": images, "cols": int(number(cells, "in_h")) * int(number(cells, "in_w"))}
    kernels = tuple(filter(None, [str(cells.get("kernel_name") or "")]))
    latency_us = 1e-3 * number(cells, "duration_ns")
    operator = read_record(record, _PRECISIONS[dtype])
    return (board_named(cells["device"]), ""), Measurement(operator, latency_us, kernels=kernels)


def _read_sets(path: Path) -> tuple[MeasurementSet, ...]:
    return sets_of_boards(
        path,
        _measurement,
        libraries={"cudnn": "7.6.5", "pytorch": "unknown"},
        includes_gaps=False,
        issue=Issue.PROFILER,
        clock_ghz=_BASE_CLOCK_GHZ,
        resolution_us=0.001,
        source="operators of networks by Nsight Compute",
    )


FORMAT = table_format(
    "table of operators of networks by Nsight Compute, with durations in ns",
    lambda columns: columns >= _TELLING,
    _read_sets,
)
