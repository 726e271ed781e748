"""Split along one axis: the op with several outputs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, ClassVar, Self

import numpy as np

from iossim.ir.op import Array, OnnxNode, Op, require
from iossim.ir.ops.broadcasting import normal_axis, one_input
from iossim.ir.types import TensorType


@dataclass(frozen=True)
class Split(Op):
    """One output for each of ``sizes``, which lie one after another along ``axis``."""

    kind: ClassVar[str] = "split"
    onnx_types: ClassVar[tuple[str, ...]] = ("Split",)

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

    def mixes_images(self, first_varies: bool) -> bool:
        return self.axis == 0

    def evaluate(self, inputs: Sequence[Array]) -> tuple[Array, ...]:
        return tuple(np.split(inputs[0], list(accumulate(self.sizes))[:-1], axis=self.axis))

    @classmethod
    def from_onnx(cls, node: OnnxNode) -> tuple[Self, tuple[str, ...]]:
        """Sizes are an attribute below opset 13, an input from there on; left out they are equal.

        From opset 18 on, equal sizes may leave a smaller last one.
        """
        shape = node.input_type(0).shape
        axis = normal_axis(int(node.attribute("axis", 0)), len(shape))
        if node.has_input(1):
            sizes = tuple(int(size) for size in node.constant(1, "sizes"))
        elif node.attribute("split") is not None:
            sizes = tuple(node.attribute("split"))
        else:
            parts = int(node.attribute("num_outputs", len(node.outputs)))
            require(parts == len(node.outputs), f"splits into {parts} parts, but names {len(node.outputs)}")
            size = -(-shape[axis] // parts) if node.opset >= 18 else shape[axis] // parts
            sizes = (*[size] * (parts - 1), shape[axis] - size * (parts - 1))
            require(
                node.opset >= 18 or sizes[-1] == size, f"dimension {axis} of {list(shape)} has no {parts} equal parts"
            )
        require(len(sizes) >= len(node.outputs), f"splits into {len(sizes)} parts, but names {len(node.outputs)}")
        return cls(axis, sizes), node.data_inputs(1)

    def to_onnx(self) -> tuple[str, dict[str, Any]]:
        return "Split", {"axis": self.axis, "split": list(self.sizes)}
