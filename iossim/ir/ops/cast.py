"""Conversion to another element type."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np

from iossim.ir.onnx_types import dtype_of_onnx, onnx_code
from iossim.ir.op import Array, NotCoveredError, OnnxNode, Op, require
from iossim.ir.ops.broadcasting import one_input
from iossim.ir.types import DType, TensorType


@dataclass(frozen=True)
class Cast(Op):
    """The same numbers as ``dtype``: rounded to the nearest float, cut towards zero to a whole number, non-zero is true."""

    kind: ClassVar[str] = "cast"
    onnx_types: ClassVar[tuple[str, ...]] = ("Cast", "CastLike")

    dtype: str

    def infer(self, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
        x = one_input(inputs)
        require(self.dtype in list(DType), f"casts to {self.dtype!r}, which is no element type")
        return (TensorType(x.shape, DType(self.dtype)),)

    def evaluate(self, inputs: Sequence[Array]) -> tuple[Array, ...]:
        with np.errstate(all="ignore"):  # numbers that the type does not hold
            return (inputs[0].astype(DType(self.dtype).numpy, copy=False),)

    @classmethod
    def from_onnx(cls, node: OnnxNode) -> tuple[Self, tuple[str, ...]]:
        x = node.input_type(0).dtype
        if node.op_type == "CastLike":
            to = node.input_type(1).dtype
        else:
            to = dtype_of_onnx(int(node.attribute("to", 0)), f"{node.op_type} {node.name!r}")
        if x.is_narrow or to.is_narrow:
            raise NotCoveredError(f"{node.op_type} {node.name!r} rounds to {to}")
        return cls(str(to)), node.data_inputs(1)

    def to_onnx(self) -> tuple[str, dict[str, Any]]:
        return "Cast", {"to": onnx_code(DType(self.dtype))}
