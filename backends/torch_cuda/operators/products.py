"""Products: of matrices, of quantised tensors, and recurrent layers by torch's own functions, cuDNN's on CUDA.

Whole numbers are multiplied and summed in fp64, which holds them without rounding. Weights of a few bits are
dequantised once, and so are operands of fp8 that torch's own product does not take.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import torch

from iossim.backends.torch_cuda.operators.registry import Operand, Types, apply, computes, constant, only_floats
from iossim.backends.torch_cuda.tensors import DTYPES, converted
from iossim.hardware.compute_capability import FIRST_WITH
from iossim.ir.op import Op
from iossim.ir.ops.attention import Attention
from iossim.ir.ops.matmul import Gemm, folded_shapes
from iossim.ir.ops.quantize import Dequantised, Dequantize, Quantize, ScaledMatMul, StoredProduct
from iossim.ir.ops.recurrent import Gru, Lstm, Recurrent
from iossim.ir.types import FP8, DType, Precision, TensorType

#: Bytes of which a row of each operand of torch's grouped product, and of that of fp8, is a multiple.
_ALIGNMENT = 16
#: From so many times fewer rows than experts on, a row's own weights are read for it.
_FEW_ROWS = 3


@computes("matmul", refuses=only_floats)
def _matmul(op: Op, types: Types, *operands: Operand) -> Operand:
    shapes = folded_shapes(types[0].shape, types[1].shape)
    if len(types[1].shape) < 3 or shapes == (types[0].shape, types[1].shape):
        return torch.matmul(*operands)  # it folds rows onto one matrix by itself, and can write into given memory
    a, b = (torch.reshape(operand, shape) for operand, shape in zip(operands, shapes, strict=True))
    return torch.reshape(torch.matmul(a, b), op.infer(types)[0].shape)


@computes("gemm", refuses=only_floats)
def _gemm(op: Gemm, types: Types, a: Operand, b: Operand, c: Operand | None = None) -> Operand:
    a, b = torch.t(a) if op.trans_a else a, torch.t(b) if op.trans_b else b
    if c is not None:
        return torch.addmm(c, a, b, beta=op.beta, alpha=op.alpha)
    product = torch.mm(a, b)
    return product if op.alpha == 1 else torch.mul(product, op.alpha)


@computes("grouped_matmul", refuses=only_floats)
def _grouped_matmul(op: Op, types: Types, x: Operand, weight: Operand, ends: Operand) -> Operand:
    """torch's own where it takes the operands and does not wait for the ends, as on CUDA it does but in bf16.

    Else each expert multiplies all rows, or far fewer rows than experts are multiplied by weights that are looked up.
    """
    (rows, inner), (experts, _, width), dtype = types[0].shape, types[1].shape, types[0].dtype
    number = constant(np.arange(rows)[:, None], x, DType.INT64)
    never_waits = dtype is DType.BFLOAT16 or (isinstance(weight, torch.Tensor) and not weight.is_cuda)
    if never_waits and dtype.bytes <= 4 and math.gcd(inner, width) * dtype.bytes % _ALIGNMENT == 0:
        dense = x.contiguous() if rows > 1 else torch.reshape(torch.clone(x), (1, inner))  # aligned, as it asks for
        product = torch._grouped_mm(dense, weight, offs=ends.to(torch.int32))
        return torch.where(number < ends[-1], product, 0.0)
    expert = torch.sum(ends <= number, 1, keepdim=True)
    if rows * _FEW_ROWS < experts:
        own = torch.index_select(weight, 0, torch.clamp(torch.reshape(expert, (-1,)), max=experts - 1))
        product = torch.matmul(torch.reshape(x, (rows, 1, inner)), own)
        return torch.where(expert < experts, torch.reshape(product, (rows, width)), 0.0)
    y = x.new_zeros((rows, width))
    for place in range(experts):
        y = torch.where(expert == place, torch.matmul(x, torch.select(weight, 0, place)), y)
    return y


def _attention_refusal(op: Attention, types: Types) -> str:
    if op.softcap:
        return "scaled_dot_product_attention of torch has no softcap"
    if op.is_causal and len(types) > 3:
        return "scaled_dot_product_attention of torch takes a mask or is causal, not both"
    return only_floats(op, types)


@computes("attention", refuses=_attention_refusal)
def _attention(op: Attention, types: Types, q: Operand, k: Operand, v: Operand, mask: Operand | None = None) -> Operand:
    """A row that sees nothing is not a number on some of torch's ways, and zero on others."""
    shape = op.shape(types)

    def by_head(operand: Operand, tokens: int, heads: int) -> Operand:
        return torch.transpose(torch.reshape(operand, (shape.batch, tokens, heads, -1)), 1, 2)

    if len(types[0].shape) == 3:
        q, k, v = by_head(q, shape.queries, shape.heads), *(by_head(x, shape.keys, shape.kv_heads) for x in (k, v))
    shares = shape.heads != shape.kv_heads
    y = torch.nn.functional.scaled_dot_product_attention(
        q, k, v, attn_mask=mask, is_causal=op.is_causal, scale=op.scale or None, enable_gqa=shares
    )
    if len(types[0].shape) == 3:
        y = torch.reshape(torch.transpose(y, 1, 2), op.infer(types)[0].shape)
    return y


