"""Element-wise sum."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any, ClassVar

import numpy as np

from iossim.ir.op import Array, Op, Role, require
from iossim.ir.ops.broadcasting import broadcast, widen
from iossim.ir.types import TensorType


@dataclass(frozen=True)
class Add(Op):
    """Sum of one or more inputs, broadcast against each other: ONNX ``Add`` and ``Sum``."""

    kind: ClassVar[str] = "add"
    onnx_types: ClassVar[tuple[str, ...]] = ("Add", "Sum")
    role: ClassVar[Role] = Role.ELEMENTWISE

    def infer(self, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
        require(len(inputs) > 0, "needs an input")
        return (broadcast(inputs),)

    def flops(self, inputs: Sequence[TensorType], outputs: Sequence[TensorType]) -> int:
        return outputs[0].elements * (len(inputs) - 1)

    def evaluate(self, inputs: Sequence[Array]) -> tuple[Array, ...]:
        total = reduce(np.add, [widen(array) for array in inputs])
        return (total.astype(inputs[0].dtype, copy=False),)

    def to_onnx(self) -> tuple[str, dict[str, Any]]:
        return "Sum", {}
