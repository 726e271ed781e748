"""Backtracking and equality saturation: each finds what exhaustive search finds, computes the same, has its steps, and ends as it is told to."""

from collections.abc import Callable
from math import inf

import numpy as np
import pytest
from place_rules import DEFAULT, FEW, NAMED, every_graph, rule
from random_places import same_outputs

import iossim
from iossim import api
from iossim.base.errors import OptionError
from iossim.cost.model import CostModel
from iossim.cost.random import RandomCostModel
from iossim.hardware.load import device
from iossim.hardware.profile import with_values
from iossim.ir.builder import GraphBuilder
from iossim.ir.network import ModelSource, Network
from iossim.ir.ops.unary import Relu, Sigmoid
from iossim.ir.types import Precision
from iossim.models.layers import conv_relu, join
from iossim.models.passes.block_parts import single_block
from iossim.models.passes.unit_fusion import unit_policy, with_units
from iossim.models.random_graphs import seeded_network
from iossim.transforms.rewriting import scheduled
from iossim.transforms.rewriting.application import apply, replay
from iossim.transforms.rewriting.backtracking import Candidate, RewriteBudget, Search, touched
from iossim.transforms.rewriting.egraph import EGraph, operator_prices
from iossim.transforms.rewriting.extraction import extract_cheapest, extract_greedily, extracted_graph
from iossim.transforms.rewriting.graph_costs import GraphCost, OptimalSchedule, SumOfOperators
from iossim.transforms.rewriting.matching import Match, find_matches
from iossim.transforms.rewriting.parts import search_in_parts
from iossim.transforms.rewriting.rewritten import rewritten_network
from iossim.transforms.rewriting.rule_sets import rule_set
from iossim.transforms.rewriting.saturation import SaturationLimits, grow, saturate
from iossim.transforms.rewriting.scheduled import ByOperators


@pytest.mark.parametrize("kind", [SumOfOperators, OptimalSchedule])
@pytest.mark.parametrize(("seed", "units"), [(2, 5), (4, 5), (7, 4)])
def test_backtracking_finds_what_exhaustive_search_finds(
    seed: int, units: int, kind: Callable[[CostModel], GraphCost]
) -> None:
    network = seeded_network(seed, units, blocks=1)
    cost = kind(RandomCostModel(seed=seed))
    graphs = every_graph(network.graph, FEW)
    found = search_in_parts(network, FEW, cost, alpha=inf)
    assert found.best.cost_us == pytest.approx(min(cost.us(rewritten_network(network, graph)) for graph in graphs))
    assert found.complete
    assert found.seen == found.expanded == len(graphs) > 1
    assert found.best.cost_us == cost.us(found.best.network) <= found.before_us


@pytest.mark.parametrize("seed", range(4))
def test_the_result_computes_the_same_and_is_replayed(seed: int) -> None:
    network = seeded_network(seed, units=6, blocks=2)
    found = search_in_parts(network, DEFAULT, SumOfOperators(RandomCostModel(seed)), budget=RewriteBudget(graphs=12))
    graph = found.best.network.graph
    assert replay(network.graph, found.best.steps, NAMED).hash == graph.hash
    assert found.best.steps
    assert same_outputs(network.graph, graph, seed)


def told(match: Match) -> str:
    """All that a match says; its dictionaries may be in any order."""
    return str((match.nodes, sorted(match.tensors.items()), sorted(match.attributes.items())))


@pytest.mark.parametrize("seed", range(4))
def test_only_what_a_change_touches_matches_otherwise(seed: int) -> None:
    """Matches that are carried over, and those that are found near the change, are all there are."""
    graph = seeded_network(seed, units=6, blocks=1).graph
    generator = np.random.default_rng(seed)
    for _ in range(6):
        before = {rule.name: find_matches(graph, rule) for rule in DEFAULT}
        places = [match for matches in before.values() for match in matches]
        made = apply(graph, places[int(generator.integers(len(places)))]) if places else None
        if made is None:
            continue
        near = touched(graph, made.graph)
        there = {node.name for node in made.graph.nodes} - near
        for each in DEFAULT:
            kept = [match for match in before[each.name] if there.issuperset(match.nodes)]
            found = [*kept, *find_matches(made.graph, each, near)]
            assert sorted(map(told, found)) == sorted(map(told, find_matches(made.graph, each)))
        graph = made.graph


def test_alpha_decides_whether_what_costs_at_first_is_searched_on() -> None:
    network = seeded_network(7, units=4, blocks=1)
    cost = SumOfOperators(RandomCostModel(seed=2))
    seen = [search_in_parts(network, FEW, cost, alpha=alpha).expanded for alpha in (1, 1.05, 1.5, inf)]
    assert seen == sorted(seen)
    assert seen[0] < seen[-1]
    for alpha in (0.99, float("nan")):
        with pytest.raises(OptionError, match=r"`alpha` .* is not possible: give 1 or more"):
            search_in_parts(network, FEW, cost, alpha=alpha)


def test_a_budget_ends_the_search_with_the_best_so_far() -> None:
    network = seeded_network(1, units=6, blocks=2)
    cost = SumOfOperators(RandomCostModel(seed=2))
    for budget in (RewriteBudget(graphs=3), RewriteBudget(seconds=0.0)):
        found = search_in_parts(network, DEFAULT, cost, budget=budget)
        assert (found.expanded, found.complete) == (budget.graphs or 0, False)
        assert found.best.cost_us <= found.before_us
    again = [search_in_parts(network, DEFAULT, cost, budget=RewriteBudget(graphs=3)) for _ in range(2)]
    assert again[0].best.steps == again[1].best.steps


