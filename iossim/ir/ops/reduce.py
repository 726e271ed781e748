"""Reduction over axes: a table of functions, and the op that applies one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np

from iossim.ir.op import Array, NotCoveredError, OnnxNode, Op, require
from iossim.ir.ops.broadcasting import normal_axis, one_input, widen
from iossim.ir.types import TensorType

_Compute = Callable[[Array, tuple[int, ...]], Array]


def _log_sum_exp(x: Array, axes: tuple[int, ...]) -> Array:
    largest = x.max(axis=axes, keepdims=True)
    finite = np.where(np.isfinite(largest), largest, 0)
    result: Array = np.log(np.exp(x - finite).sum(axis=axes, keepdims=True)) + finite
    return result


#: By name: ONNX's type, operations for each element that is read, and the function, which keeps the axes as ones.
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
class Reduce(Op):
    """``function`` over ``axes``, which stay as dimensions of one with ``keepdims``, and go without."""

    kind: ClassVar[str] = "reduce"
    onnx_types: ClassVar[tuple[str, ...]] = tuple(_BY_ONNX_TYPE)
    has_prologue: ClassVar[bool] = True

    function: str
    axes: tuple[int, ...]
    keepdims: bool = True

    def infer(self, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
        x = one_input(inputs)
        require(self.function in FUNCTIONS, f"has no function {self.function!r}; known: {', '.join(FUNCTIONS)}")
        axes = {normal_axis(axis, len(x.shape)) for axis in self.axes}
        require(len(axes) == len(self.axes), f"reduces an axis twice: {list(self.axes)}")
        if self.keepdims:
            shape = tuple(1 if axis in axes else size for axis, size in enumerate(x.shape))
        else:
            shape = tuple(size for axis, size in enumerate(x.shape) if axis not in axes)
        return (TensorType(shape, x.dtype),)

    @property
    def sums_images(self) -> bool:
        return self.function in ("sum", "l1", "sum_square") and 0 in self.axes

    def flops(self, inputs: Sequence[TensorType], outputs: Sequence[TensorType]) -> int:
        return FUNCTIONS[self.function][1] * inputs[0].elements

    def evaluate(self, inputs: Sequence[Array]) -> tuple[Array, ...]:
        x = widen(inputs[0])
        axes = tuple(normal_axis(axis, x.ndim) for axis in self.axes)
        with np.errstate(all="ignore"):
            y = np.asarray(FUNCTIONS[self.function][2](x, axes)) if axes else x
        y = y if self.keepdims else y.reshape([size for axis, size in enumerate(y.shape) if axis not in axes])
        return (y.astype(inputs[0].dtype, copy=False),)

    @classmethod
    def from_onnx(cls, node: OnnxNode) -> tuple[Self, tuple[str, ...]]:
        """Axes are an attribute, and an input from opset 13 (sums) or 18 on; left out they are all."""
        rank = len(node.input_type(0).shape)
        if node.has_input(1):
            axes = [int(axis) for axis in node.constant(1, "axes").reshape(-1)]
        else:
            axes = list(node.attribute("axes", ()))
        if not axes and node.attribute("noop_with_empty_axes", 0):
            raise NotCoveredError(f"{node.op_type} {node.name!r} reduces nothing")
        if node.input_type(0).dtype.bytes == 1 and node.op_type not in ("ReduceMax", "ReduceMin"):
            raise NotCoveredError(f"{node.op_type} {node.name!r} computes in {node.input_type(0).dtype}")
        normal = sorted(normal_axis(axis, rank) for axis in axes) if axes else range(rank)
        keepdims = bool(node.attribute("keepdims", 1))
        return cls(_BY_ONNX_TYPE[node.op_type], tuple(normal), keepdims), node.data_inputs(1)

    def to_onnx(self) -> tuple[str, dict[str, Any]]:
        return FUNCTIONS[self.function][0], {"axes": list(self.axes), "keepdims": int(self.keepdims)}
