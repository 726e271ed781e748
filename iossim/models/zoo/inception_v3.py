"""Inception V3 (Szegedy et al., 2016, arXiv:1512.00567), convolutional part.

Blocks A to E and their branches are named as in torchvision, and have its widths.
"""

from __future__ import annotations

from iossim.ir.builder import GraphBuilder
from iossim.models.catalogue import ZooModel
from iossim.models.layers import Size, average_pool, conv_relu, global_average_pool, join, max_pool

#: Channels and kernel of a convolution that keeps the image size; and the stride of one that changes it.
_Layer = tuple[int, Size] | tuple[int, Size, int]
_Branches = dict[str, list[_Layer]]


def build(b: GraphBuilder, x: str) -> str:
    with b.block("stem"):
        x = conv_relu(b, "conv_1a", x, 32, 3, stride=2)
        x = conv_relu(b, "conv_2a", x, 32, 3)
        x = conv_relu(b, "conv_2b", x, 64, 3, padding=1)
        x = max_pool(b, "maxpool1", x, 3, stride=2)
        x = conv_relu(b, "conv_3b", x, 80)
        x = conv_relu(b, "conv_4a", x, 192, 3)
        x = max_pool(b, "maxpool2", x, 3, stride=2)
    for name, channels in (("mixed_5b", 32), ("mixed_5c", 64), ("mixed_5d", 64)):
        branches: _Branches = {"1x1": [(64, 1)], "5x5": [(48, 1), (64, 5)], "3x3dbl": [(64, 1), (96, 3), (96, 3)]}
        x = _inception(b, name, x, branches, channels)
    x = _inception(b, "mixed_6a", x, {"3x3": [(384, 3, 2)], "3x3dbl": [(64, 1), (96, 3), (96, 3, 2)]})
    row, column = (1, 7), (7, 1)  # a 7x7 convolution, factorised
    for name, width in (("mixed_6b", 128), ("mixed_6c", 160), ("mixed_6d", 160), ("mixed_6e", 192)):
        branches = {"1x1": [(192, 1)], "7x7": [(width, 1), (width, row), (192, column)]}
        branches["7x7dbl"] = [(width, 1), (width, column), (width, row), (width, column), (192, row)]
        x = _inception(b, name, x, branches, 192)
    branches = {"3x3": [(192, 1), (320, 3, 2)], "7x7x3": [(192, 1), (192, row), (192, column), (192, 3, 2)]}
    x = _inception(b, "mixed_7a", x, branches)
    for name in ("mixed_7b", "mixed_7c"):
        x = _inception_e(b, name, x)
    with b.block("tail"):
        return global_average_pool(b, "avgpool", x)


def _inception(b: GraphBuilder, name: str, x: str, branches: _Branches, pooled_channels: int = 0) -> str:
    """Blocks A to D: branches of convolutions and one of pooling, which halves the image if no channels are given."""
    with b.block(name):
        ends = [_branch(b, f"{name}.branch{own}", x, *layers) for own, layers in branches.items()]
        pooled = _pool_branch(b, name, x, pooled_channels) if pooled_channels else None
        return join(b, f"{name}.concat", [*ends, pooled or max_pool(b, f"{name}.pool", x, 3, stride=2)])


def _inception_e(b: GraphBuilder, name: str, x: str) -> str:
    """3x3 convolutions whose row and column are parallel: the widest block."""
    with b.block(name):
        branches = [_branch(b, f"{name}.branch1x1", x, (320, 1))]
        narrow = _branch(b, f"{name}.branch3x3_1", x, (384, 1))
        branches += _row_and_column(b, f"{name}.branch3x3_2", narrow)
        narrow = _branch(b, f"{name}.branch3x3dbl", x, (448, 1), (384, 3))
        branches += _row_and_column(b, f"{name}.branch3x3dbl_3", narrow)
        return join(b, f"{name}.concat", [*branches, _pool_branch(b, name, x, 192)])


def _branch(b: GraphBuilder, name: str, x: str, *layers: _Layer) -> str:
    """A sequence of convolutions; with a stride they have no padding."""
    for index, (channels, kernel, *strides) in enumerate(layers, start=1):
        height, width = kernel if isinstance(kernel, tuple) else (kernel, kernel)
        padding = (0, 0) if strides else (height // 2, width // 2)
        own = f"{name}_{index}" if len(layers) > 1 else name
        x = conv_relu(b, own, x, channels, kernel, max(strides, default=1), padding)
    return x


def _row_and_column(b: GraphBuilder, name: str, x: str) -> list[str]:
    return [_branch(b, f"{name}a", x, (384, (1, 3))), _branch(b, f"{name}b", x, (384, (3, 1)))]


def _pool_branch(b: GraphBuilder, name: str, x: str, channels: int) -> str:
    pool = average_pool(b, f"{name}.pool", x, 3, stride=1, padding=1, count_include_pad=True)
    return conv_relu(b, f"{name}.branch_pool", pool, channels)


MODELS = (ZooModel("inception_v3", "Inception V3, convolutional part", (3, 299, 299), build),)
