"""Tables of operators that public repositories collected on several devices at once: one layout of columns each.

=========================  ===========================================================================================
identifying columns        content
=========================  ===========================================================================================
act_or_pool, layout        operators of the IOS engine: convolutions with their activation, pooling, element-wise; fp32
                           tensors, and tf32 products where the device has them. Rows of tensors stored or passed as
                           NHWC, of explicit transforms and of earlier recordings are left out: tensors here are NCHW
M, N, K, trans_a, trans_b  products as in BLAS, called in a loop, fp16
forward_ms                 forward convolutions, called in a loop, fp16
M_tokens, N, K             dense layers of language models, durations of kernels, fp16
tokens, width              element-wise layers of language models, durations of kernels, fp16. Gated activations
                           are left out: no op here is one
M, N, K, tflops            products timed one by one with the host's overhead, fp16
=========================  ===========================================================================================

Each device's rows are a separate set.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from evidence.data.formats.tables_of_boards import Key, LeftOutError, board_named, sets_of_boards, table_format
from iossim.ir.types import Precision
from iossim.measurements.measurement import Measurement, MeasurementSet
from iossim.measurements.operator_kinds import read_record
from iossim.measurements.text_files import Row, RowError, header_cells, number, read_file

_HAS_TF32 = ("a100-sxm-40gb", "rtx-3070")

#: Function from a row and a device to its record (``op`` and the columns of that kind) and the precision.
Record = Callable[[Row, str], tuple[dict[str, Any], Precision]]


@dataclass(frozen=True, slots=True)
class _Layout:
    """A table: the columns that identify it, that of times, the meaning of a row, and the fields of headers."""

    columns: frozenset[str]
    source: str
    milliseconds: str
    record: Record
    header: Mapping[str, Any] = field(default_factory=dict)

    def measurement(self, cells: Row) -> tuple[Key, Measurement]:
        """The board and the measurement of a row; raises RowError or LeftOutError."""
        board = board_named(cells["device"])
        operator = read_record(*self.record(cells, board))
        latency_us = 1e3 * number(cells, self.milliseconds)
        return (board, board), Measurement(operator, latency_us, algorithm=str(cells.get("forward_algorithm") or ""))


def _renamed(cells: Row, **names: str) -> dict[str, Any]:
    return {name: cells.get(column) for name, column in names.items()}


_IMAGE = {"batch": "batch", "in_h": "in_h", "in_w": "in_w", "kernel_h": "kernel_h", "kernel_w": "kernel_w"}
_PADS = {"pad_h": "pad_h", "pad_w": "pad_w"}
_WINDOW = {**_IMAGE, **_PADS, "stride_h": "stride_h", "stride_w": "stride_w"}
_POOLS = {"max": "max_pool", "max_pool": "max_pool", "global_avg": "global_average_pool"}


def _engine_operator(cells: Row, board: str) -> tuple[dict[str, Any], Precision]:
    kind, layout = cells.get("op"), cells.get("layout")
    if kind not in ("conv", "pool", "elementwise"):
        raise LeftOutError(f"{kind} is a repetition, or an explicit transform around a convolution")
    if layout not in ("NCHW", "NCHW->NCHW"):
        raise LeftOutError(f"its tensors lie as {layout}")
    function = str(cells.get("act_or_pool"))
    if kind == "conv":
        names = _WINDOW | {"in_channels": "in_c", "out_channels": "out_c", "groups": "groups"}
        return {"op": "conv"} | _renamed(cells, **names), Precision.TF32 if board in _HAS_TF32 else Precision.FP32
    if kind == "pool":
        if function not in _POOLS:
            raise RowError(f"pooling {function!r} is unknown")
        return {"op": _POOLS[function]} | _renamed(cells, channels="in_c", **_WINDOW), Precision.FP32
    cols = int(number(cells, "in_h") * number(cells, "in_w"))
    return {"op": function, "rows": int(number(cells, "batch") * number(cells, "in_c")), "cols": cols}, Precision.FP32


def _product(cells: Row, board: str) -> tuple[dict[str, Any], Precision]:
    record = {"op": "gemm"} | _renamed(cells, m="M", n="N", k="K")
    return record | {name: cells.get(name, "N") for name in ("trans_a", "trans_b")}, Precision.FP16


def _convolution(cells: Row, board: str) -> tuple[dict[str, Any], Precision]:
    names = {**_IMAGE, **_PADS, "stride_h": "stride_v", "stride_w": "stride_h"}
    record = _renamed(cells, in_channels="in_c", out_channels="out_c", **names)
    return {"op": "conv"} | record, Precision.FP16


def _dense_layer(cells: Row, board: str) -> tuple[dict[str, Any], Precision]:
    return {"op": "linear", "batch": 1} | _renamed(cells, m="M_tokens", n="K", k="N"), Precision.FP16


def _layer(cells: Row, board: str) -> tuple[dict[str, Any], Precision]:
    kind = {"add": "add", "input_layernorm": "layer_norm"}.get(str(cells.get("op")))
    if kind is None:
        raise LeftOutError(f"{cells.get('op')} is an activation of one half of its input, by the other half")
    return {"op": kind} | _renamed(cells, rows="tokens", cols="width"), Precision.FP16


_IN_A_LOOP = {"resolution_us": 1.0}
_KERNELS = {"includes_gaps": False, "resolution_us": 1.0}
#: The first layout whose columns are present counts.
_LAYOUTS = (
    _Layout(
        frozenset({"act_or_pool", "layout", "latency_ms"}),
        "operators of the IOS engine",
        "latency_ms",
        _engine_operator,
        # Ampere needs at least version 8, and the engine calls it for every operator that it has.
        {"libraries": {"cudnn": "8"}},
    ),
    _Layout(
        frozenset({"M", "N", "K", "trans_a", "trans_b", "time_ms"}),
        "products on tensor cores called in a loop",
        "time_ms",
        _product,
        _IN_A_LOOP,
    ),
    _Layout(
        frozenset({"in_c", "forward_ms", "forward_algorithm"}),
        "convolutions on tensor cores called in a loop",
        "forward_ms",
        _convolution,
        _IN_A_LOOP,
    ),
    _Layout(
        frozenset({"M_tokens", "N", "K", "median_ms"}),
        "dense layers of language models",
        "median_ms",
        _dense_layer,
        _KERNELS,
    ),
    _Layout(
        frozenset({"tokens", "width", "median_ms"}),
        "element-wise layers of language models",
        "median_ms",
        _layer,
        _KERNELS,
    ),
    _Layout(
        frozenset({"M", "N", "K", "time_ms", "tflops"}),
        "products on tensor cores timed one by one",
        "time_ms",
        _product,
        {"includes_host_overhead": True},
    ),
)


def _layout_of(columns: Set[str]) -> _Layout | None:
    if "device" not in columns:
        return None
    return next((layout for layout in _LAYOUTS if layout.columns <= columns), None)


def _read_sets(path: Path) -> tuple[MeasurementSet, ...]:
    layout = _layout_of(set(header_cells(read_file(path))))
    assert layout is not None, "the format is recognised by it"
    return sets_of_boards(path, layout.measurement, source=layout.source, **layout.header)


FORMAT = table_format(
    "table of operators on several devices, of a public repository",
    lambda columns: _layout_of(columns) is not None,
    _read_sets,
)
