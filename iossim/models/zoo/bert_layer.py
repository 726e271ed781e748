"""BERT (Devlin et al., 2018, arXiv:1810.04805): one encoder layer of BERT-base, and a complete small and large one.

A layer is self-attention and a feed-forward part, a block each. The input is a sequence of 128 embedded tokens, 768
wide (512 in the small one, 1,024 in the large); other lengths, and widths that are a multiple of 64, are accepted,
too. There is no mask.
"""

from __future__ import annotations

from functools import partial

from iossim.base.errors import OptionError
from iossim.ir.builder import GraphBuilder
from iossim.ir.ops.matmul import MatMul
from iossim.ir.ops.nary import Mul
from iossim.ir.ops.reshape import Reshape, Transpose
from iossim.ir.ops.softmax import Softmax
from iossim.models import transformer_layers as nn
from iossim.models.catalogue import token_model

#: Features of one head.
_HEAD = 64


def build(b: GraphBuilder, x: str, layers: int) -> str:
    width = b.types[x].shape[2]
    if width % _HEAD:
        raise OptionError(f"a BERT layer {width} wide has no whole heads; give a multiple of {_HEAD}")
    for layer in range(layers):
        x = _layer(b, f"layer{layer}." if layers > 1 else "", x)
    return x


def _layer(b: GraphBuilder, layer: str, tokens: str) -> str:
    """An encoder layer; the names of its units begin with ``layer``."""
    batch, length, width = b.types[tokens].shape
    heads = (batch, length, width // _HEAD, _HEAD)
    with b.block(f"{layer}attention"):
        query = _split_heads(b, f"{layer}query", nn.linear(b, f"{layer}query", tokens, width), heads, (0, 2, 1, 3))
        key = _split_heads(b, f"{layer}key", nn.linear(b, f"{layer}key", tokens, width), heads, (0, 2, 3, 1))
        value = _split_heads(b, f"{layer}value", nn.linear(b, f"{layer}value", tokens, width), heads, (0, 2, 1, 3))
        with b.unit(f"{layer}scores", "Matmul-Mul"):
            scale = b.constant(f"{layer}scores.scale", (1,), value=_HEAD**-0.5)
            products = b.add(MatMul(), query, key, name=f"{layer}scores.matmul")
            scores = b.add(Mul(), products, scale, name=f"{layer}scores.mul")
        weights = b.add(Softmax(), scores, name=f"{layer}softmax.softmax", unit=(f"{layer}softmax", "Softmax"))
        mixed = b.add(MatMul(), weights, value, name=f"{layer}mixed.matmul", unit=(f"{layer}mixed", "Matmul"))
        with b.unit(f"{layer}joined", "Transpose-Reshape"):
            joined = b.add(Transpose((0, 2, 1, 3)), mixed, name=f"{layer}joined.transpose")
            joined = b.add(Reshape((batch, length, width)), joined, name=f"{layer}joined.reshape")
        attended = nn.linear(b, f"{layer}attention.out", joined, width, added=tokens)
        attended = nn.layer_norm(b, f"{layer}attention.norm", attended, 1e-12)
    with b.block(f"{layer}feed_forward"):
        inner = nn.linear(b, f"{layer}inner", attended, 4 * width, activation="gelu")
        output = nn.linear(b, f"{layer}outer", inner, width, added=attended)
        return nn.layer_norm(b, f"{layer}output.norm", output, 1e-12)


def _split_heads(b: GraphBuilder, name: str, x: str, heads: tuple[int, ...], permutation: tuple[int, ...]) -> str:
    """Features split into heads, in the layout that the products of attention read."""
    with b.unit(f"{name}.heads", "Reshape-Transpose"):
        y = b.add(Reshape(heads), x, name=f"{name}.reshape")
        return b.add(Transpose(permutation), y, name=f"{name}.transpose")


MODELS = tuple(
    token_model(name, description, (128, width), partial(build, layers=layers))
    for name, description, width, layers in (
        ("bert_layer", "One encoder layer of BERT-base, 128 tokens", 768, 1),
        ("bert_s", "A small BERT: 4 encoder layers of 512, 8 heads, 128 tokens", 512, 4),
        ("bert_l", "BERT-large: 24 encoder layers of 1,024, 16 heads, 128 tokens", 1024, 24),
    )
)
