"""Conversion of recorded PyTorch operators to iossim's: by name, shapes of the inputs, and other values."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from iossim.base.numbers import read_json
from iossim.ir.types import Precision
from iossim.measurements.kinds.kind import RecordError
from iossim.measurements.operator import Operator
from iossim.measurements.operator_kinds import read_record

_PRECISIONS = {"float": Precision.FP32, "c10::half": Precision.FP16, "c10::bfloat16": Precision.BF16}


@dataclass(frozen=True, slots=True)
class Recorded:
    """An operator of a trace; ``arguments`` are the trace's, their names in lower case."""

    name: str
    arguments: dict[str, Any]

    @property
    def is_known(self) -> bool:
        return self.name in _READERS

    @property
    def is_convolution(self) -> bool:
        return self.name in _CONVOLUTIONS

    @property
    def is_product(self) -> bool:
        return self.name in _PRODUCTS

    def shape(self, index: int) -> tuple[int, ...]:
        """Dimensions of an input; raises RecordError if they are not recorded."""
        shapes = self.arguments.get("input dims")
        shape = shapes[index] if isinstance(shapes, list) and index < len(shapes) else None
        if not isinstance(shape, list) or not all(isinstance(size, int) for size in shape) or not shape:
            raise RecordError("its shapes are not recorded")
        return tuple(shape)

    def strides(self, index: int) -> tuple[int, ...] | None:
        """Strides of an input in elements, if recorded."""
        strides = self.arguments.get("input strides")
        found = strides[index] if isinstance(strides, list) and index < len(strides) else None
        return tuple(found) if isinstance(found, list) and found else None

    def value(self, index: int) -> Any:
        """A non-tensor input, as a JSON value; None if it is not recorded."""
        values = self.arguments.get("concrete inputs")
        text = values[index] if isinstance(values, list) and 0 <= index < len(values) else None
        if not isinstance(text, str) or not text:
            return None
        try:
            return read_json(text.lower())
        except ValueError:
            return None

    def pair(self, index: int) -> tuple[int, int] | None:
        """A size or a list of sizes as height and width; None if it is not recorded."""
        value = self.value(index)
        sizes = value if isinstance(value, list) else [value]
        if len(sizes) not in (1, 2) or not all(type(size) is int for size in sizes):
            return None
        return sizes[0], sizes[-1]

    @property
    def precision(self) -> Precision:
        """Precision of the first input; raises RecordError for an element type unknown to profiles."""
        types = self.arguments.get("input type")
        name = str(types[0]).lower() if isinstance(types, list) and types else "float"
        if name not in _PRECISIONS:
            raise RecordError(f"its element type {name!r} is not known")
        return _PRECISIONS[name]


def operator_of(chain: Sequence[Recorded]) -> Operator:
    """The operator of the first in the chain; the others enclose it. Raises RecordError."""
    return _READERS[chain[0].name](chain)


@dataclass(frozen=True, slots=True)
class _Convolution:
    """Positions of a convolution's inputs; -1: it has no such input, and is not transposed or dilated."""

    stride: int
    padding: int
    dilation: int
    transposed: int = -1


# Positions by PyTorch's native_functions.yaml.
_CONVOLUTIONS = {
    "aten::cudnn_convolution": _Convolution(stride=3, padding=2, dilation=4),
    "aten::cudnn_convolution_relu": _Convolution(stride=3, padding=4, dilation=5),
    "aten::cudnn_convolution_add_relu": _Convolution(stride=5, padding=6, dilation=7),
    "aten::_conv_depthwise2d": _Convolution(stride=4, padding=5, dilation=6),
    "aten::_slow_conv2d_forward": _Convolution(stride=4, padding=5, dilation=-1),
    "aten::_convolution": _Convolution(stride=3, padding=4, dilation=5, transposed=6),
    "aten::convolution": _Convolution(stride=3, padding=4, dilation=5, transposed=6),
    "aten::conv2d": _Convolution(stride=3, padding=4, dilation=5),
}
_PRODUCTS = {"aten::mm": 0, "aten::addmm": 1, "aten::_addmm_activation": 1}


