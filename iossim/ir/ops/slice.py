"""Ops that slice and concatenate tensors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import TYPE_CHECKING, Self

import numpy as np

from iossim.ir.op import AlongAxis, Array, Op, Role, normal_axis, require
from iossim.ir.types import TensorType

if TYPE_CHECKING:
    from iossim.ir.onnx_spelling import OnnxNode


@dataclass(frozen=True)
class Slice(Op, kind="slice", onnx_types="Slice", onnx_names="starts ends axes steps"):
    """``x[start:end:step]`` along each of ``axes``, with Python's treatment of out-of-range and negative indices.

    To reach the first element backwards, an end is below ``-size``, as in ONNX.
    """

    starts: tuple[int, ...]
    ends: tuple[int, ...]
    axes: tuple[int, ...]
    steps: tuple[int, ...]

    def output(self, x: TensorType) -> TensorType:
        require(
            len(self.starts) == len(self.ends) == len(self.axes) == len(self.steps),
            "its starts, ends, axes and steps differ in number",
        )
        require(0 not in self.steps, "has a step of 0")
        axes = [normal_axis(axis, len(x.shape)) for axis in self.axes]
        require(len(set(axes)) == len(axes), f"slices an axis twice: {list(self.axes)}")
        shape = list(x.shape)
        for axis, part in zip(axes, self._slices(), strict=True):
            shape[axis] = len(range(*part.indices(shape[axis])))
        return TensorType(tuple(shape), x.dtype)

    def evaluate(self, inputs: Sequence[Array]) -> tuple[Array, ...]:
        (x,) = inputs
        index = [slice(None)] * x.ndim
        for axis, part in zip(self.axes, self._slices(), strict=True):
            index[axis] = part
        return (x[tuple(index)],)

    def _slices(self) -> list[slice]:
        return [slice(*ends) for ends in zip(self.starts, self.ends, self.steps, strict=True)]

    def completed(self, node: OnnxNode) -> Self:
        """Everything is an attribute below opset 10 (which has no steps), an input from then on."""
        count = len(self.starts)
        return replace(self, axes=self.axes or (*range(count),), steps=self.steps or (1,) * count)


@dataclass(frozen=True)
class Split(AlongAxis, kind="split", onnx_types="Split", onnx_names="axis sizes=split"):
    """One output for each of ``sizes``, which are consecutive along ``axis``."""

    axis: int
    sizes: tuple[int, ...]

    def output(self, x: TensorType) -> tuple[TensorType, ...]:
        axis = normal_axis(self.axis, len(x.shape))
        require(
            min(self.sizes, default=1) > 0,
            f"its sizes {list(self.sizes)} are not all positive: an output would be empty",
        )
        require(
            bool(self.sizes) and sum(self.sizes) == x.shape[axis],
            f"its sizes {list(self.sizes)} do not add up to dimension {axis} of {x}",
        )
        return tuple(TensorType((*x.shape[:axis], size, *x.shape[axis + 1 :]), x.dtype) for size in self.sizes)

    def evaluate(self, inputs: Sequence[Array]) -> tuple[Array, ...]:
        return tuple(np.split(inputs[0], list(accumulate(self.sizes))[:-1], axis=self.axis))

    def completed(self, node: OnnxNode) -> Self:
        """Sizes are an attribute below opset 13, an input from then on; if omitted, they are equal.

        From opset 18 on, equal sizes may leave a smaller last one.
        """
        op = super().completed(node)
        shape, parts = node.input_type(0).shape, len(op.sizes or node.outputs)
        if not op.sizes:
            whole = shape[op.axis]
            parts = int(node.attribute("num_outputs", parts))
            size = -(-whole // parts) if node.opset >= 18 else whole // parts
            op = replace(op, sizes=(*(size,) * (parts - 1), whole - size * (parts - 1)))
            is_even = node.opset >= 18 or op.sizes[-1] == size
            require(is_even, f"dimension {op.axis} of {list(shape)} has no {parts} equal parts")
        require(parts >= len(node.outputs), f"splits into {parts} parts, but names {len(node.outputs)}")
        return op


@dataclass(frozen=True)
class Concat(AlongAxis, kind="concat", onnx_types="Concat", onnx_names="axis", role=Role.CONCAT):
    """One or more inputs concatenated along ``axis``; equal in every other dimension."""

    axis: int = 1

    def output(self, first: TensorType, *others: TensorType) -> TensorType:
        axis = normal_axis(self.axis, len(first.shape))
        for other in others:
            require(
                other.dtype == first.dtype
                and len(other.shape) == len(first.shape)
                and other.shape[:axis] == first.shape[:axis]
                and other.shape[axis + 1 :] == first.shape[axis + 1 :],
                f"its inputs {first} and {other} do not join along axis {self.axis}",
            )
        joined = sum(value.shape[axis] for value in (first, *others))
        return TensorType((*first.shape[:axis], joined, *first.shape[axis + 1 :]), first.dtype)

    def evaluate(self, inputs: Sequence[Array]) -> tuple[Array, ...]:
        return (np.concatenate(list(inputs), axis=self.axis),)
