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
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from math import prod
from pathlib import Path
from typing import Any

from evidence.data.formats.tables_of_boards import Key, LeftOutError, board_named, sets_of_boards, table_format
from iossim.hardware.load import device
from iossim.hardware.names import device_names
from iossim.ir.types import Precision
from iossim.measurements.measurement import Measurement, MeasurementSet
from iossim.measurements.operator_kinds import read_record
from iossim.measurements.text_files import Row, RowError, number

_TELLING = {"hardware", "run", "problem", "min_ms", "problem_constants_json", "inputs_expr"}
_INPUT = re.compile(r"(?:\w+\s*=|return\s*\[)\s*torch\.randn\(([^()]*)\)")

Shape = tuple[int, ...]
Constants = Mapping[str, Any]
Record = dict[str, Any]


def _product(shapes: list[Shape], constants: Constants, a_first: bool = True, b_first: bool = True) -> Record:
    """Rows of the first by columns of the second; the inner size is last in the first and first in the second."""
    a, b = shapes
    rows, inner = (prod(a[:-1]), a[-1]) if a_first else (a[1], a[0])
    # BLAS stores matrices by columns: its operands are these, transposed and in reverse order.
    sizes = {"m": b[-1] if b_first else b[0], "n": rows, "k": inner}
    return {"op": "gemm", **sizes, "trans_a": "N" if b_first else "T", "trans_b": "N" if a_first else "T"}


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


def _convolution(shapes: list[Shape], constants: Constants) -> Record:
    (shape,) = shapes
    dilation_h, dilation_w = _pair(constants.get("dilation", 1))
    return _window(shape, _pair(constants.get("kernel_size", 1)), constants) | {
        "op": "conv",
        "in_channels": shape[1],
        "out_channels": constants.get("out_channels", shape[1]),
        "groups": constants.get("groups", 1),
        "dilation_h": dilation_h,
        "dilation_w": dilation_w,
    }


def _transposed(shapes: list[Shape], constants: Constants) -> Record:
    return _convolution(shapes, constants) | {"op": "conv_transpose"}


def _depthwise(shapes: list[Shape], constants: Constants, kernel: Sequence[str | int] = ("kernel_size",)) -> Record:
    """A depthwise convolution; ``kernel`` are its sizes, or the constants that hold them."""
    sizes = [constants[size] if isinstance(size, str) else size for size in kernel]
    changed = {"groups": shapes[0][1], "kernel_size": sizes if len(sizes) > 1 else sizes[0]}
    return _convolution(shapes, {**constants, **changed})


def _average_pool(shapes: list[Shape], constants: Constants) -> Record:
    (shape,) = shapes
    kernel = _pair(constants["kernel_size"])
    # A pooling without a stride moves by its window.
    return _window(shape, kernel, {"stride": constants.get("stride", constants["kernel_size"])} | dict(constants)) | {
        "op": "average_pool",
        "channels": shape[1],
    }


_PRODUCTS = (
    *("Square_matrix_multiplication", "Standard_matrix_multiplication", "Tall_skinny_matrix_multiplication"),
    *("3D_tensor_matrix_multiplication", "4D_tensor_matrix_multiplication"),
    *("Matmul_with_large_K", "Matmul_with_small_K", "Matmul_with_irregular_shapes"),
)
_PLANES = {
    **{"ReLU": "relu", "LeakyReLU": "leaky_relu", "Sigmoid": "sigmoid", "Tanh": "tanh", "Softmax": "softmax"},
    **{"LogSoftmax": "log_softmax", "GELU_": "gelu", "SELU_": "selu", "HardSigmoid": "hard_sigmoid"},
    **{"Softplus": "softplus", "ELU": "elu"},
}
#: Converters by the start of a program's name, after its number: the longest match counts.
_RECORDS: dict[str, Callable[[list[Shape], Constants], Record]] = {
    **dict.fromkeys(_PRODUCTS, _product),
    "Matmul_with_transposed_A": partial(_product, a_first=False),
    "Matmul_with_transposed_B": partial(_product, b_first=False),
    "Matmul_with_transposed_both": partial(_product, a_first=False, b_first=False),
    "Batched_matrix_multiplication": _batched,
    **{name: _plane(kind) for name, kind in _PLANES.items()},
    "Average_Pooling_2D": _average_pool,
    "conv_standard_2D": _convolution,
    "conv_pointwise_2D": _convolution,
    "conv_transposed_2D": _transposed,
    "conv_depthwise_2D_square_input_square_kernel": _depthwise,
    "conv_depthwise_2D_asymmetric_input_square_kernel": _depthwise,
    "conv_depthwise_2D_square_input_asymmetric_kernel": partial(_depthwise, kernel=("kernel_size", 1)),
    "conv_depthwise_2D_asymmetric_input_asymmetric_kernel": partial(
        _depthwise, kernel=("kernel_size_h", "kernel_size_w")
    ),
}
_TF32_KINDS = ("conv", "conv_transpose")


def _record(cells: Row) -> Record:
    """Record of the one operator of a program. Raises RowError or, for other programs, LeftOutError."""
    name = re.sub(r"^\d+_", "", str(cells["problem"]))
    begins = [known for known in _RECORDS if name.startswith(known)]
    if not begins or cells.get("level") != "level1":
        raise LeftOutError("the program is no operator that tables name")
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


def _measurement(cells: Row) -> tuple[Key, Measurement]:
    record, board = _record(cells), board_named(cells["hardware"])
    operator = read_record(record, _precision(record, board))
    return (board, str(cells["run"])), Measurement(operator, 1e3 * number(cells, "min_ms"))


def _read_sets(path: Path) -> tuple[MeasurementSet, ...]:
    """One set per recording on a board."""
    return sets_of_boards(
        path,
        _measurement,
        libraries={"pytorch": "2.5"},
        includes_host_overhead=True,
        resolution_us=1.0,
        source="programs of a framework, timed call by call",
    )


FORMAT = table_format(
    "table of programs of a framework on several boards", lambda columns: columns >= _TELLING, _read_sets
)
