"""Unit policies: what they fuse, and that no two units ever wait for each other."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from graphlib import TopologicalSorter

import numpy as np
import pytest
from graph_builders import builder_with
from hypothesis import given
from hypothesis import strategies as st

from iossim.base.errors import OptionError
from iossim.hardware.lowering.unit import unit_steps
from iossim.ir.builder import GraphBuilder
from iossim.ir.graph import Graph
from iossim.ir.network import Block, Network, Unit
from iossim.ir.ops.gather import Gather
from iossim.ir.ops.matmul import MatMul
from iossim.ir.ops.nary import Add, Mul
from iossim.ir.ops.pool import GlobalAveragePool
from iossim.ir.ops.reshape import Reshape, Transpose
from iossim.ir.ops.slice import Concat
from iossim.ir.ops.softmax import Softmax
from iossim.ir.ops.unary import Relu, Sigmoid
from iossim.models.load import load
from iossim.models.partition import network_of
from iossim.models.passes.unit_fusion import MODEL, UNIT_POLICIES, unit_policy, with_units
from iossim.models.passes.unit_policies import fused

POLICIES = [name for name in UNIT_POLICIES if name != MODEL]
WIDTH = 4


@st.composite
def graphs(draw: st.DrawFn) -> Graph:
    """Random wiring of the ops that policies look at; reads are mostly recent, so that patterns come up."""
    b = GraphBuilder("random")
    values = [b.input("x", (1, WIDTH, 3, 3))]
    for index in range(draw(st.integers(1, 20))):
        reach = draw(st.sampled_from([1, 1, 1, 2, 3, 20]))
        recent = st.sampled_from(values[-reach:])
        x = draw(recent)
        ops = {"relu": Relu(), "sigmoid": Sigmoid(), "softmax": Softmax(-1), "view": Reshape(b.types[x].shape)}
        kind = draw(st.sampled_from([*ops, "pointwise", "depthwise", "add", "concat"]))
        name = f"{kind}{index}"
        if kind in ops:
            y = b.add(ops[kind], x, name=name)
        elif kind == "pointwise":
            y = b.conv(x, WIDTH, name=name)
        elif kind == "depthwise":
            width = b.types[x].shape[1]
            y = b.conv(x, width, 3, padding=1, groups=width, name=name)
        elif kind == "add":
            like = [value for value in values if b.types[value] == b.types[x]]
            y = b.add(Add(), x, *draw(st.lists(st.sampled_from(like), min_size=1, max_size=3)), name=name)
        else:
            y = b.add(Concat(1), x, draw(recent), name=name)
        values.append(y)
    unread = set(values[1:]) - {value for node in b.graph(values[1:]).nodes for value in node.inputs}
    more = draw(st.sets(st.sampled_from(values[1:]), max_size=2))
    return b.graph(sorted(unread | more))


@pytest.mark.parametrize("policy", POLICIES)
@given(graph=graphs())
def test_units_partition_the_graph_and_are_in_topological_order(policy: str, graph: Graph) -> None:
    units = unit_policy(policy)(graph)
    # Network checks that each op is in exactly one unit.
    network = Network("random", graph, units, (Block("all", tuple(range(len(units)))),))
    for index, before in enumerate(network.predecessors):
        assert all(other < index for other in before if other != index)
        assert index not in before
    TopologicalSorter(dict(enumerate(network.predecessors))).prepare()
    assert all(len(unit.outputs) == 1 for unit in units)


@given(graph=graphs())
def test_a_unit_of_an_engine_is_one_kernel_or_library_call(graph: Graph) -> None:
    """But for a concat, which is one a term, and a separable convolution, which is two, and one more for a sum before it."""
    network = network_of(graph, "random")
    for unit in network.units:
        kinds = [node.op.kind for node in network.unit_nodes(unit)]
        most = kinds.count("conv") + ("relu" in kinds) if kinds.count("conv") == 2 else 1
        if "concat" not in kinds:
            assert len(unit_steps(network, unit)) <= most


def told(units: Iterable[Unit]) -> str:
    """Kinds of units, and the number of ops in those of several."""
    return ", ".join(unit.kind + (f" {len(unit.nodes)}" if len(unit.nodes) > 1 else "") for unit in units)


def units_of(b: GraphBuilder, output: str, policy: str = "fused") -> str:
    return told(unit_policy(policy)(b.graph([output])))


def test_conv_relu() -> None:
    b = GraphBuilder("g")
    x = b.conv(b.input("x", (1, 3, 8, 8)), 4)
    x = b.add(Relu(), x)
    x = b.add(Sigmoid(), b.conv(x, 4))
    shared = b.conv(x, 4)
    x = b.add(Concat(1), b.add(Relu(), shared), shared)
    assert units_of(b, x, "conv-relu") == "Conv-Relu 2, Conv-Sigmoid 2, Conv, Relu, Concat"
    assert units_of(b, x, "none") == "Conv, Relu, Conv, Sigmoid, Conv, Relu, Concat"


def test_separable_convolutions() -> None:
    b, x = builder_with("g", x=(1, 4, 8, 8))
    one, other = b.conv(x, 4), b.conv(x, 4)
    y = b.add(Relu(), b.add(Add(), one, other))
    y = b.conv(b.conv(y, 4, 3, padding=1, groups=4), 8)
    y = b.conv(b.conv(y, 8, 3, padding=1, groups=8), 8)
    assert units_of(b, y, "relu-sepconv") == "Conv, Conv, Relu-SepConv 4, Conv, Conv"
    assert units_of(b, y) == "Conv, Conv, Add-Relu-SepConv 4, SepConv 2"


def test_concat_takes_in_only_sums_that_it_alone_reads() -> None:
    b, x = builder_with("g", x=(1, 4, 8, 8))
    one, other = b.add(Relu(), x), b.add(Sigmoid(), x)
    private, public = b.add(Add(), one, other), b.add(Add(), one, x)
    y = b.add(Concat(1), private, public, one)
    z = b.add(Concat(1), y, public)
    assert units_of(b, z) == "Relu, Sigmoid, Add, Concat 2, Concat"


def test_a_rotation_is_a_kernel_of_its_own_before_a_concat() -> None:
    """As of new keys, which are concatenated to those of a cache."""
    b = GraphBuilder("g")
    x, cosine, sine, past = (b.input(name, (1, 4, size, 8)) for name, size in zip("xcsp", (1, 1, 1, 6), strict=True))
    turned = b.add(Gather(3), x, b.numbers("places", np.roll(np.arange(8), 4)))
    y = b.add(Concat(2), past, b.add(Add(), b.add(Mul(), x, cosine), b.add(Mul(), turned, sine)))
    assert units_of(b, y) == "Gather-Mul-Mul-Add 4, Concat"


def test_a_graph_output_ends_its_unit() -> None:
    b = GraphBuilder("g")
    inner = b.conv(b.input("x", (1, 3, 8, 8)), 4)
    assert told(fused(b.graph([inner, b.add(Relu(), inner)]))) == "Conv, Relu"


def test_a_residual_is_added_by_the_convolution_that_is_there_last() -> None:
    b, x = builder_with("g", x=(1, 4, 8, 8))
    main = b.conv(b.add(Relu(), b.conv(x, 4)), 4, name="main")
    y = b.add(Relu(), b.add(Add(), b.conv(x, 4, name="shortcut"), main), name="y")
    found = {unit.name: unit.kind for unit in fused(b.graph([y]))}
    assert found == {"relu_1": "Conv-Relu", "shortcut": "Conv", "y": "Conv-Add-Relu"}


def test_a_branch_keeps_its_own_activation_and_another_shape_is_another_unit() -> None:
    b, x = builder_with("g", x=(1, 4, 8, 8))
    one, other = b.add(Relu(), b.conv(x, 4)), b.add(Sigmoid(), b.conv(b.add(Relu(), b.conv(x, 4)), 4))
    assert units_of(b, b.add(Add(), one, other)) == "Conv-Relu 2, Conv-Relu 2, Conv-Sigmoid-Add 3"
    b = GraphBuilder("g")
    x = b.add(Relu(), b.conv(b.input("x", (1, 4, 8, 8)), 4))
    gate = b.add(Sigmoid(), b.conv(b.add(GlobalAveragePool(), x), 4))
    assert units_of(b, b.add(Mul(), x, gate)) == "Conv-Relu 2, Pool, Conv-Sigmoid 2, Mul"


def test_attention() -> None:
    """It is one unit, with the transposes of its heads; a mask before a softmax alone is where that loads its input."""
    b, x, mask = builder_with("g", x=(1, 6, 8), mask=(1, 1, 6, 6))
    heads = []
    for name in "qkv":
        product = b.add(MatMul(), x, b.constant(name, (8, 8)))
        heads.append(b.add(Transpose((0, 2, 1, 3)), b.add(Reshape((1, 6, 2, 4)), product)))
    scores = b.add(MatMul(), heads[0], b.add(Transpose((0, 1, 3, 2)), heads[1]))
    weights = b.add(Softmax(-1), b.add(Add(), scores, mask))
    y = b.add(Reshape((1, 6, 8)), b.add(Transpose((0, 2, 1, 3)), b.add(MatMul(), weights, heads[2])))
    assert units_of(b, y) == "Matmul, Matmul, Matmul, Attention 13"
    b, scores, mask = builder_with("g", scores=(1, 2, 6, 6), mask=(1, 1, 6, 6))
    assert units_of(b, b.add(Softmax(-1), b.add(Add(), scores, mask))) == "Add-Softmax 2"


def test_a_chain_of_thousands_is_fused_in_linear_time() -> None:
    b, x = builder_with("g", x=(1, 4))
    for index in range(5_000):
        x = b.add(Reshape((1, 4)), x) if index % 2 else b.add(Add(), x, x)
    assert len(fused(b.graph([x]))) == 2_500


def partition(units: tuple[Unit, ...]) -> set[tuple[int, ...]]:
    return {unit.nodes for unit in units}


@pytest.mark.parametrize(
    ("name", "policy"),
    [("squeezenet", "conv-relu"), ("inception_v3", "conv-relu"), ("inception_v3", "fused"), ("ios_sample", "fused")],
)
def test_policies_find_the_units_of_the_zoo(name: str, policy: str) -> None:
    network = load(name)
    fused = with_units(network, policy)
    assert partition(fused.units) == partition(network.units)
    assert [block.units for block in fused.blocks] == [block.units for block in network.blocks]


@pytest.mark.parametrize(("name", "residuals"), [("resnet18", 8), ("resnet50", 16)])
def test_an_engine_adds_residuals_in_convolutions(name: str, residuals: int) -> None:
    """Else its units are the zoo's."""
    network = load(name)
    found = partition(with_units(network, "fused").units)
    joined = found - partition(network.units)
    apart = {unit for unit in partition(network.units) if any(set(unit) <= set(other) for other in joined)}
    assert found - joined == partition(network.units) - apart
    joined_kinds = Counter(unit.kind for unit in with_units(network, "fused").units if unit.nodes in joined)
    assert joined_kinds == {"Conv-Add-Relu": residuals, "Gemm": 1}  # the latter with the view before it


def test_policies_find_the_units_of_networks_of_separable_convolutions() -> None:
    """But for an activation and a convolution that RandWire's tail keeps apart, and a sum that NasNet's stem 0 does."""
    for name in ("randwire", "nasnet_a"):
        network = load(name)
        found, given_units = partition(unit_policy("relu-sepconv")(network.graph)), partition(network.units)
        assert len(given_units - found) == 2
        assert len(found - given_units) == 1


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("name", ["randwire", "nasnet_a", "resnet18"])
def test_blocks_stay_in_topological_order(name: str, policy: str) -> None:
    network = with_units(load(name), policy)
    block_of = {unit: index for index, block in enumerate(network.blocks) for unit in block.units}
    for unit, reads in enumerate(network.predecessors):
        assert all(block_of[before] <= block_of[unit] for before in reads)


def test_an_unknown_policy_suggests_the_nearest() -> None:
    with pytest.raises(OptionError, match="did you mean 'relu-sepconv'"):
        unit_policy("relu-sepconvs")
