"""Views that a search leaves out: the same optimum, and the stages of all units again."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from random_networks import random_network

from iossim import api
from iossim.cost.model import problems_of
from iossim.ir.builder import GraphBuilder
from iossim.ir.network import BATCH_VIEW, Network
from iossim.ir.ops.slice import Concat
from iossim.microbatching.divided_blocks import divide_blocks
from iossim.microbatching.divisible import divisible
from iossim.schedule.batch import Strategy
from iossim.schedule.planned_stage import PlannedStage, batches_of
from iossim.schedule.problem import ScheduleProblem, bits
from iossim.search import ios
from iossim.search.free_views import WithoutViews
from iossim.search.lattice import build_lattice, price_merges
from iossim.search.options import SearchOptions


class AsTheyAre:
    """Every view stays."""

    @staticmethod
    def of(problem: ScheduleProblem) -> WithoutViews:
        units = tuple(range(len(problem)))
        return WithoutViews(problem, units, tuple(1 << unit for unit in units))


def some_divided(seed: int) -> Network:
    network = random_network(seed, blocks=3, units=3, movers=True)
    names = [block.name for block in network.blocks if divisible(network, block, 2)]
    assume(names and network.graph.types["x"].shape[0] == 2)
    return divide_blocks(network, dict.fromkeys(names[:-1] or names, 2))


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**20), st.sampled_from(["ios-parallel", "ios-both"]))
def test_the_optimum_stays(seed: int, scheduler: str) -> None:
    network = some_divided(seed)
    found = api.optimize(network, "v100-sxm2", scheduler=scheduler)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ios, "WithoutViews", AsTheyAre)
        expected = api.optimize(network, "v100-sxm2", scheduler=scheduler)
    assert found.latency_us == pytest.approx(expected.latency_us, rel=1e-12)
    assert sorted(name for stage in found.stages for name in stage.units) == sorted(u.name for u in network.units)


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**20))
def test_what_is_left_is_the_same_problem(seed: int) -> None:
    network = some_divided(seed)
    for block in network.blocks:
        problem = ScheduleProblem.of_block(network, block)
        made = WithoutViews.of(problem)
        assert sorted(unit for own in made.members for unit in bits(own)) == list(range(len(problem)))
        assert all(own & 1 << unit for unit, own in zip(made.units, made.members, strict=True))
        dropped = set(range(len(problem))) - set(made.units)
        assert all(network.units[problem.units[unit]].kind == BATCH_VIEW for unit in dropped)
        whole, small = build_lattice(problem, 10**6), build_lattice(made.problem, 10**6)
        assert whole is not None
        assert small is not None
        # Each state without them is one with them.
        spread = [sum(made.members[unit] for unit in bits(int(mask))) for mask in small.masks]
        assert set(spread) <= set(whole.masks.tolist())
        for mask, wide in zip(small.masks.tolist(), spread, strict=True):
            assert len(made.problem.groups(mask)) == len(problem.groups(wide))
        assert not dropped or len(small) < len(whole)
        np.testing.assert_array_equal(made.problem.merge_class, problem.merge_class[list(made.units)])


def heads(counts: list[tuple[int, int]], seed: int | None = None) -> Network:
    """So many equal convolutions of each number of filters on one input, and a concat of them, in any order by a seed."""
    b = GraphBuilder("heads")
    x = b.input("x", (1, 16, 14, 14))
    with b.block("heads"):
        made = [
            b.conv(x, filters, 3, padding=1, name=f"{run}.{filters}.{index}")
            for run, (count, filters) in enumerate(counts)
            for index in range(count)
        ]
        terms = made if seed is None else Random(seed).sample(made, len(made))
        y = b.conv(b.add(Concat(1), *terms, name="all"), 8, 1, name="last")
    return b.network([y])


@settings(max_examples=15, deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 4), st.sampled_from([8, 16, 24])), min_size=1, max_size=3),
    st.none() | st.integers(0, 99),
    st.sampled_from([("simulator", "paper"), ("simulator", "graph"), ("random:1", "paper"), ("random:2", "paper")]),
    st.sampled_from(["ios-parallel", "ios-both"]),
)
def test_equal_units_in_one_order_have_the_same_optimum(
    counts: list[tuple[int, int]], seed: int | None, prices: tuple[str, str], scheduler: str
) -> None:
    """In a graph it matters, too, whether the results of a merged convolution are together in the concat."""
    assume(sum(count for count, _ in counts) <= 7)
    network, (cost_model, engine) = heads(counts, seed), prices
    priced = api.cost_model(cost_model, "v100-sxm2", engine=engine)
    for problem in problems_of(network, priced):
        merged = price_merges(problem, priced, 10)
        stages = [PlannedStage(int(mask), Strategy.MERGE) for mask in merged.masks]
        each_us = [float(priced.price_stages(one)[0]) for stage in stages for one in batches_of(problem, [stage])]
        assert merged.prices_us.tolist() == each_us
    found = api.optimize(network, "v100-sxm2", scheduler=scheduler, cost_model=priced)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ios, "WithoutViews", AsTheyAre)
        expected = api.optimize(network, "v100-sxm2", scheduler=scheduler, cost_model=priced)
    assert found.latency_us == pytest.approx(expected.latency_us, rel=1e-12)
    assert found.proven == expected.proven


def test_of_equal_units_there_are_as_many_states_as_may_be_done() -> None:
    network = heads([(36, 8)])
    problem = WithoutViews.of(ScheduleProblem.of_block(network, network.blocks[0])).problem
    lattice = build_lattice(problem, 10**6)
    assert lattice is not None
    assert len(lattice) == 37 + len(problem) - 36
    found = ios.solve([problem], api.cost_model("simulator", "v100-sxm2"), SearchOptions(), concurrent=True, merge=True)
    assert found.lower_bound_us == found.cost_us
    assert not found.notes
    assert found.priced_stages < 800
