"""Graphs that rules make; random graphs by rules by places compute the same."""

from collections.abc import Mapping
from dataclasses import replace

import pytest
from graph_builders import builder_with
from place_rules import RULE, RULES, SHIPPED, rule
from random_places import random_graph, same_outputs

from iossim.ir.builder import GraphBuilder
from iossim.ir.graph import Graph, Node
from iossim.ir.ops.conv import Conv
from iossim.ir.ops.matmul import MatMul
from iossim.ir.ops.nary import Add
from iossim.ir.ops.reduce import Reduce
from iossim.ir.ops.slice import Concat, Split
from iossim.ir.ops.unary import Relu
from iossim.ir.types import DType, TensorType
from iossim.models.passes.simplification import FoldedConstant
from iossim.proving.sampling import samples
from iossim.transforms.rewriting.application import Application, ReplayError, Step, apply, replay
from iossim.transforms.rewriting.matching import find_matches
from iossim.transforms.rewriting.rule import Rule


def first_of(graph: Graph, tried: Rule) -> Application | None:
    """The graph with the first match of a rule replaced."""
    return apply(graph, find_matches(graph, tried)[0])


def applied(graph: Graph, name: str, place: int = 0) -> Application:
    found = apply(graph, find_matches(graph, RULE[name])[place])
    assert found is not None
    assert same_outputs(graph, found.graph, 1, 1e-5)  # sums of weights are folded in their own precision
    return found


def two_convolutions(bias: bool = True) -> Graph:
    b, x = builder_with("two", x=(1, 4, 6, 6))
    one = b.conv(x, 3, 3, padding=1, name="one")
    weight = b.constant("w", (5, 4, 3, 3))
    inputs = [x, weight, b.constant("b", (5,))] if bias else [x, weight]
    two = b.add(Conv((1, 1), (1, 1, 1, 1)), *inputs, name="two")
    return b.graph([b.add(Relu(), one, name="relu"), two])


