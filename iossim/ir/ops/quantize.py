"""Quantisation to small integers, ``number = scale * (integer - zero point)``, or fp8, and products of what it makes.

A product accumulates integers in 32 bits, then requantises the sums to the output's scale. Products of fp8 and of
weights of a few bits are those of the numbers: sums of fp32, rounded to the type of the scales.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import astuple, dataclass, replace
from typing import ClassVar, Self, TypeVar

import numpy as np

from iossim.ir.onnx_spelling import OnnxNode
from iossim.ir.op import Array, Op, Role, as_float32, normal_axis, require
from iossim.ir.ops.conv import Conv, ConvAttributes
from iossim.ir.ops.matmul import MatMul
from iossim.ir.types import FP8, DType, TensorType

T = TypeVar("T")
#: Integers that iossim quantises to, beside fp8; others need the reference implementation.
QUANTISED = (DType.INT8, DType.UINT8, DType.INT16, DType.UINT16)
#: Element types of weights that a product dequantises.
OF_FEW_BITS = (DType.INT4, DType.UINT4, DType.INT8, DType.UINT8, *FP8)


@dataclass(frozen=True)
class _Scaling(Op, onnx_names="axis", role=Role.ELEMENTWISE):
    """Base of the conversions between numbers and integers."""

    axis: int = 1


class Quantize(_Scaling, kind="quantize", onnx_types="QuantizeLinear", flops_per_element=4):
    """``clip(round(x / scale) + zero point)``: inputs ``x``, ``scale``, optionally ``zero point`` (default 0, uint8).

    Scale and zero point are one number, or one per position along ``axis``. Halves are rounded to even. To fp8, whose
    zero point is 0, it rounds to the nearest number, and to the largest beyond it.
    """

    def output(self, x: TensorType, scale: TensorType, zero: TensorType | None = None) -> TensorType:
        check_parameters(x, (scale, zero), self.axis)
        return TensorType(x.shape, DType.UINT8 if zero is None else zero.dtype)

    def evaluate(self, inputs: Sequence[Array]) -> tuple[Array, ...]:
        x = as_float32(inputs[0])
        scale = along(as_float32(inputs[1]), self.axis, x.ndim)
        zero = along(inputs[2], self.axis, x.ndim) if len(inputs) == 3 else np.zeros((), dtype=np.uint8)
        return (quantised(x / scale, zero),)

    def completed(self, node: OnnxNode) -> Self:
        dtype = node.input_type(2).dtype if node.has_input(2) else DType.UINT8
        is_own = node.attribute("block_size", 0) or node.attribute("precision", 0) or not node.attribute("saturate", 1)
        differs = dtype not in (*QUANTISED, *FP8) or is_own
        node.refuse(differs, f"makes {dtype}, or blocks, or does not saturate")
        says_type = not node.has_input(2) and node.attribute("output_dtype", 0) not in (0, 2)
        node.refuse(says_type, "says its element type by an attribute")
        return replace(self, axis=_axis(node))


@dataclass(frozen=True)
class Dequantize(
    _Scaling, kind="dequantize", onnx_types="DequantizeLinear", onnx_names="block=block_size", flops_per_element=2
):
    """``scale * (x - zero point)``, of the scale's element type: inputs as for :class:`Quantize`.

    With a ``block``, parameters are of ``x``'s shape but along ``axis``, where each is that of so many positions.
    """

    block: int = 0

    def output(self, x: TensorType, scale: TensorType, zero: TensorType | None = None) -> TensorType:
        check_parameters(x, (scale, zero), self.axis, self.block)
        return TensorType(x.shape, scale.dtype)

    def evaluate(self, inputs: Sequence[Array]) -> tuple[Array, ...]:
        x, *parameters = inputs
        if self.block:
            size = x.shape[self.axis]
            each = (np.repeat(one, min(self.block, size), self.axis) for one in parameters)
            scale, *zero = (one.take(range(size), self.axis) for one in each)
        else:
            scale, *zero = (along(one, self.axis, x.ndim) for one in parameters)
        whole = x.astype(np.float32 if DType.of_numpy(x.dtype) in FP8 else np.int32)
        for one in zero:
            whole = whole - one.astype(np.int64)
        return ((whole.astype(np.float32) * as_float32(scale)).astype(scale.dtype, copy=False),)

    def completed(self, node: OnnxNode) -> Self:
        x = node.input_type(0)
        differs = x.dtype not in {*QUANTISED, *OF_FEW_BITS, DType.INT32} or self.block < 0
        node.refuse(differs, f"reads {x.dtype}, or blocks of {self.block}")
        node.refuse(node.attribute("output_dtype", 0), "says its element type by an attribute")
        return replace(self, axis=normal_axis(self.axis, len(x.shape)) if self.block else _axis(node))


class DynamicQuantize(
    Op, kind="dynamic_quantize", flops_per_read_element=6, onnx_types="DynamicQuantizeLinear", has_prologue=True
):
    """``x`` as uint8 over its own range (including zero): the integers, their scale and their zero point."""

    def output(self, x: TensorType) -> tuple[TensorType, ...]:
        return TensorType(x.shape, DType.UINT8), TensorType((), x.dtype), TensorType((), DType.UINT8)

    def evaluate(self, inputs: Sequence[Array]) -> tuple[Array, ...]:
        x = as_float32(inputs[0])
        low, high = min(np.float32(0), x.min()), max(np.float32(0), x.max())
        scale = np.float32(high - low) / np.float32(255)
        scale = scale if scale else np.float32(1)
        zero = np.clip(np.rint(-low / scale), 0, 255).astype(np.uint8)
        return quantised(x / scale, zero), np.asarray(scale, dtype=inputs[0].dtype), np.asarray(zero)


def quantised(x: Array, zero: Array) -> Array:
    """``x``, in units of the scale, rounded, shifted by the zero point and clipped to its type; NaN becomes the least.

    ONNX leaves NaN open: this is what ONNX Runtime makes of it. In fp8, whose zero point is 0, it stays NaN.
    """
    if (dtype := DType.of_numpy(zero.dtype)) in FP8:
        return np.clip(x, -FP8[dtype], FP8[dtype]).astype(zero.dtype)
    limits = np.iinfo(zero.dtype)
    return np.asarray(np.fmin(np.fmax(np.rint(x) + zero, limits.min), limits.max).astype(zero.dtype))


def check_parameters(x: TensorType, parameters: Sequence[TensorType | None], axis: int, block: int = 0) -> None:
    """Raise GraphError unless scale and zero point, if given, are one number, or one per position along ``axis``.

    With a ``block`` they are one for so many positions along it, and one per position along all others.
    """
    for value in filter(None, parameters):
        if value.elements == 1 and len(value.shape) <= 1 and not block:
            continue
        place, shape = normal_axis(axis, len(x.shape)), list(x.shape)
        shape[place] = -(-shape[place] // max(1, block))
        what = f"block of {block} along" if block else "place of"
        wanted = tuple(shape if block else shape[place : place + 1])
        require(value.shape == wanted, f"its parameter {value} is not one for each {what} axis {axis} of {x}")


def along(parameter: Array, axis: int, rank: int) -> Array:
    """A parameter ``[n]``, one number per position along ``axis``, as ``[n, 1, ...]``, which broadcasts."""
    if parameter.size == 1:
        return parameter.reshape(())
    shape = [1] * rank
    shape[axis] = -1
    return parameter.reshape(shape)


def _axis(node: OnnxNode) -> int:
    """The axis of parameters that have one; else the default, so that equal ops compare equal."""
    rank = len(node.input_type(0).shape)
    if node.input_type(1).elements == 1:
        return 1
    return normal_axis(int(node.attribute("axis", 1)), rank)


class StoredProduct(Op, has_epilogue=True):
    """Base of products of tensors of a few bits, of matrices unless it says otherwise."""

    #: The positions of the two factors among the inputs.
    places: ClassVar[tuple[int, int]] = (0, 1)
    #: The axis of the second factor along which it may have several scales.
    columns: ClassVar[int] = -1

    @property
    def product(self) -> Op:
        """The product itself, on tensors without scales."""
        return MatMul()

    def multiply_adds(self, inputs: Sequence[TensorType], outputs: Sequence[TensorType]) -> int:
        return self.product.multiply_adds([inputs[place] for place in self.places], outputs)

    def _sums(self, dtype: DType, x: TensorType, w: TensorType, bias: TensorType | None = None) -> TensorType:
        """The product's type as ``dtype``, of integers of any types."""
        (y,) = self.product.infer([TensorType(value.shape) for value in (x, w, bias) if value is not None])
        return TensorType(y.shape, dtype)

    def _summed(self, x: Array, x_zero: Array, w: Array, w_zero: Array) -> Array:
        """The product of the differences to zero points; fp64 sums products of bytes exactly, whatever their number."""
        centred = w.astype(np.float64) - along(w_zero.astype(np.float64), self.columns, w.ndim)
        return self.product.compute(x.astype(np.float64) - x_zero, centred)


