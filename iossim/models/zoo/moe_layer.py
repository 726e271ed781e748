"""A mixture of experts (Jacobs et al., 1991, "Adaptive mixtures of local experts"): parallel feed-forward parts.

A gate weighs eight experts for each token, and all of them are computed: their outputs, summed by these weights, are
the layer's. So the work is the same for any input, and experts can run concurrently. The inner width of each expert
is twice that of its tokens, which are 512 wide.

``moe_shared`` is a layer of DeepSeekMoE 16B (Dai et al., 2024, arXiv:2401.06066) as it is served: each token is routed
to 6 of 64 experts, and to two shared ones. Routing is balanced: the number of active experts is the expectation for
uniform routing, with equally many tokens each. Their products are batched ones, as in grouped kernels; the shared
experts are one of double width, which depends only on the tokens.
"""

from __future__ import annotations

import numpy as np

from iossim.ir.builder import GraphBuilder
from iossim.ir.ops.functions import Unary
from iossim.ir.ops.gather import Gather
from iossim.ir.ops.matmul import MatMul
from iossim.ir.ops.nary import Add, Mul
from iossim.ir.ops.reduce import Reduce
from iossim.ir.ops.reshape import Reshape
from iossim.ir.ops.slice import Slice
from iossim.ir.ops.softmax import Softmax
from iossim.models.catalogue import BuildOptions, token_model
from iossim.models.transformer_layers import linear

EXPERTS = 8
#: For the layer with shared experts: routed experts, choices of a token, and inner width.
_ROUTED, _CHOSEN, _INNER = 64, 6, 1408


def build(b: GraphBuilder, tokens: str) -> str:
    width = b.types[tokens].shape[2]
    with b.block("experts"):
        shares = _shares(b, tokens, EXPERTS)
        weighed = [_expert(b, f"expert{index}", index, tokens, shares, width) for index in range(EXPERTS)]
        return b.add(Add(), *weighed, name="sum.add", unit=("sum", "Add"))


def _shares(b: GraphBuilder, x: str, experts: int) -> str:
    """The weight of each expert for each token."""
    scores = linear(b, "gate", x, experts, bias=False)
    return b.add(Softmax(), scores, name="gate.softmax", unit=("gate.softmax", "Softmax"))


def _expert(b: GraphBuilder, name: str, index: int, tokens: str, shares: str, width: int) -> str:
    """An expert's contribution to the layer's output."""
    inner = linear(b, f"{name}.inner", tokens, 2 * width, activation="gelu")
    outer = linear(b, f"{name}.outer", inner, width)
    with b.unit(f"{name}.weighed", "Slice-Mul"):
        share = b.add(Slice((index,), (index + 1,), (2,), (1,)), shares, name=f"{name}.share")
        return b.add(Mul(), outer, share, name=f"{name}.mul")


def build_shared(b: GraphBuilder, x: str, options: BuildOptions) -> str:
    batch, tokens, width = b.types[x].shape
    working = round(_ROUTED * (1 - (1 - _CHOSEN / _ROUTED) ** tokens))
    rows = -(-_CHOSEN * tokens // working)
    slots = np.arange(working * rows) % (_CHOSEN * tokens)
    with b.block("experts"):
        shares = _shares(b, x, _ROUTED)
        with b.unit("dispatch", "Gather-Mul"):
            token = b.numbers("dispatch.token", slots // _CHOSEN)
            place = b.numbers("dispatch.place", slots // _CHOSEN * _ROUTED + np.repeat(np.arange(working), rows))
            sent = b.add(Gather(1), x, token, name="dispatch.gather")
            flat = b.add(Reshape((batch, tokens * _ROUTED, 1)), shares, name="dispatch.shares")
            sent = b.add(Mul(), sent, b.add(Gather(1), flat, place, name="dispatch.share"), name="dispatch.mul")
            sent = b.add(Reshape((batch, working, rows, width)), sent, name="dispatch.rows")
        routed = _gated(b, "routed", sent, _INNER, (working,))
        with b.unit("combine", "Gather-Reduce"):
            back = b.add(Reshape((batch, working * rows, width)), routed, name="combine.flat")
            back = b.add(Gather(1), back, b.numbers("combine.slot", np.arange(_CHOSEN * tokens)), name="combine.gather")
            back = b.add(Reshape((batch, tokens, _CHOSEN, width)), back, name="combine.choices")
            back = b.add(Reduce("sum", (2,), False), back, name="combine.sum")
        shared = _gated(b, "shared", x, 2 * _INNER, ())
        return b.add(Add(), x, back, shared, name="sum.add", unit=("sum", "Add"))


def _gated(b: GraphBuilder, name: str, x: str, inner: int, experts: tuple[int, ...]) -> str:
    """The gated feed-forward part of one expert, or of several together; gate and other half are one unit."""

    def product(part: str, y: str, features: int) -> str:
        weight = b.constant(f"{name}.{part}.weight", (*experts, b.types[y].shape[-1], features))
        return b.add(MatMul(), y, weight, name=f"{name}.{part}.matmul")

    with b.unit(f"{name}.inner", "Matmul-Swish-Matmul-Mul"):
        gate = b.add(Unary("swish", (1.0,)), product("gate", x, inner), name=f"{name}.gate.swish")
        made = b.add(Mul(), product("up", x, inner), gate, name=f"{name}.mul")
    with b.unit(f"{name}.down", "Matmul"):
        return product("down", made, b.types[x].shape[-1])


MODELS = (
    token_model("moe_layer", "A mixture of 8 experts, all computed, 128 tokens of 512", (128, 512), build),
    token_model(
        "moe_shared",
        "A layer of DeepSeekMoE 16B: 6 of 64 experts for a token, and shared ones",
        (64, 2048),
        build_shared,
        axes="batch x tokens x width",
        dimensions={"tokens": 64},
    ),
)
