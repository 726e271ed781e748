"""The search in parts, cuts of graphs, and what graphs cost: as the schedules that they stand for."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import combinations
from math import inf

import numpy as np
import pytest
from graph_builders import builder_with
from hypothesis import given, settings
from hypothesis import strategies as st
from place_rules import DEFAULT, FEW, NAMED
from random_places import same_outputs

import iossim
from iossim import api
from iossim.cost.model import CostModel, Prices, WrappedCostModel
from iossim.cost.random import RandomCostModel
from iossim.cost.table import BoundaryPrices, PriceTable, StagePrice, TableCostModel
from iossim.ir.network import Block, Network
from iossim.ir.ops.unary import Relu
from iossim.models.passes.block_parts import units_alone
from iossim.models.random_graphs import seeded_network
from iossim.schedule.batch import StageBatch
from iossim.schedule.problem import ScheduleProblem
from iossim.search.options import SearchOptions, StageSpace
from iossim.search.scheduler import schedule
from iossim.transforms.rewriting import graph_costs as module
from iossim.transforms.rewriting.application import apply, replay
from iossim.transforms.rewriting.backtracking import RewriteBudget
from iossim.transforms.rewriting.graph_costs import GraphCost, OptimalSchedule, SumOfOperators, Transferred
from iossim.transforms.rewriting.matching import find_matches
from iossim.transforms.rewriting.parts import minimum_cut, search_in_parts, split
from iossim.transforms.rewriting.rewritten import rewritten_network
from iossim.transforms.rewriting.scheduled import ByOperators


@pytest.mark.parametrize("seed", [2, 4])
def test_parts_find_what_the_whole_finds(seed: int) -> None:
    """The sum of operators is the sum of the parts if nothing spans their seams."""
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
    b, x = builder_with("chain", x=(1, 4, 6, 6))
    for index in range(length):
        x = b.add(Relu(), x, name=f"relu{index}")
    return b.network([x])


@pytest.mark.parametrize(("length", "most_ops"), [(9, 3), (2, 1)])
def test_what_a_cut_broke_is_found_at_the_seams(length: int, most_ops: int) -> None:
    rules = [NAMED["relu-of-relu"]]
    found = search_in_parts(chain(length), rules, SumOfOperators(RandomCostModel()), most_ops=most_ops)
    assert len(found.best.network.graph.nodes) == 1
    assert len(found.best.steps) == length - 1


def test_parts_that_look_alike_are_searched_once() -> None:
    b, x = builder_with("alike", x=(1, 8, 14, 14))
    for block in range(4):
        with b.block(f"block{block}"):
            x = b.add(Relu(), b.conv(x, 8, 3, padding=1, name=f"c{block}"), name=f"r{block}")
            x = b.add(Relu(), x, name=f"s{block}")
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
    search = ByOperators(network, DEFAULT, prices, budget=RewriteBudget(graphs=12))
    found, first = search.search(OptimalSchedule(prices))
    joint, summed = found.best, search.summed.best
    assert joint.cost_us <= min(cost.us(network), *(each.cost_us for each in first.values())) * (1 + 1e-9)
    assert first["backtracking"].cost_us == pytest.approx(cost.us(summed.network))
    assert joint.cost_us == pytest.approx(cost.us(joint.network))
    assert summed.cost_us <= SumOfOperators(prices).us(network)
    for best in (joint, summed):
        assert replay(network.graph, best.steps, NAMED).hash == best.network.graph.hash
        assert same_outputs(network.graph, best.network.graph, seed)


class Stops(SumOfOperators):
    """A cost that is interrupted at its ``left``-th evaluation."""

    left = 0

    def us(self, network: Network) -> float:
        self.left -= 1
        if not self.left:
            raise KeyboardInterrupt
        return super().us(network)


@pytest.mark.parametrize("after", [2, 5, 12, 20])
def test_an_interrupt_leaves_the_best_so_far(after: int) -> None:
    network = seeded_network(4, units=6, blocks=2)
    cost, stops = SumOfOperators(RandomCostModel(seed=1)), Stops(RandomCostModel(seed=1))
    stops.left = after
    budget = RewriteBudget(graphs=20)
    found = search_in_parts(network, DEFAULT, stops, guides=[cost], budget=budget, most_ops=8)
    assert found.interrupted
    assert not found.complete
    assert found.best.cost_us == pytest.approx(cost.us(found.best.network))
    assert found.best.cost_us <= found.before_us


@pytest.mark.slow
def test_what_is_best_one_by_one_is_not_what_is_best_side_by_side() -> None:
    """A block of Inception: rewritten for the sum of operators it is slower when scheduled than as it is; together it is faster."""
    network = iossim.load("inception_v3", block=3)
    prices = api.cost_model("simulator", "v100-sxm2")
    search = ByOperators(network, DEFAULT, prices, budget=RewriteBudget(graphs=12))
    found, first = search.search(OptimalSchedule(prices))
    assert search.summed.best.cost_us < search.summed.before_us
    assert found.best.cost_us < found.before_us < min(each.cost_us for each in first.values())


@pytest.mark.parametrize("seed", range(30))
def test_the_cut_is_the_least(seed: int) -> None:
    """Against every cut that keeps the first and the last third on their sides."""
    rng = np.random.default_rng(seed)
    count = int(rng.integers(2, 9))
    edges = [(a, b) for a, b in combinations(range(count), 2) if rng.random() < 0.35]
    places = [
        frozenset(rng.choice(count, size=min(count, int(rng.integers(1, 4))), replace=False).tolist())
        for _ in range(int(rng.integers(0, 7)))
    ]
    third = max(1, count // 3)

    def broken(before: frozenset[int]) -> tuple[int, int]:
        return (
            sum(bool(place & before) and bool(place - before) for place in places),
            sum(a in before and b not in before for a, b in edges),
        )

    middle = range(third, count - third)
    chosen = (set(some) for size in range(len(middle) + 1) for some in combinations(middle, size))
    cuts = [frozenset({*range(third), *some}) for some in chosen]
    ways = [broken(before) for before in cuts if not any(b in before and a not in before for a, b in edges)]
    found = minimum_cut(range(count), [1] * count, edges, places)
    assert not any(b in found and a not in found for a, b in edges)
    assert set(range(third)) <= found
    assert not found & set(range(count - third, count))
    assert broken(found) == min(ways)


@pytest.mark.parametrize("model", ["squeezenet", "inception_v3"])
def test_parts_hold_each_unit_once_in_an_order_in_which_they_can_run(model: str) -> None:
    network = iossim.load(model)
    for together in ([(unit,) for unit in range(len(network.units))], [block.units for block in network.blocks]):
        parts = split(network, together, [])
        assert sorted(unit for part in parts for unit in part) == list(range(len(network.units)))
        part_of = {unit: index for index, part in enumerate(parts) for unit in part}
        for unit, reads in enumerate(network.predecessors):
            assert all(part_of[before] <= part_of[unit] for before in reads)
        assert all(len({part_of[unit] for unit in units}) == 1 for units in together)
        for part in parts:
            ops = sum(len(network.units[unit].nodes) for unit in part)
            assert ops <= 30 or sum(set(units) <= set(part) for units in together) == 1
            assert len(units_alone(network, part, "part").graph.nodes) == ops


def test_places_are_kept_whole() -> None:
    """Two ops that a rule matches stay together, where as good a cut is beside them."""
    network = iossim.load("squeezenet")
    alone = [(unit,) for unit in range(len(network.units))]
    before, after = split(network, alone, [], 45)[:2]
    place = [network.unit_nodes(network.units[unit])[0].name for unit in (before[-1], after[0])]
    assert not any({before[-1], after[0]} <= set(part) for part in split(network, alone, [], 45))
    assert any({before[-1], after[0]} <= set(part) for part in split(network, alone, [place], 45))


COSTS = (SumOfOperators, OptimalSchedule)


@dataclass(eq=False)
class Counting(WrappedCostModel):
    """Cost model that counts the stages of each batch."""

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


@pytest.mark.parametrize("kind", COSTS)
def test_a_network_without_a_price_costs_infinitely_much(kind: Callable[[CostModel], GraphCost]) -> None:
    network = seeded_network(0, units=4, blocks=1)
    stages = [StagePrice(units=[network.units[0].name], latency_us=1)]
    table = TableCostModel(PriceTable(stages=stages, boundary_us=BoundaryPrices()))
    assert kind(table).us(network) == np.inf


def test_no_unit_is_transferred_before_what_it_reads() -> None:
    network = chain(2)
    known = Transferred({"relu0": 2, "relu1": 1}, {}, 0)
    (stage,) = known.stages(ScheduleProblem.of_block(network, Block("both", (0, 1))), network)
    assert stage.mask == 0b11


@settings(max_examples=40)
@given(st.integers(0, 999), st.integers(4, 9), st.booleans(), st.booleans())
def test_stages_of_a_network_are_transferred_to_another(seed: int, units: int, concurrent: bool, merge: bool) -> None:
    network = seeded_network(seed, units=units, blocks=2)
    cost = OptimalSchedule(RandomCostModel(seed=seed), SearchOptions(StageSpace(concurrent=concurrent, merge=merge)))
    exact_us = cost.us(network)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "MANY", 0)
        assert cost.near_us(network, network) == pytest.approx(exact_us, rel=1e-12), "its own stages"
        applied = (apply(network.graph, match) for rule in DEFAULT for match in find_matches(network.graph, rule))
        for made in [each for each in applied if each is not None][:5]:
            other = rewritten_network(network, made.graph)
            assert cost.near_us(other, network) >= cost.us(other) * (1 - 1e-12)
    assert cost.near_us(network, network) == exact_us, "few prices: found anew"