class _StoredConv(ConvAttributes, StoredProduct, columns=0):
    """Base of convolutions of tensors of a few bits, with the attributes of :class:`Conv`."""

    @property
    def product(self) -> Conv:
        return Conv(*astuple(self))


class _Quantised(StoredProduct, flops_per_element=4, places=(0, 3)):
    """Base of products whose sums become integers of a scale of their own. All zero points are those of integers."""

    def output(
        self,
        x: TensorType,
        x_scale: TensorType,
        x_zero: TensorType,
        w: TensorType,
        w_scale: TensorType,
        w_zero: TensorType,
        y_scale: TensorType,
        y_zero: TensorType,
        bias: TensorType | None = None,
    ) -> TensorType:
        check_parameters(w, (w_scale, w_zero), self.columns)
        return self._sums(y_zero.dtype, x, w, bias)

    def evaluate(self, inputs: Sequence[Array]) -> tuple[Array, ...]:
        x, x_scale, x_zero, w, w_scale, w_zero, y_scale, y_zero, *bias = inputs
        total = self._summed(x, x_zero, w, w_zero)
        for each in bias:
            total = total + along(each.astype(np.float64), 1, total.ndim)
        scale = as_float32(x_scale) * along(as_float32(w_scale), 1, total.ndim) / as_float32(y_scale)
        return (quantised(total * scale, y_zero.reshape(())),)


