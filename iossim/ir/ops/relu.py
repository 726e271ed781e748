"""Rectified linear unit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np

from iossim.ir.op import Array, OnnxNode, Op, Role
from iossim.ir.ops.broadcasting import one_input
from iossim.ir.types import TensorType


@dataclass(frozen=True)
class Relu(Op):
    """``max(x, 0)``, element by element."""

    kind: ClassVar[str] = "relu"
    onnx_types: ClassVar[tuple[str, ...]] = ("Relu",)
    role: ClassVar[Role] = Role.ACTIVATION

    def infer(self, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
        return (one_input(inputs),)

    def flops(self, inputs: Sequence[TensorType], outputs: Sequence[TensorType]) -> int:
        return outputs[0].elements

    def evaluate(self, inputs: Sequence[Array]) -> tuple[Array, ...]:
        (x,) = inputs
        return (np.maximum(x, x.dtype.type(0)),)

    @classmethod
    def from_onnx(cls, node: OnnxNode) -> tuple[Self, tuple[str, ...]]:
        return cls(), node.data_inputs(1)

    def to_onnx(self) -> tuple[str, dict[str, Any]]:
        return "Relu", {}
