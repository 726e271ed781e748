"""Softmax, log-softmax and hardmax."""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass, replace
from typing import Self

import numpy as np

from iossim.ir.onnx_spelling import OnnxNode
from iossim.ir.op import AlongAxis, Array, normal_axis, require
from iossim.ir.types import TensorType


@dataclass(frozen=True)
class SoftmaxLike(AlongAxis, onnx_names="axis", flops_per_element=5, has_prologue=True):
    """Base of the ops that normalise elements along ``axis`` against each other.

    With ``flatten`` they apply to ``axis`` and all axes after it, ONNX's definition below opset 13. Counted as
    five operations per element: maximum, subtraction, exponential, sum, division (or logarithm).
    """

    axis: int = -1
    flatten: bool = False

    def output(self, x: TensorType) -> TensorType:
        require(x.dtype.is_floating or x.dtype.bytes == 1, f"takes floating-point numbers, not {x.dtype}")
        normal_axis(self.axis, len(x.shape))
        return x

    def compute(self, x: Array) -> Array:
        first = normal_axis(self.axis, x.ndim)
        rows = x.reshape(*x.shape[:first], -1) if self.flatten else x
        with np.errstate(invalid="ignore"):  # a fully masked row is minus infinity, and becomes NaN
            return self._weigh(rows, first).reshape(x.shape)

    @abstractmethod
    def _weigh(self, x: Array, axis: int) -> Array:
        """The result along one axis."""

    def completed(self, node: OnnxNode) -> Self:
        shape = node.input_type(0).shape
        before_13 = node.opset < 13
        axis = normal_axis(int(node.attribute("axis", 1 if before_13 else -1)), len(shape))
        # If only ones follow, both definitions agree, and the newer one is canonical.
        return replace(self, axis=axis, flatten=before_13 and math.prod(shape[axis + 1 :]) > 1)


class Softmax(SoftmaxLike, kind="softmax", onnx_types="Softmax"):
    """``exp(x) / sum(exp(x))`` along ``axis``."""

    def _weigh(self, x: Array, axis: int) -> Array:
        exponential = np.exp(x - x.max(axis=axis, keepdims=True))
        return np.asarray(exponential / exponential.sum(axis=axis, keepdims=True))


class LogSoftmax(SoftmaxLike, kind="log_softmax", onnx_types="LogSoftmax"):
    """The logarithm of the softmax along ``axis``."""

    def _weigh(self, x: Array, axis: int) -> Array:
        shifted = x - x.max(axis=axis, keepdims=True)
        return np.asarray(shifted - np.log(np.exp(shifted).sum(axis=axis, keepdims=True)))


class Hardmax(SoftmaxLike, kind="hardmax", onnx_types="Hardmax"):
    """One for the first maximum along ``axis``, zero for all others."""

    def _weigh(self, x: Array, axis: int) -> Array:
        y = np.zeros_like(x)
        np.put_along_axis(y, np.expand_dims(x.argmax(axis=axis), axis), 1, axis=axis)
        return y
