"""The gradients of pooling: where a maximum was, and evenly over what an average was of."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from itertools import product
from typing import ClassVar

import numpy as np

from iossim.ir.op import Array, Op, require
from iossim.ir.ops.broadcasting import widen
from iossim.ir.ops.pool import AveragePool, MaxPool
from iossim.ir.types import TensorType

_Window = tuple[slice, ...]


@dataclass(frozen=True)
class MaxPoolBackward(Op):
    """Inputs ``x [N, C, *spatial]`` and ``grad_output [N, C, *out]``; makes the gradient of ``x``.

    Of equal largest elements the first of a window has the gradient, by rows, as in PyTorch and cuDNN's deterministic mode. The attributes
    are those of :class:`~iossim.ir.ops.pool.MaxPool`.
    """

    kind: ClassVar[str] = "max_pool_backward"

    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    pads: tuple[int, ...]
    dilations: tuple[int, ...] = (1, 1)
    ceil_mode: bool = False

    @property
    def forward(self) -> MaxPool:
        return MaxPool(**{field.name: getattr(self, field.name) for field in fields(MaxPool)})

    def infer(self, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
        require(len(inputs) == 2, f"needs what was pooled and the gradient of the output, not {len(inputs)} inputs")
        x, grad_output = inputs
        _require_gradient(self.forward, x, grad_output)
        return (x,)

    def flops(self, inputs: Sequence[TensorType], outputs: Sequence[TensorType]) -> int:
        return inputs[1].elements * (2 * math.prod(self.kernel) - 1)

    def evaluate(self, inputs: Sequence[Array]) -> tuple[Array, ...]:
        x, grad_output = widen(inputs[0]), widen(inputs[1])
        before, after = _padding(self.forward, x.shape[2:], grad_output.shape[2:])
        padded = np.pad(x, list(zip(before, after, strict=True)), constant_values=-np.inf)
        largest = self.forward.evaluate((x,))[0]
        total = np.zeros_like(padded)
        is_open = np.ones(largest.shape, dtype=np.bool_)
        for window in _windows(self.forward, grad_output.shape[2:]):
            hit = (padded[window] == largest) & is_open
            total[window] += np.where(hit, grad_output, 0)
            is_open &= ~hit
        inside = tuple(slice(first, first + size) for first, size in zip(before, x.shape, strict=True))
        return (total[inside].astype(inputs[0].dtype, copy=False),)


@dataclass(frozen=True)
class AveragePoolBackward(Op):
    """Input ``grad_output [N, C, *out]``; makes the gradient of ``x [N, C, *input_size]``.

    A stride leaves the size of the input open, so it is an attribute; the others are those of
    :class:`~iossim.ir.ops.pool.AveragePool`.
    """

    kind: ClassVar[str] = "average_pool_backward"

    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    pads: tuple[int, ...]
    ceil_mode: bool = False
    count_include_pad: bool = False
    dilations: tuple[int, ...] = (1, 1)
    input_size: tuple[int, ...] = (1, 1)

    @property
    def forward(self) -> AveragePool:
        return AveragePool(**{field.name: getattr(self, field.name) for field in fields(AveragePool)})

    def infer(self, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
        require(len(inputs) == 1, f"needs the gradient of the output, not {len(inputs)} inputs")
        (grad_output,) = inputs
        x = TensorType((*grad_output.shape[:2], *self.input_size), grad_output.dtype)
        _require_gradient(self.forward, x, grad_output)
        return (x,)

    def flops(self, inputs: Sequence[TensorType], outputs: Sequence[TensorType]) -> int:
        return inputs[0].elements * (1 + math.prod(self.kernel))

    def evaluate(self, inputs: Sequence[Array]) -> tuple[Array, ...]:
        grad_output = widen(inputs[0])
        out = grad_output.shape[2:]
        before, after = _padding(self.forward, self.input_size, out)
        whole = (*grad_output.shape[:2], *self.input_size)
        total = np.zeros([a + n + b for a, n, b in zip(before, whole, after, strict=True)], grad_output.dtype)
        share = grad_output / self.forward.counts(self.input_size, out).astype(grad_output.dtype)
        for window in _windows(self.forward, out):
            total[window] += share
        inside = tuple(slice(first, first + size) for first, size in zip(before, whole, strict=True))
        return (total[inside].astype(inputs[0].dtype, copy=False),)


def _require_gradient(forward: MaxPool | AveragePool, x: TensorType, grad_output: TensorType) -> None:
    (y,) = forward.infer((x,))
    require(y.shape == grad_output.shape, f"is the gradient of a pooling of {x}, which makes {y}, not {grad_output}")


def _padding(forward: MaxPool | AveragePool, size: Sequence[int], out: Sequence[int]) -> tuple[list[int], list[int]]:
    """What stands before and after each axis, so that every window lies inside."""
    rank = len(forward.kernel)
    before, after = [0, 0], [0, 0]
    for axis in range(rank):
        reach = (out[axis] - 1) * forward.strides[axis] + forward.dilations[axis] * (forward.kernel[axis] - 1) + 1
        before.append(forward.pads[axis])
        after.append(max(0, reach - forward.pads[axis] - size[axis]))
    return before, after


def _windows(forward: MaxPool | AveragePool, out: Sequence[int]) -> Iterator[_Window]:
    """What each tap of the kernel covers of the padded input, over all windows at once, by rows."""
    for tap in product(*map(range, forward.kernel)):
        spatial = (
            slice(offset * dilation, offset * dilation + (count - 1) * stride + 1, stride)
            for offset, dilation, count, stride in zip(tap, forward.dilations, out, forward.strides, strict=True)
        )
        yield (slice(None), slice(None), *spatial)
