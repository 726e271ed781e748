"""Backtracking search: it finds what exhaustive search finds, matches only what changed, and ends as it is told to."""

from __future__ import annotations

from collections.abc import Callable
from math import inf

import numpy as np
import pytest
from place_rules import DEFAULT, FEW, NAMED, every_graph
from random_places import same_outputs

import iossim
from iossim import api
from iossim.base.errors import OptionError
from iossim.cost.model import CostModel
from iossim.cost.random import RandomCostModel
from iossim.models.passes.block_parts import single_block
from iossim.models.random_graphs import seeded_network
from iossim.transforms.rewriting.application import apply, replay
from iossim.transforms.rewriting.backtracking import Candidate, RewriteBudget, Search, touched
from iossim.transforms.rewriting.graph_costs import GraphCost, OptimalSchedule, SumOfOperators
from iossim.transforms.rewriting.matching import Match, find_matches
from iossim.transforms.rewriting.parts import search_in_parts
from iossim.transforms.rewriting.rewritten import rewritten_network
from iossim.transforms.rewriting.rule_sets import rule_set
from iossim.transforms.rewriting.saturation import saturate


@pytest.mark.parametrize("kind", [SumOfOperators, OptimalSchedule])
@pytest.mark.parametrize(("seed", "units"), [(2, 5), (4, 5), (7, 4)])
def test_it_finds_what_exhaustive_search_finds(seed: int, units: int, kind: Callable[[CostModel], GraphCost]) -> None:
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
        for rule in DEFAULT:
            kept = [match for match in before[rule.name] if there.issuperset(match.nodes)]
            found = [*kept, *find_matches(made.graph, rule, near)]
            assert sorted(map(told, found)) == sorted(map(told, find_matches(made.graph, rule)))
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
