"""ResNet 18, 34, 50, 101 and 152 (He et al., 2015, arXiv:1512.03385), as in torchvision, with batch norm folded.

The 3x3 convolution of a bottleneck has the stride. A block is one residual block. ResNeXt-50 of 32 groups 4 wide (Xie
et al., 2016, arXiv:1611.05431, table 1) exists in two forms of the same multiply-adds and weights: with grouped
convolutions, as in torchvision (figure 3c), and with 32 branches of two small ones, joined before the last (figure
3b). Those branches are in blocks of four, since exact search cannot handle more that are alike.

CenterNet on ResNet-18 (Zhou et al., 2019, arXiv:1904.07850) has three deconvolutions, 4x4 with stride 2, each after a
3x3 convolution, and three heads; the deformable convolutions of the paper are plain ones. There are 80 classes.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from iossim.ir.builder import GraphBuilder
from iossim.ir.ops.conv_transpose import ConvTranspose
from iossim.ir.ops.unary import Relu
from iossim.models.catalogue import ZooModel
from iossim.models.layers import add_relu, conv, conv_relu, join, max_pool
from iossim.models.zoo.alexnet import head

Residual = Callable[[GraphBuilder, str, str, int, int], str]
_GROUPS, _BRANCHES_A_BLOCK = 32, 4
#: Heads of CenterNet, and their channels.
_HEADS = (("centre", 80), ("size", 2), ("offset", 2))


def build(b: GraphBuilder, x: str, residual: Residual, depths: tuple[int, ...]) -> str:
    """A network of four stages of residual blocks: ``residual`` adds one, given its name, input, width and stride."""
    return head(b, backbone(b, x, residual, depths))


def backbone(b: GraphBuilder, x: str, residual: Residual, depths: tuple[int, ...]) -> str:
    """The network without its classifier."""
    with b.block("stem"):
        x = conv_relu(b, "conv1", x, 64, 7, stride=2, padding=3)
        x = max_pool(b, "maxpool", x, 3, stride=2, padding=1)
    for stage, depth in enumerate(depths):
        for index in range(depth):
            stride = 2 if stage > 0 and index == 0 else 1
            x = residual(b, f"layer{stage + 1}.{index}", x, 64 << stage, stride)
    return x


def basic(b: GraphBuilder, name: str, x: str, width: int, stride: int) -> str:
    """Two 3x3 convolutions of ``width`` channels."""
    with b.block(name):
        y = conv_relu(b, f"{name}.conv1", x, width, 3, stride=stride, padding=1)
        y = conv(b, f"{name}.conv2", y, width, 3, padding=1)
        return add_relu(b, f"{name}.add", y, _shortcut(b, name, x, width, stride))


def _bottleneck(b: GraphBuilder, name: str, x: str, width: int, stride: int, widened: int = 1, groups: int = 1) -> str:
    """A 3x3 convolution of ``widened * width`` channels, in groups, between two 1x1 ones that narrow and widen."""
    with b.block(name):
        y = conv_relu(b, f"{name}.conv1", x, widened * width)
        y = conv_relu(b, f"{name}.conv2", y, widened * width, 3, stride=stride, padding=1, groups=groups)
        y = conv(b, f"{name}.conv3", y, 4 * width)
        return add_relu(b, f"{name}.add", y, _shortcut(b, name, x, 4 * width, stride))


def _branches(b: GraphBuilder, name: str, x: str, width: int, stride: int) -> str:
    """ResNeXt's form, which has twice the channels, with each group as a separate branch."""
    parts = []
    for first in range(0, _GROUPS, _BRANCHES_A_BLOCK):
        with b.block(f"{name}.{first}"):
            for group in range(first, first + _BRANCHES_A_BLOCK):
                y = conv_relu(b, f"{name}.conv1.{group}", x, 2 * width // _GROUPS)
                parts.append(
                    conv_relu(b, f"{name}.conv2.{group}", y, 2 * width // _GROUPS, 3, stride=stride, padding=1)
                )
    with b.block(name):
        y = conv(b, f"{name}.conv3", join(b, f"{name}.concat", parts), 4 * width)
        return add_relu(b, f"{name}.add", y, _shortcut(b, name, x, 4 * width, stride))


def _shortcut(b: GraphBuilder, name: str, x: str, channels: int, stride: int) -> str:
    """Shortcut of a residual block: its input, or a 1x1 convolution of it if the shape changes."""
    if stride == 1 and b.types[x].shape[1] == channels:
        return x
    return conv(b, f"{name}.downsample", x, channels, stride=stride)


def centernet(b: GraphBuilder, x: str) -> list[str]:
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


def _model(name: str, title: str, residual: Residual, depths: tuple[int, ...]) -> ZooModel:
    whole = partial(build, residual=residual, depths=depths)
    return ZooModel(name, f"{title}, batch norm folded, with its classifier", (3, 224, 224), whole)


MODELS = (
    _model("resnet18", "ResNet-18", basic, (2, 2, 2, 2)),
    _model("resnet34", "ResNet-34", basic, (3, 4, 6, 3)),
    _model("resnet50", "ResNet-50", _bottleneck, (3, 4, 6, 3)),
    _model("resnet101", "ResNet-101", _bottleneck, (3, 4, 23, 3)),
    _model("resnet152", "ResNet-152", _bottleneck, (3, 8, 36, 3)),
    _model("resnext50", "ResNeXt-50 32x4d, grouped", partial(_bottleneck, widened=2, groups=_GROUPS), (3, 4, 6, 3)),
    _model("resnext50_branches", "ResNeXt-50 32x4d, in 32 branches", _branches, (3, 4, 6, 3)),
    ZooModel("centernet", "CenterNet on ResNet-18, batch norm folded", (3, 512, 512), centernet),
)