class QuantizedConv(_StoredConv, _Quantised, kind="quantized_conv", onnx_types="QLinearConv"):
    """Inputs ``x, x scale, x zero, weight, weight scale, weight zero, y scale, y zero``, maybe ``bias [M]`` (int32).

    Scale and zero point of the weight are one number, or one per filter.
    """


class QuantizedMatMul(_Quantised, kind="quantized_matmul", onnx_types="QLinearMatMul"):
    """Inputs ``a, a scale, a zero, b, b scale, b zero, y scale, y zero``; scales and zero points are scalars."""

    def completed(self, node: OnnxNode) -> Self:
        dtypes = {node.input_type(place).dtype for place in (0, 3, 7)}
        single = all(node.input_type(place).elements == 1 for place in (1, 2, 4, 5, 6, 7))
        differs = not single or not dtypes <= set(QUANTISED)
        node.refuse(differs, f"has several scales, or {', '.join(sorted(dtypes))}")
        return self


class _Integer(StoredProduct):
    """Base of products of integers as int32: inputs ``x``, ``w`` and optionally their zero points."""

    def output(
        self, x: TensorType, w: TensorType, x_zero: TensorType | None = None, w_zero: TensorType | None = None
    ) -> TensorType:
        check_parameters(w, (w_zero,), self.columns)
        return self._sums(DType.INT32, x, w)

    def evaluate(self, inputs: Sequence[Array]) -> tuple[Array, ...]:
        x, w, x_zero, w_zero = (*inputs, np.zeros(1), np.zeros(1))[:4]
        return (self._summed(x, x_zero, w, w_zero).astype(np.int32),)


def _zero_points(node: OnnxNode) -> tuple[list[int], list[int]]:
    """The places of the zero points that are given, and of those that are several numbers."""
    given = [place for place in (2, 3) if node.has_input(place)]
    return given, [place for place in given if node.input_type(place).elements != 1]


class IntegerConv(_Integer, _StoredConv, kind="integer_conv", onnx_types="ConvInteger"):
    """The convolution of the differences to the zero points; that of the weight is one number, or one per filter."""

    def completed(self, node: OnnxNode) -> Self:
        given, several = _zero_points(node)
        node.refuse(given == [3] or 2 in several, "has several zero points")
        return super().completed(node)