#: For each gate in torch's order its place in ONNX's (LSTM: input, output, forget, cell; GRU: update, reset, hidden).
_GATES = {"lstm": (0, 2, 3, 1), "gru": (1, 0, 2), "rnn": (0,)}
_LAYERS: dict[str, Callable[..., tuple[Operand, ...]]] = {"lstm": torch.lstm, "gru": torch.gru, "rnn": torch.rnn_tanh}


def _refusal(op: Recurrent, types: Types) -> str:
    if "peepholes" in op.operands:
        return f"{op.kind} of torch has no peepholes"
    if isinstance(op, Gru) and not op.reset_after:
        return "gru of torch resets after the recurrent product (linear_before_reset), not before it"
    return only_floats(op, types)


@computes("lstm", "gru", "rnn", refuses=_refusal)
def _recurrent(
    op: Recurrent, types: Types, x: Operand, weight: Operand, recurrence: Operand, *more: Operand
) -> Operand:
    given = dict(zip(op.operands, more, strict=True))
    batch_axis = 0 if op.batch_first else 1
    steps, batch, d, h = types[0].shape[1 - batch_axis], types[0].shape[batch_axis], op.directions, op.hidden
    x = torch.transpose(x, 0, 1) if op.batch_first else x
    backwards = op.direction == "reverse"
    x = torch.flip(x, [0]) if backwards else x
    states = []
    for name in ("state", "cell")[: op.states]:
        state = given.get(name)
        if state is None:
            state = x.new_zeros((d, batch, h))
        elif op.batch_first:
            state = torch.transpose(state, 0, 1).contiguous()
        states.append(state)
    parameters: list[Operand] = []
    for direction in range(d):
        parameters += [_in_torch_order(op, torch.select(each, 0, direction)) for each in (weight, recurrence)]
        if "bias" in given:
            both = torch.chunk(torch.select(given["bias"], 0, direction), 2)
            parameters += [_in_torch_order(op, both[place]) for place in range(2)]
    initial = states if isinstance(op, Lstm) else states[0]
    made = _LAYERS[op.kind](x, initial, parameters, "bias" in given, 1, 0.0, False, d == 2, False)
    every = torch.permute(torch.reshape(made[0], (steps, batch, d, h)), (0, 2, 1, 3))
    every = torch.flip(every, [0]) if backwards else every
    finals = [made[1 + place] for place in range(op.states)]
    if op.batch_first:
        every = torch.permute(every, (2, 0, 1, 3))
        finals = [torch.transpose(final, 0, 1) for final in finals]
    return (every, *finals)


def _in_torch_order(op: Recurrent, parameter: Operand) -> Operand:
    """Rows of all gates, ordered as torch has them. Of weights this is done once, when the module is made."""
    parts = torch.chunk(parameter, op.gates)
    return torch.cat([parts[place] for place in _GATES[op.kind]])


@computes("quantize")
def _quantize(op: Quantize, types: Types, x: Operand, *parameters: Operand) -> Operand:
    (made,) = op.infer(types)
    scale, *zero = (_along(op.axis, made.shape, each) for each in parameters)
    return _rounded(torch.div(x.to(torch.float32), scale.to(torch.float32)), zero, made.dtype)


@computes("dequantize")
def _dequantize(op: Dequantize, types: Types, x: Operand, *parameters: Operand) -> Operand:
    if op.block:
        size = types[0].shape[op.axis]
        every = [torch.repeat_interleave(each, min(op.block, size), op.axis) for each in parameters]
        parameters = tuple(torch.narrow(each, op.axis, 0, size) for each in every)
    scale, *zero = parameters if op.block else (_along(op.axis, types[0].shape, each) for each in parameters)
    if zero and types[0].dtype not in FP8:
        wide = torch.int64 if types[0].dtype is DType.INT32 else torch.int32
        x = torch.sub(x.to(wide), zero[0].to(wide))
    return torch.mul(x.to(torch.float32), scale.to(torch.float32)).to(DTYPES[types[1].dtype])


