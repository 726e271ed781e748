"""ResNeXt-50 of 32 groups 4 wide (Xie et al., 2016, arXiv:1611.05431, table 1), batch norm folded, in two forms.

``resnext50`` has grouped convolutions, as torchvision's (figure 3c of the paper); ``resnext50_branches`` has 32
branches of two small convolutions, joined before the last one (figure 3b): the same multiply-adds and weights. A
block is one residual block; the branches of a residual block are blocks of ``BRANCHES_A_BLOCK``, since exact search
takes in no more that are alike.
"""

from __future__ import annotations

from functools import partial

from iossim.ir.builder import GraphBuilder
from iossim.models.catalogue import ZooModel
from iossim.models.layers import add_relu, conv, conv_relu, join
from iossim.models.zoo.resnet import Residual, build, shortcut

_GROUPS = 32
BRANCHES_A_BLOCK = 4


def _grouped(b: GraphBuilder, name: str, x: str, width: int, stride: int) -> str:
    """A 3x3 convolution in groups between two 1x1 ones; its channels are twice the ``width`` of a ResNet's."""
    with b.block(name):
        y = conv_relu(b, f"{name}.conv1", x, 2 * width)
        y = conv_relu(b, f"{name}.conv2", y, 2 * width, 3, stride=stride, padding=1, groups=_GROUPS)
        y = conv(b, f"{name}.conv3", y, 4 * width)
        return add_relu(b, f"{name}.add", y, shortcut(b, name, x, 4 * width, stride))


def _branches(b: GraphBuilder, name: str, x: str, width: int, stride: int) -> str:
    """The same with each group as a branch of its own."""
    parts = []
    for first in range(0, _GROUPS, BRANCHES_A_BLOCK):
        with b.block(f"{name}.{first}"):
            for group in range(first, first + BRANCHES_A_BLOCK):
                y = conv_relu(b, f"{name}.conv1.{group}", x, 2 * width // _GROUPS)
                parts.append(
                    conv_relu(b, f"{name}.conv2.{group}", y, 2 * width // _GROUPS, 3, stride=stride, padding=1)
                )
    with b.block(name):
        y = conv(b, f"{name}.conv3", join(b, f"{name}.concat", parts), 4 * width)
        return add_relu(b, f"{name}.add", y, shortcut(b, name, x, 4 * width, stride))


def _model(name: str, form: str, residual: Residual) -> ZooModel:
    whole = partial(build, residual=residual, depths=(3, 4, 6, 3))
    return ZooModel(name, f"ResNeXt-50 32x4d, {form}, batch norm folded, with its classifier", (3, 224, 224), whole)


MODELS = (_model("resnext50", "grouped", _grouped), _model("resnext50_branches", "in 32 branches", _branches))
