"""Graphs: validation that names the op, the canonical hash, and the JSON round trip."""

import re

import numpy as np
import pytest
from graph_builders import builder_with

from iossim.base.errors import GraphError
from iossim.ir.builder import GraphBuilder
from iossim.ir.constants import Constant, FilledConstant, IdentityConstant, SeededConstant
from iossim.ir.graph import Graph, Node
from iossim.ir.ops.conv import Conv
from iossim.ir.ops.nary import Add
from iossim.ir.ops.slice import Concat
from iossim.ir.ops.unary import Relu
from iossim.ir.splicing import spliced
from iossim.ir.types import DType, TensorType

X = {"x": TensorType((1, 3, 8, 8))}


def node(name: str, *inputs: str, op: object = None) -> Node:
    return Node(name, op or Relu(), inputs, (name,))  # type: ignore[arg-type]


def test_blocks_do_not_nest() -> None:
    b = GraphBuilder("nested")
    with pytest.raises(GraphError, match="'inner' begins inside another block"), b.block("outer"), b.block("inner"):
        pass


def test_nodes_are_sorted_and_typed() -> None:
    graph = Graph.create(X, ["c"], [node("c", "b"), node("b", "a"), node("a", "x")], {})
    assert [one.name for one in graph.nodes] == ["a", "b", "c"]
    assert graph.types["c"] == X["x"]
    assert [reader.name for reader in graph.consumers["a"]] == ["b"]
    assert graph.producer["b"].inputs == ("a",)


@pytest.mark.parametrize(
    ("nodes", "outputs", "message"),
    [
        ([node("a", "b"), node("b", "a")], ["b"], "cycle through op 'a'"),
        ([node("a", "nowhere")], ["a"], "op 'a' (relu) reads 'nowhere', which nothing makes"),
        ([node("a", "x"), node("a", "x")], ["a"], "two ops are named 'a'"),
        ([node("a", "x"), Node("b", Relu(), ("x",), ("a",))], ["a"], "makes the value 'a'"),
        ([node("a", "x")], ["z"], "graph output 'z' is made by no op"),
        ([node("a", "x", op=Conv())], ["a"], "op 'a' (conv): takes x, weight and maybe bias, not 1 inputs"),
        ([Node("a", Relu(), ("x",), ("a", "b"))], ["a"], "op 'a' (relu) makes 1 outputs but names 2"),
        ([node("a", "x", "w", op=Conv())], ["a"], "op 'a' (conv) would make an empty tensor"),
    ],
)
def test_a_graph_that_is_not_well_formed_names_the_op(nodes: list[Node], outputs: list[str], message: str) -> None:
    with pytest.raises(GraphError, match=re.escape(message)):
        Graph.create(X, outputs, nodes, {"w": SeededConstant(TensorType((4, 3, 9, 9)), "w")})


def test_the_hash_does_not_count_names_or_order() -> None:
    one = Graph.create(X, ["s"], [node("a", "x"), node("b", "a"), node("s", "a", "b", op=Add())], {})
    two = Graph.create({"in": X["x"]}, ["t"], [node("t", "p", "q", op=Add()), node("q", "p"), node("p", "in")], {})
    assert one.hash == two.hash


def test_the_hash_counts_structure() -> None:
    def graph(nodes: list[Node], inputs: dict[str, TensorType] = X, outputs: tuple[str, ...] = ("s",)) -> str:
        return Graph.create(inputs, outputs, nodes, {}).hash

    parallel = [node("a", "x"), node("b", "x"), node("s", "a", "b", op=Add())]
    found = [
        graph(parallel),
        graph([node("a", "x"), node("s", "a", "a", op=Add())]),
        graph([node("a", "x"), node("b", "x"), node("s", "a", "a", op=Add())]),
        graph([node("a", "x"), node("b", "a"), node("s", "a", "b", op=Add())]),
        graph(parallel, outputs=("s", "a")),
        graph(parallel, {"x": TensorType((2, 3, 8, 8))}),
        graph(parallel, {"x": TensorType((1, 3, 8, 8), DType.FLOAT16)}),
    ]
    assert len(set(found)) == len(found)
    weight = FilledConstant(TensorType((2, 3, 1, 1)), 1.0)
    convolved = [node("a", "x", "w", op=Conv()), node("s", "a", "b", op=Add())]
    shared, apart = (
        Graph.create(X, ["s"], [*convolved, node("b", "x", other, op=Conv())], dict.fromkeys(("w", other), weight))
        for other in "wv"
    )
    assert shared.hash != apart.hash, "one weight, and two that are equal"


def test_the_hash_leaves_the_weights_out() -> None:
    ones, twos = (
        Graph.create(X, ["a"], [node("a", "x", "w", op=Conv())], {"w": FilledConstant(TensorType((2, 3, 1, 1)), value)})
        for value in (1.0, 2.0)
    )
    assert ones.hash == twos.hash


def test_seeded_weights_depend_on_name_and_seed_alone() -> None:
    of_type = TensorType((4, 3, 3, 3))
    first, again, *others = (SeededConstant(of_type, *given).load() for given in (("w",), ("w",), ("v",), ("w", 1)))
    assert np.array_equal(first, again)
    assert not any(np.array_equal(first, other) for other in others)


@pytest.mark.parametrize(("groups", "kernel"), [(1, (1, 1)), (1, (3, 5)), (2, (3, 3)), (4, (1, 3))])
def test_a_convolution_with_the_identity_returns_its_input(groups: int, kernel: tuple[int, int]) -> None:
    weight = IdentityConstant(TensorType((4, 4 // groups, *kernel))).load()
    x = np.arange(4 * 5 * 6, dtype=np.float32).reshape(1, 4, 5, 6)
    pads = (kernel[0] // 2, kernel[1] // 2) * 2
    (y,) = Conv((1, 1), pads, (1, 1), groups).evaluate([x, weight])
    assert np.array_equal(y, x)


def test_the_identity_of_a_product_is_the_unit_matrix() -> None:
    assert np.array_equal(IdentityConstant(TensorType((3, 3))).load(), np.eye(3, dtype=np.float32))


@pytest.mark.parametrize("shape", [(3,), (2, 3), (3, 2, 1), (2, 0, 1)])
def test_there_is_no_identity_of_other_shapes(shape: tuple[int, ...]) -> None:
    with pytest.raises(GraphError, match="no identity of shape"):
        IdentityConstant(TensorType(shape))


@pytest.fixture
def graph() -> Graph:
    b, x = builder_with("chain", x=(1, 4))
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
