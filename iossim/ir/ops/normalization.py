"""Normalisations at inference: batch, local response (Krizhevsky et al., 2012), layer, RMS, instance, group.

Those that compute statistics of their input count as eight operations per element: mean, centring, squares
and their mean, division by the deviation, scale, shift.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np

from iossim.ir.onnx_spelling import OnnxNode
from iossim.ir.op import AlongAxis, Array, Op, Role, broadcast, normal_axis, require
from iossim.ir.types import TensorType


@dataclass(frozen=True)
class BatchNorm(
    Op,
    kind="batch_norm",
    onnx_types="BatchNormalization",
    onnx_names="epsilon",
    role=Role.ELEMENTWISE,
    flops_per_element=2,
):
    """``(x - mean) / sqrt(variance + epsilon) * scale + bias`` for ``x [N, C, ...]``.

    Inputs ``x``, ``scale``, ``bias``, ``mean`` and ``variance``, the last four ``[C]``. Counted as the one multiply-add
    that remains at run time.
    """

    epsilon: float = 1e-5

    def output(
        self, x: TensorType, scale: TensorType, bias: TensorType, mean: TensorType, variance: TensorType
    ) -> TensorType:
        require(len(x.shape) > 1, f"its input {x} has no channels")
        for name, value in {"scale": scale, "bias": bias, "mean": mean, "variance": variance}.items():
            require(value.shape == (x.shape[1],), f"its {name} {value} does not have {x.shape[1]} values")
        return x

    def compute(self, x: Array, scale: Array, bias: Array, mean: Array, variance: Array) -> Array:
        multiplier, shift = multiplier_and_shift(scale, bias, mean, variance, self.epsilon)
        channels = (1, -1, *[1] * (x.ndim - 2))
        return np.asarray(x * multiplier.reshape(channels) + shift.reshape(channels))

    def completed(self, node: OnnxNode) -> Self:
        node.refuse(node.attribute("training_mode", 0), "is in training mode; export the model for inference")
        of_pixels = "normalises each pixel apart (spatial=0), which iossim does not know"
        node.refuse(not node.attribute("spatial", 1), f"{of_pixels}; convert the model to opset 9 or later")
        return self


def multiplier_and_shift(
    scale: Array, bias: Array, mean: Array, variance: Array, epsilon: float
) -> tuple[Array, Array]:
    """``m`` and ``s`` with ``batch_norm(x) = m * x + s``, each ``[C]``; computed in fp64, in ``scale``'s type."""
    wide = [array.astype(np.float64) for array in (scale, bias, mean, variance)]
    multiplier = wide[0] / np.sqrt(wide[3] + epsilon)
    shift = wide[1] - wide[2] * multiplier
    return multiplier.astype(scale.dtype), shift.astype(scale.dtype)


