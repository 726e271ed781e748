"""Networks with wide blocks: time and result of ``compare`` for each, and the gap to the optimum.

    python benchmarks/large_networks.py [--device v100-sxm2] [--engine graph] [MODEL ...]

One row of Markdown each; notes of the search go to standard error. The networks are built here as drawn in the named
papers, without blocks: cuts are found, as for an ONNX file.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from time import process_time
from typing import Annotated

import typer

import iossim
from benchmarks import markdown
from iossim.base.memory import peak_memory_bytes
from iossim.ir.builder import GraphBuilder
from iossim.ir.network import Network
from iossim.ir.ops.functions import Unary
from iossim.ir.ops.matmul import MatMul
from iossim.ir.ops.nary import Add, Mul
from iossim.ir.ops.reshape import Reshape, Transpose
from iossim.ir.ops.resize import Resize
from iossim.ir.ops.softmax import Softmax
from iossim.ir.types import Precision
from iossim.models import layers as nn
from iossim.models.passes.blocks import cut_blocks, split_blocks

Build = Callable[[GraphBuilder], list[str]]


def pnasnet_5_large(b: GraphBuilder) -> list[str]:
    """PNASNet-5 (Liu et al., 2018, figure 1): N = 4, F = 216; a cell reads the two before it."""
    x = nn.conv(b, "stem", b.input("image", (1, 3, 331, 331)), 96, 3, 2)
    previous, current = x, x
    filters, number = 54, 0
    for stack in range(5):
        for index in range(1 if stack < 2 else 4):
            stride = 2 if index == 0 and stack < 4 else 1
            previous, current = current, _pnas_cell(b, f"cell{number}", previous, current, filters, stride)
            number += 1
        filters *= 2 if stack < 4 else 1
    return [nn.global_average_pool(b, "avgpool", nn.relu(b, "relu", current))]


def _pnas_cell(b: GraphBuilder, name: str, previous: str, current: str, filters: int, stride: int) -> str:
    shrink = 2 if b.types[previous].shape[2] > b.types[current].shape[2] else 1
    left = nn.relu_conv(b, f"{name}.left", previous, filters, 1, shrink)
    right = nn.relu_conv(b, f"{name}.right", current, filters)

    def twice(index: int, x: str, kernel: int) -> str:
        y = nn.relu_sepconv(b, f"{name}.{index}.sep1", [x], filters, kernel, stride)
        return nn.relu_sepconv(b, f"{name}.{index}.sep2", [y], filters, kernel)

    def pool(index: int, x: str) -> str:
        return nn.max_pool(b, f"{name}.{index}.pool", x, 3, stride, 1)

    fourth = nn.join(b, f"{name}.sum3", [(twice(5, right, 5), twice(6, right, 3))])
    last = nn.relu_conv(b, f"{name}.last", left, filters, 1, stride)
    sums = [
        (twice(1, left, 5), pool(2, left)),
        (twice(3, right, 7), pool(4, right)),
        fourth,
        (nn.relu_sepconv(b, f"{name}.7.sep", [fourth], filters, 3), pool(8, right)),
        (twice(9, left, 3), last),
    ]
    return nn.join(b, f"{name}.concat", sums)


def hrnet_w18(b: GraphBuilder) -> list[str]:
    """HRNet-W18 (Wang et al., 2019, figure 2): one to four concurrent resolutions, exchanged after each module."""
    x = nn.conv_relu(b, "stem2", nn.conv_relu(b, "stem1", b.input("image", (1, 3, 224, 224)), 64, 3, 2, 1), 64, 3, 2, 1)
    for index in range(4):
        y = nn.conv_relu(b, f"layer1.{index}.conv2", nn.conv_relu(b, f"layer1.{index}.conv1", x, 64), 64, 3, 1, 1)
        shortcut = nn.conv(b, f"layer1.{index}.shortcut", x, 256) if index == 0 else x
        x = nn.add_relu(b, f"layer1.{index}.add", nn.conv(b, f"layer1.{index}.conv3", y, 256), shortcut)
    branches = [x]
    for stage, modules in ((2, 1), (3, 4), (4, 3)):
        made = []
        for branch in range(stage):
            source = branches[min(branch, len(branches) - 1)]
            wanted, stride = 18 << branch, 2 if branch >= len(branches) else 1
            if b.types[source].shape[1] == wanted and stride == 1:
                made.append(source)
            else:
                made.append(nn.conv_relu(b, f"stage{stage}.enter{branch}", source, wanted, 3, stride, 1))
        branches = made
        for module in range(modules):
            branches = _hr_module(b, f"stage{stage}.{module}", branches)
    return branches


def _hr_module(b: GraphBuilder, name: str, branches: list[str]) -> list[str]:
    width = [b.types[x].shape[1] for x in branches]
    ends = list(branches)
    for branch in range(len(ends)):
        for block in range(4):
            own = f"{name}.branch{branch}.{block}"
            y = nn.conv_relu(b, f"{own}.conv1", ends[branch], width[branch], 3, 1, 1)
            y = nn.conv(b, f"{own}.conv2", y, width[branch], 3, 1, 1)
            ends[branch] = nn.add_relu(b, f"{own}.add", y, ends[branch])
    fused = []
    for to in range(len(ends)):
        terms = [ends[to]]
        for source in range(len(ends)):
            own, x = f"{name}.fuse{source}to{to}", ends[source]
            if source > to:
                x = nn.conv(b, f"{own}.conv", x, width[to])
                with b.unit(f"{own}.up", "Resize"):
                    shape = b.types[ends[to]].shape
                    scale = shape[2] / b.types[x].shape[2]
                    terms.append(b.add(Resize((1.0, 1.0, scale, scale)), x, name=f"{own}.resize"))
            elif source < to:
                for step in range(to - source):
                    last = step == to - source - 1
                    down = nn.conv if last else nn.conv_relu
                    x = down(b, f"{own}.down{step}", x, width[to if last else source], 3, 2, 1)
                terms.append(x)
        fused.append(nn.add_relu(b, f"{name}.fuse{to}", *terms))
    return fused


def inception_resnet_v2(b: GraphBuilder) -> list[str]:
    """Inception-ResNet-v2 (Szegedy et al., 2016, figures 3 and 16 to 19): 10, 20 and 10 residual modules."""
    x = b.input("image", (1, 3, 299, 299))
    for index, (channels, stride) in enumerate(((32, 2), (32, 1), (64, 1))):
        x = nn.conv_relu(b, f"stem{index}", x, channels, 3, stride, int(index == 2))
    x = nn.max_pool(b, "stem.pool1", x, 3, 2)
    x = nn.conv_relu(b, "stem4", nn.conv_relu(b, "stem3", x, 80), 192, 3)
    x = nn.max_pool(b, "stem.pool2", x, 3, 2)
    pooled = nn.conv_relu(b, "mixed.pool_conv", nn.average_pool(b, "mixed.pool", x, 3, 1, 1), 64)
    x = nn.join(b, "mixed.concat", [*_branches(b, "mixed", x, [[(96, 1)], [(48, 1), (64, 5)], _DOUBLE]), pooled])
    for index in range(10):
        x = _residual(b, f"a{index}", x, [[(32, 1)], [(32, 1), (32, 3)], [(32, 1), (48, 3), (64, 3)]])
    x = _reduction(b, "reduce_a", x, [[(384, 3, 2)], [(256, 1), (256, 3), (384, 3, 2)]])
    for index in range(20):
        x = _residual(b, f"b{index}", x, [[(192, 1)], [(128, 1), (160, (1, 7)), (192, (7, 1))]])
    x = _reduction(
        b, "reduce_b", x, [[(256, 1), (384, 3, 2)], [(256, 1), (288, 3, 2)], [(256, 1), (288, 3), (320, 3, 2)]]
    )
    for index in range(10):
        x = _residual(b, f"c{index}", x, [[(192, 1)], [(192, 1), (224, (1, 3)), (256, (3, 1))]])
    return [nn.global_average_pool(b, "avgpool", nn.conv_relu(b, "last", x, 1536))]


_DOUBLE = [(64, 1), (96, 3), (96, 3)]


def _branches(b: GraphBuilder, name: str, x: str, branches: list[list[tuple]]) -> list[str]:
    ends = []
    for number, steps in enumerate(branches):
        y = x
        for index, (channels, kernel, *stride) in enumerate(steps):
            size = (kernel, kernel) if isinstance(kernel, int) else kernel
            padding = (0, 0) if stride else (size[0] // 2, size[1] // 2)
            y = nn.conv_relu(b, f"{name}.{number}.{index}", y, channels, size, *(stride or [1]), padding)
        ends.append(y)
    return ends


def _residual(b: GraphBuilder, name: str, x: str, branches: list[list[tuple]]) -> str:
    joined = nn.join(b, f"{name}.concat", _branches(b, name, x, branches))
    return nn.add_relu(b, f"{name}.add", nn.conv(b, f"{name}.up", joined, b.types[x].shape[1]), x)


def _reduction(b: GraphBuilder, name: str, x: str, branches: list[list[tuple]]) -> str:
    return nn.join(b, f"{name}.concat", [*_branches(b, name, x, branches), nn.max_pool(b, f"{name}.pool", x, 3, 2)])


def clip(b: GraphBuilder) -> list[str]:
    """A model of two towers like CLIP ViT-B/32 (Radford et al., 2021): 12 layers of 50 patches, 12 of 77 tokens."""
    patches = b.input("patches", (1, 50, 768))
    tokens = b.input("tokens", (1, 77, 512))
    for layer in range(12):
        patches = _layer(b, f"image.{layer}", patches)
        tokens = _layer(b, f"text.{layer}", tokens)
    image, text = _linear(b, "image.projection", patches, 512), _linear(b, "text.projection", tokens, 512)
    with b.unit("similarity", "Matmul"):
        turned = b.add(Transpose((0, 2, 1)), text, name="similarity.transpose")
        return [b.add(MatMul(), image, turned, name="similarity.matmul")]


def _linear(b: GraphBuilder, name: str, x: str, features: int, act: str = "", added: str = "") -> str:
    with b.unit(name, "Matmul"):
        weight = b.constant(f"{name}.weight", (b.types[x].shape[-1], features))
        y = b.add(MatMul(), x, weight, name=f"{name}.matmul")
        y = b.add(Add(), y, added, name=f"{name}.sum") if added else y
        return b.add(Unary(act), y, name=f"{name}.{act}") if act else y


def _layer(b: GraphBuilder, name: str, x: str) -> str:
    """An encoder layer without its norms, heads of 64 features."""
    _, length, width = b.types[x].shape
    heads = []
    for which in ("query", "key", "value"):
        y = _linear(b, f"{name}.{which}", x, width)
        order = (0, 2, 3, 1) if which == "key" else (0, 2, 1, 3)
        with b.unit(f"{name}.{which}.heads", "Transpose"):
            y = b.add(Reshape((1, length, width // 64, 64)), y, name=f"{name}.{which}.reshape")
            heads.append(b.add(Transpose(order), y, name=f"{name}.{which}.transpose"))
    with b.unit(f"{name}.attention", "Attention"):
        scale = b.constant(f"{name}.scale", (1,), value=0.125)
        scores = b.add(Mul(), b.add(MatMul(), heads[0], heads[1], name=f"{name}.scores"), scale, name=f"{name}.scaled")
        weights = b.add(Softmax(), scores, name=f"{name}.softmax")
        mixed = b.add(MatMul(), weights, heads[2], name=f"{name}.mixed")
    with b.unit(f"{name}.joined", "Transpose"):
        mixed = b.add(Transpose((0, 2, 1, 3)), mixed, name=f"{name}.back")
        mixed = b.add(Reshape((1, length, width)), mixed, name=f"{name}.flat")
    x = _linear(b, f"{name}.out", mixed, width, added=x)
    return _linear(b, f"{name}.outer", _linear(b, f"{name}.inner", x, 4 * width, "gelu"), width, added=x)


def moe_64(b: GraphBuilder) -> list[str]:
    """A layer of 64 experts that all run, 32 tokens each (as in dense mixtures): two products per expert, and a sum."""
    x = b.input("tokens", (1, 32, 512))
    x = _linear(b, "router", x, 512)
    ends = [
        _linear(b, f"expert{index}.outer", _linear(b, f"expert{index}.inner", x, 1024, "gelu"), 512)
        for index in range(64)
    ]
    while len(ends) > 1:
        parts = [ends[first : first + 8] for first in range(0, len(ends), 8)]
        ends = [nn.join(b, f"sum{len(ends)}.{index}", [tuple(part)]) for index, part in enumerate(parts)]
    return ends


BUILDS: dict[str, Build] = {
    build.__name__: build for build in (pnasnet_5_large, hrnet_w18, inception_resnet_v2, clip, moe_64)
}


def network(name: str, max_block: int | None = None, dtype: str = "fp32") -> Network:
    """Network by name, cut without loss, and into parts of at most ``max_block`` units.

    NASNet-A-large is the zoo's, without its blocks.
    """
    if name == "nasnet_a_large":
        made = iossim.load("nasnet_a", dtype=dtype)
    else:
        b = GraphBuilder(name, Precision(dtype))
        made = b.network(BUILDS[name](b))
    return split_blocks(cut_blocks(made), max_block)


def main(
    models: Annotated[list[str] | None, typer.Argument(metavar="[MODEL]...")] = None,
    device: str = "v100-sxm2",
    engine: str = "paper",
    max_block: Annotated[int | None, typer.Option(help="Cut wider blocks, too, into parts of so many units.")] = None,
) -> None:
    sizes = "network", "units", "widest block"
    markdown.head(*sizes, "sequential, ms", "greedy", "ios-both", "bound", "gap", "CPU s", "MiB")
    for name in models or ["nasnet_a_large", *BUILDS]:
        made = network(name, max_block)
        cpu_s = process_time()
        compared = iossim.compare(made, device, engine=engine)
        cpu_s = process_time() - cpu_s
        by_name = {each.scheduler: each for each in compared.schedules}
        best = by_name["ios-both"]
        bound_us = best.lower_bound_us
        assert bound_us is not None, "the simulator has bounds"
        latencies_us = (*(by_name[each].latency_us for each in ("sequential", "greedy")), best.latency_us, bound_us)
        spent = f"{best.latency_us / bound_us - 1:.0%}", f"{cpu_s:.1f}", f"{peak_memory_bytes() / 2**20:.0f}"
        widest = max(len(block.units) for block in made.blocks)
        markdown.row(name, len(made.units), widest, *(f"{us / 1e3:.2f}" for us in latencies_us), *spent)
        for note in best.notes:
            print(f"{name}: {note}", file=sys.stderr)


if __name__ == "__main__":
    typer.run(main)
