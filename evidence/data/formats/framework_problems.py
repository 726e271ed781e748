"""Small programs of a framework, timed call by call on several boards, restricted to those of one operator.

``problem`` names the program, ``problem_constants_json`` its sizes, ``inputs_expr`` the code for its inputs (``A =
torch.randn(M, K)``), from which the shapes follow. ``hardware`` is the board as its driver names it and ``run`` the
recording; a recording on a board is a set. The least of the trials counts (``min_ms``): the others were disturbed by a
host that is synchronised after each call, whose overhead all times hold.

The framework is PyTorch with its defaults: products of matrices in fp32, convolutions in TF32 where a board has that,
depthwise convolutions by PyTorch's own kernel. Programs of several operators, of operators along one or three spatial
axes, and of kinds without columns are left out.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from evidence.data.formats.sets_of_devices import set_of_device
from iossim.hardware.load import device
from iossim.hardware.names import device_names
from iossim.ir.types import Precision
from iossim.measurements.formats import Format
from iossim.measurements.measurement import Header, Measurement, MeasurementSet, device_of, device_of_product
from iossim.measurements.operator_kinds import read_record
from iossim.measurements.text_files import Row, RowError, header_cells, number, parse_table, read_file

_TELLING = {"hardware", "run", "problem", "min_ms", "problem_constants_json", "inputs_expr"}
_INPUT = re.compile(r"(?:\w+\s*=|return\s*\[)\s*torch\.randn\(([^()]*)\)")

Shape = tuple[int, ...]
Constants = Mapping[str, Any]
Record = dict[str, Any]


def _product(shapes: list[Shape], constants: Constants, a_first: bool = True, b_first: bool = True) -> Record:
    """Rows of the first by columns of the second; the inner size is last in the first and first in the second."""
    a, b = shapes
    rows, inner = (a[0], a[-1]) if a_first else (a[1], a[0])
    for more in a[1:-1] if a_first else ():
        rows *= more
    columns, transposed = (b[-1], ["N", "T"]) if b_first else (b[0], ["N", "T"])
    # BLAS stores matrices by columns: its operands are these, transposed and in reverse order.
    return {
        "op": "gemm",
        "m": columns,
        "n": rows,
        "k": inner,
        "trans_a": transposed[not b_first],
        "trans_b": transposed[not a_first],
    }


def _batched(shapes: list[Shape], constants: Constants) -> Record:
    (batch, m, n), (_, _, k) = shapes
    return {"op": "bmm", "batch": batch, "m": m, "n": n, "k": k}


def _plane(kind: str) -> Callable[[list[Shape], Constants], Record]:
    return lambda shapes, constants: {"op": kind, "rows": shapes[0][0], "cols": shapes[0][1]}


def _pair(value: Any) -> tuple[int, int]:
    first, last = value if isinstance(value, list) else (value, value)
    return first, last


def _window(shape: Shape, kernel: tuple[int, int], constants: Constants) -> Record:
    if len(shape) != 4:
        raise RowError("it has not two spatial axes")
    given = {
        "in": shape[2:],
        "kernel": kernel,
        "stride": _pair(constants.get("stride", 1)),
        "pad": _pair(constants.get("padding", 0)),
    }
    sizes = {f"{name}_{axis}": pair[place] for name, pair in given.items() for place, axis in enumerate("hw")}
    return {"batch": shape[0]} | sizes


def _convolution(kind: str = "conv", kernel: tuple[int, int] | None = None, is_depthwise: bool = False) -> Any:
    def record(shapes: list[Shape], constants: Constants) -> Record:
        (shape,) = shapes
        own = kernel or _pair(constants.get("kernel_size", 1))
        dilation = _pair(constants.get("dilation", 1))
        channels = shape[1]
        return _window(shape, own, constants) | {
            "op": kind,
            "in_channels": channels,
            "out_channels": constants.get("out_channels", channels),
            "groups": channels if is_depthwise else constants.get("groups", 1),
            "dilation_h": dilation[0],
            "dilation_w": dilation[1],
        }

    return record


def _average_pool(shapes: list[Shape], constants: Constants) -> Record:
    (shape,) = shapes
    kernel = _pair(constants["kernel_size"])
    # A pooling without a stride moves by its window.
    return _window(shape, kernel, {"stride": constants.get("stride", constants["kernel_size"])} | dict(constants)) | {
        "op": "average_pool",
        "channels": shape[1],
    }


#: Converters by the start of a program's name, after its number: the longest match counts.
_RECORDS: dict[str, Callable[[list[Shape], Constants], Record]] = {
    "Square_matrix_multiplication": _product,
    "Standard_matrix_multiplication": _product,
    "Batched_matrix_multiplication": _batched,
    "Matmul_with_large_K": _product,
    "Matmul_with_small_K": _product,
    "Matmul_with_irregular_shapes": _product,
    "Tall_skinny_matrix_multiplication": _product,
    "3D_tensor_matrix_multiplication": _product,
    "4D_tensor_matrix_multiplication": _product,
    "Matmul_with_transposed_A": lambda shapes, constants: _product(shapes, constants, a_first=False),
    "Matmul_with_transposed_B": lambda shapes, constants: _product(shapes, constants, b_first=False),
    "Matmul_with_transposed_both": lambda shapes, constants: _product(shapes, constants, False, False),
    "ReLU": _plane("relu"),
    "LeakyReLU": _plane("leaky_relu"),
    "Sigmoid": _plane("sigmoid"),
    "Tanh": _plane("tanh"),
    "Softmax": _plane("softmax"),
    "LogSoftmax": _plane("log_softmax"),
    "GELU_": _plane("gelu"),
    "SELU_": _plane("selu"),
    "HardSigmoid": _plane("hard_sigmoid"),
    "Softplus": _plane("softplus"),
    "ELU": _plane("elu"),
    "Average_Pooling_2D": _average_pool,
    "conv_standard_2D": _convolution(),
    "conv_pointwise_2D": _convolution(),
    "conv_transposed_2D": _convolution("conv_transpose"),
    "conv_depthwise_2D_square_input_square_kernel": _convolution(is_depthwise=True),
    "conv_depthwise_2D_asymmetric_input_square_kernel": _convolution(is_depthwise=True),
    "conv_depthwise_2D_square_input_asymmetric_kernel": lambda shapes, constants: _convolution(
        kernel=(constants["kernel_size"], 1), is_depthwise=True
    )(shapes, constants),
    "conv_depthwise_2D_asymmetric_input_asymmetric_kernel": lambda shapes, constants: _convolution(
        kernel=(constants["kernel_size_h"], constants["kernel_size_w"]), is_depthwise=True
    )(shapes, constants),
}
_TF32_KINDS = ("conv", "conv_transpose")


def is_table_of_problems(head: str) -> bool:
    """True where a file that begins with this text is such a table."""
    return not head.startswith(("#", "{", "[")) and set(header_cells(head)) >= _TELLING


def _record(cells: Row) -> Record | None:
    """Record of the one operator of a program; None for other programs. Raises RowError."""
    name = re.sub(r"^\d+_", "", str(cells["problem"]))
    begins = [known for known in _RECORDS if name.startswith(known)]
    if not begins or cells.get("level") != "level1":
        return None
    try:
        constants = json.loads(str(cells["problem_constants_json"]))
        shapes = [
            tuple(int(constants.get(size.strip(), size)) for size in sizes.split(","))
            for sizes in _INPUT.findall(str(cells["inputs_expr"]))
        ]
        return _RECORDS[max(begins, key=len)](shapes, constants)
    except (ValueError, KeyError, TypeError, AttributeError, IndexError):
        raise RowError("its sizes cannot be read") from None


def _precision(record: Record, board: str) -> Precision:
    is_depthwise = record.get("groups", 1) == record.get("in_channels")
    if record["op"] not in _TF32_KINDS or is_depthwise or board not in device_names():
        return Precision.FP32
    has_tf32 = device(board).reduced_precision_tflops(Precision.TF32) is not None
    return Precision.TF32 if has_tf32 else Precision.FP32


def _read_sets(path: Path) -> tuple[MeasurementSet, ...]:
    """One set per recording on a board, in the order of their first rows."""
    table = parse_table(read_file(path), path)
    left_out: Counter[str] = Counter()
    usable = []
    for row in table.rows:
        try:
            known = _record(row.cells) is not None
        except RowError:
            known = True
        if known:
            usable.append(row)
        else:
            left_out["the program is no operator that tables name"] += 1

    def measurement(cells: Row) -> tuple[tuple[str, str], Measurement]:
        record = _record(cells)
        assert record is not None
        board = device_of(path, device_of_product(str(cells["hardware"])), None)
        latency_us = 1e3 * number(cells, "min_ms")
        return (board, str(cells["run"])), Measurement(read_record(record, _precision(record, board)), latency_us)

    found: dict[tuple[str, str], list[Measurement]] = {}
    for key, one in table.sieve.keep(usable, measurement):
        found.setdefault(key, []).append(one)
    notes = (*table.sieve.notes(), *(f"{count:,} rows left out: {why}" for why, count in left_out.items()))
    return tuple(
        MeasurementSet(
            Header(
                device=board,
                data_set=f"{path.name.removesuffix('.csv')}.{run}",
                libraries={"pytorch": "2.5"},
                includes_host_overhead=True,
                resolution_us=1.0,
                source="programs of a framework, timed call by call",
            ),
            tuple(several),
            (),
            notes if index == 0 else (),
        )
        for index, ((board, run), several) in enumerate(found.items())
    )


FORMAT = Format(
    "table of programs of a framework on several boards",
    lambda path, head: is_table_of_problems(head),
    lambda path, device: set_of_device(path, _read_sets(path), device),
    _read_sets,
)
