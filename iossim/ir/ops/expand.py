"""Repetition: to a larger shape by broadcasting, or side by side."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np

from iossim.ir.op import Array, OnnxNode, Op, require
from iossim.ir.ops.broadcasting import broadcast, one_input
from iossim.ir.types import TensorType


@dataclass(frozen=True)
class Expand(Op):
    """The input broadcast against ``shape``."""

    kind: ClassVar[str] = "expand"
    onnx_types: ClassVar[tuple[str, ...]] = ("Expand",)

    shape: tuple[int, ...]

    def infer(self, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
        x = one_input(inputs)
        return (broadcast([x, TensorType(self.shape, x.dtype)]),)

    def making(self, shape: tuple[int, ...]) -> Expand:
        return Expand(shape)

    def evaluate(self, inputs: Sequence[Array]) -> tuple[Array, ...]:
        (x,) = inputs
        return (np.broadcast_to(x, np.broadcast_shapes(x.shape, self.shape)),)

    @classmethod
    def from_onnx(cls, node: OnnxNode) -> tuple[Self, tuple[str, ...]]:
        return cls(tuple(int(size) for size in node.constant(1, "shape"))), node.data_inputs(1)

    def to_onnx(self) -> tuple[str, dict[str, Any]]:
        return "Expand", {"shape": list(self.shape)}


@dataclass(frozen=True)
class Tile(Op):
    """The input side by side, ``repeats`` times along each axis."""

    kind: ClassVar[str] = "tile"
    onnx_types: ClassVar[tuple[str, ...]] = ("Tile",)

    repeats: tuple[int, ...]

    def infer(self, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
        x = one_input(inputs)
        require(
            len(self.repeats) == len(x.shape), f"its repeats {list(self.repeats)} are not one for each axis of {x}"
        )
        return (TensorType(tuple(s * r for s, r in zip(x.shape, self.repeats, strict=True)), x.dtype),)

    def mixes_images(self, first_varies: bool) -> bool:
        return self.repeats[:1] != (1,)

    def evaluate(self, inputs: Sequence[Array]) -> tuple[Array, ...]:
        return (np.tile(inputs[0], self.repeats),)

    @classmethod
    def from_onnx(cls, node: OnnxNode) -> tuple[Self, tuple[str, ...]]:
        return cls(tuple(int(count) for count in node.constant(1, "repeats"))), node.data_inputs(1)

    def to_onnx(self) -> tuple[str, dict[str, Any]]:
        return "Tile", {"repeats": list(self.repeats)}
