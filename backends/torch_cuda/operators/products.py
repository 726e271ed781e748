"""Matrix products, and recurrent layers by torch's own functions: cuDNN's on CUDA."""

from __future__ import annotations

from collections.abc import Callable

import torch

from iossim.backends.torch_cuda.operators.registry import Operand, Types, computes, floating_only
from iossim.ir.op import Op
from iossim.ir.ops.attention import Attention
from iossim.ir.ops.matmul import Gemm, folded_shapes
from iossim.ir.ops.recurrent import Gru, Lstm, Recurrent


@computes("matmul", refuses=floating_only)
def _matmul(op: Op, types: Types, *operands: Operand) -> Operand:
    shapes = folded_shapes(types[0].shape, types[1].shape)
    if len(types[1].shape) < 3 or shapes == (types[0].shape, types[1].shape):
        return torch.matmul(*operands)  # it folds rows onto one matrix by itself, and can write into given memory
    a, b = (torch.reshape(operand, shape) for operand, shape in zip(operands, shapes, strict=True))
    return torch.reshape(torch.matmul(a, b), op.infer(types)[0].shape)


@computes("gemm", refuses=floating_only)
def _gemm(op: Gemm, types: Types, a: Operand, b: Operand, c: Operand | None = None) -> Operand:
    a, b = torch.t(a) if op.trans_a else a, torch.t(b) if op.trans_b else b
    if c is not None:
        return torch.addmm(c, a, b, beta=op.beta, alpha=op.alpha)
    product = torch.mm(a, b)
    return product if op.alpha == 1 else torch.mul(product, op.alpha)


def _attention_refusal(op: Attention, types: Types) -> str:
    if op.softcap:
        return "scaled_dot_product_attention of torch has no softcap"
    if op.is_causal and len(types) > 3:
        return "scaled_dot_product_attention of torch takes a mask or is causal, not both"
    return floating_only(op, types)


@computes("attention", refuses=_attention_refusal)
def _attention(op: Attention, types: Types, q: Operand, k: Operand, v: Operand, mask: Operand | None = None) -> Operand:
    """A row that sees nothing is not a number on some of torch's ways, and zero on others."""
    shape = op.shape(types)
    if len(types[0].shape) == 3:
        q, k, v = (
            torch.transpose(torch.reshape(operand, (shape.batch, tokens, heads, -1)), 1, 2)
            for operand, tokens, heads in (
                (q, shape.queries, shape.heads), (k, shape.keys, shape.kv_heads), (v, shape.keys, shape.kv_heads),
            )
        )  # fmt: skip
    y = torch.nn.functional.scaled_dot_product_attention(
        q,
        k,
        v,
        attn_mask=mask,
        is_causal=op.is_causal,
        scale=op.scale or None,
        enable_gqa=shape.heads != shape.kv_heads,
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
        return "gru of torch resets behind the recurrent product (linear_before_reset), not before it"
    return floating_only(op, types)


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
