"""SqueezeNet 1.0, plain and with complex bypass (Iandola et al., 2016, arXiv:1602.07360, figure 2).

A fire module squeezes its input with a 1x1 convolution and expands it with parallel 3x3 and 1x1 ones. With
bypass every module has a shortcut: its input if the channels agree, a 1x1 convolution if they grow.
"""

from __future__ import annotations

from functools import partial

from iossim.ir.builder import GraphBuilder
from iossim.models.catalogue import ZooModel
from iossim.models.layers import conv_relu, global_average_pool, join, max_pool


def build(b: GraphBuilder, x: str, bypass: bool) -> str:
    with b.block("stem"):
        x = conv_relu(b, "conv1", x, 96, 7, stride=2, padding=3)
        x = max_pool(b, "pool1", x, 3, stride=2)
    for index, squeeze in enumerate((16, 16, 32, 32, 48, 48, 64, 64), start=2):
        x = _fire(b, f"fire{index}", x, squeeze, 4 * squeeze, bypass)
        if index in (4, 8):
            with b.block(f"pool{index}"):
                x = max_pool(b, f"pool{index}", x, 3, stride=2)
    with b.block("tail"):
        x = conv_relu(b, "conv10", x, 1000)
        return global_average_pool(b, "pool10", x)


def _fire(b: GraphBuilder, name: str, x: str, squeeze: int, expand: int, bypass: bool) -> str:
    """A fire module with ``2 * expand`` output channels."""
    with b.block(name):
        squeezed = conv_relu(b, f"{name}.squeeze", x, squeeze)
        expand_3x3 = conv_relu(b, f"{name}.expand3x3", squeezed, expand, 3, padding=1)
        expand_1x1 = conv_relu(b, f"{name}.expand1x1", squeezed, expand)
        expanded = join(b, f"{name}.concat", [expand_3x3, expand_1x1])
        if not bypass:
            return expanded
        same_width = b.types[x].shape[1] == 2 * expand
        passed = x if same_width else conv_relu(b, f"{name}.bypass", x, 2 * expand)
        return join(b, f"{name}.add", [(expanded, passed)])


MODELS = tuple(
    ZooModel(name, description, (3, 224, 224), partial(build, bypass=bypass))
    for name, description, bypass in (
        ("squeezenet", "SqueezeNet 1.0 with complex bypass", True),
        ("squeezenet_1_0", "SqueezeNet 1.0", False),
    )
)
