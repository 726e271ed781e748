"""Operator merge computes what its parts compute; attention that is spelt out is found however exporters write it."""

from typing import NamedTuple

import numpy as np
import pytest
from graph_builders import builder_with
from hypothesis import example, given, settings
from hypothesis import strategies as st

from iossim.base.errors import GraphError, ScheduleError
from iossim.ir.attention import attentions_in
from iossim.ir.builder import GraphBuilder
from iossim.ir.graph import Graph
from iossim.ir.merging import merge_keys, merged_convolution
from iossim.ir.network import Network
from iossim.ir.ops.attention import Attention
from iossim.ir.ops.conv import Conv
from iossim.ir.ops.functions import Nary, Unary
from iossim.ir.ops.matmul import MatMul
from iossim.ir.ops.nary import Add, Mul, Where
from iossim.ir.ops.reshape import Reshape, Transpose
from iossim.ir.ops.softmax import Softmax
from iossim.ir.ops.unary import Cast, Relu
from iossim.ir.types import DType
from iossim.models.passes.unit_fusion import unit_policy

sizes = st.integers(1, 5)


@settings(max_examples=40)
@given(
    st.lists(st.tuples(sizes, sizes, *(st.integers(0, 3) for _ in range(4))), min_size=2, max_size=4),
    st.tuples(st.integers(1, 3), st.integers(1, 3)),
    st.tuples(st.integers(1, 2), st.integers(1, 2)),
    st.integers(5, 9),
    st.integers(0, 99),
)
@example([(3, 3, 2, 2, 2, 2), (1, 1, 0, 0, 0, 0)], (1, 1), (2, 2), 9, 0)
def test_a_merged_convolution_computes_its_parts(
    kernels: list[tuple[int, ...]], stride: tuple[int, int], dilation: tuple[int, int], size: int, seed: int
) -> None:
    """Whatever kernels and paddings merge, merging them is exact; what shares a key always merges."""
    generator = np.random.default_rng(seed)
    b, x = builder_with("g", x=(2, 3, size, size))
    outputs = []
    for index, (height, width, *pads) in enumerate(kernels):
        weight = b.constant(f"w{index}", (index + 1, 3, height, width))
        try:
            outputs.append(b.add(Conv(stride, tuple(pads), dilation, 1), x, weight, name=f"conv{index}"))
        except GraphError:
            continue
        if min(b.types[outputs[-1]].shape) < 1:
            outputs.pop()
    try:
        network = b.network(outputs)
    except GraphError:
        return  # a kernel larger than the padded input
    keys = merge_keys(network, range(len(network.units)))
    image = generator.standard_normal((2, 3, size, size)).astype(np.float32)
    for key in {key for key in keys if key is not None}:
        units = [index for index, own in enumerate(keys) if own == key]
        if len(units) < 2:
            continue
        merged = merged_convolution(network, units)
        nodes = [network.graph.nodes[network.units[unit].nodes[0]] for unit in units]
        weights = [network.graph.constants[node.inputs[1]].load() for node in nodes]
        stacked, bias = merged.stack([[weight] for weight in weights])
        assert bias is None
        (together,) = merged.op.evaluate([image, stacked])
        assert together.shape == merged.output.shape
        for part, (node, weight) in enumerate(zip(nodes, weights, strict=True)):
            (alone,) = node.op.evaluate([image, weight])
            rows = slice(merged.channel_begin[part], merged.channel_begin[part + 1])
            np.testing.assert_allclose(together[:, rows], alone, rtol=1e-5, atol=1e-5)


def pair(
    first: dict[str, object], second: dict[str, object], relu: tuple[bool, bool] = (True, True), inputs: str = "xx"
) -> Network:
    b = GraphBuilder("pair")
    given = {name: b.input(name, (1, 4, 8, 8)) for name in sorted({*inputs})}
    outputs = []
    for index, (arguments, activated) in enumerate(zip((first, second), relu, strict=True)):
        with b.unit(f"u{index}", "Conv-Relu"):
            y = b.conv(given[inputs[index]], 4, name=f"conv{index}", **arguments)  # type: ignore[arg-type]
            outputs.append(b.add(Relu(), y, name=f"relu{index}") if activated else y)
    return b.network(outputs)


