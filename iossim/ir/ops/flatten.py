"""Flatten to a matrix."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from iossim.ir.op import Array, OnnxNode, Op, Role
from iossim.ir.ops.broadcasting import normal_axis, one_input
from iossim.ir.types import TensorType


@dataclass(frozen=True)
class Flatten(Op):
    """Dimensions before ``axis`` become the rows of a matrix, the others its columns; ``axis`` may be the rank."""

    kind: ClassVar[str] = "flatten"
    onnx_types: ClassVar[tuple[str, ...]] = ("Flatten",)
    role: ClassVar[Role] = Role.VIEW

    axis: int = 1

    def infer(self, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
        x = one_input(inputs)
        return (TensorType(self._shape(x.shape), x.dtype),)

    def evaluate(self, inputs: Sequence[Array]) -> tuple[Array, ...]:
        return (inputs[0].reshape(self._shape(inputs[0].shape)),)

    def _shape(self, shape: Sequence[int]) -> tuple[int, int]:
        axis = normal_axis(self.axis, len(shape), last=len(shape))
        return math.prod(shape[:axis]), math.prod(shape[axis:])

    @classmethod
    def from_onnx(cls, node: OnnxNode) -> tuple[Self, tuple[str, ...]]:
        rank = len(node.input_type(0).shape)
        return cls(normal_axis(int(node.attribute("axis", 1)), rank, last=rank)), node.data_inputs(1)

    def to_onnx(self) -> tuple[str, dict[str, Any]]:
        return "Flatten", {"axis": self.axis}
