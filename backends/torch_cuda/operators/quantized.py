"""Quantised tensors: whole numbers multiplied and summed in fp64, which holds them without rounding."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from iossim.backends.torch_cuda.operators.registry import Operand, Types, apply, computes
from iossim.backends.torch_cuda.tensors import DTYPES
from iossim.ir.op import Op
from iossim.ir.ops.matmul import MatMul
from iossim.ir.ops.quantize import Dequantize, IntegerConv, IntegerMatMul, Quantize, QuantizedConv, QuantizedMatMul
from iossim.ir.types import DType, TensorType


@computes("quantize")
def _quantize(op: Quantize, types: Types, x: Operand, *parameters: Operand) -> Operand:
    scale, *zero = _along(op.axis, parameters, types)
    (made,) = op.infer(types)
    return _rounded(torch.div(x.to(torch.float32), scale.to(torch.float32)), zero, made.dtype)


@computes("dequantize")
def _dequantize(op: Dequantize, types: Types, x: Operand, *parameters: Operand) -> Operand:
    scale, *zero = _along(op.axis, parameters, types)
    x = x.to(torch.int64)
    x = torch.sub(x, zero[0].to(torch.int64)) if zero else x
    return torch.mul(x.to(torch.float32), scale.to(torch.float32)).to(DTYPES[types[1].dtype])


@computes("dynamic_quantize")
def _dynamic_quantize(op: Op, types: Types, given: Operand) -> Operand:
    x = given.to(torch.float32)
    low, high = torch.clamp(torch.amin(x), max=0.0), torch.clamp(torch.amax(x), min=0.0)
    scale = torch.div(torch.sub(high, low), 255.0)
    scale = torch.where(scale == 0, torch.ones_like(scale), scale)
    zero = torch.clamp(torch.round(torch.div(torch.neg(low), scale)), 0.0, 255.0)
    whole = _rounded(torch.div(x, scale), [zero], DType.UINT8)
    return whole, scale.to(DTYPES[types[0].dtype]), zero.to(torch.uint8)


@computes("quantized_conv", "quantized_matmul")
def _scaled_product(op: QuantizedConv | QuantizedMatMul, types: Types, *operands: Operand) -> Operand:
    """The scales multiply in fp32, as they are stored."""
    x, x_scale, x_zero, weight, w_scale, w_zero, y_scale, y_zero, *bias = operands
    (made,) = op.infer(types)
    total = _exact(op, [x, weight, *bias], [x_zero, w_zero], [*types[:1], *types[3:4], *types[8:]], types[5:6])
    (w_scale,) = _along(1, [w_scale], [made, types[4]])
    one, other, out = (
        each.to(torch.float32) for each in (torch.reshape(x_scale, ()), w_scale, torch.reshape(y_scale, ()))
    )
    return _rounded(torch.mul(total, torch.div(torch.mul(one, other), out)), [torch.reshape(y_zero, ())], made.dtype)


@computes("integer_conv", "integer_matmul")
def _integer_product(
    op: IntegerConv | IntegerMatMul, types: Types, x: Operand, weight: Operand, *zeros: Operand
) -> Operand:
    return _exact(op, [x, weight], zeros, types[:2], types[3:]).to(torch.int32)


def _exact(op: Op, operands: Sequence[Operand], zeros: Sequence[Operand], types: Types, w_zero: Types) -> Operand:
    """A product around the zero points of its first two operands, in fp64; ``w_zero`` is the type of the second."""
    product: Op = getattr(op, "product", MatMul())
    centred = [each.to(torch.float64) for each in operands]
    around = [*(torch.reshape(zero, ()) for zero in zeros[:1]), *_along(0, zeros[1:], [types[1], *w_zero])]
    for place, zero in enumerate(around):
        centred[place] = torch.sub(centred[place], zero.to(torch.float64))
    (total,) = apply(product, centred, [TensorType(value.shape, DType.FLOAT64) for value in types])
    return total


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
