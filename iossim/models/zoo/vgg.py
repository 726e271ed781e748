"""VGG of 16 and 19 layers (Simonyan and Zisserman, 2014, arXiv:1409.1556). A block is one resolution."""

from __future__ import annotations

from functools import partial

from iossim.ir.builder import GraphBuilder
from iossim.models.catalogue import ZooModel
from iossim.models.layers import conv_relu, max_pool
from iossim.models.zoo.alexnet import classifier

#: Channels of the convolutions of each resolution.
CHANNELS = (64, 128, 256, 512, 512)


def build(b: GraphBuilder, x: str, depths: tuple[int, ...]) -> str:
    for stage, (channels, depth) in enumerate(zip(CHANNELS, depths, strict=True), start=1):
        with b.block(f"conv{stage}"):
            for layer in range(1, depth + 1):
                x = conv_relu(b, f"conv{stage}_{layer}", x, channels, 3, padding=1)
            x = max_pool(b, f"pool{stage}", x, 2, stride=2)
    return classifier(b, x)


MODELS = tuple(
    ZooModel(name, f"VGG of {layers} layers, with its classifier", (3, 224, 224), partial(build, depths=depths))
    for name, layers, depths in (("vgg16", 16, (2, 2, 3, 3, 3)), ("vgg19", 19, (2, 2, 4, 4, 4)))
)
