"""What graphs cost: as the schedules that they stand for; and each unit is priced, each block solved, once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import iossim
from iossim import api
from iossim.cost.model import CostModel, Prices, WrappedCostModel
from iossim.cost.random import RandomCostModel
from iossim.cost.table import BoundaryPrices, PriceTable, StagePrice, TableCostModel
from iossim.ir.network import Network
from iossim.models.random_graphs import seeded_network
from iossim.schedule.batch import StageBatch
from iossim.search.scheduler import schedule
from iossim.transforms.rewriting import graph_costs as module
from iossim.transforms.rewriting.application import apply
from iossim.transforms.rewriting.graph_costs import GraphCost, OptimalSchedule, SumOfOperators
from iossim.transforms.rewriting.matching import find_matches
from iossim.transforms.rewriting.rewritten import rewritten_network
from iossim.transforms.rewriting.rule_sets import rule_set

ALL = (*rule_set("metaflow"), *rule_set("simplify"))
COSTS = (SumOfOperators, OptimalSchedule)


@dataclass(eq=False)
class Counting(WrappedCostModel):
    """Tells how often it was asked, and for how many stages."""

    batches: list[int] = field(default_factory=list)

    def price_stages(self, batch: StageBatch) -> Prices:
        self.batches.append(len(batch))
        return super().price_stages(batch)


def models() -> list[CostModel]:
    return [RandomCostModel(seed=3), api.cost_model("simulator", "v100-sxm2")]


@pytest.mark.parametrize("prices", models(), ids=["random", "simulator"])
@pytest.mark.parametrize("network", [seeded_network(1, units=9, blocks=3), iossim.load("squeezenet")], ids=str)
def test_costs_are_those_of_schedules(network: Network, prices: CostModel) -> None:
    assert SumOfOperators(prices).us(network) == pytest.approx(schedule(network, prices, "sequential").latency_us)
    assert OptimalSchedule(prices).us(network) == pytest.approx(schedule(network, prices, "ios-both").latency_us)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("kind", COSTS)
def test_no_bound_is_above_the_cost(seed: int, kind: Callable[[CostModel], GraphCost]) -> None:
    network = seeded_network(seed, units=8, blocks=2)
    for prices in models():
        cost = kind(prices)
        assert 0 < cost.at_least_us(network) <= cost.us(network) * (1 + 1e-12)


def test_units_are_priced_and_blocks_solved_once() -> None:
    network = iossim.load("squeezenet")
    again = replace(network, name="again")
    for cost in (SumOfOperators, OptimalSchedule):
        prices = Counting(RandomCostModel(seed=3))
        made = cost(prices)
        first_us = made.us(network)
        asked = list(prices.batches)
        if cost is SumOfOperators:
            assert asked == [len(set(network.signatures))]
        assert made.us(again) == first_us
        assert sum(prices.batches[len(asked) :]) <= len(network.units) / 4, "merged stages alone are asked for again"


def test_a_network_without_a_price_costs_infinitely_much() -> None:
    network = seeded_network(0, units=4, blocks=1)
    first = network.units[0].name
    table = PriceTable(stages=[StagePrice(units=[first], latency_us=1)], boundary_us=BoundaryPrices())
    for kind in COSTS:
        assert kind(TableCostModel(table)).us(network) == np.inf


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 999), st.integers(4, 9), st.booleans(), st.booleans())
def test_stages_of_a_network_are_transferred_to_another(seed: int, units: int, concurrent: bool, merge: bool) -> None:
    network = seeded_network(seed, units=units, blocks=2)
    cost = OptimalSchedule(RandomCostModel(seed=seed), concurrent=concurrent, merge=merge)
    exact_us = cost.us(network)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "MANY", 0)
        assert cost.near_us(network, network) == pytest.approx(exact_us, rel=1e-12), "its own stages"
        applied = (apply(network.graph, match) for rule in ALL for match in find_matches(network.graph, rule))
        for made in [each for each in applied if each is not None][:5]:
            other = rewritten_network(network, made.graph)
            assert cost.near_us(other, network) >= cost.us(other) * (1 - 1e-12)
    assert cost.near_us(network, network) == exact_us, "few prices: found anew"
