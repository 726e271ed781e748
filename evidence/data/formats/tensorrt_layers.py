"""Layers of TensorRT engines, profiled one by one: convolutions, each a kernel with bias, activation and residual.

Columns are ``engine``, ``device``, ``type``, ``in`` and ``out`` (shapes), ``kernel``, ``stride``, ``pad``, ``groups``
and ``latency_us``. Profiling adds to each layer: an engine takes less as a whole than its layers do, and the difference
is distributed over those that run (:data:`_PROFILED_US`). Reformats, pools and layers that run nothing are left out.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from evidence.data.formats.tables_of_boards import Key, LeftOutError, board_named, sets_of_boards, table_format
from iossim.hardware.lowering.kernel import Issue
from iossim.ir.types import Precision
from iossim.measurements.measurement import Measurement, MeasurementSet
from iossim.measurements.operator_kinds import read_record
from iossim.measurements.text_files import Row, number

_TELLING = {"engine", "device", "layer", "type", "tactic", "in_fmt", "latency_us"}
#: An engine called fp32 multiplies in TF32 by default.
_PRECISIONS = {"fp32": Precision.TF32, "fp16": Precision.FP16}
#: Profiling overhead of a layer: an A100's engine takes 2.12 ms layer by layer and 1.98 ms in one graph of 30 kernels,
#: an RTX 3090's 4.27 and 4.00 of 67.
_PROFILED_US = {"a100-pcie-80gb": 4.7, "rtx-3090": 4.0}


def _measurement(cells: Row) -> tuple[Key, Measurement]:
    if cells["type"] != "CaskConvolution":
        raise LeftOutError("layers that are no convolutions")
    board, precision = board_named(cells["device"]), _PRECISIONS[str(cells["engine"]).split("/")[-2]]
    (batch, channels, height, width), (_, filters, _, _) = (json.loads(str(cells[name])) for name in ("in", "out"))
    record: dict[str, Any] = {"op": "conv", "batch": batch, "in_channels": channels, "out_channels": filters}
    record |= {"in_h": height, "in_w": width}
    for name in ("kernel", "stride", "pad"):
        record[f"{name}_h"], record[f"{name}_w"] = json.loads(str(cells[name]))
    latency_us = number(cells, "latency_us") - _PROFILED_US.get(board, 0.0)
    return (board, board), Measurement(read_record(record, precision), latency_us)


def _read_sets(path: Path) -> tuple[MeasurementSet, ...]:
    return sets_of_boards(
        path,
        _measurement,
        libraries={"tensorrt": "8"},
        includes_gaps=False,
        issue=Issue.GRAPH,
        source="layers of TensorRT engines",
    )


FORMAT = table_format("layers of TensorRT engines, of several devices", lambda columns: columns >= _TELLING, _read_sets)
