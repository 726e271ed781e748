"""Pooling over windows and over whole images, any number of spatial dimensions.

Output sizes follow ONNX. With ``ceil_mode`` a last window that hangs over the end counts, but only if it begins
inside the input or the padding before it. An average counts padding only with ``count_include_pad``, and what hangs
over the padded input never.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from iossim.ir.op import Array, OnnxNode, Op, require
from iossim.ir.ops.broadcasting import one_input, widen
from iossim.ir.ops.conv import onnx_pads
from iossim.ir.types import TensorType


@dataclass(frozen=True)
class MaxPool(Op):
    """Largest element of each window of ``x [N, C, *spatial]``; padding never wins.

    ``pads`` holds the padding before each spatial dimension, then after each, as in ONNX.
    """

    kind: ClassVar[str] = "max_pool"
    onnx_types: ClassVar[tuple[str, ...]] = ("MaxPool",)

    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    pads: tuple[int, ...]
    dilations: tuple[int, ...] = (1, 1)
    ceil_mode: bool = False

    def infer(self, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
        return (_pooled(self, one_input(inputs)),)

    def flops(self, inputs: Sequence[TensorType], outputs: Sequence[TensorType]) -> int:
        return outputs[0].elements * (math.prod(self.kernel) - 1)

    def evaluate(self, inputs: Sequence[Array]) -> tuple[Array, ...]:
        (x,) = inputs
        lowest = np.iinfo(x.dtype).min if x.dtype.kind in "iu" else -np.inf
        return (_reduce(self, x, lowest, np.maximum),)

    @classmethod
    def from_onnx(cls, node: OnnxNode) -> tuple[Self, tuple[str, ...]]:
        return cls(*_window(node), bool(node.attribute("ceil_mode", 0))), node.data_inputs(1)

    def to_onnx(self) -> tuple[str, dict[str, Any]]:
        return "MaxPool", _window_to_onnx(self)


@dataclass(frozen=True)
class AveragePool(Op):
    """Mean of each window of ``x [N, C, *spatial]``; ``pads`` as in :class:`MaxPool`."""

    kind: ClassVar[str] = "average_pool"
    onnx_types: ClassVar[tuple[str, ...]] = ("AveragePool",)

    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    pads: tuple[int, ...]
    ceil_mode: bool = False
    count_include_pad: bool = False
    dilations: tuple[int, ...] = (1, 1)

    def infer(self, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
        return (_pooled(self, one_input(inputs)),)

    def flops(self, inputs: Sequence[TensorType], outputs: Sequence[TensorType]) -> int:
        return outputs[0].elements * math.prod(self.kernel)

    def evaluate(self, inputs: Sequence[Array]) -> tuple[Array, ...]:
        x = widen(inputs[0])
        total = _reduce(self, x, 0, np.add)
        y = total / self.counts(x.shape[2:], total.shape[2:]).astype(total.dtype)
        return (y.astype(inputs[0].dtype, copy=False),)

    def counts(self, size: Sequence[int], out: Sequence[int]) -> NDArray[np.int64]:
        """How many elements each window averages, shape ``out``: the product of what it covers along each axis."""
        counts = np.ones((1,) * len(out), dtype=np.int64)
        for axis, before, after in _axes(self):
            starts = np.arange(out[axis]) * self.strides[axis] - before
            taps = starts[:, None] + np.arange(self.kernel[axis]) * self.dilations[axis]
            low, high = (-before, size[axis] + after) if self.count_include_pad else (0, size[axis])
            covered = ((taps >= low) & (taps < high)).sum(axis=1)
            counts = counts * covered.reshape([-1 if other == axis else 1 for other in range(len(out))])
        return np.maximum(counts, 1)

    @classmethod
    def from_onnx(cls, node: OnnxNode) -> tuple[Self, tuple[str, ...]]:
        kernel, strides, pads, dilations = _window(node)
        ceil_mode, include_pad = (bool(node.attribute(name, 0)) for name in ("ceil_mode", "count_include_pad"))
        return cls(kernel, strides, pads, ceil_mode, include_pad, dilations), node.data_inputs(1)

    def to_onnx(self) -> tuple[str, dict[str, Any]]:
        return "AveragePool", {**_window_to_onnx(self), "count_include_pad": int(self.count_include_pad)}


@dataclass(frozen=True)
class _GlobalPool(Op):
    """Base of the ops that reduce each image of ``x [N, C, *spatial]`` to ``[N, C, 1, ...]``."""

    def infer(self, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
        x = one_input(inputs)
        require(len(x.shape) > 2, f"its input {x} has no spatial dimensions")
        return (TensorType((*x.shape[:2], *[1] * (len(x.shape) - 2)), x.dtype),)

    def flops(self, inputs: Sequence[TensorType], outputs: Sequence[TensorType]) -> int:
        return inputs[0].elements

    def evaluate(self, inputs: Sequence[Array]) -> tuple[Array, ...]:
        (x,) = inputs
        return (self._reduce(widen(x), tuple(range(2, x.ndim))).astype(x.dtype, copy=False),)

    @abstractmethod
    def _reduce(self, x: Array, axes: tuple[int, ...]) -> Array:
        """``x`` reduced over ``axes``, which stay as dimensions of one."""


@dataclass(frozen=True)
class GlobalAveragePool(_GlobalPool):
    """Mean of each image."""

    kind: ClassVar[str] = "global_average_pool"
    onnx_types: ClassVar[tuple[str, ...]] = ("GlobalAveragePool",)

    def _reduce(self, x: Array, axes: tuple[int, ...]) -> Array:
        mean: Array = x.mean(axis=axes, keepdims=True)
        return mean


@dataclass(frozen=True)
class GlobalMaxPool(_GlobalPool):
    """Largest element of each image."""

    kind: ClassVar[str] = "global_max_pool"
    onnx_types: ClassVar[tuple[str, ...]] = ("GlobalMaxPool",)

    def _reduce(self, x: Array, axes: tuple[int, ...]) -> Array:
        largest: Array = x.max(axis=axes, keepdims=True)
        return largest


def _axes(op: MaxPool | AveragePool) -> Iterator[tuple[int, int, int]]:
    """Each spatial axis with the padding before and after it."""
    rank = len(op.kernel)
    return ((axis, op.pads[axis], op.pads[rank + axis]) for axis in range(rank))


def _pooled(op: MaxPool | AveragePool, x: TensorType) -> TensorType:
    """The output type of a windowed pooling."""
    rank = len(op.kernel)
    require(len(x.shape) == rank + 2, f"its input {x} does not have {rank} spatial dimensions")
    require(
        len(op.strides) == len(op.dilations) == rank and len(op.pads) == 2 * rank, "has attributes of different ranks"
    )
    require(min((*op.kernel, *op.strides, *op.dilations)) > 0, "needs a positive kernel, stride and dilation")
    require(min(op.pads) >= 0, "needs padding that is not negative")
    spatial = []
    for axis, before, after in _axes(op):
        extent = op.dilations[axis] * (op.kernel[axis] - 1) + 1
        require(max(before, after) < extent, f"its padding {max(before, after)} is not below its window {extent}")
        span, stride = x.shape[2 + axis] + before + after - extent, op.strides[axis]
        count = (-(-span // stride) if op.ceil_mode else span // stride) + 1
        if op.ceil_mode and (count - 1) * stride >= x.shape[2 + axis] + before:
            count -= 1
        spatial.append(count)
    return TensorType((*x.shape[:2], *spatial), x.dtype)


def _reduce(op: MaxPool | AveragePool, x: Array, fill: float, combine: Callable[[Array, Array], Array]) -> Array:
    """Combine the elements of each window, one tap of the kernel at a time over all windows at once."""
    out = _pooled(op, TensorType(x.shape)).shape[2:]
    padding = [(0, 0), (0, 0)]
    for axis, before, _ in _axes(op):
        reach = (out[axis] - 1) * op.strides[axis] + op.dilations[axis] * (op.kernel[axis] - 1) + 1
        padding.append((before, max(0, reach - before - x.shape[2 + axis])))
    padded = np.pad(x, padding, constant_values=fill) if any(map(any, padding)) else x
    result: Array | None = None
    for tap in product(*map(range, op.kernel)):
        begin = [offset * dilation for offset, dilation in zip(tap, op.dilations, strict=True)]
        window = tuple(
            slice(first, first + (count - 1) * stride + 1, stride)
            for first, count, stride in zip(begin, out, op.strides, strict=True)
        )
        part = padded[(slice(None), slice(None), *window)]
        result = part.copy() if result is None else combine(result, part)
    assert result is not None
    return result


def _window(node: OnnxNode) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    """Kernel, strides, pads and dilations of an ONNX pooling node."""
    kernel = tuple(node.attribute("kernel_shape", ()))
    ones = (1,) * len(kernel)
    strides, dilations = tuple(node.attribute("strides", ones)), tuple(node.attribute("dilations", ones))
    return kernel, strides, onnx_pads(node, node.input_type(0).shape[2:], kernel, strides, dilations), dilations


def _window_to_onnx(op: MaxPool | AveragePool) -> dict[str, Any]:
    return {
        "kernel_shape": list(op.kernel),
        "strides": list(op.strides),
        "pads": list(op.pads),
        "dilations": list(op.dilations),
        "ceil_mode": int(op.ceil_mode),
    }
