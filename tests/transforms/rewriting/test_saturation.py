"""Equality saturation: it finds what exhaustive search finds, what it takes out computes the same, and has its steps."""

from __future__ import annotations

import pytest
from place_rules import DEFAULT, FEW, NAMED, every_graph
from random_places import same_outputs
from some_rules import rule

import iossim
from iossim import api
from iossim.cost.random import RandomCostModel
from iossim.ir.builder import GraphBuilder
from iossim.ir.network import ModelSource, Network
from iossim.ir.ops.unary import Relu, Sigmoid
from iossim.ir.types import Precision
from iossim.models.layers import conv_relu, join
from iossim.models.passes.block_parts import single_block
from iossim.models.passes.unit_fusion import unit_policy, with_units
from iossim.models.random_graphs import seeded_network
from iossim.transforms.rewriting import scheduled
from iossim.transforms.rewriting.application import replay
from iossim.transforms.rewriting.backtracking import RewriteBudget
from iossim.transforms.rewriting.egraph import EGraph, operator_prices
from iossim.transforms.rewriting.extraction import extract_cheapest, extract_greedily, extracted_graph
from iossim.transforms.rewriting.graph_costs import SumOfOperators
from iossim.transforms.rewriting.parts import search_in_parts
from iossim.transforms.rewriting.rewritten import rewritten_network
from iossim.transforms.rewriting.saturation import SaturationLimits, grow, saturate
from iossim.transforms.rewriting.scheduled import ByOperators

V100 = api.cost_model("simulator", "v100-sxm2")
SMALL = SaturationLimits(nodes=300, rounds=4, graphs=60)


