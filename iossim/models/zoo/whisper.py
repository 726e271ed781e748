"""Whisper small (Radford et al., 2022, arXiv:2212.04356): 12 layers each of an encoder and of a decoder, 768 wide.

The encoder reads the 1,500 frames that its convolutions make from 30 seconds. The decoder reads embedded tokens and
the encoder's output. With a ``past``, the keys and values of the frames are kept too, and are inputs of
every layer; without, each layer computes them from the input ``audio``, independently of its tokens.
"""

from __future__ import annotations

from iossim.ir.builder import GraphBuilder
from iossim.models import transformer_layers as nn
from iossim.models.catalogue import BuildOptions, ZooModel

_LAYERS, _WIDTH, _HEADS = 12, 768, 12


def encoder(b: GraphBuilder, x: str, options: BuildOptions) -> str:
    del options  # the frames are the input's
    for layer in range(_LAYERS):
        name = f"layer{layer}"
        with b.block(f"{name}.attention"):
            normed = nn.layer_norm(b, f"{name}.norm1", x)
            y, _ = nn.self_attention(b, name, normed, _HEADS, _HEADS, causal=False)
            x = nn.linear(b, f"{name}.out", y, _WIDTH, added=x)
        x = _feed_forward(b, name, x)
    return nn.layer_norm(b, "norm", x)


def decoder(b: GraphBuilder, x: str, options: BuildOptions) -> list[str]:
    batch, past, frames = b.types[x].shape[0], options.dimensions["past"], options.dimensions["frames"]
    audio = "" if past else b.input("audio", (batch, frames, _WIDTH))
    kept: list[str] = []
    for layer in range(_LAYERS):
        name = f"layer{layer}"
        with b.block(f"{name}.attention"):
            y, own = nn.self_attention(b, name, nn.layer_norm(b, f"{name}.norm1", x), _HEADS, _HEADS, past=past)
            x = nn.linear(b, f"{name}.out", y, _WIDTH, added=x)
            query = nn.linear(b, f"{name}.cross.query", nn.layer_norm(b, f"{name}.norm2", x), _WIDTH)
            sides = [f"{name}.cross.{side}" for side in ("key", "value")]
            if past:
                sides = [b.input(side, (batch, frames, _WIDTH)) for side in sides]
            else:
                sides = [nn.linear(b, side, audio, _WIDTH) for side in sides]
                own += sides
            y = nn.attention(b, f"{name}.cross.heads", query, sides[0], sides[1], _HEADS, _HEADS, causal=False)
            x = nn.linear(b, f"{name}.cross.out", y, _WIDTH, added=x)
            kept += own
        x = _feed_forward(b, name, x)
    with b.block("head"):
        x = nn.layer_norm(b, "norm", nn.last_token(b, "last", x))
        return [nn.linear(b, "words", x, 51_865, bias=False), *kept]


def _feed_forward(b: GraphBuilder, name: str, x: str) -> str:
    with b.block(f"{name}.feed_forward"):
        return nn.feed_forward(b, name, x, "norm3", "gelu")


MODELS = (
    ZooModel(
        "whisper_encoder",
        "The encoder of Whisper small, 1,500 frames",
        (1500, _WIDTH),
        encoder,
        input_name="frames",
        axes="batch x frames x width",
        dimensions={"frames": 1500},
    ),
    ZooModel(
        "whisper_decoder",
        "The decoder of Whisper small, a decode step after 64 tokens",
        (1, _WIDTH),
        decoder,
        input_name="tokens",
        axes="batch x tokens x width",
        dimensions={"tokens": 1, "past": 64, "frames": 1500},
    ),
)
