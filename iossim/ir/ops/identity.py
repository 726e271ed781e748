"""Identity: what dropout is at inference."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Self

from iossim.base.errors import ModelError
from iossim.ir.op import Array, OnnxNode, Op, Role
from iossim.ir.ops.broadcasting import one_input
from iossim.ir.types import TensorType


@dataclass(frozen=True)
class Identity(Op):
    """The input, unchanged."""

    kind: ClassVar[str] = "identity"
    onnx_types: ClassVar[tuple[str, ...]] = ("Identity", "Dropout")
    role: ClassVar[Role] = Role.VIEW

    def infer(self, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
        return (one_input(inputs),)

    def evaluate(self, inputs: Sequence[Array]) -> tuple[Array, ...]:
        return (inputs[0],)

    @classmethod
    def from_onnx(cls, node: OnnxNode) -> tuple[Self, tuple[str, ...]]:
        if node.has_input(2) and bool(node.constant(2, "training mode")):
            raise ModelError(f"Dropout {node.name!r} is in training mode; export the model for inference")
        return cls(), node.data_inputs(1)
