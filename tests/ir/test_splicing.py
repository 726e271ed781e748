"""Graphs that differ in a few nodes; that they are as ``Graph.create`` makes them, the fuzz of rewriting shows."""

from __future__ import annotations

import pytest

from iossim.base.errors import GraphError
from iossim.ir.builder import GraphBuilder
from iossim.ir.constants import Constant, FilledConstant
from iossim.ir.graph import Graph, Node
from iossim.ir.ops.nary import Add
from iossim.ir.ops.slice import Concat
from iossim.ir.ops.unary import Relu
from iossim.ir.splicing import spliced
from iossim.ir.types import TensorType


@pytest.fixture
def graph() -> Graph:
    b = GraphBuilder("chain")
    x = b.input("x", (1, 4))
    a = b.add(Relu(), x, name="a")
    c = b.add(Add(), a, b.constant("w", (1, 4)), name="b")
    return b.graph([b.add(Relu(), c, name="c"), b.add(Relu(), a, name="d")])


def test_what_reads_a_new_value_follows_it(graph: Graph) -> None:
    ones = FilledConstant(TensorType((1, 4)), 1.0)
    made = [Node("new", Add(), ("x", "one"), ("n",)), Node("a", Relu(), ("n",), ("a",))]
    after = spliced(graph, ["b"], [*made, Node("e", Add(), ("d", "n"), ("b",))], {"one": ones, "unread": ones})
    assert [node.name for node in after.nodes] == ["new", "a", "d", "e", "c"]
    assert set(after.constants) == {"one"}
    assert [node.name for node in after.consumers["n"]] == ["a", "e"]
    assert "w" not in after.types


@pytest.mark.parametrize(
    ("gone", "made", "constants", "reason"),
    [
        (["a"], [], {}, "op 'b' .* reads 'a', which nothing makes"),
        (["c"], [], {}, "the graph returns 'c', which nothing makes"),
        ([], [Node("e", Relu(), ("q",), ("e",))], {}, "reads 'q', which nothing makes"),
        ([], [Node("e", Relu(), ("x",), ("a",))], {}, "makes the value 'a', which something else makes too"),
        ([], [Node("e", Relu(), ("x",), ("e",))] * 2, {}, "two ops are named 'e'"),
        ([], [Node("a", Relu(), ("c",), ("a",))], {}, "cycle"),
        ([], [Node("a", Concat(1), ("x", "x"), ("a",))], {}, "'a' would be"),
        ([], [Node("a", Concat(7), ("x",), ("a",))], {}, "op 'a' .*axis"),
        ([], [], {"w": FilledConstant(TensorType((1,)))}, "'w' has the name of something else"),
    ],
)
def test_what_is_no_graph_is_refused(
    graph: Graph, gone: list[str], made: list[Node], constants: dict[str, Constant], reason: str
) -> None:
    with pytest.raises(GraphError, match=reason):
        spliced(graph, gone, made, constants)
