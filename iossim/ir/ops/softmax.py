"""Softmax."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np

from iossim.ir.op import Array, OnnxNode, Op, require
from iossim.ir.ops.broadcasting import normal_axis, one_input, widen
from iossim.ir.types import TensorType


@dataclass(frozen=True)
class Softmax(Op):
    """``exp(x) / sum(exp(x))`` along ``axis``.

    With ``flatten`` the sum goes over ``axis`` and all axes after it, which is what ONNX meant below opset 13.
    Counted as five operations an element: maximum, subtraction, exponential, sum, division.
    """

    kind: ClassVar[str] = "softmax"
    onnx_types: ClassVar[tuple[str, ...]] = ("Softmax",)

    axis: int = -1
    flatten: bool = False

    def infer(self, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
        x = one_input(inputs)
        require(x.dtype.is_floating or x.dtype.bytes == 1, f"takes floating-point numbers, not {x.dtype}")
        normal_axis(self.axis, len(x.shape))
        return (x,)

    def flops(self, inputs: Sequence[TensorType], outputs: Sequence[TensorType]) -> int:
        return 5 * outputs[0].elements

    def evaluate(self, inputs: Sequence[Array]) -> tuple[Array, ...]:
        x = widen(inputs[0])
        first = normal_axis(self.axis, x.ndim)
        axes = tuple(range(first, x.ndim)) if self.flatten else (first,)
        with np.errstate(
            invalid="ignore"
        ):  # where all is minus infinity, as in a row that is masked, nothing is known
            exponential = np.exp(x - x.max(axis=axes, keepdims=True))
        y = exponential / exponential.sum(axis=axes, keepdims=True)
        return (y.astype(inputs[0].dtype, copy=False),)

    @classmethod
    def from_onnx(cls, node: OnnxNode) -> tuple[Self, tuple[str, ...]]:
        shape = node.input_type(0).shape
        before_13 = node.opset < 13
        axis = normal_axis(int(node.attribute("axis", 1 if before_13 else -1)), len(shape))
        # Where nothing but ones follows, both meanings agree: the newer one is the canonical one.
        return cls(axis, before_13 and math.prod(shape[axis + 1 :]) > 1), node.data_inputs(1)

    def to_onnx(self) -> tuple[str, dict[str, Any]]:
        """Of an opset below 13 where ``flatten`` is set, of any other where it is not."""
        return "Softmax", {"axis": self.axis}
