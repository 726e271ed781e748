"""Pooling over windows and over whole images."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from itertools import product
from typing import TYPE_CHECKING, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from iossim.ir.op import Array, Op, require, require_windows
from iossim.ir.types import TensorType

if TYPE_CHECKING:
    from iossim.ir.onnx_spelling import OnnxNode


@dataclass(frozen=True)
class MaxPoolAttributes(Op, onnx_names="kernel=kernel_shape strides pads dilations ceil_mode"):
    """Base of max pooling and its gradient: ``pads`` before each spatial dimension, then after each, as in ONNX."""

    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    pads: tuple[int, ...]
    dilations: tuple[int, ...] = (1, 1)
    ceil_mode: bool = False


class _Pool(Op, own_unit_kind="Pool"):
    """Base of poolings over windows."""

    def output(self: MaxPool | AveragePool, x: TensorType) -> TensorType:  # type: ignore[misc]
        require_windows(self, len(self.kernel), self.kernel, input=x)
        require(min(self.pads) >= 0, "needs padding that is not negative")
        spatial = []
        for axis, before, after in _axes(self):
            extent = self.dilations[axis] * (self.kernel[axis] - 1) + 1
            require(max(before, after) < extent, f"its padding {max(before, after)} is not below its window {extent}")
            span, stride = x.shape[2 + axis] + before + after - extent, self.strides[axis]
            count = (-(-span // stride) if self.ceil_mode else span // stride) + 1
            if self.ceil_mode and (count - 1) * stride >= x.shape[2 + axis] + before:
                count -= 1
            spatial.append(count)
        return TensorType((*x.shape[:2], *spatial), x.dtype)

    def completed(self, node: OnnxNode) -> Self:
        return replace(self, **node.windows(node.attribute("kernel_shape", ())))


class MaxPool(_Pool, MaxPoolAttributes, kind="max_pool", onnx_types="MaxPool"):
    """Maximum of each window of ``x [N, C, *spatial]``; padding is never the maximum."""

    def flops(self, inputs: Sequence[TensorType], outputs: Sequence[TensorType]) -> int:
        return outputs[0].elements * (math.prod(self.kernel) - 1)

    def compute(self, x: Array) -> Array:
        return _reduce(self, x, np.iinfo(x.dtype).min if x.dtype.kind in "iu" else -np.inf, np.maximum)


@dataclass(frozen=True)
class AveragePoolAttributes(Op, onnx_names="kernel=kernel_shape strides pads dilations ceil_mode count_include_pad"):
    """Base of average pooling and its gradient; ``pads`` as in :class:`MaxPoolAttributes`."""

    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    pads: tuple[int, ...]
    ceil_mode: bool = False
    count_include_pad: bool = False
    dilations: tuple[int, ...] = (1, 1)


class AveragePool(_Pool, AveragePoolAttributes, kind="average_pool", onnx_types="AveragePool"):
    """Mean of each window of ``x [N, C, *spatial]``."""

    def flops(self, inputs: Sequence[TensorType], outputs: Sequence[TensorType]) -> int:
        return outputs[0].elements * math.prod(self.kernel)

    def compute(self, x: Array) -> Array:
        total = _reduce(self, x, 0, np.add)
        return np.asarray(total / self.counts(x.shape[2:], total.shape[2:]).astype(total.dtype))

    def counts(self, size: Sequence[int], out: Sequence[int]) -> NDArray[np.int64]:
        """Number of elements that each window averages, shape ``out``: the product of its extents along the axes."""
        counts = np.ones((1,) * len(out), dtype=np.int64)
        for axis, before, after in _axes(self):
            starts = np.arange(out[axis]) * self.strides[axis] - before
            taps = starts[:, None] + np.arange(self.kernel[axis]) * self.dilations[axis]
            low, high = (-before, size[axis] + after) if self.count_include_pad else (0, size[axis])
            covered = ((taps >= low) & (taps < high)).sum(axis=1)
            counts = counts * covered.reshape([-1 if other == axis else 1 for other in range(len(out))])
        return np.maximum(counts, 1)


class _GlobalPool(Op, flops_per_read_element=1):
    """Base of the ops that reduce each image of ``x [N, C, *spatial]`` to ``[N, C, 1, ...]`` by ``reduction``."""

    reduction: ClassVar[Callable[..., Array]]

    def output(self, x: TensorType) -> TensorType:
        require(len(x.shape) > 2, f"its input {x} has no spatial dimensions")
        return TensorType((*x.shape[:2], *[1] * (len(x.shape) - 2)), x.dtype)

    def compute(self, x: Array) -> Array:
        return type(self).reduction(x, axis=tuple(range(2, x.ndim)), keepdims=True)


class GlobalAveragePool(
    _GlobalPool, kind="global_average_pool", reduction=np.mean, onnx_types="GlobalAveragePool", own_unit_kind="Pool"
):
    """Mean of each image."""


class GlobalMaxPool(_GlobalPool, kind="global_max_pool", reduction=np.max, onnx_types="GlobalMaxPool"):
    """Maximum of each image."""


def _axes(op: MaxPool | AveragePool) -> Iterator[tuple[int, int, int]]:
    """Each spatial axis with the padding before and after it."""
    rank = len(op.kernel)
    return ((axis, op.pads[axis], op.pads[rank + axis]) for axis in range(rank))


def _reduce(op: MaxPool | AveragePool, x: Array, fill: float, combine: Callable[[Array, Array], Array]) -> Array:
    """Combine the elements of each window, one kernel tap at a time for all windows at once."""
    out = op.output(TensorType(x.shape)).shape[2:]
    padding = window_padding(op, x.shape[2:], out)
    padded = np.pad(x, padding, constant_values=fill) if any(map(any, padding)) else x
    first, *others = (padded[window] for window in windows(op.kernel, op.strides, op.dilations, out))
    return reduce(combine, others, first.copy())


def window_padding(op: MaxPool | AveragePool, size: Sequence[int], out: Sequence[int]) -> list[tuple[int, int]]:
    """Padding before and after each axis, so that every window is inside."""
    padding = [(0, 0), (0, 0)]
    for axis, before, _ in _axes(op):
        reach = (out[axis] - 1) * op.strides[axis] + op.dilations[axis] * (op.kernel[axis] - 1) + 1
        padding.append((before, max(0, reach - before - size[axis])))
    return padding


def windows(
    kernel: Sequence[int], strides: Sequence[int], dilations: Sequence[int], out: Sequence[int]
) -> Iterator[tuple[slice, ...]]:
    """Slices of padded images for each kernel tap over all ``out`` windows at once, in row-major order."""
    for tap in product(*map(range, kernel)):
        spatial = (
            slice(offset * dilation, offset * dilation + (count - 1) * stride + 1, stride)
            for offset, dilation, count, stride in zip(tap, dilations, out, strides, strict=True)
        )
        yield (slice(None), slice(None), *spatial)
