"""Local response normalisation across channels (Krizhevsky et al., 2012), of the first ImageNet networks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np

from iossim.ir.op import Array, OnnxNode, Op, as_float32, require
from iossim.ir.ops.broadcasting import one_input
from iossim.ir.types import TensorType


@dataclass(frozen=True)
class LocalResponseNorm(Op):
    """``x / (bias + alpha / size * s) ** beta`` for ``x [N, C, ...]``.

    ``s`` is the sum of squares over ``size`` neighbouring channels: ``(size - 1) // 2`` below, ``size // 2`` above.
    Counted as a multiply-add for each of them, then the multiply-add, the power and the division.
    """

    kind: ClassVar[str] = "local_response_norm"
    onnx_types: ClassVar[tuple[str, ...]] = ("LRN",)

    size: int
    alpha: float = 1e-4
    beta: float = 0.75
    bias: float = 1.0

    def infer(self, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
        x = one_input(inputs)
        require(len(x.shape) > 1, f"its input {x} has no channels")
        require(self.size > 0, f"sums over {self.size} channels; it needs one at least")
        return (x,)

    def flops(self, inputs: Sequence[TensorType], outputs: Sequence[TensorType]) -> int:
        return outputs[0].elements * (2 * self.size + 4)

    def evaluate(self, inputs: Sequence[Array]) -> tuple[Array, ...]:
        x = as_float32(inputs[0])
        reach = ((self.size - 1) // 2, self.size // 2)
        squares = np.pad(x * x, [(0, 0), reach, *[(0, 0)] * (x.ndim - 2)])
        channels = x.shape[1]
        total = np.sum([squares[:, offset : offset + channels] for offset in range(self.size)], axis=0)
        y = x / (np.float32(self.bias) + np.float32(self.alpha / self.size) * total) ** np.float32(self.beta)
        return (y.astype(inputs[0].dtype, copy=False),)

    @classmethod
    def from_onnx(cls, node: OnnxNode) -> tuple[Self, tuple[str, ...]]:
        op = cls(
            int(node.attribute("size", 0)),
            float(node.attribute("alpha", 1e-4)),
            float(node.attribute("beta", 0.75)),
            float(node.attribute("bias", 1.0)),
        )
        return op, node.data_inputs(1)

    def to_onnx(self) -> tuple[str, dict[str, Any]]:
        return "LRN", {"size": self.size, "alpha": self.alpha, "beta": self.beta, "bias": self.bias}
