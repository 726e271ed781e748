"""Slices with steps, forwards or backwards."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from iossim.ir.op import Array, OnnxNode, Op, require
from iossim.ir.ops.broadcasting import normal_axis, one_input
from iossim.ir.types import TensorType


@dataclass(frozen=True)
class Slice(Op):
    """``x[start:end:step]`` along each of ``axes``, with Python's meaning of what lies outside or is negative.

    To reach the first element backwards, an end lies below ``-size``, as in ONNX.
    """

    kind: ClassVar[str] = "slice"
    onnx_types: ClassVar[tuple[str, ...]] = ("Slice",)

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
        """Everything is an attribute below opset 10 (which has no steps), an input from there on."""
        names = ("starts", "ends", "axes", "steps")
        if node.opset < 10:
            given = [node.attribute(name) for name in names]
        else:
            given = [
                [int(value) for value in node.constant(index, name)] if node.has_input(index) else None
                for index, name in enumerate(names, start=1)
            ]
        starts, ends = given[0] or [], given[1] or []
        axes = given[2] if given[2] is not None else range(len(starts))
        steps = given[3] if given[3] is not None else [1] * len(starts)
        return cls(tuple(starts), tuple(ends), tuple(axes), tuple(steps)), node.data_inputs(1)

    def to_onnx(self) -> tuple[str, dict[str, Any]]:
        return "Slice", {
            "starts": list(self.starts),
            "ends": list(self.ends),
            "axes": list(self.axes),
            "steps": list(self.steps),
        }
