"""Places where the sources of rules are found, and layouts that the search chooses."""

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from command_line import printed_everywhere
from graph_builders import builder_with
from place_rules import RULE, rule
from random_places import check_outputs

from iossim import api
from iossim.backends.numpy_reference.backend import evaluate_graph
from iossim.execution.engine import Engine
from iossim.hardware.lowering.kernel import Libraries
from iossim.ir.builder import GraphBuilder
from iossim.ir.graph import Graph
from iossim.ir.network import Network
from iossim.ir.ops.conv import Conv
from iossim.ir.ops.matmul import Gemm
from iossim.ir.ops.nary import Add, Mul
from iossim.ir.ops.pool import GlobalAveragePool, MaxPool
from iossim.ir.ops.reshape import Flatten
from iossim.ir.ops.slice import Concat, Split
from iossim.ir.ops.unary import Relu
from iossim.ir.types import Precision
from iossim.models.load import load
from iossim.models.passes.unit_fusion import with_units
from iossim.transforms.rewriting.application import apply
from iossim.transforms.rewriting.matching import Match, find_matches
from iossim.transforms.rewriting.rule_sets import rule_set
from iossim.transforms.rewriting.scheduled import Rewriting


def places(graph: Graph, name: str) -> list[tuple[str, ...]]:
    return [match.nodes for match in find_matches(graph, RULE[name])]


def found(graph: Graph, source: str, target: str, *conditions: str) -> tuple[Match, ...]:
    return find_matches(graph, rule(source, target, "y: z", *conditions))


@pytest.fixture
def branches() -> Graph:
    """Three convolutions of one input, of which one has no bias and another stride, and no common reader."""
    b, x = builder_with("branches", x=(1, 4, 8, 8))
    one = b.conv(x, 4, 3, padding=1, name="one")
    w = b.constant("two.weight", (6, 4, 3, 3))
    two = b.add(Conv((1, 1), (1, 1, 1, 1)), x, w, name="two")
    wide = b.conv(x, 4, 3, stride=2, padding=1, name="wide")
    return b.graph([one, two, wide])


def test_several_roots_and_what_is_left_out(branches: Graph) -> None:
    matches = find_matches(branches, RULE["merge-convolutions"])
    assert [match.nodes for match in matches] == [("one", "two"), ("two", "one")]
    assert matches[0].tensors == {
        "x": "x", "w1": "one.weight", "b1": "one.bias", "y1": "one", "w2": "two.weight", "b2": None, "y2": "two",
    }  # fmt: skip
    assert matches[0].attributes == {"s": (1, 1), "p": (1, 1, 1, 1), "d": (1, 1)}


def test_operands_of_a_sum_come_in_any_order() -> None:
    b, x, y = builder_with("sums", x=(1, 2), y=(1, 2))
    r = b.add(Relu(), x, name="r")
    graph = b.graph([b.add(Add(), y, r, x, name="long")])
    (match,) = found(graph, "t = relu(a); y = add(t, a, *rest)", "z = add(a, *rest)")
    assert match.nodes == ("r", "long")
    assert match.tensors["rest"] == ("y",)


def test_neighbours_in_a_long_concat() -> None:
    b, x, y = builder_with("concat", x=(1, 4), y=(1, 2))
    first, second = b.add_all(Split(1, (1, 3)), x, name="split")
    good = b.add(Concat(1), y, first, second, y, name="good")
    swapped = b.add(Concat(1), y, second, first, name="swapped")
    apart = b.add(Concat(1), first, y, second, name="apart")
    other = b.add(Concat(0), first, first, name="other")
    graph = b.graph([good, swapped, apart, other])
    (match,) = find_matches(graph, RULE["concat-of-split"])
    assert match.nodes == ("split", "good")
    assert (match.tensors["before"], match.tensors["after"]) == (("y",), ("y",))


def test_an_attribute_that_stands_twice_is_the_same() -> None:
    b, x = builder_with("axes", x=(2, 2))
    halves = b.add_all(Split(1, (1, 1)), x, name="split")
    graph = b.graph([b.add(Concat(0), *halves)])
    assert places(graph, "concat-of-all") == []


