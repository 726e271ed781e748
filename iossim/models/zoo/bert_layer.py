"""One encoder layer of BERT-base (Devlin et al., 2018, arXiv:1810.04805): self-attention and a feed-forward part, after embedding.

Its input is a sequence of 128 tokens, 768 wide; other lengths, and widths that are a multiple of 64, are taken as well. There
is no mask: all tokens are read. A block is one of the two parts.
"""

from __future__ import annotations

from iossim.errors import OptionError
from iossim.ir.builder import GraphBuilder
from iossim.ir.network import Network
from iossim.ir.ops.add import Add
from iossim.ir.ops.matmul import MatMul
from iossim.ir.ops.mul import Mul
from iossim.ir.ops.normalization import LayerNorm
from iossim.ir.ops.reshape import Reshape
from iossim.ir.ops.softmax import Softmax
from iossim.ir.ops.transpose import Transpose
from iossim.ir.ops.unary import Unary
from iossim.models.catalogue import BuildOptions, ZooModel

#: Features of one head.
_HEAD = 64


def build(options: BuildOptions) -> Network:
    batch, length, width = options.input_shape
    if width % _HEAD:
        raise OptionError(f"a BERT layer {width} wide has no whole heads; give a multiple of {_HEAD}")
    b = GraphBuilder("bert_layer", options.precision, options.seed)
    tokens = b.input("tokens", options.input_shape)
    heads = (batch, length, width // _HEAD, _HEAD)
    with b.block("attention"):
        query = _split_heads(b, "query", _linear(b, "query", tokens, width), heads, (0, 2, 1, 3))
        key = _split_heads(b, "key", _linear(b, "key", tokens, width), heads, (0, 2, 3, 1))
        value = _split_heads(b, "value", _linear(b, "value", tokens, width), heads, (0, 2, 1, 3))
        with b.unit("scores", "Matmul-Mul"):
            scale = b.constant("scores.scale", (1,), value=_HEAD**-0.5)
            scores = b.add(Mul(), b.add(MatMul(), query, key, name="scores.matmul"), scale, name="scores.mul")
        with b.unit("softmax", "Softmax"):
            weights = b.add(Softmax(), scores, name="softmax.softmax")
        with b.unit("mixed", "Matmul"):
            mixed = b.add(MatMul(), weights, value, name="mixed.matmul")
        with b.unit("joined", "Transpose-Reshape"):
            joined = b.add(Transpose((0, 2, 1, 3)), mixed, name="joined.transpose")
            joined = b.add(Reshape((batch, length, width)), joined, name="joined.reshape")
        attended = _norm(b, "attention.norm", _linear(b, "attention.out", joined, width, added=tokens))
    with b.block("feed_forward"):
        inner = _linear(b, "inner", attended, 4 * width, gelu=True)
        y = _norm(b, "output.norm", _linear(b, "outer", inner, width, added=attended))
    return b.network([y])


def _linear(b: GraphBuilder, name: str, x: str, features: int, added: str | None = None, gelu: bool = False) -> str:
    """A matrix product with a bias, and the sum with another value, or a GELU."""
    with b.unit(name, "Matmul-Bias" + ("-Add" if added else "") + ("-Gelu" if gelu else "")):
        weight = b.constant(f"{name}.weight", (b.types[x].shape[-1], features))
        bias = b.constant(f"{name}.bias", (features,))
        y = b.add(Add(), b.add(MatMul(), x, weight, name=f"{name}.matmul"), bias, name=f"{name}.add")
        if added:
            y = b.add(Add(), y, added, name=f"{name}.sum")
        return b.add(Unary("gelu"), y, name=f"{name}.gelu") if gelu else y


def _split_heads(b: GraphBuilder, name: str, x: str, heads: tuple[int, ...], permutation: tuple[int, ...]) -> str:
    """The features of each head by themselves, as the products of attention read them."""
    with b.unit(f"{name}.heads", "Reshape-Transpose"):
        y = b.add(Reshape(heads), x, name=f"{name}.reshape")
        return b.add(Transpose(permutation), y, name=f"{name}.transpose")


def _norm(b: GraphBuilder, name: str, x: str) -> str:
    with b.unit(name, "Layer-Norm"):
        width = b.types[x].shape[-1:]
        scale, bias = b.constant(f"{name}.scale", width, value=1.0), b.constant(f"{name}.bias", width)
        return b.add(LayerNorm(epsilon=1e-12), x, scale, bias, name=f"{name}.layer_norm")


MODELS = (
    ZooModel(
        "bert_layer",
        "One encoder layer of BERT-base, 128 tokens",
        (128, 768),
        build,
        input_name="tokens",
        axes="batch x length x width",
    ),
)
