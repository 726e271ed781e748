"""Softmax, its logarithm, and the hard choice that it softens."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Self

import numpy as np

from iossim.ir.op import Array, OnnxNode, require
from iossim.ir.ops.broadcasting import AlongAxis, normal_axis, one_input, widen
from iossim.ir.types import TensorType


@dataclass(frozen=True)
class SoftmaxLike(AlongAxis):
    """Base of the ops that weigh elements along ``axis`` against each other.

    With ``flatten`` they go over ``axis`` and all axes after it, which is what ONNX meant below opset 13. Counted as
    five operations an element: maximum, subtraction, exponential, sum, division (or logarithm).
    """

    onnx_names: ClassVar[Mapping[str, str]] = {
        "axis": "axis"
    }  # below opset 13 where ``flatten`` is set, else from there on
    has_prologue: ClassVar[bool] = True

    axis: int = -1
    flatten: bool = False

    def infer(self, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
        x = one_input(inputs)
        require(x.dtype.is_floating or x.dtype.bytes == 1, f"takes floating-point numbers, not {x.dtype}")
        normal_axis(self.axis, len(x.shape))
        return (x,)

    def flops(self, inputs: Sequence[TensorType], outputs: Sequence[TensorType]) -> int:
        return 5 * outputs[0].elements

    def evaluate(self, inputs: Sequence[Array]) -> tuple[Array, ...]:
        x = widen(inputs[0])
        first = normal_axis(self.axis, x.ndim)
        rows = x.reshape(*x.shape[:first], -1) if self.flatten else x
        with np.errstate(invalid="ignore"):  # a row that is masked whole is minus infinity everywhere, and becomes NaN
            y = self._weigh(rows, first)
        return (y.reshape(x.shape).astype(inputs[0].dtype, copy=False),)

    @abstractmethod
    def _weigh(self, x: Array, axis: int) -> Array:
        """The result along one axis."""

    @classmethod
    def from_onnx(cls, node: OnnxNode) -> tuple[Self, tuple[str, ...]]:
        shape = node.input_type(0).shape
        before_13 = node.opset < 13
        axis = normal_axis(int(node.attribute("axis", 1 if before_13 else -1)), len(shape))
        # Where nothing but ones follows, both meanings agree: the newer one is the canonical one.
        return cls(axis, before_13 and math.prod(shape[axis + 1 :]) > 1), node.data_inputs(1)


@dataclass(frozen=True)
class Softmax(SoftmaxLike):
    """``exp(x) / sum(exp(x))`` along ``axis``."""

    kind: ClassVar[str] = "softmax"
    onnx_types: ClassVar[tuple[str, ...]] = ("Softmax",)

    def _weigh(self, x: Array, axis: int) -> Array:
        exponential = np.exp(x - x.max(axis=axis, keepdims=True))
        y: Array = exponential / exponential.sum(axis=axis, keepdims=True)
        return y


@dataclass(frozen=True)
class LogSoftmax(SoftmaxLike):
    """The logarithm of the softmax along ``axis``."""

    kind: ClassVar[str] = "log_softmax"
    onnx_types: ClassVar[tuple[str, ...]] = ("LogSoftmax",)

    def _weigh(self, x: Array, axis: int) -> Array:
        shifted = x - x.max(axis=axis, keepdims=True)
        y: Array = shifted - np.log(np.exp(shifted).sum(axis=axis, keepdims=True))
        return y


@dataclass(frozen=True)
class Hardmax(SoftmaxLike):
    """One for the first largest element along ``axis``, zero for all others."""

    kind: ClassVar[str] = "hardmax"
    onnx_types: ClassVar[tuple[str, ...]] = ("Hardmax",)

    def _weigh(self, x: Array, axis: int) -> Array:
        y = np.zeros_like(x)
        np.put_along_axis(y, np.expand_dims(x.argmax(axis=axis), axis), 1, axis=axis)
        return y
