"""The schedule units of transformers: each function adds one, or the few of a part, and returns its value.

Values are ``[batch, tokens, features]``; heads are contiguous in the features, as fused attentions read them. A
decoder's keys and values of earlier tokens are inputs with ``past`` tokens, and are concatenated with the new ones,
as exporters write it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from iossim.ir.builder import GraphBuilder
from iossim.ir.ops.attention import Attention
from iossim.ir.ops.functions import UNARY, Unary
from iossim.ir.ops.gather import Gather
from iossim.ir.ops.matmul import MatMul
from iossim.ir.ops.nary import Add, Mul
from iossim.ir.ops.normalization import LayerNorm, RmsNorm
from iossim.ir.ops.slice import Concat, Slice


def linear(
    b: GraphBuilder, name: str, x: str, features: int, added: str | None = None, activation: str = "", bias: bool = True
) -> str:
    """A matrix product with a bias, the sum with another value, and an activation."""
    parts = "-Bias" * bias + "-Add" * (added is not None) + f"-{activation.capitalize()}" * bool(activation)
    with b.unit(name, "Matmul" + parts):
        y = b.add(MatMul(), x, b.constant(f"{name}.weight", (b.types[x].shape[-1], features)), name=f"{name}.matmul")
        if bias:
            y = b.add(Add(), y, b.constant(f"{name}.bias", (features,)), name=f"{name}.add")
        if added is not None:
            y = b.add(Add(), y, added, name=f"{name}.sum")
        if not activation:
            return y
        parameters = tuple(value for _, value in UNARY[activation].parameters)
        return b.add(Unary(activation, parameters), y, name=f"{name}.{activation}")


def layer_norm(b: GraphBuilder, name: str, x: str, epsilon: float = 1e-5) -> str:
    """A layer norm with a scale and a bias."""
    width = b.types[x].shape[-1:]
    scale, bias = b.constant(f"{name}.scale", width, value=1.0), b.constant(f"{name}.bias", width)
    return b.add(LayerNorm(epsilon=epsilon), x, scale, bias, name=f"{name}.layer_norm", unit=(name, "Layer-Norm"))


def feed_forward(b: GraphBuilder, name: str, x: str, norm: str, activation: str) -> str:
    """Layer norm of ``x``, two products with a four times wider layer between them, and the sum with ``x``."""
    width = b.types[x].shape[-1]
    inner = linear(b, f"{name}.inner", layer_norm(b, f"{name}.{norm}", x), 4 * width, activation=activation)
    return linear(b, f"{name}.outer", inner, width, added=x)


def rms_norm(b: GraphBuilder, name: str, x: str) -> str:
    """A norm by the root mean square, with a scale."""
    scale = b.constant(f"{name}.scale", b.types[x].shape[-1:], value=1.0)
    return b.add(RmsNorm(), x, scale, name=f"{name}.rms_norm", unit=(name, "Rms-Norm"))


def rotary(b: GraphBuilder, name: str, x: str, head: int, past: int) -> str:
    """Rotary positions (Su et al., 2021, arXiv:2104.09864) of tokens after ``past``, adjacent features paired."""
    _, tokens, width = b.types[x].shape
    angles = np.outer(np.arange(past, past + tokens), 1e4 ** (-np.arange(0, head, 2) / head)).repeat(2, axis=1)
    angles = np.tile(angles, width // head)
    signs, shared = np.tile([-1.0, 1.0], width // 2), f"rotary{width}"
    with b.unit(name, "Rotary"):
        paired = b.numbers(f"{shared}.paired", np.arange(width, dtype=np.int64) ^ 1)
        cosine = b.numbers(f"{shared}.cosine", np.cos(angles).astype(b.dtype.numpy))
        sine = b.numbers(f"{shared}.sine", (np.sin(angles) * signs).astype(b.dtype.numpy))
        turned = b.add(Mul(), b.add(Gather(2), x, paired, name=f"{name}.pairs"), sine, name=f"{name}.turned")
        return b.add(Add(), b.add(Mul(), x, cosine, name=f"{name}.kept"), turned, name=f"{name}.add")


def attention(
    b: GraphBuilder, name: str, operands: Sequence[str], heads: int, kv_heads: int, causal: bool = False
) -> str:
    """Scaled dot-product attention of queries, keys and values.

    With ``causal`` the queries are the last of the tokens that have keys.
    """
    queries, keys = (b.types[value].shape[1] for value in operands[:2])
    masks = []
    if causal and 1 < queries < keys:
        masks.append(b.numbers("causal", np.tri(queries, keys, keys - queries, dtype=np.bool_)))
    op = Attention(heads, kv_heads, is_causal=causal and 1 < queries == keys)
    return b.add(op, *operands, *masks, name=f"{name}.attention", unit=(name, "Attention"))


def cached(b: GraphBuilder, name: str, x: str, past: int) -> str:
    """Keys or values of this call, appended to those of ``past`` earlier tokens, which are an input ``NAME.past``."""
    if not past:
        return x
    batch, _, width = b.types[x].shape
    before = b.input(f"{name}.past", (batch, past, width))
    return b.add(Concat(1), before, x, name=f"{name}.present", unit=(f"{name}.cache", "Concat"))


def last_token(b: GraphBuilder, name: str, x: str) -> str:
    """The last token only."""
    if b.types[x].shape[1] == 1:
        return x
    return b.add(Slice((-1,), (1 << 31,), (1,), (1,)), x, name=f"{name}.slice", unit=(name, "Slice"))


@dataclass(frozen=True)
class SelfAttention:
    """Separate projections to queries, keys and values, positions, the cache, and the attention.

    Keys and values of ``past`` earlier tokens are in the cache. If it ``rotates``, positions are rotary. Projections of
    queries and values have low-rank adapters (Hu et al., 2021, arXiv:2106.09685) if ``low_rank`` is not 0.
    """

    heads: int
    kv_heads: int
    past: int = 0
    causal: bool = True
    bias: bool = True
    rotates: bool = False
    low_rank: int = 0

    def add(self, b: GraphBuilder, name: str, x: str) -> tuple[str, list[str]]:
        """Returns the output of the heads, and the keys and values to keep."""
        head = b.types[x].shape[2] // self.heads
        widths = {"query": self.heads * head, "key": self.kv_heads * head, "value": self.kv_heads * head}
        made = {own: self._projection(b, f"{name}.{own}", x, width, own != "key") for own, width in widths.items()}
        for own in ("query", "key") if self.rotates else ():
            made[own] = rotary(b, f"{name}.{own}.rotary", made[own], head, self.past)
        kept = [cached(b, f"{name}.{own}", made[own], self.past) for own in ("key", "value")]
        y = attention(b, f"{name}.heads", (made["query"], *kept), self.heads, self.kv_heads, self.causal)
        return y, kept

    def _projection(self, b: GraphBuilder, name: str, x: str, features: int, is_adapted: bool) -> str:
        y = linear(b, name, x, features, bias=self.bias)
        if not self.low_rank or not is_adapted:
            return y
        down = linear(b, f"{name}.down", x, self.low_rank, bias=False)
        return linear(b, f"{name}.up", down, features, added=y, bias=False)
