"""Transposed convolution, and the gradients of a convolution: backward data (its input) and filter (its weight)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self

import numpy as np

from iossim.base.errors import ModelError
from iossim.ir.onnx_spelling import OnnxNode
from iossim.ir.op import Array, require, require_windows
from iossim.ir.ops.conv import Conv, ConvAttributes
from iossim.ir.ops.pool import windows
from iossim.ir.types import TensorType


@dataclass(frozen=True)
class ConvTranspose(
    ConvAttributes, kind="conv_transpose", onnx_types="ConvTranspose", onnx_names="output_padding", has_epilogue=True
):
    """Inputs ``x [N, C, *spatial]``, ``weight [C, M/groups, *kernel]`` and, if present, ``bias [M]``.

    Each input pixel adds its products with the weight to a window of the output; ``pads`` (before each spatial
    dimension, then after each) are cropped, ``output_padding`` rows of bias alone are appended.
    """

    output_padding: tuple[int, ...] = (0, 0)

    def output(self, x: TensorType, weight: TensorType, bias: TensorType | None = None) -> TensorType:
        rank = len(self.strides)
        require_windows(self, rank, [extra + 1 for extra in self.output_padding], input=x, weight=weight)
        require(
            x.shape[1] == weight.shape[0] and x.shape[1] % self.groups == 0,
            f"its input has {x.shape[1]} channels, its weight takes {weight.shape[0]} in {self.groups} groups",
        )
        filters = weight.shape[1] * self.groups
        require(bias is None or bias.shape == (filters,), f"its bias {bias} does not have {filters} values")
        whole = self._whole(x.shape[2:], weight.shape[2:])
        spatial = [
            size - before - after for size, before, after in zip(whole, self.pads[:rank], self.pads[rank:], strict=True)
        ]
        return TensorType((x.shape[0], filters, *spatial), x.dtype)

    def _whole(self, size: Sequence[int], kernel: Sequence[int]) -> list[int]:
        """The spatial size before cropping."""
        return [
            stride * (length - 1) + extra + dilation * (taps - 1) + 1
            for length, taps, stride, dilation, extra in zip(
                size, kernel, self.strides, self.dilations, self.output_padding, strict=True
            )
        ]

    def multiply_adds(self, inputs: Sequence[TensorType], outputs: Sequence[TensorType]) -> int:
        return inputs[0].elements * math.prod(inputs[1].shape[1:])

    def compute(self, x: Array, weight: Array, bias: Array | None = None) -> Array:
        rank = len(self.strides)
        batch, channels, *size = x.shape
        per_group, filters, *kernel = channels // self.groups, *weight.shape[1:]
        whole = np.zeros((batch, self.groups, filters, *self._whole(size, kernel)), dtype=x.dtype)
        images = x.reshape(batch, self.groups, per_group, -1)
        taps = weight.reshape(self.groups, per_group, filters, -1)
        for place, window in enumerate(windows(kernel, self.strides, self.dilations, size)):
            added = np.matmul(taps[:, :, :, place].transpose(0, 2, 1)[None], images)
            whole[(slice(None), *window)] += added.reshape(batch, self.groups, filters, *size)
        y = whole.reshape(batch, self.groups * filters, *whole.shape[3:])
        kept = tuple(
            slice(before, length - after)
            for length, before, after in zip(y.shape[2:], self.pads[:rank], self.pads[rank:], strict=True)
        )
        y = y[(slice(None), slice(None), *kept)]
        return y if bias is None else y + bias.reshape(1, -1, *([1] * rank))

    def completed(self, node: OnnxNode) -> Self:
        """Padding is given by ``pads``, ``auto_pad`` or ``output_shape``."""
        size, kernel = node.input_type(0).shape[2:], node.window()
        rank, auto, wanted = len(kernel), node.attribute("auto_pad", "NOTSET"), node.attribute("output_shape")
        op = replace(super().completed(node), output_padding=node.parameter("output_padding", "tuple") or (0,) * rank)
        if len(op.output_padding) != rank:
            raise ModelError(f"ConvTranspose {node.name!r} has attributes of different ranks; export the model again")
        if wanted is None and auto in ("NOTSET", "", "VALID"):
            return op
        if wanted is None:
            wanted = [length * stride for length, stride in zip(size, op.strides, strict=True)]
        total = [length - target for length, target in zip(op._whole(size, kernel), list(wanted)[-rank:], strict=True)]
        # An output larger than all windows together is padded at the end.
        extra = tuple(more - min(0, amount) for more, amount in zip(op.output_padding, total, strict=True))
        small = [max(0, amount) // 2 for amount in total]
        large = [max(0, amount) - half for amount, half in zip(total, small, strict=True)]
        before, after = (small, large) if auto == "SAME_UPPER" else (large, small)
        return replace(op, pads=(*before, *after), output_padding=extra)


class ConvBackward(ConvAttributes):
    """Base of both gradients; the attributes are those of the differentiated convolution."""

    @property
    def forward(self) -> Conv:
        """The convolution that this is a gradient of."""
        return Conv(self.strides, self.pads, self.dilations, self.groups)

    def _require_gradient(self, x: TensorType, weight: TensorType, grad_output: TensorType) -> None:
        """Raise GraphError unless a convolution of ``x`` with ``weight`` has the shape of ``grad_output``."""
        (y,) = self.forward.infer((x, weight))
        require(
            y.shape == grad_output.shape,
            f"is the gradient of a convolution of {x} with {weight}, which makes {y}, not {grad_output}",
        )

    def _require_ranks(self, sized: Sequence[int], *inputs: TensorType) -> None:
        rank = len(self.strides)
        require(len(sized) == rank, f"needs a size for each of its {rank} spatial dimensions, not {list(sized)}")
        for value in inputs:
            require_windows(self, rank, input=value)


@dataclass(frozen=True)
class ConvBackwardData(ConvBackward, kind="conv_backward_data"):
    """Gradient ``[N, C, *input_size]`` from ``grad_output [N, M, *out]`` and ``weight [M, C/groups, *kernel]``.

    With a stride the size of the input is ambiguous, so it is an attribute. ONNX calls the op ConvTranspose.
    """

    input_size: tuple[int, ...] = (1, 1)

    def output(self, grad_output: TensorType, weight: TensorType) -> TensorType:
        self._require_ranks(self.input_size, grad_output, weight)
        x = TensorType((grad_output.shape[0], weight.shape[1] * self.groups, *self.input_size), grad_output.dtype)
        self._require_gradient(x, weight, grad_output)
        return x

    def multiply_adds(self, inputs: Sequence[TensorType], outputs: Sequence[TensorType]) -> int:
        return inputs[0].elements * math.prod(inputs[1].shape[1:])

    def compute(self, grad_output: Array, weight: Array) -> Array:
        return self.transposed(grad_output.shape[2:], weight.shape[2:]).compute(grad_output, weight)

    def transposed(self, size: Sequence[int], kernel: Sequence[int]) -> ConvTranspose:
        """The equivalent transposed convolution, for a gradient of spatial ``size`` and such a ``kernel``."""
        bare = ConvTranspose(self.strides, self.pads, self.dilations, self.groups, (0,) * len(self.strides))
        (made,) = bare.infer((TensorType((1, self.groups, *size)), TensorType((self.groups, 1, *kernel))))
        extra = tuple(length - least for length, least in zip(self.input_size, made.shape[2:], strict=True))
        return replace(bare, output_padding=extra)


@dataclass(frozen=True)
class ConvBackwardFilter(ConvBackward, kind="conv_backward_filter", may_accumulate=True):
    """The weight's gradient from ``x [N, C, *spatial]``, ``grad_output [N, M, *out]`` and optionally ``accumulated``.

    It is ``[M, C/groups, *kernel_size]``, summed image by image onto ``accumulated``, of the same shape, or onto zero
    (cuDNN's beta: 1 or 0): accumulating over parts of a batch is bit for bit the same as the whole batch.
    With a stride the size of the kernel is ambiguous, so it is an attribute.
    """

    kernel_size: tuple[int, ...] = (1, 1)

    def output(self, x: TensorType, grad_output: TensorType, accumulated: TensorType | None = None) -> TensorType:
        self._require_ranks(self.kernel_size, x, grad_output)
        weight = TensorType((grad_output.shape[1], x.shape[1] // self.groups, *self.kernel_size), x.dtype)
        self._require_gradient(x, weight, grad_output)
        require(accumulated is None or accumulated.shape == weight.shape, f"adds to {accumulated} what is {weight}")
        return weight

    def mixes_images(self, first_varies: bool) -> bool:
        return True

    @property
    def sums_images(self) -> bool:
        return True

    def multiply_adds(self, inputs: Sequence[TensorType], outputs: Sequence[TensorType]) -> int:
        return inputs[1].elements * math.prod(outputs[0].shape[1:])

    def compute(self, x: Array, grad_output: Array, accumulated: Array | None = None) -> Array:
        groups = self.groups
        padded = self.padded(x)
        batch, filters, *out = grad_output.shape
        per_group = x.shape[1] // groups
        shape = (filters, per_group, *self.kernel_size)
        total = np.zeros(shape, dtype=x.dtype) if accumulated is None else accumulated.copy()
        sums = total.reshape(groups, filters // groups, per_group, -1)
        gradients = grad_output.reshape(batch, groups, filters // groups, -1)
        for place, window in enumerate(windows(self.kernel_size, self.strides, self.dilations, out)):
            pixels = padded[window].reshape(batch, groups, per_group, -1)
            for image in range(batch):
                sums[..., place] += np.matmul(gradients[image], pixels[image].transpose(0, 2, 1))
        return total
