"""Sums of all elements up to a place along an axis: positions from masks, probability mass of the likeliest tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np

from iossim.ir.op import Array, NotCoveredError, OnnxNode, Op, require
from iossim.ir.ops.broadcasting import normal_axis, one_input, widen
from iossim.ir.types import DType, TensorType


@dataclass(frozen=True)
class CumSum(Op):
    """``y[i] = x[0] + ... + x[i]`` along ``axis``; ``exclusive`` leaves ``x[i]`` out, ``reverse`` sums from the end."""

    kind: ClassVar[str] = "cumsum"
    onnx_types: ClassVar[tuple[str, ...]] = ("CumSum",)
    has_prologue: ClassVar[bool] = True

    axis: int = 0
    exclusive: bool = False
    reverse: bool = False

    def infer(self, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
        x = one_input(inputs)
        require(x.dtype is not DType.BOOL, f"sums numbers, not {x}")
        normal_axis(self.axis, len(x.shape))
        return (x,)

    def mixes_images(self, first_varies: bool) -> bool:
        return self.axis == 0

    def flops(self, inputs: Sequence[TensorType], outputs: Sequence[TensorType]) -> int:
        return inputs[0].elements

    def evaluate(self, inputs: Sequence[Array]) -> tuple[Array, ...]:
        x = np.moveaxis(widen(inputs[0]), self.axis, 0)
        x = x[::-1] if self.reverse else x
        y = np.cumsum(x, axis=0, dtype=x.dtype)
        if self.exclusive:
            y = np.concatenate([np.zeros_like(y[:1]), y[:-1]])
        y = np.moveaxis(y[::-1] if self.reverse else y, 0, self.axis)
        return (y.astype(inputs[0].dtype, copy=False),)

    @classmethod
    def from_onnx(cls, node: OnnxNode) -> tuple[Self, tuple[str, ...]]:
        axis = node.constant(1, "axis")
        if axis.size != 1:
            raise NotCoveredError(f"CumSum {node.name!r} sums along {axis.size} axes")
        flags = bool(node.attribute("exclusive", 0)), bool(node.attribute("reverse", 0))
        return cls(normal_axis(int(axis.item()), len(node.input_type(0).shape)), *flags), node.data_inputs(1)

    def to_onnx(self) -> tuple[str, dict[str, Any]]:
        return "CumSum", {"axis": self.axis, "exclusive": int(self.exclusive), "reverse": int(self.reverse)}
