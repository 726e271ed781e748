"""MobileNet v1 (Howard et al., 2017, arXiv:1704.04861, table 1), batch norm folded, with its classifier.

A depthwise and a pointwise convolution, each with a ReLU, are one block.
"""

from __future__ import annotations

from iossim.ir.builder import GraphBuilder
from iossim.models.catalogue import ZooModel
from iossim.models.layers import conv_relu
from iossim.models.zoo.alexnet import head

#: Output channels of each pointwise convolution, and the stride of the preceding depthwise one.
_LAYERS = ((64, 1), (128, 2), (128, 1), (256, 2), (256, 1), (512, 2), *((512, 1),) * 5, (1024, 2), (1024, 1))


def build(b: GraphBuilder, x: str) -> str:
    with b.block("stem"):
        x = conv_relu(b, "conv1", x, 32, 3, stride=2, padding=1)
    for index, (channels, stride) in enumerate(_LAYERS, start=2):
        width = b.types[x].shape[1]
        with b.block(f"conv{index}"):
            x = conv_relu(b, f"conv{index}.depthwise", x, width, 3, stride=stride, padding=1, groups=width)
            x = conv_relu(b, f"conv{index}.pointwise", x, channels)
    return head(b, x)


MODELS = (ZooModel("mobilenet_v1", "MobileNet v1, batch norm folded, with its classifier", (3, 224, 224), build),)