@computes("dequantized_matmul", "scaled_conv")
def _dequantised(op: Dequantised, types: Types, *operands: Operand) -> Operand:
    def number(each: Dequantize, stored: Sequence[tuple[Operand, TensorType]]) -> tuple[Operand, TensorType]:
        tensors, of_types = zip(*stored, strict=True)
        return apply(each, tensors, of_types)[0], each.infer(of_types)[0]

    tensors, of_types = zip(*op.plain([*zip(operands, types, strict=True)], number), strict=True)
    return apply(op.product, tensors, of_types)[0]


@computes("scaled_matmul")
def _scaled_matmul(
    op: ScaledMatMul, types: Types, a: Operand, a_scale: Operand, b: Operand, b_scale: Operand
) -> Operand:
    """torch's own product of fp8 by a constant matrix, where it takes the operands; scales of columns come after it."""
    sizes, dtype = types[2].shape, DTYPES[types[1].dtype]
    if not (multiplies_fp8(b) and len(sizes) == 2 and not any(size % _ALIGNMENT for size in sizes)):
        return _dequantised(op, types, a, a_scale, b, b_scale)
    rows, is_single = torch.reshape(a, (-1, sizes[0])).contiguous(), types[3].elements == 1
    one, other = (torch.reshape(each, (-1,)).to(torch.float32) for each in (a_scale, b_scale))
    by, sums = (
        (torch.reshape(other, ()), dtype) if is_single else (constant(np.ones(()), b, DType.FLOAT32), torch.float32)
    )
    y = torch._scaled_mm(rows, torch.t(torch.t(b).contiguous()), torch.reshape(one, ()), by, out_dtype=sums)
    return torch.reshape(y if is_single else torch.mul(y, other).to(dtype), op.infer(types)[0].shape)


def multiplies_fp8(weight: Operand) -> bool:
    """True for a constant on a GPU whose tensor cores multiply fp8 by E4M3."""
    is_known = isinstance(weight, torch.Tensor) and weight.is_cuda and weight.dtype is DTYPES[DType.FLOAT8_E4M3FN]
    return is_known and torch.cuda.get_device_capability(weight.device) >= FIRST_WITH[Precision.FP8]


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
def _requantised(op: StoredProduct, types: Types, *operands: Operand) -> Operand:
    """The scales multiply in fp32, as they are stored."""
    x, x_scale, x_zero, weight, w_scale, w_zero, y_scale, y_zero, *bias = operands
    (made,) = op.infer(types)
    total = _exact(op, types, [x, weight, *bias], [x_zero, w_zero])
    scales = (torch.reshape(x_scale, ()), _along(1, made.shape, w_scale), torch.reshape(y_scale, ()))
    one, other, out = (each.to(torch.float32) for each in scales)
    return _rounded(torch.mul(total, torch.div(torch.mul(one, other), out)), [torch.reshape(y_zero, ())], made.dtype)


computes("integer_conv", "integer_matmul")(
    lambda op, types, x, weight, *zeros: _exact(op, types, [x, weight], zeros).to(torch.int32)
)


def _exact(op: StoredProduct, types: Types, factors: Sequence[Operand], zeros: Sequence[Operand]) -> Operand:
    """A product around the zero points of its two factors, maybe with a bias (the ninth operand), in fp64."""
    shapes = [types[place].shape for place in (*op.places, *range(8, len(types)))]
    centred = [each.to(torch.float64) for each in factors]
    for place, zero in enumerate(zeros):
        around = _along(op.columns, shapes[place], zero)
        centred[place] = torch.sub(centred[place], around.to(torch.float64))
    return apply(op.product, centred, [TensorType(shape, DType.FLOAT64) for shape in shapes])[0]


def _rounded(x: Operand, zero: Sequence[Operand], dtype: DType) -> Operand:
    """``x`` in units of the scale, rounded, moved by the zero point and clipped to its element type."""
    if dtype in FP8:
        return converted(x, dtype)
    limits = torch.iinfo(DTYPES[dtype])
    whole = torch.round(x)
    whole = torch.add(whole, zero[0].to(torch.float32)) if zero else whole
    return torch.clamp(whole, limits.min, limits.max).to(DTYPES[dtype])


def _along(axis: int, shape: tuple[int, ...], parameter: Operand) -> Operand:
    """A parameter of one number, or of one for each place of an axis of a shape, as it broadcasts to that."""
    return torch.reshape(parameter, (-1, *[1] * (len(shape) - 1 - axis % len(shape))) if shape else ())
