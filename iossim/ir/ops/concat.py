"""Concatenation along one axis."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np

from iossim.ir.op import Array, OnnxNode, Op, Role, require
from iossim.ir.ops.broadcasting import normal_axis
from iossim.ir.types import TensorType


@dataclass(frozen=True)
class Concat(Op):
    """One or more inputs joined along ``axis``; equal in every other dimension."""

    kind: ClassVar[str] = "concat"
    onnx_types: ClassVar[tuple[str, ...]] = ("Concat",)
    role: ClassVar[Role] = Role.CONCAT

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

    def mixes_images(self, first_varies: bool) -> bool:
        return self.axis == 0

    def evaluate(self, inputs: Sequence[Array]) -> tuple[Array, ...]:
        return (np.concatenate(list(inputs), axis=self.axis),)

    @classmethod
    def from_onnx(cls, node: OnnxNode) -> tuple[Self, tuple[str, ...]]:
        rank = len(node.input_type(0).shape)
        return cls(normal_axis(int(node.attribute("axis", 1)), rank)), node.inputs

    def to_onnx(self) -> tuple[str, dict[str, Any]]:
        return "Concat", {"axis": self.axis}
