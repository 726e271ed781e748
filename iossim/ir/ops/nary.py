"""Element-wise ops of several tensors with a kind of their own, broadcast against each other: sum, product, select."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import TYPE_CHECKING, Self

import numpy as np

from iossim.ir.op import Array, Op, Role, broadcast, broadcast_shapes, require
from iossim.ir.types import DType, TensorType

if TYPE_CHECKING:
    from iossim.ir.onnx_spelling import OnnxNode


class Add(Op, kind="add", onnx_types="Sum Add", role=Role.ELEMENTWISE):
    """Sum of one or more inputs, broadcast against each other: ONNX ``Add`` and ``Sum``."""

    def output(self, term: TensorType, *terms: TensorType) -> TensorType:
        return broadcast([term, *terms])

    def flops(self, inputs: Sequence[TensorType], outputs: Sequence[TensorType]) -> int:
        return outputs[0].elements * (len(inputs) - 1)

    def compute(self, *terms: Array) -> Array:
        return reduce(np.add, terms)


class Mul(Op, kind="mul", onnx_types="Mul", role=Role.ELEMENTWISE, flops_per_element=1):
    """Product of two inputs, broadcast against each other."""

    def output(self, a: TensorType, b: TensorType) -> TensorType:
        return broadcast([a, b])

    def compute(self, a: Array, b: Array) -> Array:
        return np.asarray(a * b)


class Where(Op, kind="where", onnx_types="Where", role=Role.ELEMENTWISE, flops_per_element=1):
    """``x`` where ``condition`` holds, else ``y``: inputs ``condition`` (bool), ``x``, ``y``, broadcast."""

    def output(self, condition: TensorType, x: TensorType, y: TensorType) -> TensorType:
        require(condition.dtype is DType.BOOL, f"its condition {condition} holds no truth values")
        require(x.dtype is y.dtype, f"its inputs {x} and {y} differ in element type")
        return TensorType(broadcast_shapes([condition, x, y]), x.dtype)

    def evaluate(self, inputs: Sequence[Array]) -> tuple[Array, ...]:
        return (np.where(*inputs),)


@dataclass(frozen=True)
class PRelu(Op, kind="prelu", onnx_types="PRelu", role=Role.ELEMENTWISE, flops_per_element=2):
    """``x`` where it is not negative, else ``slope * x``: inputs ``x`` and ``slope``, which broadcasts to ``x``.

    With ``per_channel`` (ONNX below operator set 7) the slope is ``[C]`` for ``x [N, C, ...]``.
    """

    per_channel: bool = False

    def output(self, x: TensorType, slope: TensorType) -> TensorType:
        if self.per_channel:
            require(slope.shape == x.shape[1:2], f"its slope {slope} is not one for each channel of {x}")
        else:
            require(broadcast([x, slope]) == x, f"its slope {slope} does not broadcast to {x}")
        return x

    def compute(self, x: Array, slope: Array) -> Array:
        if self.per_channel:
            slope = slope.reshape(-1, *[1] * (x.ndim - 2))
        return np.where(x < 0, slope * x, x)

    def completed(self, node: OnnxNode) -> Self:
        x, slope = (node.input_type(index).shape for index in (0, 1))
        # Models converted from operator sets without broadcasting keep the old shape.
        per_channel = len(x) > 2 and slope == x[1:2] and slope[0] not in (1, x[-1])
        return replace(self, per_channel=per_channel)
