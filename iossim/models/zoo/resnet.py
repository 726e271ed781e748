"""ResNet 18, 34, 50, 101 and 152 (He et al., 2015, arXiv:1512.03385), as in torchvision, with batch norm folded.

In a bottleneck the 3x3 convolution has the stride. A block is one residual block.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from iossim.ir.builder import GraphBuilder
from iossim.models.catalogue import ZooModel
from iossim.models.layers import add_relu, conv, conv_relu, head, max_pool

Residual = Callable[[GraphBuilder, str, str, int, int], str]


def build(b: GraphBuilder, x: str, residual: Residual, depths: tuple[int, ...]) -> str:
    """A network of four stages of residual blocks: ``residual`` adds one, given its name, input, width and stride."""
    return head(b, backbone(b, x, residual, depths))


def backbone(b: GraphBuilder, x: str, residual: Residual, depths: tuple[int, ...]) -> str:
    """All but the classifier."""
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
        return add_relu(b, f"{name}.add", y, shortcut(b, name, x, width, stride))


def _bottleneck(b: GraphBuilder, name: str, x: str, width: int, stride: int) -> str:
    """A 3x3 convolution of ``width`` channels between two 1x1 ones that narrow and widen."""
    with b.block(name):
        y = conv_relu(b, f"{name}.conv1", x, width)
        y = conv_relu(b, f"{name}.conv2", y, width, 3, stride=stride, padding=1)
        y = conv(b, f"{name}.conv3", y, 4 * width)
        return add_relu(b, f"{name}.add", y, shortcut(b, name, x, 4 * width, stride))


def shortcut(b: GraphBuilder, name: str, x: str, channels: int, stride: int) -> str:
    """What passes a residual block by: its input, or a 1x1 convolution of it where the shape changes."""
    if stride == 1 and b.types[x].shape[1] == channels:
        return x
    return conv(b, f"{name}.downsample", x, channels, stride=stride)


def _model(layers: int, residual: Residual, depths: tuple[int, ...]) -> ZooModel:
    name = f"resnet{layers}"
    whole = partial(build, residual=residual, depths=depths)
    return ZooModel(name, f"ResNet-{layers}, batch norm folded, with its classifier", (3, 224, 224), whole)


MODELS = (
    _model(18, basic, (2, 2, 2, 2)),
    _model(34, basic, (3, 4, 6, 3)),
    _model(50, _bottleneck, (3, 4, 6, 3)),
    _model(101, _bottleneck, (3, 4, 23, 3)),
    _model(152, _bottleneck, (3, 8, 36, 3)),
)
