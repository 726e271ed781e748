"""Reshape; with static shapes it is also what squeezing and unsqueezing are."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from iossim.base.errors import ModelError
from iossim.ir.op import Array, OnnxNode, Op, Role, require
from iossim.ir.ops.broadcasting import normal_axis, one_input
from iossim.ir.types import TensorType


@dataclass(frozen=True)
class Reshape(Op):
    """The same elements in another shape.

    In ``shape`` a 0 copies the input's dimension at that place, and one -1 takes what is left over. What is read
    from ONNX has both resolved.
    """

    kind: ClassVar[str] = "reshape"
    onnx_types: ClassVar[tuple[str, ...]] = ("Reshape", "Squeeze", "Unsqueeze")
    role: ClassVar[Role] = Role.VIEW

    shape: tuple[int, ...]

    def infer(self, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
        x = one_input(inputs)
        return (TensorType(resolve_shape(self.shape, x), x.dtype),)

    def making(self, shape: tuple[int, ...]) -> Reshape:
        return Reshape(shape)

    def evaluate(self, inputs: Sequence[Array]) -> tuple[Array, ...]:
        (x,) = inputs
        shape = [x.shape[axis] if size == 0 else size for axis, size in enumerate(self.shape)]
        return (x.reshape(shape),)

    @classmethod
    def from_onnx(cls, node: OnnxNode) -> tuple[Self, tuple[str, ...]]:
        x = node.input_type(0)
        if node.op_type == "Squeeze":
            shape = _squeezed(x.shape, _axes(node))
        elif node.op_type == "Unsqueeze":
            shape = _unsqueezed(x.shape, _axes(node) or ())
        else:
            spelled = tuple(int(size) for size in node.constant(1, "shape"))
            if node.attribute("allowzero", 0) and 0 in spelled:
                raise ModelError(f"Reshape {node.name!r} makes an empty tensor; iossim takes none")
            shape = resolve_shape(spelled, x)
        return cls(shape), node.data_inputs(1)

    def to_onnx(self) -> tuple[str, dict[str, Any]]:
        return "Reshape", {"shape": list(self.shape)}


def resolve_shape(shape: Sequence[int], x: TensorType) -> tuple[int, ...]:
    """``shape`` with 0 and -1 resolved against ``x``; raises GraphError where it does not hold its elements."""
    listed = ", ".join(map(str, shape))
    require(sum(size == -1 for size in shape) <= 1, f"its shape [{listed}] leaves more than one dimension open")
    require(all(size >= -1 for size in shape), f"its shape [{listed}] has a negative dimension")
    require(
        all(size != 0 or axis < len(x.shape) for axis, size in enumerate(shape)),
        f"its shape [{listed}] copies a dimension that its input {x} does not have",
    )
    copied = [x.shape[axis] if size == 0 else size for axis, size in enumerate(shape)]
    known = math.prod(size for size in copied if size != -1)
    resolved = tuple(x.elements // known if size == -1 else size for size in copied)
    require(math.prod(resolved) == x.elements, f"its input {x} does not fit the shape [{listed}]")
    return resolved


def _axes(node: OnnxNode) -> tuple[int, ...] | None:
    """The axes of a Squeeze or Unsqueeze: an attribute below opset 13, an input from there on."""
    if node.has_input(1):
        return tuple(int(axis) for axis in node.constant(1, "axes").reshape(-1))
    axes = node.attribute("axes")
    return None if axes is None else tuple(axes)


def _squeezed(shape: Sequence[int], axes: Sequence[int] | None) -> tuple[int, ...]:
    if axes is None:
        return tuple(size for size in shape if size != 1)
    dropped = {normal_axis(axis, len(shape)) for axis in axes}
    require(all(shape[axis] == 1 for axis in dropped), f"cannot squeeze axes {sorted(dropped)} of {list(shape)}")
    return tuple(size for axis, size in enumerate(shape) if axis not in dropped)


def _unsqueezed(shape: Sequence[int], axes: Sequence[int]) -> tuple[int, ...]:
    rank = len(shape) + len(axes)
    added = {normal_axis(axis, rank) for axis in axes}
    require(len(added) == len(axes), f"unsqueezes an axis twice: {list(axes)}")
    rest = iter(shape)
    return tuple(1 if axis in added else next(rest) for axis in range(rank))
