"""Quantised tensors: whole numbers multiplied and summed in fp64, which holds them without rounding."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from iossim.backends.torch_cuda.operators.registry import Made, Operand, Operands, Types, apply, computes
from iossim.backends.torch_cuda.tensors import DTYPES
from iossim.ir.op import Op
from iossim.ir.ops.matmul import MatMul
from iossim.ir.ops.quantize import Dequantize, IntegerConv, Quantize, QuantizedConv
from iossim.ir.types import DType, TensorType


@computes("quantize")
def _quantize(op: Quantize, operands: Operands, types: Types) -> Made:
    scale, *zero = _along(op.axis, operands[1:], types)
    (made,) = op.infer(types)
    return (_rounded(torch.div(operands[0].to(torch.float32), scale.to(torch.float32)), zero, made.dtype),)


@computes("dequantize")
def _dequantize(op: Dequantize, operands: Operands, types: Types) -> Made:
    scale, *zero = _along(op.axis, operands[1:], types)
    x = operands[0].to(torch.int64)
    x = torch.sub(x, zero[0].to(torch.int64)) if zero else x
    y = torch.mul(x.to(torch.float32), scale.to(torch.float32))
    return (y.to(DTYPES[types[1].dtype]),)


@computes("dynamic_quantize")
def _dynamic_quantize(op: Op, operands: Operands, types: Types) -> Made:
    x = operands[0].to(torch.float32)
    low, high = torch.clamp(torch.amin(x), max=0.0), torch.clamp(torch.amax(x), min=0.0)
    scale = torch.div(torch.sub(high, low), 255.0)
    scale = torch.where(scale == 0, torch.ones_like(scale), scale)
    zero = torch.clamp(torch.round(torch.div(torch.neg(low), scale)), 0.0, 255.0)
    whole = _rounded(torch.div(x, scale), [zero], DType.UINT8)
    return whole, scale.to(DTYPES[types[0].dtype]), zero.to(torch.uint8)


@computes("quantized_conv")
def _quantized_conv(op: QuantizedConv, operands: Operands, types: Types) -> Made:
    x, x_scale, x_zero, weight, w_scale, w_zero, y_scale, y_zero, *bias = operands
    (w_zero,) = _along(0, [w_zero], [types[3], types[5]])
    centred = [_centred(x, x_zero), _centred(weight, w_zero), *(each.to(torch.float64) for each in bias)]
    total = _exact(op.product, centred, [types[place] for place in (0, 3, 8)[: len(centred)]])
    (made,) = op.infer(types)
    (w_scale,) = _along(1, [w_scale], [made, types[4]])
    return (_requantised(total, (x_scale, w_scale, y_scale), y_zero, made.dtype),)


@computes("integer_conv")
def _integer_conv(op: IntegerConv, operands: Operands, types: Types) -> Made:
    x, weight, *zeros = operands
    x = _centred(x, zeros[0]) if zeros else x.to(torch.float64)
    (w_zero,) = _along(0, zeros[1:], [types[1], *types[3:]]) or [torch.zeros((), dtype=torch.float64)]
    centred = [x, torch.sub(weight.to(torch.float64), w_zero.to(torch.float64))]
    return (_exact(op.product, centred, types[:2]).to(torch.int32),)


@computes("quantized_matmul")
def _quantized_matmul(op: Op, operands: Operands, types: Types) -> Made:
    a, a_scale, a_zero, b, b_scale, b_zero, y_scale, y_zero = operands
    total = _exact(MatMul(), [_centred(a, a_zero), _centred(b, b_zero)], [types[0], types[3]])
    scales = tuple(torch.reshape(scale, ()) for scale in (a_scale, b_scale, y_scale))
    return (_requantised(total, scales, torch.reshape(y_zero, ()), types[7].dtype),)


@computes("integer_matmul")
def _integer_matmul(op: Op, operands: Operands, types: Types) -> Made:
    zeros = [torch.reshape(zero, ()) for zero in operands[2:]]
    centred = [
        _centred(each, zeros[place]) if place < len(zeros) else each.to(torch.float64)
        for place, each in enumerate(operands[:2])
    ]
    return (_exact(MatMul(), centred, types[:2]).to(torch.int32),)


def _exact(op: Op, operands: Operands, types: Types) -> Operand:
    """A product of operands in fp64."""
    (total,) = apply(op, operands, [TensorType(value.shape, DType.FLOAT64) for value in types])
    return total


def _centred(x: Operand, zero: Operand) -> Operand:
    return torch.sub(x.to(torch.float64), zero.to(torch.float64))


def _requantised(total: Operand, scales: tuple[Operand, Operand, Operand], zero: Operand, dtype: DType) -> Operand:
    """Sums of products in the units of the output; the scales multiply in fp32, as they are stored."""
    one, other, out = (scale.to(torch.float32) for scale in scales)
    return _rounded(torch.mul(total, torch.div(torch.mul(one, other), out)), [zero], dtype)


def _rounded(x: Operand, zero: Sequence[Operand], dtype: DType) -> Operand:
    """``x`` in units of the scale, rounded, moved by the zero point and clipped to its element type."""
    limits = torch.iinfo(DTYPES[dtype])
    whole = torch.round(x)
    whole = torch.add(whole, zero[0].to(torch.float32)) if zero else whole
    return torch.clamp(whole, limits.min, limits.max).to(DTYPES[dtype])


def _along(axis: int, parameters: Sequence[Operand], types: Types) -> list[Operand]:
    """Parameters of one number, or of one for each place of an axis of the first type, as they broadcast."""
    rank = len(types[0].shape)
    found = []
    for parameter, value in zip(parameters, types[1:], strict=True):
        shape = () if value.elements == 1 else tuple(-1 if at == axis % rank else 1 for at in range(rank))
        found.append(torch.reshape(parameter, shape))
    return found
