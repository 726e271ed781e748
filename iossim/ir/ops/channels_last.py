"""Ops on images in NHWC, channels last: the op of the same name for NCHW, in the other layout.

The layout of a value is the order of its axes; :class:`~iossim.ir.ops.reshape.Transpose` converts between them.
Weights are the same tensors for both. ONNX has no such ops: they are exported as NCHW ops between transposes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple
from typing import Any, ClassVar, Generic, TypeVar

import numpy as np

from iossim.ir.op import Array, Op, require
from iossim.ir.ops.conv import Conv, ConvAttributes
from iossim.ir.ops.pool import (
    AveragePool,
    AveragePoolAttributes,
    GlobalAveragePool,
    GlobalMaxPool,
    MaxPool,
    MaxPoolAttributes,
)
from iossim.ir.types import TO_FIRST, TO_LAST, TensorType, first_types, permuted

_First = TypeVar("_First", bound=Op)


class ChannelsLast(Op, Generic[_First]):
    """Base of the ops on ``x [N, H, W, C]``, with the attributes of the op on ``[N, C, H, W]``."""

    #: The op on NCHW.
    first: ClassVar[type[Any]]

    @property
    def channels_first(self) -> _First:
        """The same op for NCHW."""
        made: _First = self.first(*astuple(self))
        return made

    @property
    def unit_kind(self) -> str:
        return f"{self.channels_first.unit_kind}Nhwc"

    def output(self, x: TensorType, *parameters: TensorType) -> TensorType:
        require(len(x.shape) == 4, f"its input {x} is no images of two dimensions")
        (y,) = self.channels_first.infer(first_types([x, *parameters]))
        return permuted(y, TO_LAST)

    def multiply_adds(self, inputs: Sequence[TensorType], outputs: Sequence[TensorType]) -> int:
        return self.channels_first.multiply_adds(first_types(inputs), first_types(outputs))

    def flops(self, inputs: Sequence[TensorType], outputs: Sequence[TensorType]) -> int:
        return self.channels_first.flops(first_types(inputs), first_types(outputs))

    def compute(self, x: Array, *parameters: Array) -> Array:
        return np.transpose(self.channels_first.compute(x.transpose(TO_FIRST), *parameters), TO_LAST)


class ConvNhwc(ChannelsLast[Conv], ConvAttributes, kind="conv_nhwc", first=Conv, has_epilogue=True):
    """Inputs ``x [N, H, W, C]``; ``weight`` and ``bias`` as for :class:`Conv`."""


class MaxPoolNhwc(ChannelsLast[MaxPool], MaxPoolAttributes, kind="max_pool_nhwc", first=MaxPool):
    """:class:`MaxPool` of ``x [N, H, W, C]``."""


class AveragePoolNhwc(ChannelsLast[AveragePool], AveragePoolAttributes, kind="average_pool_nhwc", first=AveragePool):
    """:class:`AveragePool` of ``x [N, H, W, C]``."""


class GlobalAveragePoolNhwc(ChannelsLast[GlobalAveragePool], kind="global_average_pool_nhwc", first=GlobalAveragePool):
    """Mean of each image, ``[N, 1, 1, C]``."""


class GlobalMaxPoolNhwc(ChannelsLast[GlobalMaxPool], kind="global_max_pool_nhwc", first=GlobalMaxPool):
    """Largest element of each image, ``[N, 1, 1, C]``."""
