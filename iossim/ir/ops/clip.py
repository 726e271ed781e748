"""Clip to a range: Relu6 is ``Clip(0, 6)``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np

from iossim.ir.op import Array, OnnxNode, Op, Role
from iossim.ir.ops.broadcasting import one_input
from iossim.ir.types import TensorType


@dataclass(frozen=True)
class Clip(Op):
    """``min(max(x, minimum), maximum)``, element by element; None leaves that side open."""

    kind: ClassVar[str] = "clip"
    onnx_types: ClassVar[tuple[str, ...]] = ("Clip",)
    role: ClassVar[Role] = Role.ACTIVATION

    minimum: float | None = None
    maximum: float | None = None

    def infer(self, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
        return (one_input(inputs),)

    def flops(self, inputs: Sequence[TensorType], outputs: Sequence[TensorType]) -> int:
        return outputs[0].elements * sum(bound is not None for bound in (self.minimum, self.maximum))

    def evaluate(self, inputs: Sequence[Array]) -> tuple[Array, ...]:
        (y,) = inputs
        # ONNX gives the maximum where the bounds cross, so the maximum is applied last.
        if self.minimum is not None:
            y = np.maximum(y, np.asarray(self.minimum).astype(y.dtype))
        if self.maximum is not None:
            y = np.minimum(y, np.asarray(self.maximum).astype(y.dtype))
        return (y,)

    @classmethod
    def from_onnx(cls, node: OnnxNode) -> tuple[Self, tuple[str, ...]]:
        """Bounds are attributes below opset 11, inputs from there on."""
        if node.opset < 11:
            bounds = [node.attribute("min"), node.attribute("max")]
        else:
            bounds = [
                node.constant(index, what).item() if node.has_input(index) else None
                for index, what in ((1, "minimum"), (2, "maximum"))
            ]
        minimum, maximum = (None if bound is None else float(bound) for bound in bounds)
        return cls(minimum, maximum), node.data_inputs(1)

    def to_onnx(self) -> tuple[str, dict[str, Any]]:
        bounds = {"min": self.minimum, "max": self.maximum}
        return "Clip", {name: bound for name, bound in bounds.items() if bound is not None}
