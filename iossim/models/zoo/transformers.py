"""Transformers: language decoders, Whisper, and CLIP.

GPT-2 (Radford et al., 2019), and Llama 3.2 1B (arXiv:2407.21783) with and without adapters: the inputs are embedded
tokens; keys and values of ``past`` earlier ones are further inputs of every layer. So ``tokens=1 past=512`` is a decode
step, ``tokens=512 past=0`` a prefill. Outputs are the scores of the next word after the last token, and the keys and
values to keep. Queries, keys and values are projected separately.

Whisper small (Radford et al., 2022, arXiv:2212.04356): 12 layers each of an encoder and of a decoder, 768 wide. The
encoder reads the 1,500 frames that its convolutions make from 30 seconds. The decoder reads embedded tokens and the
encoder's output. With a ``past``, the keys and values of the frames are kept too, and are inputs of every layer;
without, each layer computes them from the input ``audio``, independently of its tokens.

CLIP ViT-B/32 (Radford et al., 2021, arXiv:2103.00020): an image tower and a text tower, 12 layers each, on 50 embedded
patches, 768 wide, and 77 embedded tokens, 512 wide. The towers are joined only at the end; a block has one layer of
each.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from iossim.ir.builder import GraphBuilder
from iossim.ir.ops.matmul import MatMul
from iossim.ir.ops.nary import Mul
from iossim.ir.ops.reshape import Transpose
from iossim.models import transformer_layers as nn
from iossim.models.catalogue import BuildOptions, ZooModel

#: Layers, width and heads of Whisper small.
_LAYERS, _WIDTH, _HEADS = 12, 768, 12


def gpt2(b: GraphBuilder, x: str, options: BuildOptions) -> list[str]:
    """The smallest: 12 layers of 768, 12 heads."""
    heads, kept = nn.SelfAttention(12, 12, options.dimensions["past"]), list[str]()
    for layer in range(12):
        name = f"layer{layer}"
        with b.block(f"{name}.attention"):
            x = _attended(b, name, x, heads, kept)
        with b.block(f"{name}.feed_forward"):
            x = nn.feed_forward(b, name, x, "norm2", "gelu_tanh")
    with b.block("head"):
        x = nn.layer_norm(b, "norm", nn.last_token(b, "last", x))
        return [nn.linear(b, "words", x, 50_257, bias=False), *kept]


def llama_1b(b: GraphBuilder, x: str, options: BuildOptions, low_rank: int) -> list[str]:
    """16 layers of 2,048; 32 heads of queries share 8 of keys and values."""
    past, kept = options.dimensions["past"], []
    heads = nn.SelfAttention(32, 8, past, bias=False, rotates=True, low_rank=low_rank)
    for layer in range(16):
        name = f"layer{layer}"
        with b.block(f"{name}.attention"):
            y, own = heads.add(b, name, nn.rms_norm(b, f"{name}.norm1", x))
            x = nn.linear(b, f"{name}.out", y, 2048, added=x, bias=False)
            kept += own
        with b.block(f"{name}.feed_forward"):
            normed = nn.rms_norm(b, f"{name}.norm2", x)
            gate = nn.linear(b, f"{name}.gate", normed, 8192, activation="swish", bias=False)
            up = nn.linear(b, f"{name}.up", normed, 8192, bias=False)
            inner = b.add(Mul(), gate, up, name=f"{name}.gated.mul", unit=(f"{name}.gated", "Mul"))
            x = nn.linear(b, f"{name}.down", inner, 2048, added=x, bias=False)
    with b.block("head"):
        x = nn.rms_norm(b, "norm", nn.last_token(b, "last", x))
        return [nn.linear(b, "words", x, 128_256, bias=False), *kept]


def whisper_encoder(b: GraphBuilder, x: str, options: BuildOptions) -> str:
    del options  # the frames are the input's
    heads = nn.SelfAttention(_HEADS, _HEADS, causal=False)
    for layer in range(_LAYERS):
        name = f"layer{layer}"
        with b.block(f"{name}.attention"):
            x = _attended(b, name, x, heads, [])
        x = _feed_forward(b, name, x)
    return nn.layer_norm(b, "norm", x)


def whisper_decoder(b: GraphBuilder, x: str, options: BuildOptions) -> list[str]:
    batch, past, frames = b.types[x].shape[0], options.dimensions["past"], options.dimensions["frames"]
    audio = "" if past else b.input("audio", (batch, frames, _WIDTH))
    heads, kept = nn.SelfAttention(_HEADS, _HEADS, past), list[str]()
    for layer in range(_LAYERS):
        name = f"layer{layer}"
        with b.block(f"{name}.attention"):
            x = _attended(b, name, x, heads, kept)
            query = nn.linear(b, f"{name}.cross.query", nn.layer_norm(b, f"{name}.norm2", x), _WIDTH)
            sides = [f"{name}.cross.{side}" for side in ("key", "value")]
            if past:
                sides = [b.input(side, (batch, frames, _WIDTH)) for side in sides]
            else:
                sides = [nn.linear(b, side, audio, _WIDTH) for side in sides]
                kept += sides
            y = nn.attention(b, f"{name}.cross.heads", (query, *sides), _HEADS, _HEADS)
            x = nn.linear(b, f"{name}.cross.out", y, _WIDTH, added=x)
        x = _feed_forward(b, name, x)
    with b.block("head"):
        x = nn.layer_norm(b, "norm", nn.last_token(b, "last", x))
        return [nn.linear(b, "words", x, 51_865, bias=False), *kept]


def _feed_forward(b: GraphBuilder, name: str, x: str) -> str:
    with b.block(f"{name}.feed_forward"):
        return nn.feed_forward(b, name, x, "norm3", "gelu")


def clip(b: GraphBuilder, image: str, options: BuildOptions) -> str:
    text = b.input("tokens", (b.types[image].shape[0], options.dimensions["tokens"], 512))
    for layer in range(12):
        with b.block(f"layer{layer}"):
            image = _clip_layer(b, f"image{layer}", image, causal=False)
            text = _clip_layer(b, f"text{layer}", text, causal=True)
    with b.block("similarity"):
        projected = [
            nn.linear(
                b,
                f"{side}.projection",
                nn.layer_norm(b, f"{side}.norm", nn.last_token(b, f"{side}.last", x)),
                512,
                bias=False,
            )
            for side, x in (("image", image), ("text", text))
        ]
        with b.unit("similarity", "Matmul"):
            turned = b.add(Transpose((0, 2, 1)), projected[1], name="similarity.transpose")
            return b.add(MatMul(), projected[0], turned, name="similarity.matmul")


def _clip_layer(b: GraphBuilder, name: str, x: str, causal: bool) -> str:
    width = b.types[x].shape[2]
    heads = nn.SelfAttention(width // 64, width // 64, causal=causal)
    return nn.feed_forward(b, name, _attended(b, name, x, heads, []), "norm2", "gelu")


def _attended(b: GraphBuilder, name: str, x: str, heads: nn.SelfAttention, kept: list[str]) -> str:
    """Layer norm of ``x``, self-attention, and the sum with ``x``; keys and values to keep are added to ``kept``."""
    y, own = heads.add(b, name, nn.layer_norm(b, f"{name}.norm1", x))
    kept += own
    return nn.linear(b, f"{name}.out", y, b.types[x].shape[2], added=x)


def _model(name: str, description: str, width: int, add: Callable[..., str | list[str]], **sizes: int) -> ZooModel:
    """A network with these named ``sizes``; its input is named after the first of them, and is ``width`` wide."""
    first = next(iter(sizes))
    axes = f"batch x {first} x width"
    return ZooModel(name, description, (sizes[first], width), add, input_name=first, axes=axes, dimensions=sizes)


_LLAMA, _LLAMA_LORA = (partial(llama_1b, low_rank=rank) for rank in (0, 16))
MODELS = (
    _model("gpt2", "GPT-2 small, a decode step after 512 tokens", 768, gpt2, tokens=1, past=512),
    _model("llama_1b", "Llama 3.2 1B (GQA), a decode step after 512 tokens", 2048, _LLAMA, tokens=1, past=512),
    _model(
        "llama_1b_lora", "Llama 3.2 1B with LoRA of rank 16 on Q and V, a decode step", 2048, _LLAMA_LORA,
        tokens=1, past=512,
    ),
    _model("whisper_encoder", "The encoder of Whisper small, 1,500 frames", _WIDTH, whisper_encoder, frames=1500),
    _model(
        "whisper_decoder", "The decoder of Whisper small, a decode step after 64 tokens", _WIDTH, whisper_decoder,
        tokens=1, past=64, frames=1500,
    ),
    _model("clip", "CLIP ViT-B/32, a tower of 50 patches and one of 77 tokens", 768, clip, patches=50, tokens=77),
)  # fmt: skip
