"""Inception V3 (Szegedy et al., 2016, arXiv:1512.00567), convolutional part.

Blocks A to E and their branches are named as in torchvision, whose widths these are.
"""

from __future__ import annotations

from iossim.ir.builder import GraphBuilder
from iossim.ir.network import Network
from iossim.models.catalogue import BuildOptions, ZooModel
from iossim.models.layers import average_pool, conv_relu, global_average_pool, join, max_pool


def build(options: BuildOptions) -> Network:
    b = GraphBuilder("inception_v3", options.precision, options.seed)
    x = b.input("image", options.input_shape)
    with b.block("stem"):
        x = conv_relu(b, "conv_1a", x, 32, 3, stride=2)
        x = conv_relu(b, "conv_2a", x, 32, 3)
        x = conv_relu(b, "conv_2b", x, 64, 3, padding=1)
        x = max_pool(b, "maxpool1", x, 3, stride=2)
        x = conv_relu(b, "conv_3b", x, 80)
        x = conv_relu(b, "conv_4a", x, 192, 3)
        x = max_pool(b, "maxpool2", x, 3, stride=2)
    x = _inception_a(b, "mixed_5b", x, pool_channels=32)
    x = _inception_a(b, "mixed_5c", x, pool_channels=64)
    x = _inception_a(b, "mixed_5d", x, pool_channels=64)
    x = _inception_b(b, "mixed_6a", x)
    x = _inception_c(b, "mixed_6b", x, channels_7x7=128)
    x = _inception_c(b, "mixed_6c", x, channels_7x7=160)
    x = _inception_c(b, "mixed_6d", x, channels_7x7=160)
    x = _inception_c(b, "mixed_6e", x, channels_7x7=192)
    x = _inception_d(b, "mixed_7a", x)
    x = _inception_e(b, "mixed_7b", x)
    x = _inception_e(b, "mixed_7c", x)
    with b.block("tail"):
        x = global_average_pool(b, "avgpool", x)
    return b.network([x])


def _inception_a(b: GraphBuilder, name: str, x: str, pool_channels: int) -> str:
    with b.block(name):
        branch_1x1 = conv_relu(b, f"{name}.branch1x1", x, 64)
        branch_5x5 = conv_relu(b, f"{name}.branch5x5_1", x, 48)
        branch_5x5 = conv_relu(b, f"{name}.branch5x5_2", branch_5x5, 64, 5, padding=2)
        double_3x3 = conv_relu(b, f"{name}.branch3x3dbl_1", x, 64)
        double_3x3 = conv_relu(b, f"{name}.branch3x3dbl_2", double_3x3, 96, 3, padding=1)
        double_3x3 = conv_relu(b, f"{name}.branch3x3dbl_3", double_3x3, 96, 3, padding=1)
        branch_pool = _pool_branch(b, name, x, pool_channels)
        return join(b, f"{name}.concat", [branch_1x1, branch_5x5, double_3x3, branch_pool])


def _inception_b(b: GraphBuilder, name: str, x: str) -> str:
    """Halves the image."""
    with b.block(name):
        branch_3x3 = conv_relu(b, f"{name}.branch3x3", x, 384, 3, stride=2)
        double_3x3 = conv_relu(b, f"{name}.branch3x3dbl_1", x, 64)
        double_3x3 = conv_relu(b, f"{name}.branch3x3dbl_2", double_3x3, 96, 3, padding=1)
        double_3x3 = conv_relu(b, f"{name}.branch3x3dbl_3", double_3x3, 96, 3, stride=2)
        pool = max_pool(b, f"{name}.pool", x, 3, stride=2)
        return join(b, f"{name}.concat", [branch_3x3, double_3x3, pool])