@dataclass(frozen=True)
class LocalResponseNorm(Op, kind="local_response_norm", onnx_types="LRN", onnx_names="size alpha beta bias"):
    """``x / (bias + alpha / size * s) ** beta`` for ``x [N, C, ...]``.

    ``s`` is the sum of squares over ``size`` neighbouring channels: ``(size - 1) // 2`` below, ``size // 2`` above.
    Counted as a multiply-add per neighbour, plus a multiply-add, the power and the division.
    """

    size: int
    alpha: float = 1e-4
    beta: float = 0.75
    bias: float = 1.0

    def output(self, x: TensorType) -> TensorType:
        require(len(x.shape) > 1, f"its input {x} has no channels")
        require(self.size > 0, f"sums over {self.size} channels; it needs one at least")
        return x

    def flops(self, inputs: Sequence[TensorType], outputs: Sequence[TensorType]) -> int:
        return outputs[0].elements * (2 * self.size + 4)

    def compute(self, x: Array) -> Array:
        reach = ((self.size - 1) // 2, self.size // 2)
        squares = np.pad(x * x, [(0, 0), reach, *[(0, 0)] * (x.ndim - 2)])
        channels = x.shape[1]
        total = np.sum([squares[:, offset : offset + channels] for offset in range(self.size)], axis=0)
        return np.asarray(x / (self.bias + np.float32(self.alpha / self.size) * total) ** np.float32(self.beta))


def _normalised(x: Array, axes: tuple[int, ...], epsilon: float) -> Array:
    centred = x - x.mean(axis=axes, keepdims=True)
    variance = (centred * centred).mean(axis=axes, keepdims=True)
    return np.asarray(centred / np.sqrt(variance + x.dtype.type(epsilon)))


class _Normalisation(Op, flops_per_element=8, has_epilogue=True, has_prologue=True):
    pass


@dataclass(frozen=True)
class _FromAxis(AlongAxis, _Normalisation, onnx_names="axis epsilon"):
    """Base of normalisations with statistics over ``axis`` and all following axes."""

    axis: int = -1
    epsilon: float = 1e-5

    def _axes(self, rank: int) -> tuple[int, ...]:
        return tuple(range(normal_axis(self.axis, rank), rank))

    def _scaled_by(self, x: TensorType, *parameters: TensorType) -> TensorType:
        """The type of ``x``; raises GraphError unless it has the axis, and parameters broadcast to it."""
        normal_axis(self.axis, len(x.shape))
        for value in parameters:
            require(broadcast([x, value]) == x, f"its parameter {value} does not broadcast to {x}")
        return x


class LayerNorm(_FromAxis, kind="layer_norm", onnx_types="LayerNormalization"):
    """``(x - mean) / sqrt(variance + epsilon) * scale + bias``, statistics over ``axis`` and all following axes.

    Inputs ``x``, ``scale`` and, if present, ``bias``, which broadcast to ``x``.
    """

    def output(self, x: TensorType, scale: TensorType, bias: TensorType | None = None) -> TensorType:
        return self._scaled_by(x, scale, *([] if bias is None else [bias]))

    def compute(self, x: Array, scale: Array, bias: Array | None = None) -> Array:
        y = _normalised(x, self._axes(x.ndim), self.epsilon) * scale
        return y if bias is None else y + bias


class RmsNorm(_FromAxis, kind="rms_norm", flops_per_element=5, onnx_types="RMSNormalization"):
    """``x / sqrt(mean(x * x) + epsilon) * scale``, the mean over ``axis`` and all following axes."""

    def output(self, x: TensorType, scale: TensorType) -> TensorType:
        return self._scaled_by(x, scale)

    def compute(self, x: Array, scale: Array) -> Array:
        mean = (x * x).mean(axis=self._axes(x.ndim), keepdims=True)
        return np.asarray(x / np.sqrt(mean + x.dtype.type(self.epsilon)) * scale)


@dataclass(frozen=True)
class InstanceNorm(_Normalisation, kind="instance_norm", onnx_types="InstanceNormalization", onnx_names="epsilon"):
    """Each channel of each image of ``x [N, C, ...]`` by its own statistics; ``scale`` and ``bias`` are ``[C]``."""

    epsilon: float = 1e-5

    def output(self, x: TensorType, scale: TensorType, bias: TensorType) -> TensorType:
        return _per_channel(x, scale, bias)

    def compute(self, x: Array, scale: Array, bias: Array) -> Array:
        return _scaled(_normalised(x, tuple(range(2, x.ndim)), self.epsilon), scale, bias)


@dataclass(frozen=True)
class GroupNorm(
    _Normalisation, kind="group_norm", onnx_types="GroupNormalization", onnx_names="groups=num_groups epsilon"
):
    """Each group of channels of each image by its own statistics; ``scale`` and ``bias`` are ``[C]``."""

    groups: int
    epsilon: float = 1e-5

    def output(self, x: TensorType, scale: TensorType, bias: TensorType) -> TensorType:
        require(
            self.groups > 0 and x.shape[1] % self.groups == 0,
            f"{x.shape[1]} channels do not divide into {self.groups} groups",
        )
        return _per_channel(x, scale, bias)

    def compute(self, x: Array, scale: Array, bias: Array) -> Array:
        grouped = x.reshape(x.shape[0], self.groups, -1)
        return _scaled(_normalised(grouped, (2,), self.epsilon).reshape(x.shape), scale, bias)

    def completed(self, node: OnnxNode) -> Self:
        """Below opset 21, scale and bias had one number per group."""
        scales_groups = node.opset < 21 and self.groups != node.input_type(0).shape[1]
        node.refuse(scales_groups, "scales groups; export it with operator set 21")
        return self


def _per_channel(x: TensorType, *parameters: TensorType) -> TensorType:
    require(len(x.shape) > 2, f"its input {x} has no channels of several elements")
    for value in parameters:
        require(value.shape == (x.shape[1],), f"its parameter {value} does not have {x.shape[1]} values")
    return x


def _scaled(y: Array, scale: Array, bias: Array) -> Array:
    channels = (1, -1, *[1] * (y.ndim - 2))
    return np.asarray(y * scale.reshape(channels) + bias.reshape(channels))
