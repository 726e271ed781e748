"""Transposition of axes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from iossim.ir.op import Array, OnnxNode, Op, require
from iossim.ir.ops.broadcasting import one_input
from iossim.ir.types import TensorType


@dataclass(frozen=True)
class Transpose(Op):
    """Axis ``i`` of the output is axis ``permutation[i]`` of the input."""

    kind: ClassVar[str] = "transpose"
    onnx_types: ClassVar[tuple[str, ...]] = ("Transpose",)

    permutation: tuple[int, ...]

    def infer(self, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
        x = one_input(inputs)
        require(
            sorted(self.permutation) == list(range(len(x.shape))),
            f"its permutation {list(self.permutation)} is not one of the axes of {x}",
        )
        return (TensorType(tuple(x.shape[axis] for axis in self.permutation), x.dtype),)

    def evaluate(self, inputs: Sequence[Array]) -> tuple[Array, ...]:
        return (inputs[0].transpose(self.permutation),)

    @classmethod
    def from_onnx(cls, node: OnnxNode) -> tuple[Self, tuple[str, ...]]:
        rank = len(node.input_type(0).shape)
        return cls(tuple(node.attribute("perm", range(rank - 1, -1, -1)))), node.data_inputs(1)

    def to_onnx(self) -> tuple[str, dict[str, Any]]:
        return "Transpose", {"perm": list(self.permutation)}
