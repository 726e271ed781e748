"""The search in parts, and together with the schedule: never worse than what it begins with, and the same outputs."""

from __future__ import annotations

from math import inf

import numpy as np
import pytest

import iossim
from iossim import api
from iossim.backends.numpy_reference.execute import evaluate_graph
from iossim.cost.random import RandomCostModel
from iossim.ir.builder import GraphBuilder
from iossim.ir.network import Network
from iossim.ir.ops.unary import Relu
from iossim.models.random_graphs import seeded_network
from iossim.transforms.rewriting.application import replay
from iossim.transforms.rewriting.backtracking import RewriteBudget
from iossim.transforms.rewriting.graph_costs import GraphCost, OptimalSchedule, SumOfOperators
from iossim.transforms.rewriting.parts import search_in_parts
from iossim.transforms.rewriting.rule_sets import rule_set
from iossim.transforms.rewriting.scheduled import ByOperators

RULES = (*rule_set("metaflow"), *rule_set("simplify"))
NAMED = {rule.name: rule for rule in RULES}
FEW = tuple(
    NAMED[name] for name in ("merge-convolutions", "relus-of-split-into-2", "enlarge-1x1-to-3x3", "relu-of-relu")
)


@pytest.mark.parametrize("seed", [2, 4])
def test_parts_find_what_the_whole_finds(seed: int) -> None:
    """Where nothing spans their seams, the sum of operators is the sum of the parts."""
    network = seeded_network(seed, units=4, blocks=2)
    cost = SumOfOperators(RandomCostModel(seed))
    whole = search_in_parts(network, FEW, cost, alpha=inf)
    parts = search_in_parts(network, FEW, cost, alpha=inf, most_ops=6, blocks_whole=True)
    assert parts.best.cost_us == pytest.approx(whole.best.cost_us)
    assert parts.complete
    assert parts.seen <= whole.seen
    assert replay(network.graph, parts.best.steps, NAMED).hash == parts.best.network.graph.hash


def chain(length: int) -> Network:
    """Activations in a row: every two of them are a place, so that any cut breaks one."""
    b = GraphBuilder("chain")
    x = b.input("x", (1, 4, 6, 6))
    for index in range(length):
        x = b.add(Relu(), x, name=f"relu{index}")
    return b.network([x])


def test_what_a_cut_broke_is_found_at_the_seams() -> None:
    network = chain(9)
    found = search_in_parts(network, [NAMED["relu-of-relu"]], SumOfOperators(RandomCostModel()), most_ops=3)
    assert len(found.best.network.graph.nodes) == 1
    assert len(found.best.steps) == 8


def test_parts_that_look_alike_are_searched_once() -> None:
    b = GraphBuilder("alike")
    x = b.input("x", (1, 8, 14, 14))
    for block in range(4):
        with b.block(f"block{block}"):
            x = b.add(
                Relu(), b.add(Relu(), b.conv(x, 8, 3, padding=1, name=f"c{block}"), name=f"r{block}"), name=f"s{block}"
            )
    network = b.network([x])
    cost = SumOfOperators(RandomCostModel())
    found = search_in_parts(network, [NAMED["relu-of-relu"]], cost, most_ops=3, blocks_whole=True)
    assert [step.nodes for step in found.best.steps] == [(f"r{block}", f"s{block}") for block in range(4)]
    assert found.expanded <= 3


@pytest.mark.parametrize("seed", [0, pytest.param(2, marks=pytest.mark.slow)])
def test_joint_search_is_never_worse(seed: int) -> None:
    prices = RandomCostModel(seed)
    network = seeded_network(seed, units=6, blocks=2)
    cost = OptimalSchedule(prices)
    search = ByOperators(network, RULES, prices, budget=RewriteBudget(graphs=12))
    found, first = search.search(OptimalSchedule(prices))
    joint, summed = found.best, search.summed.best
    assert joint.cost_us <= min(cost.us(network), *(each.cost_us for each in first.values())) * (1 + 1e-9)
    assert first["backtracking"].cost_us == pytest.approx(cost.us(summed.network))
    assert joint.cost_us == pytest.approx(cost.us(joint.network))
    assert summed.cost_us <= SumOfOperators(prices).us(network)
    image = {"image": np.random.default_rng(seed).standard_normal((1, 8, 14, 14)).astype(np.float32)}
    before = evaluate_graph(network.graph, image)
    for best in (joint, summed):
        assert replay(network.graph, best.steps, NAMED).hash == best.network.graph.hash
        for name, value in evaluate_graph(best.network.graph, image).items():
            np.testing.assert_allclose(value, before[name], rtol=1e-4, atol=1e-4)


class Stops:
    """A cost that is interrupted from the so-manieth time on that it is asked for."""

    def __init__(self, inner: GraphCost, after: int) -> None:
        self.inner, self.left = inner, after

    def us(self, network: Network) -> float:
        self.left -= 1
        if not self.left:
            raise KeyboardInterrupt
        return self.inner.us(network)

    def at_least_us(self, network: Network) -> float:
        return self.inner.at_least_us(network)

    def near_us(self, network: Network, like: Network, most_us: float = inf) -> float:
        return self.us(network)


@pytest.mark.parametrize("after", [2, 5, 12])
def test_an_interrupt_leaves_the_best_so_far(after: int) -> None:
    network = seeded_network(4, units=6, blocks=2)
    cost = SumOfOperators(RandomCostModel(seed=1))
    found = search_in_parts(
        network, RULES, Stops(cost, after), guides=[cost], budget=RewriteBudget(graphs=20), most_ops=8
    )
    assert found.interrupted
    assert not found.complete
    assert found.best.cost_us == pytest.approx(cost.us(found.best.network))
    assert found.best.cost_us <= found.before_us


@pytest.mark.slow
def test_what_is_best_one_by_one_is_not_what_is_best_side_by_side() -> None:
    """A block of Inception: rewritten for the sum of operators it is slower when scheduled than as it is; together it is faster."""
    network = iossim.load("inception_v3", block=3)
    prices = api.cost_model("simulator", "v100-sxm2")
    search = ByOperators(network, RULES, prices, budget=RewriteBudget(graphs=12))
    found, first = search.search(OptimalSchedule(prices))
    assert search.summed.best.cost_us < search.summed.before_us
    assert found.best.cost_us < found.before_us < min(each.cost_us for each in first.values())
