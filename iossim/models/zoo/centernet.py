"""CenterNet on ResNet-18 (Zhou et al., 2019, arXiv:1904.07850): three deconvolutions and three heads.

The deconvolutions are 4x4 with stride 2, each after a 3x3 convolution; batch norm is folded, and the deformable
convolutions of the paper are plain ones. There are 80 classes.
"""

from __future__ import annotations

from iossim.ir.builder import GraphBuilder
from iossim.ir.ops.conv_transpose import ConvTranspose
from iossim.ir.ops.unary import Relu
from iossim.models.catalogue import ZooModel
from iossim.models.layers import conv, conv_relu
from iossim.models.zoo.resnet import backbone, basic

_HEADS = (("centre", 80), ("size", 2), ("offset", 2))


def build(b: GraphBuilder, x: str) -> list[str]:
    x = backbone(b, x, basic, (2, 2, 2, 2))
    for index, channels in enumerate((256, 128, 64)):
        with b.block(f"up{index}"):
            x = conv_relu(b, f"up{index}.conv", x, channels, 3, padding=1)
            x = _deconvolution(b, f"up{index}.deconv", x, channels)
    heads = []
    for name, channels in _HEADS:
        with b.block(name):
            y = conv_relu(b, f"{name}.conv", x, 64, 3, padding=1)
            heads.append(conv(b, f"{name}.out", y, channels))
    return heads


def _deconvolution(b: GraphBuilder, name: str, x: str, channels: int) -> str:
    """A transposed convolution that doubles the image, and a ReLU."""
    with b.unit(name, "Deconv-Relu"):
        weight = b.constant(f"{name}.weight", (b.types[x].shape[1], channels, 4, 4))
        bias = b.constant(f"{name}.bias", (channels,))
        y = b.add(ConvTranspose((2, 2), (1, 1, 1, 1)), x, weight, bias, name=f"{name}.conv")
        return b.add(Relu(), y, name=f"{name}.relu")


MODELS = (ZooModel("centernet", "CenterNet on ResNet-18, batch norm folded", (3, 512, 512), build),)
