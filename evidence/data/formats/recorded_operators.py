"""Operators of networks in bf16 as nodes of CUDA graphs on an H100, with the kernels that ran (``h100_bf16``).

A convolution is measured between ``warm_step_us``, right after itself with the gap to the next, and the same with
filters in DRAM (``cold_filters_us`` with that gap), as in a network whose weights L2 does not hold: its latency here.
Rows of first layers whose channels were padded by separate kernels are left out at several images, where the
framework's copies take most of the time, as are kernels that multiply on FP32 lanes: their time is in constants
(``lowering.gpu.convolution.grouped``), and the parameters of those lanes are fp32's.
"""

from __future__ import annotations

from pathlib import Path

from evidence.data.formats.tables_of_boards import Key, LeftOutError, sets_of_boards, table_format
from iossim.hardware.lowering.kernel import Issue
from iossim.ir.types import Precision
from iossim.measurements.measurement import Measurement, MeasurementSet
from iossim.measurements.operator_kinds import read_record
from iossim.measurements.text_files import Row, number

_TELLING = {"op", "network", "warm_us", "warm_step_us", "cold_filters_us", "cold_us"}
_ON_LANES = ("conv2d_c1_k1", "void cudnn::cnn::conv2d_grouped_direct", "void convolve_common_engine")
_CONVOLUTION = (
    *("batch", "in_channels", "out_channels"),
    *("kernel_h", "kernel_w", "stride", "pad_h", "pad_w", "groups"),
)


def record(cells: Row) -> dict[str, object]:
    """The sizes of a recorded convolution or product, as ``iossim schema measurement`` has them; else LeftOutError."""
    if cells["op"] == "product":
        return {"op": "linear", "batch": 1, "m": cells["m"], "n": cells["k"], "k": cells["n"]}
    if cells["op"] != "conv":
        raise LeftOutError("neither a convolution nor a product")
    sizes = {name: cells[name] for name in _CONVOLUTION}
    return {"op": "conv", **sizes, "in_h": cells["height"], "in_w": cells["width"]}


def interval_us(cells: Row) -> tuple[float, float]:
    """Microseconds warm and with filters in DRAM, each with the gap to the next; the latter is no shorter."""
    warm_us = number(cells, "warm_step_us")
    return warm_us, max(warm_us, number(cells, "cold_filters_us") + warm_us - number(cells, "warm_us"))


def _measurement(cells: Row) -> tuple[Key, Measurement]:
    operator, kernels = record(cells), tuple(str(cells["kernel"]).split(" + "))
    if operator["op"] == "conv" and (len(kernels) > 1 or kernels[0].startswith(_ON_LANES)):
        raise LeftOutError("of several kernels, or of one on FP32 lanes")
    _, latency_us = interval_us(cells)
    return ("h100-sxm", ""), Measurement(read_record(operator, Precision.BF16), latency_us, kernels=kernels)


def read_sets(path: Path) -> tuple[MeasurementSet, ...]:
    """The table's one set."""
    return sets_of_boards(
        path,
        _measurement,
        data_set="h100_bf16/operators",
        libraries={"cudnn": "9.19", "pytorch": "2.11"},
        issue=Issue.GRAPH,
        channels_last=True,
        source="operators in CUDA graphs, recorded by CUPTI",
    )


FORMAT = table_format("table of operators in CUDA graphs on an H100", lambda columns: columns >= _TELLING, read_sets)
