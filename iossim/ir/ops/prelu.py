"""Leaky rectification with a learned slope."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Self

import numpy as np

from iossim.ir.op import Array, OnnxNode, Op, Role, require
from iossim.ir.ops.broadcasting import broadcast, widen
from iossim.ir.types import TensorType


@dataclass(frozen=True)
class PRelu(Op):
    """``x`` where it is not negative, else ``slope * x``: inputs ``x`` and ``slope``, which broadcasts to ``x``.

    With ``per_channel`` (ONNX below operator set 7) the slope is ``[C]`` for ``x [N, C, ...]``.
    """

    kind: ClassVar[str] = "prelu"
    onnx_types: ClassVar[tuple[str, ...]] = ("PRelu",)
    role: ClassVar[Role] = Role.ELEMENTWISE
    flops_per_element: ClassVar[int] = 2

    per_channel: bool = False

    def infer(self, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
        require(len(inputs) == 2, f"takes an input and a slope, not {len(inputs)} inputs")
        x, slope = inputs
        if self.per_channel:
            require(slope.shape == x.shape[1:2], f"its slope {slope} is not one for each channel of {x}")
        else:
            require(broadcast([x, slope]) == x, f"its slope {slope} does not broadcast to {x}")
        return (x,)

    def evaluate(self, inputs: Sequence[Array]) -> tuple[Array, ...]:
        x, slope = widen(inputs[0]), widen(inputs[1])
        if self.per_channel:
            slope = slope.reshape(-1, *[1] * (x.ndim - 2))
        return (np.where(x < 0, slope * x, x).astype(inputs[0].dtype, copy=False),)

    @classmethod
    def from_onnx(cls, node: OnnxNode) -> tuple[Self, tuple[str, ...]]:
        x, slope = (node.input_type(index).shape for index in (0, 1))
        # Models converted from operator sets that had no broadcasting keep the old shape.
        per_channel = len(x) > 2 and slope == x[1:2] and slope[0] not in (1, x[-1])
        return cls(per_channel), node.inputs