def _convolution(chain: Sequence[Recorded]) -> Operator:
    # An enclosing operator may have recorded what this one did not.
    around = [recorded for recorded in chain if recorded.is_convolution]
    if any(recorded.value(_CONVOLUTIONS[recorded.name].transposed) is True for recorded in around):
        raise RecordError("it is transposed")
    x, weight = chain[0].shape(0), chain[0].shape(1)
    if len(x) != 4 or len(weight) != 4:
        raise RecordError("it has not two spatial dimensions")
    for recorded in around:
        places = _CONVOLUTIONS[recorded.name]
        stride, padding = recorded.pair(places.stride), recorded.pair(places.padding)
        dilation = recorded.pair(places.dilation) if places.dilation >= 0 else (1, 1)
        if stride and padding and dilation:
            break
    else:
        raise RecordError("its stride and padding are not recorded; record with PyTorch 2.1 or later")
    record: dict[str, Any] = {"batch": x[0], "in_channels": x[1], "out_channels": weight[0]}
    for name, (height, width) in {
        "in": x[2:],
        "kernel": weight[2:],
        "stride": stride,
        "pad": padding,
        "dilation": dilation,
    }.items():
        record |= {f"{name}_h": height, f"{name}_w": width}
    record["groups"] = max(1, x[1] // max(1, weight[1]))
    return read_record(record | {"op": "conv"}, chain[0].precision)


def _product(chain: Sequence[Recorded]) -> Operator:
    recorded = chain[0]
    first = _PRODUCTS[recorded.name]
    a, b = recorded.shape(first), recorded.shape(first + 1)
    if len(a) != 2 or len(b) != 2:
        raise RecordError("it does not multiply two matrices")
    if any(outer.name == "aten::linear" for outer in chain[1:]):
        # The table's n is the input features of a dense layer, its k the output features.
        return read_record({"op": "linear", "batch": 1, "m": a[0], "n": a[1], "k": b[1]}, recorded.precision)
    transposed = ["T" if _is_transposed(recorded.strides(first + side)) else "N" for side in (0, 1)]
    sizes = {"m": a[0], "n": b[1], "k": a[1], "trans_a": transposed[0], "trans_b": transposed[1]}
    return read_record({"op": "gemm"} | sizes, recorded.precision)


def _is_transposed(strides: tuple[int, ...] | None) -> bool:
    return strides is not None and len(strides) == 2 and strides[0] == 1 and strides[1] > 1


def _plane(shape: Sequence[int]) -> dict[str, int]:
    """Any shape as rows and columns: an element-wise kernel depends on their number only."""
    lead = min(2, len(shape) - 1)
    return {"rows": math.prod(shape[:lead]), "cols": math.prod(shape[lead:])}


def _add(chain: Sequence[Recorded]) -> Operator:
    shape = chain[0].shape(0)
    if chain[0].shape(1) != shape:
        raise RecordError("it broadcasts")
    return read_record({"op": "add"} | _plane(shape), chain[0].precision)


def _relu(chain: Sequence[Recorded]) -> Operator:
    return read_record({"op": "relu"} | _plane(chain[0].shape(0)), chain[0].precision)


def _image(shape: Sequence[int]) -> dict[str, int]:
    if len(shape) != 4:
        raise RecordError("it has not two spatial dimensions")
    return {"batch": shape[0], "channels": shape[1], "in_h": shape[2], "in_w": shape[3]}


def _pool(kind: str, ceil_mode: int) -> Callable[[Sequence[Recorded]], Operator]:
    def read(chain: Sequence[Recorded]) -> Operator:
        recorded = chain[0]
        kernel, padding = recorded.pair(1), recorded.pair(3)
        # A missing stride defaults to the kernel's size.
        stride = kernel if recorded.value(2) == [] else recorded.pair(2)
        if not (kernel and stride and padding):
            raise RecordError("its window is not recorded; record with PyTorch 2.1 or later")
        if recorded.value(ceil_mode) is True:
            raise RecordError("it rounds its output size up")
        record: dict[str, Any] = {"op": kind} | _image(recorded.shape(0))
        for name, (height, width) in {"kernel": kernel, "stride": stride, "pad": padding}.items():
            record |= {f"{name}_h": height, f"{name}_w": width}
        return read_record(record, recorded.precision)

    return read


def _adaptive_pool(chain: Sequence[Recorded]) -> Operator:
    if chain[0].pair(1) != (1, 1):
        raise RecordError("its output is not known to be 1x1")
    return read_record({"op": "global_average_pool"} | _image(chain[0].shape(0)), chain[0].precision)


_READERS: dict[str, Callable[[Sequence[Recorded]], Operator]] = {
    **dict.fromkeys(_CONVOLUTIONS, _convolution),
    **dict.fromkeys(_PRODUCTS, _product),
    "aten::add": _add,
    "aten::add_": _add,
    "aten::relu": _relu,
    "aten::relu_": _relu,
    "aten::max_pool2d_with_indices": _pool("max_pool", ceil_mode=5),
    "aten::avg_pool2d": _pool("average_pool", ceil_mode=4),
    "aten::adaptive_avg_pool2d": _adaptive_pool,
}
