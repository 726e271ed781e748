"""Ops that slice and concatenate tensors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, Self

import numpy as np

from iossim.ir.op import AlongAxis, Array, Op, Role, normal_axis, one_input, require
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

    def infer(self, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
        x = one_input(inputs)
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
        return (TensorType(tuple(shape), x.dtype),)

    def evaluate(self, inputs: Sequence[Array]) -> tuple[Array, ...]:
        (x,) = inputs
        index = [slice(None)] * x.ndim
        for axis, part in zip(self.axes, self._slices(), strict=True):
            index[axis] = part
        return (x[tuple(index)],)

    def _slices(self) -> list[slice]:
        return [slice(*ends) for ends in zip(self.starts, self.ends, self.steps, strict=True)]

    @classmethod
    def from_onnx(cls, node: OnnxNode) -> tuple[Self, tuple[str, ...]]:
        """Everything is an attribute below opset 10 (which has no steps), an input from then on."""
        starts, ends, axes, steps = (node.integers(index, name) for index, name in enumerate(cls.onnx_names, start=1))
        count = len(starts or ())
        axes = list(range(count)) if axes is None else axes
        steps = [1] * count if steps is None else steps
        return cls(tuple(starts or ()), tuple(ends or ()), tuple(axes), tuple(steps)), node.data_inputs(1)


@dataclass(frozen=True)
class Split(AlongAxis, kind="split", onnx_types="Split", onnx_names="axis sizes=split"):
    """One output for each of ``sizes``, which are consecutive along ``axis``."""

    axis: int
    sizes: tuple[int, ...]

    def infer(self, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
        x = one_input(inputs)
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

    @classmethod
    def from_onnx(cls, node: OnnxNode) -> tuple[Self, tuple[str, ...]]:
        """Sizes are an attribute below opset 13, an input from then on; if omitted, they are equal.

        From opset 18 on, equal sizes may leave a smaller last one.
        """
        shape = node.input_type(0).shape
        axis = normal_axis(int(node.attribute("axis", 0)), len(shape))
        sizes = node.integers(1, "split", "sizes")
        if sizes is None:
            parts = int(node.attribute("num_outputs", len(node.outputs)))
            require(parts == len(node.outputs), f"splits into {parts} parts, but names {len(node.outputs)}")
            size = -(-shape[axis] // parts) if node.opset >= 18 else shape[axis] // parts
            sizes = [*[size] * (parts - 1), shape[axis] - size * (parts - 1)]
            require(
                node.opset >= 18 or sizes[-1] == size, f"dimension {axis} of {list(shape)} has no {parts} equal parts"
            )
        require(len(sizes) >= len(node.outputs), f"splits into {len(sizes)} parts, but names {len(node.outputs)}")
        return cls(axis, tuple(sizes)), node.data_inputs(1)


@dataclass(frozen=True)
class Concat(AlongAxis, kind="concat", onnx_types="Concat", onnx_names="axis", role=Role.CONCAT):
    """One or more inputs concatenated along ``axis``; equal in every other dimension."""

    axis: int = 1

    def infer(self, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
        require(len(inputs) > 0, "needs an input")
        first = inputs[0]
        axis = normal_axis(self.axis, len(first.shape))
        for other in inputs[1:]:
            require(
                other.dtype == first.dtype
                and len(other.shape) == len(first.shape)
                and other.shape[:axis] == first.shape[:axis]
                and other.shape[axis + 1 :] == first.shape[axis + 1 :],
                f"its inputs {first} and {other} do not join along axis {self.axis}",
            )
        joined = sum(value.shape[axis] for value in inputs)
        return (TensorType((*first.shape[:axis], joined, *first.shape[axis + 1 :]), first.dtype),)

    def evaluate(self, inputs: Sequence[Array]) -> tuple[Array, ...]:
        return (np.concatenate(list(inputs), axis=self.axis),)
