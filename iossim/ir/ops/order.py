"""The largest and smallest elements along an axis, by their places: ArgMax, ArgMin, TopK."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np

from iossim.ir.op import Array, OnnxNode, Op, require
from iossim.ir.ops.broadcasting import normal_axis, one_input, widen
from iossim.ir.types import DType, TensorType


@dataclass(frozen=True)
class ArgExtreme(Op):
    """Where the largest (or ``smallest``) element along ``axis`` is: the first, or the ``last``, if there are several."""

    kind: ClassVar[str] = "arg_extreme"
    onnx_types: ClassVar[tuple[str, ...]] = ("ArgMax", "ArgMin")
    has_prologue: ClassVar[bool] = True

    axis: int = 0
    smallest: bool = False
    keepdims: bool = True
    last: bool = False

    def infer(self, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
        x = one_input(inputs)
        axis = normal_axis(self.axis, len(x.shape))
        kept = (1,) if self.keepdims else ()
        return (TensorType((*x.shape[:axis], *kept, *x.shape[axis + 1 :]), DType.INT64),)

    def mixes_images(self, first_varies: bool) -> bool:
        return self.axis == 0

    def flops(self, inputs: Sequence[TensorType], outputs: Sequence[TensorType]) -> int:
        return inputs[0].elements

    def evaluate(self, inputs: Sequence[Array]) -> tuple[Array, ...]:
        x = widen(inputs[0])
        find = np.argmin if self.smallest else np.argmax
        if self.last:
            found = x.shape[self.axis] - 1 - find(np.flip(x, self.axis), axis=self.axis)
        else:
            found = find(x, axis=self.axis)
        found = np.asarray(found, dtype=np.int64)
        return (np.expand_dims(found, self.axis) if self.keepdims else found,)

    @classmethod
    def from_onnx(cls, node: OnnxNode) -> tuple[Self, tuple[str, ...]]:
        axis = normal_axis(int(node.attribute("axis", 0)), len(node.input_type(0).shape))
        flags = (bool(node.attribute("keepdims", 1)), bool(node.attribute("select_last_index", 0)))
        return cls(axis, node.op_type == "ArgMin", *flags), node.data_inputs(1)

    def to_onnx(self) -> tuple[str, dict[str, Any]]:
        return "ArgMin" if self.smallest else "ArgMax", {
            "axis": self.axis,
            "keepdims": int(self.keepdims),
            "select_last_index": int(self.last),
        }


@dataclass(frozen=True)
class TopK(Op):
    """The ``count`` largest (or smallest) elements along ``axis``, in order, and their places: two outputs."""

    kind: ClassVar[str] = "top_k"
    onnx_types: ClassVar[tuple[str, ...]] = ("TopK",)

    count: int
    axis: int = -1
    largest: bool = True

    def infer(self, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
        x = one_input(inputs)
        axis = normal_axis(self.axis, len(x.shape))
        require(0 < self.count <= x.shape[axis], f"there are no {self.count} elements along axis {axis} of {x}")
        shape = (*x.shape[:axis], self.count, *x.shape[axis + 1 :])
        return TensorType(shape, x.dtype), TensorType(shape, DType.INT64)

    def mixes_images(self, first_varies: bool) -> bool:
        return self.axis == 0

    def flops(self, inputs: Sequence[TensorType], outputs: Sequence[TensorType]) -> int:
        """A comparison with a heap of the elements kept, for each element: ``log2`` of their number, at least one."""
        return inputs[0].elements * max(1, (self.count - 1).bit_length())

    def evaluate(self, inputs: Sequence[Array]) -> tuple[Array, ...]:
        (x,) = inputs
        keys = widen(x)
        if self.largest:
            # Stable from the end, then turned round: of equal elements the first comes first.
            turned = np.argsort(np.flip(keys, self.axis), axis=self.axis, kind="stable")
            order = np.flip(keys.shape[self.axis] - 1 - turned, self.axis)
        else:
            order = np.argsort(keys, axis=self.axis, kind="stable")
        places = np.take(order, np.arange(self.count), axis=self.axis).astype(np.int64)
        return np.take_along_axis(x, places, axis=self.axis), places

    @classmethod
    def from_onnx(cls, node: OnnxNode) -> tuple[Self, tuple[str, ...]]:
        """The count is an attribute below opset 10, an input from there on."""
        count = int(node.attribute("k", 0)) if node.opset < 10 else int(node.constant(1, "count").item())
        axis = normal_axis(int(node.attribute("axis", -1)), len(node.input_type(0).shape))
        return cls(count, axis, bool(node.attribute("largest", 1))), node.data_inputs(1)

    def to_onnx(self) -> tuple[str, dict[str, Any]]:
        return "TopK", {"K": [self.count], "axis": self.axis, "largest": int(self.largest)}
