"""Gradients of pooling over windows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import astuple, dataclass

import numpy as np

from iossim.ir.op import Array, require
from iossim.ir.ops.pool import AveragePool, AveragePoolAttributes, MaxPool, MaxPoolAttributes, window_padding, windows
from iossim.ir.types import TensorType


class MaxPoolBackward(MaxPoolAttributes, kind="max_pool_backward"):
    """Inputs ``x [N, C, *spatial]`` and ``grad_output [N, C, *out]``; the output is the gradient of ``x``.

    Among equal maxima the first in row-major order gets the gradient, as in PyTorch and cuDNN's deterministic mode.
    """

    @property
    def forward(self) -> MaxPool:
        return MaxPool(*astuple(self))

    def output(self, x: TensorType, grad_output: TensorType) -> TensorType:
        _require_gradient(self.forward, x, grad_output)
        return x

    def flops(self, inputs: Sequence[TensorType], outputs: Sequence[TensorType]) -> int:
        return inputs[1].elements * (2 * math.prod(self.kernel) - 1)

    def compute(self, x: Array, grad_output: Array) -> Array:
        padding = window_padding(self.forward, x.shape[2:], grad_output.shape[2:])
        padded = np.pad(x, padding, constant_values=-np.inf)
        largest = self.forward.evaluate((x,))[0]
        total = np.zeros_like(padded)
        is_open = np.ones(largest.shape, dtype=np.bool_)
        for window in windows(self.kernel, self.strides, self.dilations, grad_output.shape[2:]):
            hit = (padded[window] == largest) & is_open
            total[window] += np.where(hit, grad_output, 0)
            is_open &= ~hit
        return total[_inside(padding, x.shape)]


@dataclass(frozen=True)
class AveragePoolBackward(AveragePoolAttributes, kind="average_pool_backward"):
    """Input ``grad_output [N, C, *out]``; the output is the gradient of ``x [N, C, *input_size]``.

    With a stride the size of the input is ambiguous, so it is an attribute.
    """

    input_size: tuple[int, ...] = (1, 1)

    @property
    def forward(self) -> AveragePool:
        return AveragePool(*astuple(self)[:-1])

    def output(self, grad_output: TensorType) -> TensorType:
        x = TensorType((*grad_output.shape[:2], *self.input_size), grad_output.dtype)
        _require_gradient(self.forward, x, grad_output)
        return x

    def flops(self, inputs: Sequence[TensorType], outputs: Sequence[TensorType]) -> int:
        return inputs[0].elements * (1 + math.prod(self.kernel))

    def compute(self, grad_output: Array) -> Array:
        out = grad_output.shape[2:]
        padding = window_padding(self.forward, self.input_size, out)
        whole = (*grad_output.shape[:2], *self.input_size)
        total = np.zeros([size + sum(pads) for size, pads in zip(whole, padding, strict=True)], grad_output.dtype)
        share = grad_output / self.forward.counts(self.input_size, out).astype(grad_output.dtype)
        for window in windows(self.kernel, self.strides, self.dilations, out):
            total[window] += share
        return total[_inside(padding, whole)]


def _require_gradient(forward: MaxPool | AveragePool, x: TensorType, grad_output: TensorType) -> None:
    (y,) = forward.infer((x,))
    require(y.shape == grad_output.shape, f"is the gradient of a pooling of {x}, which makes {y}, not {grad_output}")


def _inside(padding: Sequence[tuple[int, int]], shape: Sequence[int]) -> tuple[slice, ...]:
    """Slices of the unpadded tensor of that shape within the padded one."""
    return tuple(slice(before, before + size) for (before, _), size in zip(padding, shape, strict=True))
