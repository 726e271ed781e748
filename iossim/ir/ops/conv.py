"""Convolution over any number of spatial dimensions: groups, dilation, asymmetric padding, bias."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Self

import numpy as np

from iossim.ir.op import Array, Op, require, require_windows
from iossim.ir.types import TensorType

if TYPE_CHECKING:
    from iossim.ir.onnx_spelling import OnnxNode


@dataclass(frozen=True)
class ConvAttributes(Op, onnx_names="strides pads dilations groups=group"):
    """Base of convolutions and their gradients; ``pads`` are before each axis, then after each, as in ONNX."""

    strides: tuple[int, ...] = (1, 1)
    pads: tuple[int, ...] = (0, 0, 0, 0)
    dilations: tuple[int, ...] = (1, 1)
    groups: int = 1

    def flops(self, inputs: Sequence[TensorType], outputs: Sequence[TensorType]) -> int:
        return super().flops(inputs, outputs) + outputs[0].elements * len(inputs[2:])

    def completed(self, node: OnnxNode) -> Self:
        return replace(self, **node.windows(node.window()))

    def padded(self, x: Array) -> Array:
        """Images ``[N, C, *spatial]`` with zero padding."""
        return np.pad(x, [(0, 0), (0, 0), *zip(*self._sides(), strict=True)]) if any(self.pads) else x

    def _sides(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The padding before each axis, and after each."""
        return self.pads[: len(self.strides)], self.pads[len(self.strides) :]


class Conv(ConvAttributes, kind="conv", onnx_types="Conv", has_epilogue=True):
    """Inputs ``x [N, C, *spatial]``, ``weight [M, C/groups, *kernel]`` and, if present, ``bias [M]``."""

    def output(self, x: TensorType, weight: TensorType, bias: TensorType | None = None) -> TensorType:
        require_windows(self, len(self.strides), input=x, weight=weight)
        require(min(self.pads) >= 0, f"needs no negative pads such as {min(self.pads)}")
        require(
            x.shape[1] == weight.shape[1] * self.groups,
            f"its input has {x.shape[1]} channels, its weight takes {weight.shape[1]} in {self.groups} groups",
        )
        filters = weight.shape[0]
        require(filters % self.groups == 0, f"{filters} filters do not divide into {self.groups} groups")
        require(bias is None or bias.shape == (filters,), f"its bias {bias} does not have {filters} values")
        spatial = tuple(
            (size + before + after - dilation * (kernel - 1) - 1) // stride + 1
            for size, kernel, stride, dilation, before, after in zip(
                x.shape[2:], weight.shape[2:], self.strides, self.dilations, *self._sides(), strict=True
            )
        )
        return TensorType((x.shape[0], filters, *spatial), x.dtype)

    def multiply_adds(self, inputs: Sequence[TensorType], outputs: Sequence[TensorType]) -> int:
        return outputs[0].elements * math.prod(inputs[1].shape[1:])

    def compute(self, x: Array, weight: Array, bias: Array | None = None) -> Array:
        rank = len(self.strides)
        window = tuple((k - 1) * d + 1 for k, d in zip(weight.shape[2:], self.dilations, strict=True))
        patches = np.lib.stride_tricks.sliding_window_view(self.padded(x), window, axis=tuple(range(2, rank + 2)))
        step = (slice(None), slice(None), *(slice(None, None, s) for s in self.strides))
        patches = patches[(*step, *(slice(None, None, d) for d in self.dilations))]
        y = _contract(patches, weight, self.groups, rank)
        return y if bias is None else y + bias.reshape(1, -1, *([1] * rank))


def _contract(patches: Array, weight: Array, groups: int, rank: int) -> Array:
    """Sum over channels and window: ``patches [N, C, *out, *kernel]`` with ``weight [M, C/groups, *kernel]``."""
    batch, channels, *rest = patches.shape
    out, kernel = tuple(rest[:rank]), tuple(rest[rank:])
    filters = weight.shape[0]
    y = np.empty((batch, filters, *out), dtype=np.result_type(patches, weight))
    if groups == channels == filters:
        letters = "xyz"[:rank]
        window = "uvw"[:rank]
        for image in range(batch):  # each by itself, so that its result is independent of the batch size
            np.einsum(
                f"c{letters}{window},c{window}->c{letters}", patches[image], weight[:, 0], out=y[image], optimize=True
            )
        return y
    per_group, filters_per_group = channels // groups, filters // groups
    order = (*range(1 + 1, 2 + rank), 1, *range(2 + rank, 2 + 2 * rank))
    flat = weight.reshape(filters, -1)
    for image in range(batch):
        for group in range(groups):
            part = patches[image : image + 1, group * per_group : (group + 1) * per_group]
            columns = part.transpose(0, *order).reshape(math.prod(out), per_group * math.prod(kernel))
            rows = slice(group * filters_per_group, (group + 1) * filters_per_group)
            y[image, rows] = (flat[rows] @ columns.T).reshape(filters_per_group, *out)
    return y