@pytest.mark.parametrize(
    "network",
    [
        pair({"kernel": 1}, {"kernel": 3, "padding": 1}),
        pair({"kernel": (1, 3), "padding": (0, 1)}, {"kernel": (3, 1), "padding": (1, 0)}),
        pair({"kernel": 3, "stride": 2, "padding": 1}, {"kernel": 5, "stride": 2, "padding": 2}),
    ],
)
def test_what_merges(network: Network) -> None:
    merged = merged_convolution(network, [0, 1])
    assert merged.output.shape[1] == 8
    assert merged.activation == "relu()"


def test_even_kernels_at_stride_two_are_placed_by_their_padding() -> None:
    """2x2 unpadded and 4x4 padded by 1: matching sizes alone would move the smaller kernel by one pixel."""
    merged = merged_convolution(pair({"kernel": 2, "stride": 2}, {"kernel": 4, "stride": 2, "padding": 1}), [0, 1])
    assert merged.offsets == ((1, 1), (0, 0))
    assert merged.op.pads[:2] == (1, 1)


@pytest.mark.parametrize(
    "network",
    [
        pair({"kernel": 1}, {"kernel": 1, "stride": 2}),
        pair({"kernel": 1}, {"kernel": 1, "groups": 4}),
        pair({"kernel": 1}, {"kernel": 3}),
        pair({"kernel": 1}, {"kernel": 1}, relu=(True, False)),
        pair({"kernel": 1, "dilation": 2}, {"kernel": 2, "padding": 1, "dilation": 2}),
        pair({"kernel": 1}, {"kernel": 1}, inputs="xy"),
    ],
    ids=["strides", "grouped with dense", "output sizes", "activations", "between dilated taps", "two inputs"],
)
def test_what_does_not_merge(network: Network) -> None:
    with pytest.raises(ScheduleError, match="units u0, u1 do not merge"):
        merged_convolution(network, [0, 1])


BATCH, HEADS, QUERIES, KEYS, FEATURES = 2, 3, 4, 5, 6


class Spelling(NamedTuple):
    """How an exporter writes it: where it scales, whether heads are split, masked, weighed in fp32, capped, and in one
    axis with the batch.
    """

    scaled: str = "after"
    splits: bool = True
    masked: bool = False
    widened: bool = False
    joins: bool = True
    checked: bool = False
    capped: bool = False
    grouped: bool = False


SPELLINGS = st.builds(Spelling, st.sampled_from(["after", "divided", "before", "both", ""]), *[st.booleans()] * 7)


def spelt(how: Spelling) -> Graph:
    b = GraphBuilder("g")
    scale = b.constant("scale", (), value=0.5)

    def operand(name: str, tokens: int, permutation: tuple[int, ...]) -> str:
        x = b.input(name, (BATCH, tokens, HEADS * FEATURES) if how.splits else (BATCH, HEADS, tokens, FEATURES))
        if how.splits:
            return b.add(Transpose(permutation), b.add(Reshape((BATCH, tokens, HEADS, FEATURES)), x))
        return b.add(Transpose((0, 1, 3, 2)), x) if permutation[-1] == 1 else x

    q, k, v = operand("q", QUERIES, (0, 2, 1, 3)), operand("k", KEYS, (0, 2, 3, 1)), operand("v", KEYS, (0, 2, 1, 3))
    q = b.add(Mul(), q, scale) if how.scaled in ("before", "both") else q
    k = b.add(Mul(), k, scale) if how.scaled == "both" else k
    if how.grouped:
        q, k, v = (b.add(Reshape((BATCH * HEADS, *b.types[each].shape[-2:])), each) for each in (q, k, v))
    scores = b.add(MatMul(), q, k)
    scores = b.add(Mul(), scale, scores) if how.scaled == "after" else scores
    scores = b.add(Nary("div"), scores, scale) if how.scaled == "divided" else scores
    if how.capped:
        cap = b.constant("cap", (), value=30.0)
        scores = b.add(Mul(), cap, b.add(Unary("tanh"), b.add(Nary("div"), scores, cap)))
    scores = b.add(Reshape((BATCH, HEADS, QUERIES, KEYS)), scores) if how.grouped else scores
    scores = b.add(Add(), scores, b.input("mask", (BATCH, 1, QUERIES, KEYS))) if how.masked else scores
    weights = b.add(Softmax(-1), b.add(Cast(DType.FLOAT64), scores) if how.widened else scores)
    if how.checked:
        zero = b.constant("zero", (), b.types[weights].dtype, value=0.0)
        weights = b.add(Where(), b.add(Unary("is_nan"), weights), zero, weights)
    weights = b.add(Cast(DType.FLOAT32), weights) if how.widened else weights
    weights = b.add(Reshape((BATCH * HEADS, QUERIES, KEYS)), weights) if how.grouped else weights
    y = b.add(MatMul(), weights, v)
    y = b.add(Reshape((BATCH, HEADS, QUERIES, FEATURES)), y) if how.grouped else y
    if how.joins and not how.grouped:
        y = b.add(Reshape((BATCH, QUERIES, HEADS * FEATURES)), b.add(Transpose((0, 2, 1, 3)), y))
    return b.graph([y])


