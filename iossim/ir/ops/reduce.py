"""Ops along axes: reductions, cumulative sums, and the indices of maxima and minima."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Self

import numpy as np

from iossim.ir.onnx_spelling import OnnxNode
from iossim.ir.op import AlongAxis, Array, Op, normal_axis, require, widen
from iossim.ir.types import DType, TensorType

_Compute = Callable[[Array, tuple[int, ...]], Array]


def _log_sum_exp(x: Array, axes: tuple[int, ...]) -> Array:
    largest = x.max(axis=axes, keepdims=True)
    finite = np.where(np.isfinite(largest), largest, 0)
    return np.asarray(np.log(np.exp(x - finite).sum(axis=axes, keepdims=True)) + finite)


#: By name: ONNX's type, operations per element read, and the function, which keeps reduced axes with size one.
FUNCTIONS: dict[str, tuple[str, int, _Compute]] = {
    "sum": ("ReduceSum", 1, lambda x, axes: x.sum(axis=axes, keepdims=True)),
    "mean": ("ReduceMean", 1, lambda x, axes: x.mean(axis=axes, keepdims=True)),
    "max": ("ReduceMax", 1, lambda x, axes: x.max(axis=axes, keepdims=True)),
    "min": ("ReduceMin", 1, lambda x, axes: x.min(axis=axes, keepdims=True)),
    "product": ("ReduceProd", 1, lambda x, axes: x.prod(axis=axes, keepdims=True)),
    "l1": ("ReduceL1", 2, lambda x, axes: np.abs(x).sum(axis=axes, keepdims=True)),
    "l2": ("ReduceL2", 2, lambda x, axes: np.sqrt((x * x).sum(axis=axes, keepdims=True))),
    "log_sum": ("ReduceLogSum", 1, lambda x, axes: np.log(x.sum(axis=axes, keepdims=True))),
    "log_sum_exp": ("ReduceLogSumExp", 3, _log_sum_exp),
    "sum_square": ("ReduceSumSquare", 2, lambda x, axes: (x * x).sum(axis=axes, keepdims=True)),
}
_BY_ONNX_TYPE = {onnx_type: name for name, (onnx_type, _, _) in FUNCTIONS.items()}


@dataclass(frozen=True)
class Reduce(Op, kind="reduce", onnx_types=" ".join(_BY_ONNX_TYPE), onnx_names="axes keepdims", has_prologue=True):
    """``function`` over ``axes``, which are kept with size one if ``keepdims``, else dropped."""

    function: str
    axes: tuple[int, ...]
    keepdims: bool = True

    @property
    def unit_kind(self) -> str:
        return self.to_onnx()[0]

    def output(self, x: TensorType) -> TensorType:
        require(self.function in FUNCTIONS, f"has no function {self.function!r}; known: {', '.join(FUNCTIONS)}")
        axes = {normal_axis(axis, len(x.shape)) for axis in self.axes}
        require(len(axes) == len(self.axes), f"reduces an axis twice: {list(self.axes)}")
        kept = (1,) if self.keepdims else ()
        sizes = (kept if axis in axes else (size,) for axis, size in enumerate(x.shape))
        return TensorType(tuple(chain(*sizes)), x.dtype)

    @property
    def sums_images(self) -> bool:
        return self.function in ("sum", "l1", "sum_square") and 0 in self.axes

    def flops(self, inputs: Sequence[TensorType], outputs: Sequence[TensorType]) -> int:
        return FUNCTIONS[self.function][1] * inputs[0].elements

    def compute(self, x: Array) -> Array:
        axes = tuple(normal_axis(axis, x.ndim) for axis in self.axes)
        with np.errstate(all="ignore"):
            y = np.asarray(FUNCTIONS[self.function][2](x, axes)) if axes else x
        return y if self.keepdims else y.reshape([size for axis, size in enumerate(y.shape) if axis not in axes])

    def completed(self, node: OnnxNode) -> Self:
        """Axes are an attribute, and from opset 13 (sums) or 18 an input; if omitted, all axes."""
        x, rank = node.input_type(0), len(node.input_type(0).shape)
        node.refuse(not self.axes and node.attribute("noop_with_empty_axes", 0), "reduces nothing")
        computes = node.op_type not in ("ReduceMax", "ReduceMin")
        node.refuse(computes and x.dtype.bytes == 1, f"computes in {x.dtype}")
        normal = sorted(normal_axis(axis, rank) for axis in self.axes or range(rank))
        return replace(self, function=_BY_ONNX_TYPE[node.op_type], axes=tuple(normal))

    def to_onnx(self) -> tuple[str, dict[str, object]]:
        return FUNCTIONS[self.function][0], super().to_onnx()[1]


@dataclass(frozen=True)
class CumSum(
    AlongAxis,
    kind="cumsum",
    flops_per_read_element=1,
    onnx_types="CumSum",
    onnx_names="axis exclusive reverse",
    has_prologue=True,
):
    """``y[i] = x[0] + ... + x[i]`` along ``axis``; ``exclusive`` without ``x[i]``, ``reverse`` from the end."""

    axis: int = 0
    exclusive: bool = False
    reverse: bool = False

    def output(self, x: TensorType) -> TensorType:
        require(x.dtype is not DType.BOOL, f"sums numbers, not {x}")
        normal_axis(self.axis, len(x.shape))
        return x

    def compute(self, x: Array) -> Array:
        x = np.moveaxis(x, self.axis, 0)
        x = x[::-1] if self.reverse else x
        y = np.cumsum(x, axis=0, dtype=x.dtype)
        if self.exclusive:
            y = np.concatenate([np.zeros_like(y[:1]), y[:-1]])
        return np.moveaxis(y[::-1] if self.reverse else y, 0, self.axis)


@dataclass(frozen=True)
class ArgExtreme(
    AlongAxis,
    kind="arg_extreme",
    flops_per_read_element=1,
    onnx_types="ArgMax ArgMin",
    onnx_names="axis keepdims last=select_last_index",
    has_prologue=True,
):
    """Index of the maximum (or, if ``smallest``, minimum) along ``axis``; among equals the first, or the ``last``."""

    axis: int = 0
    smallest: bool = False
    keepdims: bool = True
    last: bool = False

    def output(self, x: TensorType) -> TensorType:
        axis = normal_axis(self.axis, len(x.shape))
        kept = (1,) if self.keepdims else ()
        return TensorType((*x.shape[:axis], *kept, *x.shape[axis + 1 :]), DType.INT64)

    def evaluate(self, inputs: Sequence[Array]) -> tuple[Array, ...]:
        x = widen(inputs[0])
        find = np.argmin if self.smallest else np.argmax
        if self.last:
            found = x.shape[self.axis] - 1 - find(np.flip(x, self.axis), axis=self.axis)
        else:
            found = find(x, axis=self.axis)
        found = np.asarray(found, dtype=np.int64)
        return (np.expand_dims(found, self.axis) if self.keepdims else found,)

    def completed(self, node: OnnxNode) -> Self:
        return replace(super().completed(node), smallest=node.op_type == "ArgMin")

    def to_onnx(self) -> tuple[str, dict[str, object]]:
        return "ArgMin" if self.smallest else "ArgMax", super().to_onnx()[1]


@dataclass(frozen=True)
class TopK(Op, kind="top_k", onnx_types="TopK", onnx_names="count=k|K axis largest"):
    """The ``count`` largest (or smallest) elements along ``axis``, in order, and their indices: two outputs."""

    count: int
    axis: int = -1
    largest: bool = True

    def output(self, x: TensorType) -> tuple[TensorType, ...]:
        axis = normal_axis(self.axis, len(x.shape))
        require(0 < self.count <= x.shape[axis], f"there are no {self.count} elements along axis {axis} of {x}")
        shape = (*x.shape[:axis], self.count, *x.shape[axis + 1 :])
        return TensorType(shape, x.dtype), TensorType(shape, DType.INT64)

    def mixes_images(self, first_varies: bool) -> bool:
        return self.axis == 0

    def flops(self, inputs: Sequence[TensorType], outputs: Sequence[TensorType]) -> int:
        """Comparisons with a heap of the kept elements, per element: ``log2`` of their number, at least one."""
        return inputs[0].elements * max(1, (self.count - 1).bit_length())

    def evaluate(self, inputs: Sequence[Array]) -> tuple[Array, ...]:
        (x,) = inputs
        keys = widen(x)
        if self.largest:
            # A stable sort of the reversed axis, reversed again: among equal elements the first comes first.
            turned = np.argsort(np.flip(keys, self.axis), axis=self.axis, kind="stable")
            order = np.flip(keys.shape[self.axis] - 1 - turned, self.axis)
        else:
            order = np.argsort(keys, axis=self.axis, kind="stable")
        most = x.shape[self.axis] + 1  # a count beyond the elements is an IndexError, however large it is
        places = np.take(order, np.arange(min(self.count, most)), axis=self.axis).astype(np.int64)
        return np.take_along_axis(x, places, axis=self.axis), places

    def completed(self, node: OnnxNode) -> Self:
        return replace(self, axis=normal_axis(self.axis, len(node.input_type(0).shape)))

    def to_onnx(self) -> tuple[str, dict[str, object]]:
        return "TopK", {**super().to_onnx()[1], "k|K": [self.count]}
