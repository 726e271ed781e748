"""Batch normalisation at inference: a scale and a shift per channel."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np

from iossim.ir.op import Array, NotCoveredError, OnnxNode, Op, Role, require
from iossim.ir.ops.broadcasting import widen
from iossim.ir.types import TensorType


@dataclass(frozen=True)
class BatchNorm(Op):
    """``(x - mean) / sqrt(variance + epsilon) * scale + bias`` for ``x [N, C, ...]``.

    Inputs ``x``, ``scale``, ``bias``, ``mean`` and ``variance``, the last four ``[C]``. Counted as the multiply-add
    that is left at run time.
    """

    kind: ClassVar[str] = "batch_norm"
    onnx_types: ClassVar[tuple[str, ...]] = ("BatchNormalization",)
    role: ClassVar[Role] = Role.ELEMENTWISE
    flops_per_element: ClassVar[int] = 2

    epsilon: float = 1e-5

    def infer(self, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
        require(len(inputs) == 5, f"needs an input, scale, bias, mean and variance, not {len(inputs)} inputs")
        x = inputs[0]
        require(len(x.shape) > 1, f"its input {x} has no channels")
        for name, value in zip(("scale", "bias", "mean", "variance"), inputs[1:], strict=True):
            require(value.shape == (x.shape[1],), f"its {name} {value} does not have {x.shape[1]} values")
        return (x,)

    def evaluate(self, inputs: Sequence[Array]) -> tuple[Array, ...]:
        x, scale, bias, mean, variance = map(widen, inputs)
        multiplier, shift = multiplier_and_shift(scale, bias, mean, variance, self.epsilon)
        channels = (1, -1, *[1] * (x.ndim - 2))
        y = x * multiplier.reshape(channels) + shift.reshape(channels)
        return (y.astype(inputs[0].dtype, copy=False),)

    @classmethod
    def from_onnx(cls, node: OnnxNode) -> tuple[Self, tuple[str, ...]]:
        if node.attribute("training_mode", 0):
            raise NotCoveredError(
                f"BatchNormalization {node.name!r} is in training mode; export the model for inference"
            )
        if not node.attribute("spatial", 1):
            raise NotCoveredError(
                f"BatchNormalization {node.name!r} normalises each pixel apart (spatial=0), which iossim does not "
                "know; convert the model to opset 9 or later"
            )
        return cls(float(node.attribute("epsilon", 1e-5))), node.data_inputs(5)

    def to_onnx(self) -> tuple[str, dict[str, Any]]:
        return "BatchNormalization", {"epsilon": self.epsilon}


def multiplier_and_shift(
    scale: Array, bias: Array, mean: Array, variance: Array, epsilon: float
) -> tuple[Array, Array]:
    """``m`` and ``s`` with ``batch_norm(x) = m * x + s``, each ``[C]``; computed in fp64, of ``scale``'s type."""
    wide = [array.astype(np.float64) for array in (scale, bias, mean, variance)]
    multiplier = wide[0] / np.sqrt(wide[3] + epsilon)
    shift = wide[1] - wide[2] * multiplier
    return multiplier.astype(scale.dtype), shift.astype(scale.dtype)