class IntegerMatMul(_Integer, kind="integer_matmul", onnx_types="MatMulInteger"):
    """``(a - a zero) @ (b - b zero)``; the zero points, if present, are scalars."""

    def operands_in(self, node: OnnxNode) -> tuple[str, ...]:
        """Zero points of several columns are left out where they are all 0, as symmetric quantisation writes them."""
        given, several = _zero_points(node)
        are_zeros = (given, several) == ([2, 3], [3]) and not node.constant(3, "zero points").any()
        node.refuse(given == [3] or (several and not are_zeros), "has several zero points")
        return node.data_inputs(3 if are_zeros else 4)


class Dequantised(StoredProduct):
    """Base of products of numbers stored with scales, which ONNX writes as DequantizeLinear and the product."""

    @abstractmethod
    def plain(self, inputs: Sequence[T], dequantise: Callable[[Dequantize, Sequence[T]], T]) -> list[T]:
        """The operands of :attr:`product`, stored ones by a function of their op and of its operands."""

    def _of_numbers(self, *inputs: TensorType | None) -> TensorType:
        given = [value for value in inputs if value is not None]
        (y,) = self.product.infer(self.plain(given, lambda op, stored: op.infer(stored)[0]))
        return y

    def evaluate(self, inputs: Sequence[Array]) -> tuple[Array, ...]:
        return self.product.evaluate(self.plain(inputs, lambda op, stored: op.evaluate(stored)[0]))


@dataclass(frozen=True)
class DequantizedMatMul(Dequantised, kind="dequantized_matmul"):
    """``a [..., M, K] @ (scale * (weight [K, N] - zero))``: inputs ``a``, ``weight``, ``scale``, maybe ``zero``.

    The weight is of 4 or 8 bits. Scale, of ``a``'s element type, and zero point, of the weight's (default 0), are
    ``[ceil(K / block), N]``: one for each ``block`` of a column. It is MatMulNBits in ONNX Runtime, and the format of
    AWQ (Lin et al., 2024) and GPTQ (Frantar et al., 2023).
    """

    block: int

    def plain(self, inputs: Sequence[T], dequantise: Callable[[Dequantize, Sequence[T]], T]) -> list[T]:
        return [inputs[0], dequantise(Dequantize(0, self.block), inputs[1:])]

    def output(
        self, a: TensorType, weight: TensorType, scale: TensorType, zero: TensorType | None = None
    ) -> TensorType:
        is_stored = weight.dtype in OF_FEW_BITS and len(weight.shape) == 2
        require(is_stored and self.block > 0, f"its weight {weight} is no matrix of 4 or 8 bits in blocks of 1 or more")
        require(zero is None or zero.dtype is weight.dtype, f"its zero point is not of {weight.dtype}")
        require(scale.dtype is a.dtype, f"its scale {scale} differs in element type from {a}")
        return self._of_numbers(a, weight, scale, zero)

    def flops(self, inputs: Sequence[TensorType], outputs: Sequence[TensorType]) -> int:
        """Each weight is dequantised once: two operations beside those of the product."""
        return 2 * (self.multiply_adds(inputs, outputs) + inputs[1].elements)


class _Scaled(Dequantised, flops_per_element=1, places=(0, 2)):
    """Base of products of fp8: inputs ``x, x scale, w, w scale``, and maybe a convolution's ``bias``; ``w`` may have a
    scale for each column or filter.
    """

    def plain(self, inputs: Sequence[T], dequantise: Callable[[Dequantize, Sequence[T]], T]) -> list[T]:
        x, w = dequantise(Dequantize(), inputs[:2]), dequantise(Dequantize(self.columns), inputs[2:4])
        return [x, w, *inputs[4:]]

    def output(
        self, x: TensorType, x_scale: TensorType, w: TensorType, w_scale: TensorType, bias: TensorType | None = None
    ) -> TensorType:
        require({x.dtype, w.dtype} <= {*FP8}, f"multiplies {x} by {w}, which are not of fp8")
        require(x_scale.elements == 1, f"its first scale {x_scale} is not one number")
        return self._of_numbers(x, x_scale, w, w_scale, bias)


class ScaledMatMul(_Scaled, kind="scaled_matmul"):
    """``(a scale * a [..., M, K]) @ (b scale * b [..., K, N])`` of fp8, in the scales' element type."""


class ScaledConv(_Scaled, _StoredConv, kind="scaled_conv"):
    """The convolution of ``x`` and ``weight`` of fp8, each times its scale, in the scales' element type."""