def test_attributes_that_are_not_given_have_their_default(branches: Graph) -> None:
    assert found(branches, "y = conv(x, w, b?)", "z = conv(x, w, b?)") == ()
    some = found(branches, "y = conv(x, w, b?, pads=p)", "z = conv(x, w, b?, pads=p)")
    assert [match.nodes for match in some] == [("one",), ("two",)]


@pytest.mark.parametrize(
    ("condition", "nodes"),
    [
        ("w.shape[0] == 6", ["two"]),
        ("y.shape[2] == 4", ["wide"]),
        ("b.shape[0] == 4", ["one", "wide"]),
        ("b.shape[0] == 6", ["two"]),  # left out, it has the shape of the zeros that it stands for
        ("is_constant(x)", []),
        ("is_constant(b)", ["one", "two", "wide"]),
        ("x.shape[7] == 1", []),
    ],
)
def test_conditions_read_shapes_and_constants(condition: str, nodes: list[str], branches: Graph) -> None:
    whole = "conv(x, w, b?, strides=s, pads=p)"
    assert [match.nodes[0] for match in found(branches, f"y = {whole}", f"z = {whole}", condition)] == nodes


def test_what_symmetry_makes_twice_is_listed_once() -> None:
    b, x, y, s = builder_with("symmetric", x=(1, 2), y=(1, 2), s=(1, 2))
    left, right = b.add(Mul(), x, s, name="left"), b.add(Mul(), s, y, name="right")
    graph = b.graph([b.add(Add(), left, right, name="sum")])
    assert places(graph, "scale-out") == [("left", "right", "sum")]


def test_nodes_are_different() -> None:
    b, x = builder_with("one", x=(1, 4, 8, 8))
    assert places(b.graph([b.conv(x, 4, 3)]), "merge-convolutions") == []


def test_only_what_is_touched(branches: Graph) -> None:
    merge = RULE["merge-convolutions"]
    assert find_matches(branches, merge, frozenset({"wide"})) == ()
    assert find_matches(branches, merge, frozenset({"two", "no longer there"})) == find_matches(branches, merge)


def test_places_and_results_are_the_same_in_every_process() -> None:
    program = (
        "from iossim.models.load import load\n"
        "from iossim.transforms.rewriting.application import apply\n"
        "from iossim.transforms.rewriting.matching import find_matches\n"
        "from iossim.transforms.rewriting.rewritten import rewritten_network\n"
        "from iossim.transforms.rewriting.rule_sets import rule_set\n"
        "network = load('squeezenet')\n"
        "graph = network.graph\n"
        "for rule in (*rule_set('metaflow'), *rule_set('simplify')):\n"
        "    matches = find_matches(graph, rule, frozenset(node.name for node in graph.nodes[:60]))\n"
        "    for match in matches:\n"
        "        print(rule.name, match.nodes, sorted(match.tensors.items()), sorted(match.attributes.items()))\n"
        "    applied = apply(graph, matches[-1]) if matches else None\n"
        "    graph = applied.graph if applied else graph\n"
        "made = rewritten_network(network, graph)\n"
        "print(graph.nodes, graph.constants.keys(), made.units, made.blocks)\n"
    )
    assert "merge-convolutions" in printed_everywhere(program)


A100 = "a100-sxm-40gb"


def convolutions_of_branches() -> Network:
    """A stem, two branches that are joined, a residual, and a classifier: every place that a transpose goes through."""
    b = GraphBuilder("branches", precision=Precision.TF32)
    x = b.add(Relu(), convolution(b, b.input("x", (1, 64, 28, 28)), "stem", (256, 64, 1, 1)))
    x = b.add(MaxPool((3, 3), (2, 2), (1, 1, 1, 1)), x)
    wide = b.add(Relu(), convolution(b, x, "wide", (256, 256, 3, 3)))
    narrow = b.add(Relu(), convolution(b, x, "narrow", (256, 256, 1, 1)))
    joined = b.add(Concat(1), wide, narrow)
    x = b.add(Add(), joined, convolution(b, joined, "residual", (512, 512, 1, 1)))
    x = b.add(Flatten(1), b.add(GlobalAveragePool(), x))
    network = b.network([b.add(Gemm(), x, b.constant("weights", (512, 10)), b.constant("bias", (10,)))])
    return with_units(network, "conv-relu")


