"""Graphs that rules make; random graphs by rules by places compute the same."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from place_rules import RULE, RULES, SHIPPED
from random_places import random_graph, same_outputs

from iossim.ir.builder import GraphBuilder
from iossim.ir.graph import Graph, Node
from iossim.ir.ops.conv import Conv
from iossim.ir.ops.matmul import MatMul
from iossim.ir.ops.nary import Add
from iossim.ir.ops.slice import Concat, Split
from iossim.ir.ops.unary import Relu
from iossim.ir.types import DType, TensorType
from iossim.models.passes.simplification import FoldedConstant
from iossim.proving.sampling import samples
from iossim.transforms.rewriting.application import Application, ReplayError, Step, apply, replay
from iossim.transforms.rewriting.matching import find_matches
from iossim.transforms.rewriting.rule import Rule
from iossim.transforms.rewriting.rule_file import read_rules


def applied(graph: Graph, rule: str, place: int = 0) -> Application:
    found = apply(graph, find_matches(graph, RULE[rule])[place])
    assert found is not None
    assert same_outputs(graph, found.graph, 1, 1e-5)  # sums of weights are folded in their own precision
    return found


def two_convolutions(bias: bool = True) -> Graph:
    b = GraphBuilder("two")
    x = b.input("x", (1, 4, 6, 6))
    one = b.conv(x, 3, 3, padding=1, name="one")
    weight = b.constant("w", (5, 4, 3, 3))
    inputs = [x, weight, b.constant("b", (5,))] if bias else [x, weight]
    two = b.add(Conv((1, 1), (1, 1, 1, 1)), *inputs, name="two")
    return b.graph([b.add(Relu(), one, name="relu"), two])


@pytest.mark.parametrize("bias", [True, False])
def test_weights_are_folded_when_they_are_loaded(bias: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    graph = two_convolutions(bias)
    monkeypatch.setattr(FoldedConstant, "load", lambda self: pytest.fail("nothing is loaded before it is needed"))
    match = find_matches(graph, RULE["merge-convolutions"])[0]
    found = apply(graph, match)
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
    b = GraphBuilder("bare")
    x = b.input("x", (1, 4, 6, 6))
    graph = b.graph([b.add(Conv(), x, b.constant(f"w{size}", (size, 4, 1, 1)), name=f"c{size}") for size in (2, 3)])
    after = applied(graph, "merge-convolutions").graph
    assert len(after.of_kind["conv"][0].inputs) == 2
    assert applied(graph, "enlarge-kernel").graph.of_kind["conv"][0].inputs[1:] == ("c2~1",)


def test_what_others_read_stays() -> None:
    b = GraphBuilder("shared")
    x = b.input("x", (1, 4, 6, 6))
    y = b.conv(x, 4, 3, padding=1, name="conv")
    graph = b.graph([b.add(Add(), y, x, name="sum"), b.add(Relu(), y, name="relu")])
    found = applied(graph, "add-into-convolution")
    assert found.gone == {"sum"}
    assert [node.name for node in found.graph.of_kind["conv"]] == ["conv", "conv~2"]


def test_what_leads_to_the_replaced_alone_goes_too() -> None:
    text = "{rule: r, source: ['t = relu(a)', 'y = matmul(b, t)'], target: ['z = relu(b)'], outputs: {y: z}}"
    (rule,) = read_rules(text, "test")
    b = GraphBuilder("dead")
    x, other = b.input("x", (2, 2)), b.input("other", (2, 2))
    before = b.add(Add(), other, b.constant("c", (2, 2)), name="before")
    graph = b.graph([b.add(MatMul(), x, b.add(Relu(), before, name="relu"), name="product")])
    (match,) = find_matches(graph, rule)
    found = apply(graph, match)
    assert found is not None
    assert found.gone == {"before", "relu", "product"}
    assert not found.graph.constants
    assert found.graph.inputs == ("x", "other")


def test_an_output_that_is_replaced_by_what_there_is_keeps_its_name() -> None:
    b = GraphBuilder("inputs")
    x = b.input("x", (1, 4))
    r = b.add(Relu(), x, name="relu")
    graph = b.graph(
        [b.add(Concat(1), *b.add_all(Split(1, (2, 2)), r, name="split"), name="joined"), b.add(Add(), r, r)]
    )
    after = applied(graph, "concat-of-all").graph
    assert [(node.name, node.inputs, node.outputs) for node in after.nodes] == [
        ("relu", ("x",), ("joined",)),
        ("add_3", ("joined", "joined"), ("add_3",)),
    ]


def test_an_output_that_is_replaced_by_an_input_is_an_identity() -> None:
    b = GraphBuilder("inputs")
    x = b.input("x", (1, 4))
    graph = b.graph([b.add(Concat(1), x, name="joined")])
    after = applied(graph, "concat-of-one").graph
    assert [(node.op.kind, node.inputs, node.outputs) for node in after.nodes] == [("identity", ("x",), ("joined",))]


def test_two_outputs_that_become_one_keep_their_names() -> None:
    b = GraphBuilder("twins")
    x = b.input("x", (1, 4))
    graph = b.graph([b.add(Relu(), x, name="one"), b.add(Relu(), x, name="two")])
    after = applied(graph, "relu-of-same").graph
    assert [(node.op.kind, node.inputs, node.outputs) for node in after.nodes] == [
        ("relu", ("x",), ("one",)),
        ("identity", ("one",), ("two",)),
    ]


def test_a_split_that_stays_for_another_part_gives_its_value_up() -> None:
    text = "{rule: r, source: ['a, b = split(x, axis=i, sizes=s)'], target: ['c, d = split(x, axis=i, sizes=s)'], outputs: {a: c}}"
    (rule,) = read_rules(text, "test")
    b = GraphBuilder("parts")
    x = b.input("x", (1, 4))
    first, second = b.add_all(Split(1, (2, 2)), x, name="split")
    graph = b.graph([b.add(Relu(), first), b.add(Relu(), second)])
    found = apply(graph, find_matches(graph, rule)[0])
    assert found is not None
    assert same_outputs(graph, found.graph, 1)
    assert found.made == {"split", "split~1"}


def test_a_constant_that_the_type_has_not_is_refused() -> None:
    text = "{rule: r, source: ['y = relu(x)'], filled: ['h = filled(shape=(1,), value=0.5)'], target: ['z = add(x, h)'], outputs: {y: z}}"
    (rule,) = read_rules(text, "test")
    for dtype, fits in ((DType.FLOAT16, True), (DType.INT32, False)):
        node = Node("relu", Relu(), ("x",), ("y",))
        graph = Graph.create({"x": TensorType((1, 4), dtype)}, ["y"], [node], {})
        assert (apply(graph, find_matches(graph, rule)[0]) is not None) == fits


def test_a_circle_is_refused() -> None:
    b = GraphBuilder("circle")
    x = b.input("x", (2, 2))
    first = b.add(MatMul(), x, b.constant("w", (2, 2)), name="first")
    second = b.add(MatMul(), x, b.add(Relu(), first), name="second")
    graph = b.graph([second])
    matches = find_matches(graph, RULE["two-products"])
    assert len(matches) == 2
    assert [apply(graph, match) for match in matches] == [None, None]


def test_a_target_of_another_shape_is_refused() -> None:
    (rule,) = read_rules(
        "{rule: r, source: ['y = relu(x)'], target: ['z = concat(x, x, axis=1)'], outputs: {y: z}}", "t"
    )
    b = GraphBuilder("wide")
    graph = b.graph([b.add(Relu(), b.input("x", (1, 4)))])
    assert apply(graph, find_matches(graph, rule)[0]) is None


def test_a_condition_on_what_the_target_makes_is_held_to() -> None:
    text = "{{rule: r, source: ['y = relu(x)'], target: ['z = relu(x)'], outputs: {{y: z}}, conditions: ['z.shape[1] == {}']}}"
    b = GraphBuilder("size")
    graph = b.graph([b.add(Relu(), b.input("x", (1, 4)))])
    for size, fits in ((4, True), (5, False)):
        (rule,) = read_rules(text.format(size), "test")
        assert (apply(graph, find_matches(graph, rule)[0]) is not None) == fits


def test_a_wrong_rule_is_seen() -> None:
    """The comparison that the fuzz rests on."""
    rule = RULE["merge-convolutions"]
    wrong = replace(rule, name="wrong", outputs=(("y1", "z2"), ("y2", "z1")))
    b = GraphBuilder("equal")
    x = b.input("x", (1, 4, 6, 6))
    graph = b.graph([b.conv(x, 3, name="one"), b.conv(x, 3, name="two")])
    for each, same in ((rule, True), (wrong, False)):
        found = apply(graph, find_matches(graph, each)[0])
        assert found is not None
        assert same_outputs(graph, found.graph, 0) == same


def test_steps_are_replayed_from_json() -> None:
    graph = first = two_convolutions()
    steps = []
    for rule in ("merge-convolutions", "relu-twice", "enlarge-kernel", "merge-convolutions"):
        matches = find_matches(graph, RULE[rule])
        if matches:
            found = applied(graph, rule, len(matches) - 1)
            steps.append(Step.from_json(json.loads(json.dumps(found.step.to_json()))))
            graph = found.graph
    again = replay(first, steps, RULE)
    assert again.nodes == graph.nodes
    assert list(again.constants) == list(graph.constants)


def test_steps_that_lead_nowhere_are_refused() -> None:
    graph = two_convolutions()
    step = applied(graph, "merge-convolutions").step
    for wrong, reason in (
        (
            replace(step, rule="merge-convolution"),
            r"step 1 \(merge-convolution\): no rule.*did you mean 'merge-convolutions'",
        ),
        (replace(step, rule_hash="0"), "has changed"),
        (replace(step, nodes=("one", "three")), "does not apply at one, three"),
        (replace(step, inputs=("x",)), "does not apply"),
    ):
        with pytest.raises(ReplayError, match=reason):
            replay(graph, [wrong], RULE)
    with pytest.raises(ReplayError, match="is no step"):
        Step.from_json({"rule": "x"})


def check_graph(graph: Graph) -> None:
    """A graph is what ``Graph.create`` makes of its parts, and knows who reads what."""
    whole = Graph.create(
        {name: graph.types[name] for name in graph.inputs}, graph.outputs, graph.nodes, graph.constants
    )
    assert whole.nodes == graph.nodes
    assert dict(whole.types) == dict(graph.types)
    assert dict(whole.constants) == dict(graph.constants)
    assert whole.producer == graph.producer
    assert whole.consumers == graph.consumers
    assert whole.position == graph.position
    assert whole.of_kind == graph.of_kind
    assert whole.hash == graph.hash


def check_application(graph: Graph, applied: Application) -> None:
    names = {node.name: node for node in graph.nodes}
    after = {node.name: node for node in applied.graph.nodes}
    assert applied.graph.outputs == graph.outputs
    assert applied.gone == names.keys() - after.keys()
    assert applied.made >= {name for name, node in after.items() if names.get(name) != node}
    check_graph(applied.graph)


def check_matches(before: Graph, applied: Application, rule: Rule) -> None:
    """Matches of the graph before without what changed, and those that touch it, are the matches of the graph after."""
    after = find_matches(applied.graph, rule)
    touched = find_matches(applied.graph, rule, applied.made)
    assert touched == tuple(match for match in after if not applied.made.isdisjoint(match.nodes))
    changed = applied.made | applied.gone
    # Nodes may have changed places, and with them the order, and which of two that are the same comes first.
    kept = [sorted(match.nodes) for match in find_matches(before, rule) if changed.isdisjoint(match.nodes)]
    assert sorted(kept) == sorted(sorted(match.nodes) for match in after if changed.isdisjoint(match.nodes))


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
        check_application(graph, applied)
        check_matches(graph, applied, rules[(seed + turn) % len(rules)])
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
