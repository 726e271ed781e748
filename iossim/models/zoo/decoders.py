"""Language decoders: GPT-2 (Radford et al., 2019), and Llama 3.2 1B (arXiv:2407.21783) with and without adapters.

The inputs are embedded tokens; keys and values of ``past`` earlier ones are further inputs of every layer. So
``tokens=1 past=512`` is a decode step, ``tokens=512 past=0`` a prefill. Outputs are the scores of the next word after
the last token, and the keys and values to keep. Queries, keys and values are projected separately.
"""

from __future__ import annotations

from functools import partial

from iossim.ir.builder import GraphBuilder
from iossim.ir.ops.nary import Mul
from iossim.models import transformer_layers as nn
from iossim.models.catalogue import BuildOptions, ZooModel


def gpt2(b: GraphBuilder, x: str, options: BuildOptions) -> list[str]:
    """The smallest: 12 layers of 768, 12 heads."""
    past, kept = options.dimensions["past"], []
    for layer in range(12):
        name = f"layer{layer}"
        with b.block(f"{name}.attention"):
            y, own = nn.self_attention(b, name, nn.layer_norm(b, f"{name}.norm1", x), 12, 12, past=past)
            x = nn.linear(b, f"{name}.out", y, 768, added=x)
            kept += own
        with b.block(f"{name}.feed_forward"):
            x = nn.feed_forward(b, name, x, "norm2", "gelu_tanh")
    with b.block("head"):
        x = nn.layer_norm(b, "norm", nn.last_token(b, "last", x))
        return [nn.linear(b, "words", x, 50_257, bias=False), *kept]


def llama_1b(b: GraphBuilder, x: str, options: BuildOptions, low_rank: nn.LowRank) -> list[str]:
    """16 layers of 2,048; 32 heads of queries share 8 of keys and values."""
    past, kept = options.dimensions["past"], []
    for layer in range(16):
        name = f"layer{layer}"
        with b.block(f"{name}.attention"):
            normed = nn.rms_norm(b, f"{name}.norm1", x)
            y, own = nn.self_attention(b, name, normed, 32, 8, past=past, bias=False, rotates=True, low_rank=low_rank)
            x = nn.linear(b, f"{name}.out", y, 2048, added=x, bias=False)
            kept += own
        with b.block(f"{name}.feed_forward"):
            normed = nn.rms_norm(b, f"{name}.norm2", x)
            gate = nn.linear(b, f"{name}.gate", normed, 8192, activation="swish", bias=False)
            up = nn.linear(b, f"{name}.up", normed, 8192, bias=False)
            with b.unit(f"{name}.gated", "Mul"):
                inner = b.add(Mul(), gate, up, name=f"{name}.gated.mul")
            x = nn.linear(b, f"{name}.down", inner, 2048, added=x, bias=False)
    with b.block("head"):
        x = nn.rms_norm(b, "norm", nn.last_token(b, "last", x))
        return [nn.linear(b, "words", x, 128_256, bias=False), *kept]


MODELS = tuple(
    ZooModel(
        name,
        description,
        (1, width),
        build,
        input_name="tokens",
        axes="batch x tokens x width",
        dimensions={"tokens": 1, "past": 512},
    )
    for name, description, width, build in (
        ("gpt2", "GPT-2 small, a decode step after 512 tokens", 768, gpt2),
        (
            "llama_1b",
            "Llama 3.2 1B (GQA), a decode step after 512 tokens",
            2048,
            partial(llama_1b, low_rank=nn.LowRank()),
        ),
        (
            "llama_1b_lora",
            "Llama 3.2 1B with LoRA of rank 16 on Q and V, a decode step",
            2048,
            partial(llama_1b, low_rank=nn.LowRank(16)),
        ),
    )
)