@given(SPELLINGS)
def test_it_is_one_unit_however_it_is_spelt(how: Spelling) -> None:
    graph = spelt(how)
    ((name, found),) = attentions_in(graph, graph.nodes).items()
    shape = Attention().shape(found.types)
    assert shape == (BATCH, HEADS, HEADS, QUERIES, KEYS, FEATURES, FEATURES)
    assert len(found.types) == 3 + how.masked
    assert found.op == Attention(softcap=30.0 * how.capped)
    assert found.checks == how.checked
    assert name == found.nodes[0].name
    assert len({node.name for node in found.nodes}) == len(found.nodes)
    (unit,) = unit_policy("fused")(graph)
    assert unit.kind == "Attention"
    assert len(unit.nodes) == len(graph.nodes)
    inside = {node.name for node in found.nodes}
    assert all(node.name in inside or isinstance(node.op, Reshape) for node in graph.nodes)


def broken(change: str) -> Graph:
    b, q, v = builder_with("g", q=(2, 4, 6), v=(2, 5, 6))
    k = b.constant("k", (2, 6, 5)) if change == "weights as keys" else b.input("k", (2, 6, 5))
    scores = b.add(MatMul(), q, k)
    if change == "relu":
        scores = b.add(Relu(), scores)
    if change in ("cap of another", "cap of a mask"):
        cap = b.constant("cap", (), value=2.0)
        scores = b.add(Add(), scores, b.input("m", (4, 5))) if change == "cap of a mask" else scores
        divisor = b.constant("divisor", (), value=3.0) if change == "cap of another" else cap
        scores = b.add(Mul(), b.add(Unary("tanh"), b.add(Nary("div"), scores, divisor)), cap)
    if change == "factors":
        scores = b.add(Mul(), scores, b.constant("factors", (5,)))
    if change == "two masks":
        scores = b.add(Add(), b.add(Add(), scores, b.input("m", (4, 5))), b.input("n", (4, 5)))
    weights = b.add(Softmax(1 if change == "axis" else -1), scores)
    if change == "ones for NaN":
        weights = b.add(Where(), b.add(Unary("is_nan"), weights), b.constant("one", (), value=1.0), weights)
    y = b.add(MatMul(), weights, v)
    return b.graph([y, *([weights] if change == "read elsewhere" else [])])


@pytest.mark.parametrize(
    "change",
    [
        "", "weights as keys", "relu", "factors", "two masks", "axis", "ones for NaN", "read elsewhere",
        "cap of another", "cap of a mask",
    ],
)  # fmt: skip
def test_what_looks_like_it_is_not(change: str) -> None:
    """But for the first, which nothing is wrong with."""
    graph = broken(change)
    assert bool(attentions_in(graph, graph.nodes)) == (not change)
    assert ("Attention" in {unit.kind for unit in unit_policy("fused")(graph)}) == (not change)


def test_a_long_chain_makes_no_scores() -> None:
    b = GraphBuilder("g")
    x, half = b.input("x", (2, 4, 5)), b.constant("half", (), value=0.5)
    for _ in range(3000):
        x = b.add(Mul(), x, half)
    graph = b.graph([b.add(MatMul(), b.add(Softmax(), x), b.input("v", (2, 5, 6)))])
    assert not attentions_in(graph, graph.nodes)


def test_a_transpose_that_takes_features_apart_is_no_part() -> None:
    b = GraphBuilder("g")
    q, k, v = (b.input(name, (1, 2, 4, 4)) for name in "qkv")
    weights = b.add(Softmax(-1), b.add(MatMul(), b.add(Transpose((0, 1, 3, 2)), q), k))
    graph = b.graph([b.add(Transpose((0, 1, 3, 2)), b.add(MatMul(), weights, v))])
    (found,) = attentions_in(graph, graph.nodes).values()
    assert [node.op.kind for node in found.nodes] == ["matmul", "softmax", "matmul"]
