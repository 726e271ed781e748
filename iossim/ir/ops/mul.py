"""Element-wise product."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from iossim.ir.op import Array, OnnxNode, Op, Role, require
from iossim.ir.ops.broadcasting import broadcast, widen
from iossim.ir.types import TensorType


@dataclass(frozen=True)
class Mul(Op):
    """Product of two inputs, broadcast against each other."""

    kind: ClassVar[str] = "mul"
    onnx_types: ClassVar[tuple[str, ...]] = ("Mul",)
    role: ClassVar[Role] = Role.ELEMENTWISE

    def infer(self, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
        require(len(inputs) == 2, f"takes two inputs, not {len(inputs)}")
        return (broadcast(inputs),)

    def flops(self, inputs: Sequence[TensorType], outputs: Sequence[TensorType]) -> int:
        return outputs[0].elements

    def evaluate(self, inputs: Sequence[Array]) -> tuple[Array, ...]:
        product: Array = widen(inputs[0]) * widen(inputs[1])
        return (product.astype(inputs[0].dtype, copy=False),)

    @classmethod
    def from_onnx(cls, node: OnnxNode) -> tuple[Self, tuple[str, ...]]:
        return cls(), node.inputs

    def to_onnx(self) -> tuple[str, dict[str, Any]]:
        return "Mul", {}
