"""Layers of TensorRT engines, profiled one by one: convolutions, each a kernel with bias, activation and residual.

Columns are ``engine``, ``device``, ``type``, ``in`` and ``out`` (shapes), ``kernel``, ``stride``, ``pad``, ``groups``
and ``latency_us``. Profiling adds to each layer: an engine takes less as a whole than its layers do, and the difference
is distributed over those that run (:data:`_PROFILED_US`). Reformats, pools and layers that run nothing are left out.
"""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path

from evidence.data.formats.sets_of_devices import set_of_device
from iossim.hardware.lowering.kernel import Issue
from iossim.ir.types import Precision
from iossim.measurements.formats import Format
from iossim.measurements.measurement import Header, Measurement, MeasurementSet
from iossim.measurements.operator_kinds import read_record
from iossim.measurements.text_files import Row, header_cells, number, parse_table, read_file

_TELLING = {"engine", "device", "layer", "type", "tactic", "in_fmt", "latency_us"}
_BOARDS = {"NVIDIA A100 80GB PCIe": "a100-pcie-80gb", "NVIDIA GeForce RTX 3090": "rtx-3090"}
#: An engine called fp32 multiplies in TF32 by default.
_PRECISIONS = {"fp32": Precision.TF32, "fp16": Precision.FP16}
#: Profiling overhead of a layer: an A100's engine takes 2.12 ms layer by layer and 1.98 ms in one graph of 30 kernels,
#: an RTX 3090's 4.27 and 4.00 of 67.
_PROFILED_US = {"a100-pcie-80gb": 4.7, "rtx-3090": 4.0}
_CONVOLUTION = "CaskConvolution"


def _measurement(cells: Row, precision: Precision, profiled_us: float) -> Measurement:
    (batch, channels, height, width), (_, filters, _, _) = (json.loads(str(cells[name])) for name in ("in", "out"))
    record = {
        "op": "conv",
        "batch": batch,
        "in_channels": channels,
        "out_channels": filters,
        "in_h": height,
        "in_w": width,
    }
    for column, name in (("kernel", "kernel"), ("stride", "stride"), ("pad", "pad")):
        record[f"{name}_h"], record[f"{name}_w"] = json.loads(str(cells[column]))
    return Measurement(read_record(record, precision), number(cells, "latency_us") - profiled_us)


def _read_sets(path: Path) -> tuple[MeasurementSet, ...]:
    rows = defaultdict(list)
    for row in parse_table(read_file(path), path).rows:
        if row.cells["type"] == _CONVOLUTION:
            rows[str(row.cells["device"]), str(row.cells["engine"]).split("/")[-2]].append(row.cells)
    sets = []
    for (board, called), cells in sorted(rows.items()):
        name, precision = _BOARDS.get(board, board), _PRECISIONS[called]
        header = Header(
            device=name,
            data_set=f"{path.name.removesuffix('.csv')}.{name}",
            libraries={"tensorrt": "8"},
            precision=precision,
            includes_gaps=False,
            issue=Issue.GRAPH,
            source="layers of TensorRT engines",
        )
        profiled_us = _PROFILED_US.get(name, 0.0)
        sets.append(MeasurementSet(header, tuple(_measurement(each, precision, profiled_us) for each in cells)))
    return tuple(sets)


FORMAT = Format(
    "layers of TensorRT engines, of several devices",
    lambda path, head: not head.startswith(("#", "{", "[")) and set(header_cells(head)) >= _TELLING,
    lambda path, device: set_of_device(path, _read_sets(path), device),
    _read_sets,
)