def _inception_c(b: GraphBuilder, name: str, x: str, channels_7x7: int) -> str:
    """7x7 convolutions, each factorised into a row and a column."""
    with b.block(name):
        branch_1x1 = conv_relu(b, f"{name}.branch1x1", x, 192)
        branch_7x7 = conv_relu(b, f"{name}.branch7x7_1", x, channels_7x7)
        branch_7x7 = _row(b, f"{name}.branch7x7_2", branch_7x7, channels_7x7, 7)
        branch_7x7 = _column(b, f"{name}.branch7x7_3", branch_7x7, 192, 7)
        double_7x7 = conv_relu(b, f"{name}.branch7x7dbl_1", x, channels_7x7)
        double_7x7 = _column(b, f"{name}.branch7x7dbl_2", double_7x7, channels_7x7, 7)
        double_7x7 = _row(b, f"{name}.branch7x7dbl_3", double_7x7, channels_7x7, 7)
        double_7x7 = _column(b, f"{name}.branch7x7dbl_4", double_7x7, channels_7x7, 7)
        double_7x7 = _row(b, f"{name}.branch7x7dbl_5", double_7x7, 192, 7)
        branch_pool = _pool_branch(b, name, x, 192)
        return join(b, f"{name}.concat", [branch_1x1, branch_7x7, double_7x7, branch_pool])


def _inception_d(b: GraphBuilder, name: str, x: str) -> str:
    """Halves the image."""
    with b.block(name):
        branch_3x3 = conv_relu(b, f"{name}.branch3x3_1", x, 192)
        branch_3x3 = conv_relu(b, f"{name}.branch3x3_2", branch_3x3, 320, 3, stride=2)
        branch_7x7x3 = conv_relu(b, f"{name}.branch7x7x3_1", x, 192)
        branch_7x7x3 = _row(b, f"{name}.branch7x7x3_2", branch_7x7x3, 192, 7)
        branch_7x7x3 = _column(b, f"{name}.branch7x7x3_3", branch_7x7x3, 192, 7)
        branch_7x7x3 = conv_relu(b, f"{name}.branch7x7x3_4", branch_7x7x3, 192, 3, stride=2)
        pool = max_pool(b, f"{name}.pool", x, 3, stride=2)
        return join(b, f"{name}.concat", [branch_3x3, branch_7x7x3, pool])


def _inception_e(b: GraphBuilder, name: str, x: str) -> str:
    """3x3 convolutions whose row and column stand side by side: the widest block."""
    with b.block(name):
        branch_1x1 = conv_relu(b, f"{name}.branch1x1", x, 320)
        branch_3x3 = conv_relu(b, f"{name}.branch3x3_1", x, 384)
        branch_3x3_row = _row(b, f"{name}.branch3x3_2a", branch_3x3, 384, 3)
        branch_3x3_column = _column(b, f"{name}.branch3x3_2b", branch_3x3, 384, 3)
        double_3x3 = conv_relu(b, f"{name}.branch3x3dbl_1", x, 448)
        double_3x3 = conv_relu(b, f"{name}.branch3x3dbl_2", double_3x3, 384, 3, padding=1)
        double_3x3_row = _row(b, f"{name}.branch3x3dbl_3a", double_3x3, 384, 3)
        double_3x3_column = _column(b, f"{name}.branch3x3dbl_3b", double_3x3, 384, 3)
        branch_pool = _pool_branch(b, name, x, 192)
        return join(
            b,
            f"{name}.concat",
            [branch_1x1, branch_3x3_row, branch_3x3_column, double_3x3_row, double_3x3_column, branch_pool],
        )


def _pool_branch(b: GraphBuilder, name: str, x: str, channels: int) -> str:
    pool = average_pool(b, f"{name}.pool", x, 3, stride=1, padding=1, count_include_pad=True)
    return conv_relu(b, f"{name}.branch_pool", pool, channels)


def _row(b: GraphBuilder, name: str, x: str, channels: int, width: int) -> str:
    return conv_relu(b, name, x, channels, (1, width), padding=(0, width // 2))


def _column(b: GraphBuilder, name: str, x: str, channels: int, height: int) -> str:
    return conv_relu(b, name, x, channels, (height, 1), padding=(height // 2, 0))


MODELS = (ZooModel("inception_v3", "Inception V3, convolutional part", (3, 299, 299), build),)