def fire() -> Network:
    """A fire module of SqueezeNet, made small: two convolutions of one input, joined."""
    b = GraphBuilder("fire", Precision.FP32, 0)
    x = conv_relu(b, "squeeze", b.input("image", (1, 8, 14, 14)), 4, 1)
    branches = [conv_relu(b, f"expand{kernel}", x, 8, kernel, padding=kernel // 2) for kernel in (1, 3)]
    return b.network([join(b, "concat", branches)], ModelSource("fire"))


@pytest.mark.parametrize("units", ["none", "conv-relu"])
@pytest.mark.parametrize(("seed", "size"), [(2, 5), (4, 5), (7, 4)])
def test_it_finds_what_exhaustive_search_finds(seed: int, size: int, units: str) -> None:
    network = with_units(seeded_network(seed, size, blocks=1), units)
    cost = SumOfOperators(RandomCostModel(seed=seed))
    found = saturate(network, FEW, cost, SaturationLimits(graphs=60))
    assert found.saturated
    assert found.extraction.at_least_us == pytest.approx(found.extraction.cost_us, rel=1e-6)
    least_us = min(cost.us(rewritten_network(network, graph)) for graph in every_graph(network.graph, FEW))
    assert found.found.best.cost_us == pytest.approx(least_us)
    if not found.found.complete:
        # An op in two merged ones at once takes the place of neither in a graph that is rewritten step by step.
        assert found.extracted.cost_us < least_us
    else:
        assert found.extracted.cost_us == pytest.approx(least_us)


@pytest.mark.parametrize("seed", range(4))
def test_what_it_takes_out_computes_the_same_and_is_replayed(seed: int) -> None:
    network = seeded_network(seed, units=5, blocks=1)
    cost = SumOfOperators(RandomCostModel(seed))
    result = saturate(network, DEFAULT, cost, SMALL)
    best = result.found.best
    assert result.extracted.cost_us == cost.us(result.extracted.network) <= result.found.before_us
    assert best.cost_us == cost.us(best.network) <= result.found.before_us
    assert replay(network.graph, best.steps, NAMED).hash == best.network.graph.hash
    for made in (result.extracted.network, best.network):
        assert same_outputs(network.graph, made.graph, seed)


def test_a_fire_module_is_one_convolution() -> None:
    """Two kernels of one size, joined as they are split; only several steps that cost at first lead to it."""
    cost = SumOfOperators(RandomCostModel(seed=1))
    network = with_units(fire(), "none")
    result = saturate(network, DEFAULT, cost, SMALL)
    kinds = [node.op.kind for node in result.extracted.network.graph.nodes]
    assert sorted(kinds) == ["conv", "conv", "relu", "relu"]
    assert result.found.best.cost_us == pytest.approx(result.extracted.cost_us)
    assert {step.rule for step in result.found.best.steps} >= {"enlarge-1x1-to-3x3", "merge-convolutions"}


@pytest.mark.slow
@pytest.mark.parametrize(("name", "block"), [("squeezenet", "fire2"), ("inception_v3", "mixed_5c")])
def test_it_is_no_worse_than_backtracking(name: str, block: str) -> None:
    network = single_block(iossim.load(name), block)
    cost = SumOfOperators(V100)
    result = saturate(network, DEFAULT, cost)
    best_us = search_in_parts(network, DEFAULT, cost, budget=RewriteBudget(graphs=60)).best.cost_us
    assert result.found.best.cost_us <= best_us * (1 + 1e-9)
    # An e-graph has no order, by which activations of the extracted graph may be in L2 or not.
    assert result.extraction.cost_us == pytest.approx(result.extracted.cost_us, rel=5e-3)
    assert result.extraction.at_least_us == pytest.approx(result.extraction.cost_us, rel=1e-6)


def test_it_is_the_same_again() -> None:
    network = seeded_network(3, units=5, blocks=1)
    one, other = (saturate(network, DEFAULT, SumOfOperators(RandomCostModel(3)), SMALL) for _ in range(2))
    assert one.extracted.network.graph.nodes == other.extracted.network.graph.nodes
    assert one.found.best.steps == other.found.best.steps


def test_nothing_matches() -> None:
    network = seeded_network(1, units=4, blocks=1)
    result = saturate(network, [NAMED["relu-of-relu"]], SumOfOperators(RandomCostModel()))
    assert result.extracted.network is network
    assert (result.found.matched, result.saturated, result.found.best.steps) == (False, True, ())


@pytest.mark.parametrize("limits", [SaturationLimits(nodes=40, graphs=5), SaturationLimits(rounds=1, graphs=5)])
def test_limits_end_it(limits: SaturationLimits) -> None:
    network = seeded_network(1, units=6, blocks=2)
    result = saturate(network, DEFAULT, SumOfOperators(RandomCostModel(seed=2)), limits)
    assert not result.saturated
    assert not result.found.complete
    assert result.found.best.cost_us <= result.found.before_us


def test_an_interrupt_leaves_what_was_found() -> None:
    network = seeded_network(7, units=4, blocks=1)

    def interrupt(seen: int, best_us: float) -> None:
        raise KeyboardInterrupt

    result = saturate(network, FEW, SumOfOperators(RandomCostModel(seed=7)), SMALL, progress=interrupt)
    assert result.found.interrupted
    assert result.found.best.network is network


def test_it_begins_again_where_a_limit_ended_it() -> None:
    """One round at a time is no e-graph of all there is, but goes on with what was found as long as that pays."""
    network = with_units(fire(), "none")
    cost = SumOfOperators(RandomCostModel(seed=1))
    rules = [rule for rule in DEFAULT if not rule.name.startswith("enlarge-3x3")]
    result = saturate(network, rules, cost, SaturationLimits(rounds=3, graphs=60))
    assert result.rounds > 3
    assert not result.found.complete
    assert result.found.best.cost_us < result.found.before_us
    assert replay(network.graph, result.found.best.steps, NAMED).hash == result.found.best.network.graph.hash


def test_parts_are_saturated_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scheduled, "WHOLE_OPS", 1)
    monkeypatch.setattr(scheduled, "MOST_OPS", 1)
    network = seeded_network(2, units=4, blocks=2)
    search = ByOperators(network, FEW, RandomCostModel(seed=2))
    found = search.of("saturation")
    assert found.best.cost_us == search.operators.us(found.best.network) < found.before_us
    assert replay(network.graph, found.best.steps, NAMED).hash == found.best.network.graph.hash
    assert search.of("joint").best.cost_us <= found.best.cost_us


def test_seconds_that_are_spent_end_it() -> None:
    network = seeded_network(2, units=4, blocks=2)
    found = ByOperators(network, FEW, RandomCostModel(seed=2), budget=RewriteBudget(seconds=1e-9)).of("saturation")
    assert found.best.network.graph.hash == network.graph.hash
    assert not found.complete


#: Rules that are wrong on purpose: two classes are each made of the other.
CIRCLE = (rule("y = sigmoid(x)", "z = relu(x)", "y: z"), rule("y = relu(x); z = sigmoid(y)", "", "z: x"))


def test_no_class_is_made_of_itself() -> None:
    """Two classes are each made of the other, for less than their own inputs cost."""
    b = GraphBuilder("circle", Precision.FP32, 0)
    x = conv_relu(b, "conv", b.input("image", (1, 4, 6, 6)), 4, 1)
    twice = b.add(Sigmoid(), b.add(Sigmoid(), x))
    network = with_units(b.network([twice], ModelSource("circle")), "none")
    cost = SumOfOperators(RandomCostModel(seed=2))
    egraph = EGraph(network.graph)
    grow(egraph, CIRCLE, SaturationLimits())
    (output,) = (egraph.find(egraph.class_of[name]) for name in network.graph.outputs)
    assert {node.op.kind for node in egraph.graph.makers(output)} == {"relu", "sigmoid"}
    prices = operator_prices(egraph, network, cost)
    us = {kind: [prices.alone_us[node.name] for node in nodes] for kind, nodes in egraph.graph.of_kind.items()}
    assert us["conv"][0] > min(us["relu"])
    cheapest = extract_cheapest(egraph, [output], prices, branches=100)
    assert cheapest is not None
    for found in (cheapest, extract_greedily(egraph, [output], prices)):
        graph = extracted_graph(network.graph, egraph, found.makers)
        assert [node.op.kind for node in graph.nodes][:2] == ["conv", "relu"]
        assert found.cost_us == pytest.approx(cost.us(rewritten_network(network, graph)))
        assert found.cost_us >= cheapest.at_least_us


def test_a_depthwise_convolution_is_priced_with_what_reads_it() -> None:
    b = GraphBuilder("separable", Precision.FP32, 0)
    depthwise = b.conv(b.input("image", (1, 4, 6, 6)), 4, 3, padding=1, groups=4, name="depthwise")
    network = with_units(b.network([b.conv(depthwise, 8, 1, name="pointwise")]), "none")
    egraph, cost = EGraph(network.graph), SumOfOperators(V100)
    assert not operator_prices(egraph, network, cost).saved_us
    (pair,) = operator_prices(egraph, network, cost, unit_policy("fused")).saved_us
    assert [egraph.origins[name].node for name in pair] == ["depthwise", "pointwise"]


def test_what_is_equal_makes_equal() -> None:
    b = GraphBuilder("equal", Precision.FP32, 0)
    x = b.input("image", (1, 4, 6, 6))
    values = [b.add(Sigmoid(), b.add(op, x)) for op in (Relu(), Sigmoid())]
    egraph = EGraph(b.graph(values))
    one, other = (egraph.class_of[value] for value in values)
    assert egraph.find(one) != egraph.find(other)
    (relu,), sigmoids = egraph.graph.of_kind["relu"], egraph.graph.of_kind["sigmoid"]
    inner = next(node for node in sigmoids if node.inputs == relu.inputs)
    egraph.union(relu.outputs[0], inner.outputs[0])
    assert egraph.rebuild()
    assert egraph.find(one) == egraph.find(other)
    assert len(egraph.graph.nodes) == 3
    assert not egraph.rebuild()
