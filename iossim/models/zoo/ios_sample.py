"""The sample network of the IOS thesis (figure 1.2): four convolutions, of which only one depends on another."""

from __future__ import annotations

from iossim.ir.builder import GraphBuilder
from iossim.models.catalogue import ZooModel
from iossim.models.layers import conv_relu, join


def build(b: GraphBuilder, x: str) -> str:
    with b.block("sample"):
        conv_a = conv_relu(b, "a", x, 375, 3, padding=1)
        conv_b = conv_relu(b, "b", x, 750, 3, padding=1)
        conv_c = conv_relu(b, "c", x, 375, 3, padding=1)
        conv_d = conv_relu(b, "d", conv_a, 750, 3, padding=1)
        return join(b, "concat", [conv_d, conv_b, conv_c])


MODELS = (
    ZooModel(
        "ios_sample", "Sample network of the IOS thesis: four 3x3 convolutions and a concat", (375, 15, 15), build
    ),
)
