"""Element-wise product."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from iossim.ir.op import Array, Op, Role, require
from iossim.ir.ops.broadcasting import broadcast, widen
from iossim.ir.types import TensorType


@dataclass(frozen=True)
class Mul(Op):
    """Product of two inputs, broadcast against each other."""

    kind: ClassVar[str] = "mul"
    onnx_types: ClassVar[tuple[str, ...]] = ("Mul",)
    role: ClassVar[Role] = Role.ELEMENTWISE
    flops_per_element: ClassVar[int] = 1

    def infer(self, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
        require(len(inputs) == 2, f"takes two inputs, not {len(inputs)}")
        return (broadcast(inputs),)

    def evaluate(self, inputs: Sequence[Array]) -> tuple[Array, ...]:
        product: Array = widen(inputs[0]) * widen(inputs[1])
        return (product.astype(inputs[0].dtype, copy=False),)
