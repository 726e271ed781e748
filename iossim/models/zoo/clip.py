"""CLIP ViT-B/32 (Radford et al., 2021, arXiv:2103.00020): an image tower and a text tower, 12 layers each.

The inputs are 50 embedded patches, 768 wide, and 77 embedded tokens, 512 wide. The towers are joined only at the end;
a block has one layer of each.
"""

from __future__ import annotations

from iossim.ir.builder import GraphBuilder
from iossim.ir.ops.matmul import MatMul
from iossim.ir.ops.reshape import Transpose
from iossim.models import transformer_layers as nn
from iossim.models.catalogue import BuildOptions, ZooModel


def build(b: GraphBuilder, image: str, options: BuildOptions) -> str:
    text = b.input("tokens", (b.types[image].shape[0], options.dimensions["tokens"], 512))
    for layer in range(12):
        with b.block(f"layer{layer}"):
            image = _layer(b, f"image{layer}", image, causal=False)
            text = _layer(b, f"text{layer}", text, causal=True)
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


def _layer(b: GraphBuilder, name: str, x: str, causal: bool) -> str:
    width = b.types[x].shape[2]
    y, _ = nn.self_attention(b, name, nn.layer_norm(b, f"{name}.norm1", x), width // 64, width // 64, causal=causal)
    x = nn.linear(b, f"{name}.out", y, width, added=x)
    return nn.feed_forward(b, name, x, "norm2", "gelu")


MODELS = (
    ZooModel(
        "clip",
        "CLIP ViT-B/32, a tower of 50 patches and one of 77 tokens",
        (50, 768),
        build,
        input_name="patches",
        axes="batch x patches x width",
        dimensions={"patches": 50, "tokens": 77},
    ),
)