def convolution(b: GraphBuilder, x: str, name: str, weight: tuple[int, ...]) -> str:
    pads = tuple(size // 2 for size in weight[2:]) * 2
    return b.add(Conv(pads=pads), x, b.constant(f"{name}.w", weight), b.constant(f"{name}.b", weight[:1]), name=name)


def rewritten(network: Network, engine: str = "graph", device: str = A100, budget: str = "200") -> Rewriting:
    (made,) = api.task(network, device, rewrite="layouts", engine=engine, rewrite_budget=budget).change().outcomes
    assert isinstance(made, Rewriting)
    return made


def kinds(network: Network) -> Counter[str]:
    return Counter(node.op.kind for node in network.graph.nodes)


def test_each_tensor_has_its_layout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Images are transposed where channels are many enough, and back before a 1x1 convolution of NCHW at most.

    So it is where a library is called for tensors as they lie; a compiler lays them out by itself.
    """
    network = convolutions_of_branches()
    compiled = rewritten(network, budget="30")
    assert kinds(compiled.network)["conv_nhwc"] == 0
    monkeypatch.setattr(Engine, "libraries_on", lambda self, architecture: Libraries.CURRENT)
    found = rewritten(network, "paper", budget="30")  # in a graph, terms of a concat in NHWC are copied to their place
    assert found.found.best.cost_us < 0.95 * found.found.before_us
    made = kinds(found.network)
    assert made["conv_nhwc"] >= 3
    assert made["conv_nhwc"] + made["conv"] == 4
    assert made["max_pool_nhwc"] == 1 - made["conv"]
    assert made["transpose"] <= 2
    assert "ConvNhwc-Relu" in {unit.kind for unit in found.network.units}
    check_outputs(network, found.network, A100, tmp_path)


@pytest.mark.parametrize(
    ("precision", "device", "engine"),
    [(Precision.TF32, A100, "paper"), (Precision.FP16, A100, "graph"), (Precision.FP32, "v100-sxm2", "graph")],
)
def test_nchw_stays_where_nothing_is_transformed_less(precision: Precision, device: str, engine: str) -> None:
    """By the library of the published engine, in half precision, and on lanes."""
    b = GraphBuilder("one", precision=precision)
    x = b.add(Relu(), convolution(b, b.input("x", (1, 256, 14, 14)), "conv", (256, 256, 3, 3)))
    found = rewritten(b.network([x]), engine, device)
    assert found.found.matched
    assert found.network.graph.of_kind.get("conv_nhwc", ()) == ()


def test_weights_are_transposed_before_the_network_runs() -> None:
    """By columns nothing runs but the product, and computes the same."""
    b = GraphBuilder("product")
    network = b.network([b.add(Gemm(), b.input("x", (4, 6)), b.constant("w", (6, 3)))])
    (by_columns,) = (each for each in rule_set("layouts") if each.name == "weights-by-columns")
    (match,) = find_matches(network.graph, by_columns)
    applied = apply(network.graph, match)
    assert applied is not None
    (node,) = applied.graph.nodes
    assert node.op == Gemm(trans_b=True)
    given = {"x": np.random.default_rng(0).standard_normal((4, 6), np.float32)}
    before, after = (evaluate_graph(graph, given) for graph in (network.graph, applied.graph))
    for name, value in before.items():
        np.testing.assert_allclose(after[name], value, rtol=1e-5)


@pytest.mark.slow
def test_a_network_of_the_zoo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By a library that is called for tensors as they lie."""
    monkeypatch.setattr(Engine, "libraries_on", lambda self, architecture: Libraries.CURRENT)
    network = load("resnet50", dtype="tf32")
    found = rewritten(network)
    assert found.found.before_us > 1.05 * found.found.best.cost_us
    assert kinds(found.network)["conv_nhwc"] > 10
    check_outputs(network, found.network, A100, tmp_path)
