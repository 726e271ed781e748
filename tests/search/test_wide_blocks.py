"""Blocks of more units than compiled code takes: their masks, their prices, and what a search finds for them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from random_networks import random_network

import iossim
from iossim.base.errors import OptionError, PlanError
from iossim.cost.model import price_path
from iossim.cost.random import RandomCostModel
from iossim.execution.happens_before import check_happens_before
from iossim.execution.lower import lower_schedule
from iossim.ir.network import Network
from iossim.models.load import load_source
from iossim.models.passes.blocks import cut_blocks
from iossim.schedule import planned_stage, problem
from iossim.schedule.batch import StageBatch, Strategy
from iossim.schedule.fit import fit
from iossim.schedule.planned_stage import PlannedStage, batches_of
from iossim.schedule.problem import ScheduleProblem, bits
from iossim.schedule.schedule import Schedule
from iossim.search import lattice, unsearched
from iossim.search.counting import width
from iossim.search.ios import STRATEGIES
from iossim.search.measured import Budget
from iossim.search.measured.schedule import schedule_measured
from iossim.search.options import SearchOptions
from iossim.search.scheduler import schedule
from iossim.search.unsearched import greedy_stages


def _ladder(rungs: int) -> ScheduleProblem:
    """Two chains, the second of which reads the first at every third rung."""
    edges = [(unit, unit + 2) for unit in range(2 * rungs - 2)]
    edges += [(2 * rung, 2 * rung + 3) for rung in range(0, rungs - 1, 3)]
    return ScheduleProblem.of_edges(2 * rungs, edges)


def test_masks_of_a_wide_problem_are_what_they_say() -> None:
    wide = _ladder(50)
    assert wide.is_wide
    assert not _ladder(32).is_wide
    reads = [set(bits(mask)) for mask in wide.predecessors.tolist()]
    for unit in range(len(wide)):
        assert set(bits(int(wide.successors[unit]))) == {other for other, own in enumerate(reads) if unit in own}
        before = set(reads[unit])
        while more := {other for one in before for other in reads[one]} - before:
            before |= more
        assert set(bits(int(wide.ancestors[unit]))) == before
        after = {other for other in range(len(wide)) if int(wide.ancestors[other]) >> unit & 1}
        assert set(bits(int(wide.descendants[unit]))) == after
    assert width(wide) == 2
    assert wide.key == _ladder(50).key
    assert wide.key != _ladder(51).key


def test_some_units_of_a_wide_problem_are_a_problem_of_their_own() -> None:
    part = _ladder(50).restrict(range(30, 70))
    assert part.predecessors.dtype == np.uint64
    assert part.predecessors.tolist() == [int(mask) >> 30 for mask in _ladder(50).predecessors[30:70].tolist()]


def test_a_wide_problem_is_not_priced_as_a_whole() -> None:
    with pytest.raises(ValueError, match="is wide: restrict it"):
        StageBatch.concurrent(_ladder(50), np.ones(1, dtype=np.uint64))
    with pytest.raises(PlanError, match="a stage has 70 units, and may have 64; split it in two"):
        list(batches_of(ScheduleProblem.of_edges(70, []), [PlannedStage((1 << 70) - 1, Strategy.CONCURRENT)]))


def test_more_units_than_a_stage_may_hold_are_ready() -> None:
    stages = greedy_stages(ScheduleProblem.of_edges(100, []))
    assert [stage.mask.bit_count() for stage in stages] == [64, 36]


@pytest.fixture
def narrow_code(monkeypatch: pytest.MonkeyPatch) -> int:
    """As if compiled code took eight units at most: then small networks, solved otherwise, have wide blocks."""
    for module in (problem, planned_stage, lattice, unsearched):
        monkeypatch.setattr(module, "MAX_UNITS", 8)
    return 8


@given(st.integers(0, 2**20))
@settings(max_examples=40)
def test_wide_blocks_are_searched_as_well_as_they_can_be(seed: int) -> None:
    network = cut_blocks(random_network(seed, blocks=1, units=14))
    prices = RandomCostModel(seed=seed)
    exact = {name: schedule(network, prices, name) for name in STRATEGIES}
    with pytest.MonkeyPatch.context() as patch:
        for module in (problem, planned_stage, lattice, unsearched):
            patch.setattr(module, "MAX_UNITS", 8)
        found = {name: schedule(network, prices, name) for name in STRATEGIES}
        plain = [schedule(network, prices, name) for name in ("sequential", "greedy")]
    for name, best in exact.items():
        fit(found[name], network)
        assert found[name].latency_us >= best.latency_us * (1 - 1e-12)
        assert found[name].lower_bound_us is not None
        assert found[name].lower_bound_us <= best.latency_us * (1 + 1e-12)
        assert found[name].latency_us == pytest.approx(
            sum(stage.latency_us + stage.boundary_us for stage in found[name].stages)
        )
    for worse in (found["ios-parallel"], found["ios-merge"], *plain):
        assert found["ios-both"].latency_us <= worse.latency_us * (1 + 1e-12)


def test_a_path_costs_the_same_in_runs_of_few_units(narrow_code: int) -> None:
    network = random_network(13, blocks=1, units=30)
    whole = ScheduleProblem.of_block(network, network.blocks[0])
    assert whole.is_wide
    prices = RandomCostModel(seed=2)
    stages = greedy_stages(whole)
    path = price_path(whole, stages, prices)
    for stage, price_us in zip(stages, path.prices_us, strict=True):
        units = bits(stage.mask)
        alone = StageBatch.concurrent(whole.restrict(units), np.array([(1 << len(units)) - 1], dtype=np.uint64))
        assert prices.price_stages(alone).tolist() == [price_us]


@pytest.fixture(scope="module")
def wide() -> Network:
    network = iossim.load("randwire", units="none", block="stage5")
    assert len(network.blocks[0].units) > 64
    return network


def test_a_wide_block_from_the_zoo_is_one_problem(wide: Network) -> None:
    found = iossim.compare(wide, "t4", engine="graph")
    by_name = {each.scheduler: each for each in found.schedules}
    best = by_name["ios-both"]
    assert isinstance(best, Schedule)
    assert len(best.blocks) == 1
    assert best.latency_us <= min(each.latency_us for each in found.schedules)
    assert not best.proven
    again = load_source(wide.source)
    assert again.blocks == wide.blocks
    fit(Schedule.model_validate_json(best.model_dump_json()), again)
    check_happens_before(lower_schedule(best, wide, best.engine))


def test_a_search_by_measurements_takes_narrow_blocks(wide: Network) -> None:
    prices = RandomCostModel()
    with pytest.raises(OptionError, match="a search by measurements takes at most 64; load the network with"):
        schedule_measured(wide, prices, prices, "ios-both", SearchOptions(), Budget(measurements=3))  # type: ignore[arg-type]
