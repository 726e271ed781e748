"""HRNet (Sun et al., 2019) as timm exports it: branches of several resolutions, exchanged by strided convolutions and Resize."""

from __future__ import annotations

from itertools import product

from iossim.ir.builder import GraphBuilder
from iossim.ir.network import Network
from iossim.ir.ops.nary import Add
from iossim.ir.ops.resize import Resize
from iossim.ir.ops.unary import Relu


def hrnet(width: int = 18, size: int = 224, blocks: int = 4, modules: tuple[int, ...] = (1, 4, 3)) -> Network:
    """HRNet-W18 up to its last exchange; smaller with fewer basic ``blocks`` a branch and ``modules`` a stage."""
    b = GraphBuilder(f"hrnet_w{width}")

    def conv(x: str, filters: int, kernel: int, stride: int = 1, relu: bool = True) -> str:
        with b.unit(f"u{len(b.types)}", "Conv"):
            made = b.conv(x, filters, kernel, stride=stride, padding=kernel // 2)
            return b.add(Relu(), made) if relu else made

    def added(values: list[str]) -> str:
        with b.unit(f"u{len(b.types)}", "Add-Relu"):
            return b.add(Relu(), b.add(Add(), *values) if len(values) > 1 else values[0])

    def exchanged(x: str, source: int, target: int) -> str:
        """What branch ``source`` gives to branch ``target``, of a resolution halved once more each."""
        if source > target:
            factor = 2.0 ** (source - target)
            up = Resize((1.0, 1.0, factor, factor), (), "nearest", "asymmetric", "floor")
            return b.add(up, conv(x, width << target, 1, relu=False))
        for step in range(source, target):
            x = conv(x, width << (target if step == target - 1 else source), 3, 2, step < target - 1)
        return x

    x = conv(conv(b.input("x", (1, 3, size, size)), 64, 3, 2), 64, 3, 2)
    for block in range(blocks):  # bottlenecks
        y = conv(conv(conv(x, 64, 1), 64, 3), 256, 1, relu=False)
        x = added([y, conv(x, 256, 1, relu=False) if block == 0 else x])
    branches = [conv(x, width, 3), conv(x, 2 * width, 3, 2)]
    for stage, count in enumerate(modules):
        if stage:
            branches.append(conv(branches[-1], width << len(branches), 3, 2))
        for _ in range(count):
            places = range(len(branches))
            for place, _ in product(places, range(blocks)):
                inner = conv(conv(branches[place], width << place, 3), width << place, 3, relu=False)
                branches[place] = added([inner, branches[place]])
            branches = [added([exchanged(branches[j], j, i) for j in places]) for i in places]
    return b.network(branches)
