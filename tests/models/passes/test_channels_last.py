"""Images kept in NHWC between transposes, and what stays in NCHW."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from spelt_parts import assert_equal_arrays

from iossim.ir.builder import GraphBuilder
from iossim.ir.graph import Graph
from iossim.ir.ops.functions import Unary
from iossim.ir.ops.matmul import MatMul
from iossim.ir.ops.nary import Add, Mul
from iossim.ir.ops.normalization import LayerNorm
from iossim.ir.ops.reduce import Reduce
from iossim.ir.ops.reshape import Reshape, Transpose
from iossim.ir.types import TO_FIRST, TO_LAST
from iossim.models.load import load
from iossim.models.onnx.export import export_graph
from iossim.models.passes.channels_last import channels_last_regions


def normalised(b: GraphBuilder, x: str, channels: int = 8) -> str:
    names = (f"{x}.scale", f"{x}.bias")
    return b.add(LayerNorm(-1), x, *(b.constant(name, (channels,)) for name in names))


def convnext(b: GraphBuilder, x: str) -> str:
    """Two blocks: a depthwise convolution, and a norm and two products in NHWC, scaled and added to the input."""
    for index in range(2):
        rows = normalised(b, b.add(Transpose(TO_LAST), b.conv(x, 8, kernel=3, padding=1, groups=8)))
        hidden = b.add(Unary("gelu"), b.add(MatMul(), rows, b.constant(f"up{index}", (8, 16))))
        y = b.add(Transpose(TO_FIRST), b.add(MatMul(), hidden, b.constant(f"down{index}", (16, 8))))
        x = b.add(Add(), b.add(Mul(), b.constant(f"gamma{index}", (8, 1, 1)), y), x)
    return x


def segformer(b: GraphBuilder, x: str) -> str:
    """Rows of pixels, which are images for a convolution in between."""
    rows = normalised(b, b.add(Transpose((0, 2, 1)), b.add(Reshape((2, 8, 30)), x)))
    for index in range(2):
        rows = b.add(MatMul(), rows, b.constant(f"w{index}", (8, 8)))
        images = b.add(Reshape((2, 8, 5, 6)), b.add(Transpose((0, 2, 1)), rows))
        rows = b.add(Transpose((0, 2, 1)), b.add(Reshape((2, 8, 30)), b.conv(images, 8, kernel=3, padding=1, groups=8)))
    return rows


def squeezed(b: GraphBuilder, x: str) -> str:
    """A gate by the mean of the pixels, between norms in NHWC."""
    x = b.add(Transpose(TO_FIRST), normalised(b, b.add(Transpose(TO_LAST), x)))
    x = b.add(Mul(), x, b.conv(b.add(Reduce("mean", (2, -1)), x), 8))
    return normalised(b, b.add(Transpose(TO_LAST), x))


def graph_of(build: Callable[[GraphBuilder, str], str]) -> Graph:
    b = GraphBuilder("images")
    return b.graph([build(b, b.input("x", (2, 8, 5, 6)))])


@pytest.mark.parametrize(("build", "left"), [(convnext, 2), (segformer, 1), (squeezed, 1)])
def test_transposes_between_convolutions_go(build: Callable[[GraphBuilder, str], str], left: int) -> None:
    """But for those of the network's input and output."""
    graph = graph_of(build)
    after = channels_last_regions(graph)
    kinds = Counter(node.op.kind for node in after.nodes)
    assert kinds["transpose"] == left
    assert kinds["conv_nhwc"] == len(graph.of_kind["conv"])
    assert channels_last_regions(after) is after
    assert_equal_arrays(graph, after, tolerance=1e-5)


def once(b: GraphBuilder, x: str) -> str:
    for _ in range(8):
        x = b.conv(x, 8)
    return b.add(Transpose(TO_FIRST), normalised(b, b.add(Transpose(TO_LAST), x)))


def test_one_transpose_after_many_convolutions_stays() -> None:
    assert not any("nhwc" in node.op.kind for node in channels_last_regions(graph_of(once)).nodes)


@pytest.mark.parametrize(("dtype", "converted"), [("fp32", False), ("bf16", True), ("fp16", True)])
def test_networks_of_16_bits_are_converted(dtype: str, converted: bool, tmp_path: Path) -> None:
    path = tmp_path / "convnext.onnx"
    path.write_bytes(export_graph(graph_of(convnext)).SerializeToString())
    kinds = Counter(unit.kind for unit in load(path, dtype=dtype).units)
    if converted:
        assert kinds == {"ConvNhwc": 2, "Layer-Norm": 2, "Matmul-Gelu": 2, "Matmul-Add": 2, "Transpose": 2}
    else:
        assert kinds["Transpose"] == 4
