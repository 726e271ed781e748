"""Choice between two tensors, element by element."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from iossim.ir.op import Array, Op, Role, require
from iossim.ir.ops.broadcasting import broadcast_shapes
from iossim.ir.types import DType, TensorType


@dataclass(frozen=True)
class Where(Op):
    """``x`` where ``condition`` holds, else ``y``: inputs ``condition`` (bool), ``x``, ``y``, broadcast."""

    kind: ClassVar[str] = "where"
    onnx_types: ClassVar[tuple[str, ...]] = ("Where",)
    role: ClassVar[Role] = Role.ELEMENTWISE
    flops_per_element: ClassVar[int] = 1

    def infer(self, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
        require(len(inputs) == 3, f"takes a condition and two tensors, not {len(inputs)} inputs")
        condition, x, y = inputs
        require(condition.dtype is DType.BOOL, f"its condition {condition} holds no truth values")
        require(x.dtype is y.dtype, f"its inputs {x} and {y} differ in element type")
        return (TensorType(broadcast_shapes(inputs), x.dtype),)

    def evaluate(self, inputs: Sequence[Array]) -> tuple[Array, ...]:
        return (np.where(*inputs),)
