"""What ops share: NumPy broadcasting of types, axes counted from the front."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self

from iossim.ir.op import OnnxNode, Op, require
from iossim.ir.types import TensorType


def broadcast(inputs: Sequence[TensorType]) -> TensorType:
    """The type that inputs of one element type broadcast to; raises GraphError where they do not."""
    dtypes = {value.dtype for value in inputs}
    listed = " and ".join(map(str, inputs))
    require(len(dtypes) == 1, f"its inputs {listed} differ in element type")
    return TensorType(broadcast_shapes(inputs), inputs[0].dtype)


def broadcast_shapes(inputs: Sequence[TensorType]) -> tuple[int, ...]:
    """The shape that inputs of any element types broadcast to; raises GraphError where they do not."""
    listed = " and ".join(map(str, inputs))
    rank = max(len(value.shape) for value in inputs)
    shape = []
    for axis in range(-rank, 0):
        sizes = {value.shape[axis] for value in inputs if -axis <= len(value.shape)} - {1}
        require(len(sizes) <= 1, f"its inputs {listed} do not broadcast")
        shape.append(sizes.pop() if sizes else 1)
    return tuple(shape)


def normal_axis(axis: int, rank: int, last: int | None = None) -> int:
    """``axis`` counted from the front; raises GraphError unless it is one of ``rank`` (or up to ``last``)."""
    top = rank - 1 if last is None else last
    require(-rank <= axis <= top, f"axis {axis} is not one of a tensor with {rank} dimensions")
    return axis + rank if axis < 0 else axis


@dataclass(frozen=True)
class AlongAxis(Op):
    """Base of ops along one axis of their first input; as read from ONNX it is counted from the front."""

    axis: int

    def mixes_images(self, first_varies: bool) -> bool:
        return self.axis == 0

    @classmethod
    def from_onnx(cls, node: OnnxNode) -> tuple[Self, tuple[str, ...]]:
        op, data = super().from_onnx(node)
        return replace(op, axis=normal_axis(op.axis, len(node.input_type(0).shape))), data