def test_budgets_are_read() -> None:
    texts = {"200": RewriteBudget(graphs=200), "30s": RewriteBudget(seconds=30.0), "all": RewriteBudget()}
    for text, budget in texts.items():
        assert RewriteBudget.parse(text) == budget
        assert str(budget) == text
    for wrong in ("", "many", "0", "-3", "1.5", "nans", "infs"):
        with pytest.raises(OptionError, match=r"`rewrite_budget` .* give a number of graphs"):
            RewriteBudget.parse(wrong)


def test_seeds_are_never_lost() -> None:
    network = seeded_network(1, units=6, blocks=1)
    cost = SumOfOperators(RandomCostModel(seed=2))
    best = search_in_parts(network, DEFAULT, cost, budget=RewriteBudget(graphs=20)).best
    found = Search(network, [NAMED["relu-of-relu"]], cost, seeds=[best]).best
    assert found.steps == best.steps
    assert found.cost_us <= best.cost_us


def test_a_graph_that_no_rule_matches_is_returned_as_it_is() -> None:
    network = seeded_network(1, units=4, blocks=1)
    found = search_in_parts(network, [NAMED["relu-of-relu"]], SumOfOperators(RandomCostModel()))
    assert found.best.network is network
    assert (found.matched, found.seen, found.complete, found.best.steps) == (False, 1, True, ())


def test_a_focus_holds_the_search_to_a_place() -> None:
    network = seeded_network(2, units=6, blocks=2)
    cost = SumOfOperators(RandomCostModel(seed=2))
    place = find_matches(network.graph, NAMED["enlarge-1x1-to-3x3"])[0].nodes
    rules = [NAMED["enlarge-1x1-to-3x3"]]
    there, everywhere = (Search(network, rules, cost, alpha=inf, focus=focus) for focus in (frozenset(place), None))
    for work in (there, everywhere):
        while not work.complete:
            work.expand()
    assert there.seen == 2
    assert everywhere.seen > 2


def test_a_candidate_of_the_same_cost_does_not_replace_the_first() -> None:
    network = seeded_network(1, units=4, blocks=1)
    cost = SumOfOperators(RandomCostModel())
    same = Candidate(network, (), cost.us(network))
    assert Search(network, [], cost, seeds=[same]).best.network is network


V100 = api.cost_model("simulator", "v100-sxm2")


def test_a_step_that_costs_more_than_alpha_allows_is_taken_with_the_one_that_needs_it() -> None:
    """A kernel of ResNet-18 is enlarged for 37% of its block, before two convolutions merge."""
    network = single_block(iossim.load("resnet18"), "layer4.0")
    cost = SumOfOperators(V100)
    rules = [NAMED["enlarge-1x1-to-3x3"], NAMED["merge-convolutions"]]
    found = search_in_parts(network, rules, cost)
    assert [step.rule for step in found.best.steps] == ["enlarge-1x1-to-3x3", "merge-convolutions"]
    assert found.best.cost_us < found.before_us
    assert search_in_parts(network, rules[:1], cost).seen == 2, "alone it is not searched on"
    assert search_in_parts(network, rules[:1], cost).expanded == 1


@pytest.mark.slow
@pytest.mark.parametrize("name", ["alexnet", "resnet18"])
def test_backtracking_finds_the_least_of_all_graphs(name: str) -> None:
    """A saturated e-graph has all graphs there are; and graph after graph, where few rules make few."""
    network = iossim.load(name)
    cost = SumOfOperators(V100)
    ending = [rule for rule in rule_set("metaflow") if not rule.name.startswith("identity-beside")]
    bound = saturate(network, ending, cost)
    assert bound.saturated
    found = search_in_parts(network, ending, cost)
    assert found.complete
    assert found.best.cost_us == pytest.approx(bound.extraction.at_least_us)
    few = [NAMED[name] for name in ("merge-convolutions", "enlarge-1x1-to-3x3", "relu-behind-max-pool")]
    every, found = (search_in_parts(network, few, cost, alpha=alpha) for alpha in (inf, 1.05))
    assert every.complete
    assert found.best.cost_us == pytest.approx(every.best.cost_us)
    assert found.seen <= every.seen


SMALL = SaturationLimits(nodes=300, rounds=4, graphs=60)


def fire() -> Network:
    """A fire module of SqueezeNet, made small: two convolutions of one input, joined."""
    b = GraphBuilder("fire", Precision.FP32, 0)
    x = conv_relu(b, "squeeze", b.input("image", (1, 8, 14, 14)), 4, 1)
    branches = [conv_relu(b, f"expand{kernel}", x, 8, kernel, padding=kernel // 2) for kernel in (1, 3)]
    return b.network([join(b, "concat", branches)], ModelSource("fire"))


@pytest.mark.parametrize("units", ["none", "conv-relu"])
@pytest.mark.parametrize(("seed", "size"), [(2, 5), (4, 5), (7, 4)])
def test_saturation_finds_what_exhaustive_search_finds(seed: int, size: int, units: str) -> None:
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
    # An e-graph has no order, by which activations of the extracted graph may be in L2 or not: here none stays there.
    forgets = with_values(device("v100-sxm2"), {"l2_resident_fraction": 1e-6})
    cost = SumOfOperators(api.cost_model("simulator", forgets))
    result = saturate(network, DEFAULT, cost)
    best_us = search_in_parts(network, DEFAULT, cost, budget=RewriteBudget(graphs=60)).best.cost_us
    assert result.found.best.cost_us <= best_us * (1 + 1e-9)
    assert result.extraction.cost_us == pytest.approx(result.extracted.cost_us, rel=1e-9)
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
