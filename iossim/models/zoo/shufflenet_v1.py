"""ShuffleNet v1 with three groups (Zhang et al., 2017, arXiv:1707.01083, table 1, 1x), batch norm folded.

A unit is a grouped 1x1 convolution with a ReLU, a channel shuffle over the groups, a depthwise 3x3 convolution and a
grouped 1x1 one, with a shortcut: its input, or if it halves the image an average of it, which is
concatenated. The very first grouped convolution has one group, since there are few channels.
"""

from __future__ import annotations

from iossim.ir.builder import GraphBuilder
from iossim.ir.ops.reshape import Reshape, Transpose
from iossim.ir.ops.slice import Concat
from iossim.ir.ops.unary import Relu
from iossim.models.catalogue import ZooModel
from iossim.models.layers import add_relu, average_pool, conv, conv_relu, max_pool
from iossim.models.zoo.alexnet import head

_GROUPS = 3
#: Channels of each stage, and its number of units.
_STAGES = ((240, 4), (480, 8), (960, 4))


def build(b: GraphBuilder, x: str) -> str:
    with b.block("stem"):
        x = conv_relu(b, "conv1", x, 24, 3, stride=2, padding=1)
        x = max_pool(b, "maxpool", x, 3, stride=2, padding=1)
    for stage, (channels, units) in enumerate(_STAGES, start=2):
        for index in range(units):
            with b.block(f"stage{stage}.{index}"):
                x = _unit(b, f"stage{stage}.{index}", x, channels, 2 if index == 0 else 1)
    return head(b, x)


def _unit(b: GraphBuilder, name: str, x: str, channels: int, stride: int) -> str:
    width = b.types[x].shape[1]
    made = channels - width if stride == 2 else channels
    first = 1 if width % (4 * _GROUPS) else _GROUPS
    y = conv_relu(b, f"{name}.reduce", x, channels // 4, groups=first)
    y = _shuffle(b, f"{name}.shuffle", y)
    y = conv(b, f"{name}.depthwise", y, channels // 4, 3, stride, padding=1, groups=channels // 4)
    y = conv(b, f"{name}.expand", y, made, groups=_GROUPS)
    if stride == 1:
        return add_relu(b, f"{name}.add", y, x)
    passed = average_pool(b, f"{name}.pool", x, 3, stride=2, padding=1)
    with b.unit(f"{name}.concat", "Concat-Relu"):
        return b.add(Relu(), b.add(Concat(1), passed, y, name=f"{name}.concat.join"), name=f"{name}.concat.relu")


def _shuffle(b: GraphBuilder, name: str, x: str) -> str:
    """The channels of each group distributed over all groups."""
    batch, channels, *size = b.types[x].shape
    with b.unit(name, "Shuffle"):
        y = b.add(Reshape((batch, _GROUPS, channels // _GROUPS, *size)), x, name=f"{name}.split")
        y = b.add(Transpose((0, 2, 1, 3, 4)), y, name=f"{name}.transpose")
        return b.add(Reshape((batch, channels, *size)), y, name=f"{name}.join")


MODELS = (ZooModel("shufflenet_v1", "ShuffleNet v1, 1x, three groups, with its classifier", (3, 224, 224), build),)
