"""Where the sources of rules are found."""

from __future__ import annotations

import subprocess
import sys

import pytest
from place_rules import RULE

from iossim.ir.builder import GraphBuilder
from iossim.ir.graph import Graph
from iossim.ir.ops.conv import Conv
from iossim.ir.ops.nary import Add, Mul
from iossim.ir.ops.slice import Concat, Split
from iossim.ir.ops.unary import Relu
from iossim.transforms.rewriting.matching import Match, find_matches
from iossim.transforms.rewriting.rule_file import read_rules


def places(graph: Graph, rule: str) -> list[tuple[str, ...]]:
    return [match.nodes for match in find_matches(graph, RULE[rule])]


def found(graph: Graph, text: str) -> tuple[Match, ...]:
    (rule,) = read_rules(text, "test")
    return find_matches(graph, rule)


@pytest.fixture
def branches() -> Graph:
    """Three convolutions of one input, of which one has no bias and another stride, and no common reader."""
    b = GraphBuilder("branches")
    x = b.input("x", (1, 4, 8, 8))
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
    b = GraphBuilder("sums")
    x, y = b.input("x", (1, 2)), b.input("y", (1, 2))
    r = b.add(Relu(), x, name="r")
    long = b.add(Add(), y, r, x, name="long")
    graph = b.graph([long])
    (match,) = found(
        graph,
        "{rule: r, source: ['t = relu(a)', 'z = add(t, a, *rest)'], target: ['o = add(a, *rest)'], outputs: {z: o}}",
    )
    assert match.nodes == ("r", "long")
    assert match.tensors["rest"] == ("y",)


def test_neighbours_in_a_long_concat() -> None:
    b = GraphBuilder("concat")
    x, y = b.input("x", (1, 4)), b.input("y", (1, 2))
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
    b = GraphBuilder("axes")
    x = b.input("x", (2, 2))
    halves = b.add_all(Split(1, (1, 1)), x, name="split")
    graph = b.graph([b.add(Concat(0), *halves)])
    assert places(graph, "concat-of-all") == []


def test_attributes_that_are_not_given_have_their_default(branches: Graph) -> None:
    text = "{{rule: r, source: ['y = conv(x, w, b?{})'], target: ['z = conv(x, w, b?{})'], outputs: {{y: z}}}}"
    assert [match.nodes for match in found(branches, text.format("", ""))] == []
    some = found(branches, text.format(", pads=p", ", pads=p"))
    assert [match.nodes for match in some] == [("one",), ("two",)]


def test_conditions_read_shapes_and_constants(branches: Graph) -> None:
    text = (
        "{{rule: r, source: ['y = conv(x, w, b?, strides=s, pads=p)'], target: ['z = conv(x, w, b?, strides=s, pads=p)'], "
        "outputs: {{y: z}}, conditions: ['{}']}}"
    )
    for condition, nodes in (
        ("w.shape[0] == 6", ["two"]),
        ("y.shape[2] == 4", ["wide"]),
        ("b.shape[0] == 4", ["one", "wide"]),
        ("b.shape[0] == 6", ["two"]),  # left out, it has the shape of the zeros that it stands for
        ("is_constant(x)", []),
        ("is_constant(b)", ["one", "two", "wide"]),
        ("x.shape[7] == 1", []),
    ):
        assert [match.nodes[0] for match in found(branches, text.format(condition))] == nodes, condition


def test_what_symmetry_makes_twice_is_listed_once() -> None:
    b = GraphBuilder("symmetric")
    x, y, s = b.input("x", (1, 2)), b.input("y", (1, 2)), b.input("s", (1, 2))
    left, right = b.add(Mul(), x, s, name="left"), b.add(Mul(), s, y, name="right")
    graph = b.graph([b.add(Add(), left, right, name="sum")])
    assert places(graph, "scale-out") == [("left", "right", "sum")]


def test_nodes_are_different() -> None:
    b = GraphBuilder("one")
    x = b.input("x", (1, 4, 8, 8))
    assert places(b.graph([b.conv(x, 4, 3)]), "merge-convolutions") == []


def test_only_what_is_touched(branches: Graph) -> None:
    rule = RULE["merge-convolutions"]
    assert find_matches(branches, rule, frozenset({"wide"})) == ()
    assert find_matches(branches, rule, frozenset({"two", "no longer there"})) == find_matches(branches, rule)


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
    said = {
        subprocess.run(
            [sys.executable, "-c", program], env={"PYTHONHASHSEED": seed}, capture_output=True, check=True
        ).stdout
        for seed in ("1", "2")
    }
    assert len(said) == 1
    assert b"merge-convolutions" in said.pop()
