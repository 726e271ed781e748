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

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from evidence.data.formats.sets_of_devices import set_of_device
from iossim.ir.types import Precision
from iossim.measurements.formats import Format
from iossim.measurements.measurement import Header, Measurement, MeasurementSet, device_of
from iossim.measurements.operator_kinds import read_record
from iossim.measurements.text_files import NumberedRow, Row, RowError, header_cells, number, parse_table, read_file

#: Boards with other names in the tables. Where names are ambiguous, rates identify the board: the element-wise layers
#: move 1.7 TB/s, which among the A100s only those of 80 GB do; pooling on the Titan X moves 0.23 TB/s, two thirds of
#: the rate of Maxwell's memory and half of Pascal's.
_LANGUAGE_MODELS = {"a100": "a100-pcie-80gb"}
_BOARDS = {
    "V100 (DGX-1)": "v100-sxm2",
    "A100": "a100-sxm-40gb",
    "T4": "t4",
    "RTX 3070": "rtx-3070",
    "TITANX": "titan-x",
}
_HAS_TF32 = ("a100-sxm-40gb", "rtx-3070")


class _LeftOutError(Exception):
    """A row without an operator here; the text is the reason, equal for all such rows."""


#: Function from a row and a device to its record (``op`` and the columns of that kind) and the precision.
Record = Callable[[Row, str], tuple[dict[str, Any], Precision]]


@dataclass(frozen=True, slots=True)
class _Layout:
    """A table: the columns that identify it, its columns of devices and times, and the meaning of a row."""

    columns: frozenset[str]
    source: str
    milliseconds: str
    record: Record
    header: Mapping[str, Any] = field(default_factory=dict)
    boards: Mapping[str, str] = field(default_factory=lambda: _BOARDS)
    algorithm: str = ""


def _renamed(cells: Row, **names: str) -> dict[str, Any]:
    return {name: cells.get(column) for name, column in names.items()}


_IMAGE = {"batch": "batch", "in_h": "in_h", "in_w": "in_w", "kernel_h": "kernel_h", "kernel_w": "kernel_w"}
_PADS = {"pad_h": "pad_h", "pad_w": "pad_w"}
_WINDOW = {**_IMAGE, **_PADS, "stride_h": "stride_h", "stride_w": "stride_w"}
_POOLS = {"max": "max_pool", "max_pool": "max_pool", "global_avg": "global_average_pool"}


def _engine_operator(cells: Row, board: str) -> tuple[dict[str, Any], Precision]:
    kind, layout = cells.get("op"), cells.get("layout")
    if kind not in ("conv", "pool", "elementwise"):
        raise _LeftOutError(f"{kind} is a repetition, or an explicit transform around a convolution")
    if layout not in ("NCHW", "NCHW->NCHW"):
        raise _LeftOutError(f"its tensors lie as {layout}")
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
        raise _LeftOutError(f"{cells.get('op')} is an activation of one half of its input, by the other half")
    return {"op": kind} | _renamed(cells, rows="tokens", cols="width"), Precision.FP16


_KERNELS = {"includes_gaps": False, "resolution_us": 1.0, "precision": Precision.FP16}
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
        {"resolution_us": 1.0, "precision": Precision.FP16},
    ),
    _Layout(
        frozenset({"in_c", "forward_ms", "forward_algorithm"}),
        "convolutions on tensor cores called in a loop",
        "forward_ms",
        _convolution,
        {"resolution_us": 1.0, "precision": Precision.FP16},
        algorithm="forward_algorithm",
    ),
    _Layout(
        frozenset({"M_tokens", "N", "K", "median_ms"}),
        "dense layers of language models",
        "median_ms",
        _dense_layer,
        _KERNELS,
        _LANGUAGE_MODELS,
    ),
    _Layout(
        frozenset({"tokens", "width", "median_ms"}),
        "element-wise layers of language models",
        "median_ms",
        _layer,
        _KERNELS,
        _LANGUAGE_MODELS,
    ),
    _Layout(
        frozenset({"M", "N", "K", "time_ms", "tflops"}),
        "products on tensor cores timed one by one",
        "time_ms",
        _product,
        {"includes_host_overhead": True, "precision": Precision.FP16},
    ),
)


def is_operator_collection(head: str) -> bool:
    """True where a file that begins with this text is one of these tables."""
    return not head.startswith(("#", "{", "[")) and _layout_of(header_cells(head)) is not None


def _layout_of(columns: list[str] | tuple[str, ...]) -> _Layout | None:
    if "device" not in columns:
        return None
    return next((layout for layout in _LAYOUTS if layout.columns <= set(columns)), None)


def _read_sets(path: Path) -> tuple[MeasurementSet, ...]:
    """One set per device, in the order of their first rows."""
    table = parse_table(read_file(path), path)
    layout = _layout_of(table.columns)
    assert layout is not None, "the format is recognised by it"
    left_out: Counter[str] = Counter()
    usable: list[NumberedRow] = []
    records: dict[int, tuple[str, dict[str, Any], Precision]] = {}
    for row in table.rows:
        called = str(row.cells["device"])
        board = layout.boards.get(called, called)
        try:
            records[id(row.cells)] = (board, *layout.record(row.cells, board))
        except _LeftOutError as reason:
            left_out[str(reason)] += 1
            continue
        except RowError as error:
            table.sieve.total += 1
            table.sieve.drop(row.line, str(error))
            continue
        usable.append(row)

    def measurement(cells: Row) -> tuple[str, Measurement]:
        board, record, precision = records[id(cells)]
        algorithm = str(cells.get(layout.algorithm) or "") if layout.algorithm else ""
        latency_us = 1e3 * number(cells, layout.milliseconds)
        return board, Measurement(read_record(record, precision), latency_us, algorithm=algorithm)

    of_board: dict[str, list[Measurement]] = {}
    for board, found in table.sieve.keep(usable, measurement):
        of_board.setdefault(board, []).append(found)
    notes = (*table.sieve.notes(), *(f"{count:,} rows left out: {why}" for why, count in left_out.items()))
    name = path.name.removesuffix(".csv")
    return tuple(
        MeasurementSet(
            Header(
                device=device_of(path, board, None), data_set=f"{name}.{board}", source=layout.source, **layout.header
            ),
            tuple(replace(each, row=row) for row, each in enumerate(rows)),
            (),
            notes if index == 0 else (),
        )
        for index, (board, rows) in enumerate(of_board.items())
    )


FORMAT = Format(
    "table of operators on several devices, of a public repository",
    lambda path, head: is_operator_collection(head),
    lambda path, device: set_of_device(path, _read_sets(path), device),
    _read_sets,
)