@pytest.mark.parametrize("bias", [True, False])
def test_weights_are_folded_when_they_are_loaded(bias: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    graph = two_convolutions(bias)
    monkeypatch.setattr(FoldedConstant, "load", lambda self: pytest.fail("nothing is loaded before it is needed"))
    found = first_of(graph, RULE["merge-convolutions"])
    assert found is not None
    monkeypatch.undo()
    assert same_outputs(graph, found.graph, 1)
    after = found.graph
    assert [node.op.kind for node in after.nodes] == ["conv", "split", "relu"]
    assert [node.name.partition("~")[0] for node in after.nodes] == ["one", "one", "relu"]
    assert after.nodes[1].outputs == ("one", "two")
    assert found.made == {node.name for node in after.nodes[:2]}
    assert found.gone == {"one", "two"}
    assert after.outputs == graph.outputs
    assert [type(constant) for constant in after.constants.values()] == [FoldedConstant, FoldedConstant]


def test_biases_that_are_all_left_out_stay_out() -> None:
    b, x = builder_with("bare", x=(1, 4, 6, 6))
    graph = b.graph([b.add(Conv(), x, b.constant(f"w{size}", (size, 4, 1, 1)), name=f"c{size}") for size in (2, 3)])
    after = applied(graph, "merge-convolutions").graph
    assert len(after.of_kind["conv"][0].inputs) == 2
    assert applied(graph, "enlarge-kernel").graph.of_kind["conv"][0].inputs[1:] == ("c2~1",)


def test_what_others_read_stays() -> None:
    b, x = builder_with("shared", x=(1, 4, 6, 6))
    y = b.conv(x, 4, 3, padding=1, name="conv")
    graph = b.graph([b.add(Add(), y, x, name="sum"), b.add(Relu(), y, name="relu")])
    found = applied(graph, "add-into-convolution")
    assert found.gone == {"sum"}
    assert [node.name for node in found.graph.of_kind["conv"]] == ["conv", "conv~2"]


def test_what_leads_to_the_replaced_alone_goes_too() -> None:
    b, x, other = builder_with("dead", x=(2, 2), other=(2, 2))
    before = b.add(Add(), other, b.constant("c", (2, 2)), name="before")
    graph = b.graph([b.add(MatMul(), x, b.add(Relu(), before, name="relu"), name="product")])
    found = first_of(graph, rule("t = relu(a); y = matmul(b, t)", "z = relu(b)", "y: z"))
    assert found is not None
    assert found.gone == {"before", "relu", "product"}
    assert not found.graph.constants
    assert found.graph.inputs == ("x", "other")


def nodes_of(graph: Graph) -> list[tuple[str, tuple[str, ...], tuple[str, ...]]]:
    return [(node.op.kind, node.inputs, node.outputs) for node in graph.nodes]


def test_an_output_that_is_replaced_by_what_there_is_keeps_its_name() -> None:
    b = GraphBuilder("inputs")
    r = b.add(Relu(), b.input("x", (1, 4)), name="relu")
    joined = b.add(Concat(1), *b.add_all(Split(1, (2, 2)), r, name="split"), name="joined")
    after = applied(b.graph([joined, b.add(Add(), r, r)]), "concat-of-all").graph
    assert nodes_of(after) == [("relu", ("x",), ("joined",)), ("add", ("joined", "joined"), ("add_3",))]
    assert after.nodes[0].name == "relu"


def test_outputs_that_become_an_input_or_one_are_identities() -> None:
    b = GraphBuilder("inputs")
    graph = b.graph([b.add(Concat(1), b.input("x", (1, 4)), name="joined")])
    assert nodes_of(applied(graph, "concat-of-one").graph) == [("identity", ("x",), ("joined",))]
    b, x = builder_with("twins", x=(1, 4))
    after = applied(b.graph([b.add(Relu(), x, name=name) for name in ("one", "two")]), "relu-of-same").graph
    assert nodes_of(after) == [("relu", ("x",), ("one",)), ("identity", ("one",), ("two",))]


def test_a_split_that_stays_for_another_part_gives_its_value_up() -> None:
    b = GraphBuilder("parts")
    first, second = b.add_all(Split(1, (2, 2)), b.input("x", (1, 4)), name="split")
    graph = b.graph([b.add(Relu(), first), b.add(Relu(), second)])
    found = first_of(graph, rule("a, b = split(x, axis=i, sizes=s)", "c, d = split(x, axis=i, sizes=s)", "a: c"))
    assert found is not None
    assert same_outputs(graph, found.graph, 1)
    assert found.made == {"split", "split~1"}


def test_a_circle_is_refused() -> None:
    b, x = builder_with("circle", x=(2, 2))
    first = b.add(MatMul(), x, b.constant("w", (2, 2)), name="first")
    graph = b.graph([b.add(MatMul(), x, b.add(Relu(), first), name="second")])
    matches = find_matches(graph, RULE["two-products"])
    assert [apply(graph, match) for match in matches] == [None, None]


HALF = "h = filled(shape=(1,), value=0.5)"


@pytest.mark.parametrize(
    ("tried", "dtype", "fits"),
    [
        (rule("y = relu(x)", "z = add(x, h)", "y: z", filled=(HALF,)), DType.FLOAT16, True),
        (rule("y = relu(x)", "z = add(x, h)", "y: z", filled=(HALF,)), DType.INT32, False),
        (rule("y = relu(x)", "z = concat(x, x, axis=1)", "y: z"), DType.FLOAT32, False),
        (rule("y = relu(x)", "z = relu(x)", "y: z", "z.shape[1] == 4"), DType.FLOAT32, True),
        (rule("y = relu(x)", "z = relu(x)", "y: z", "z.shape[1] == 5"), DType.FLOAT32, False),
    ],
    ids=["constant", "constant of another type", "another shape", "condition on the target", "condition that fails"],
)
def test_what_the_target_makes_has_to_fit(tried: Rule, dtype: DType, fits: bool) -> None:
    graph = Graph.create({"x": TensorType((1, 4), dtype)}, ["y"], [Node("relu", Relu(), ("x",), ("y",))], {})
    assert (first_of(graph, tried) is not None) == fits


def test_a_value_of_another_type_replaces_none() -> None:
    """Even where what reads it would take it and make the same type."""
    b = GraphBuilder("sums")
    total = Reduce("sum", (1,), keepdims=True)
    graph = b.graph([b.add(total, b.add(total, b.input("x", (1, 4))))])
    assert first_of(graph, rule("y = reduce(x, function='sum', axes=a, keepdims=True)", "", "y: x")) is None


def test_a_wrong_rule_is_seen() -> None:
    """The comparison that the fuzz rests on."""
    right = RULE["merge-convolutions"]
    b, x = builder_with("equal", x=(1, 4, 6, 6))
    graph = b.graph([b.conv(x, 3, name="one"), b.conv(x, 3, name="two")])
    for each, same in ((right, True), (replace(right, name="wrong", outputs=(("y1", "z2"), ("y2", "z1"))), False)):
        found = first_of(graph, each)
        assert found is not None
        assert same_outputs(graph, found.graph, 0) == same


def test_steps_that_lead_nowhere_are_refused() -> None:
    graph = two_convolutions()
    step = applied(graph, "merge-convolutions").step
    for wrong, reason in (
        (replace(step, rule="two-product"), r"step 1 \(two-product\): no rule.*did you mean 'two-products'"),
        (replace(step, rule_hash="0"), "has changed"),
        (replace(step, nodes=("one", "three")), "does not apply at one, three"),
        (replace(step, inputs=("x",)), "does not apply"),
    ):
        with pytest.raises(ReplayError, match=reason):
            replay(graph, [wrong], RULE)
    with pytest.raises(ReplayError, match="is not a step"):
        Step.from_json({"rule": "x"})


def check_graph(graph: Graph) -> None:
    """A graph is what ``Graph.create`` makes of its parts, and knows who reads what."""
    inputs = {name: graph.types[name] for name in graph.inputs}
    whole = Graph.create(inputs, graph.outputs, graph.nodes, graph.constants)
    for name in ("nodes", "types", "constants", "producer", "consumers", "position", "of_kind", "hash"):
        mine, expected = getattr(graph, name), getattr(whole, name)
        assert (dict(mine) if isinstance(mine, Mapping) else mine) == expected, name


def check_application(before: Graph, applied: Application, rule: Rule) -> None:
    """Check what an application says of its graph; matches of the graph before without what changed, and those that
    touch it, are the matches of the graph after.
    """
    names, after = ({node.name: node for node in graph.nodes} for graph in (before, applied.graph))
    assert applied.graph.outputs == before.outputs
    assert applied.gone == names.keys() - after.keys()
    assert applied.made >= {name for name, node in after.items() if names.get(name) != node}
    check_graph(applied.graph)
    matches = find_matches(applied.graph, rule)
    touched = find_matches(applied.graph, rule, applied.made)
    assert touched == tuple(match for match in matches if not applied.made.isdisjoint(match.nodes))
    changed = applied.made | applied.gone
    # Nodes may have changed places, and with them the order, and which of two that are the same comes first.
    kept = [sorted(match.nodes) for match in find_matches(before, rule) if changed.isdisjoint(match.nodes)]
    assert sorted(kept) == sorted(sorted(match.nodes) for match in matches if changed.isdisjoint(match.nodes))


def walk(seed: int, rules: tuple[Rule, ...], steps: int) -> int:
    """Apply rules one after another to a random graph, check each step; how many there were."""
    chosen = [rules[(seed * 7 + place * 13) % len(rules)] for place in range(1 + seed % 2)]
    placed = [each for rule in chosen for each in samples(rule, 1, seed)]
    if not placed:
        return 0
    graph = first = random_graph(placed, seed)
    taken: list[Step] = []
    for turn in range(steps):
        matches = [match for rule in rules for match in find_matches(graph, rule)]
        if turn == 0:
            matches = [match for match in matches if match.rule in chosen] or matches
        applications = (apply(graph, matches[(seed + turn * 31 + skip) % len(matches)]) for skip in range(len(matches)))
        applied = next((each for each in applications if each is not None), None)
        if applied is None:
            break
        check_application(graph, applied, rules[(seed + turn) % len(rules)])
        assert same_outputs(first, applied.graph, seed), f"seed {seed}, {[step.rule for step in taken]}, {applied.step}"
        graph = applied.graph
        taken.append(Step.from_json(applied.step.to_json()))
    assert replay(first, taken, {rule.name: rule for rule in rules}).hash == graph.hash
    return len(taken)


def test_random_graphs_compute_the_same_after_rules() -> None:
    taken = [walk(seed, SHIPPED if seed % 2 else RULES, 3) for seed in range(120)]
    assert sum(taken) > 200


@pytest.mark.slow
def test_two_thousand_random_graphs() -> None:
    """Each shipped rule is the first to be tried in about ten of them."""
    taken = [walk(seed, SHIPPED if seed % 2 else RULES, 2) for seed in range(120, 2_120)]
    assert sum(map(bool, taken)) > 1_800
