"""The endings that the search looks at and their bounds, and blocks of more units than compiled code takes."""

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest
from brute_force import Unbounded, problems, spaces, stages_of
from hypothesis import given, settings
from hypothesis import strategies as st
from random_networks import random_network

import iossim
from iossim.base.errors import OptionError, PlanError
from iossim.cost.model import StageBounds, price_path
from iossim.cost.random import RandomCostModel
from iossim.execution.lower import lower_schedule
from iossim.execution.memory import check_happens_before
from iossim.ir.network import Network
from iossim.models.load import load_source
from iossim.models.passes.blocks import cut_blocks
from iossim.schedule import planned_stage, problem
from iossim.schedule.batch import StageBatch, Strategy
from iossim.schedule.fit import fit
from iossim.schedule.masks import GrowingTable
from iossim.schedule.planned_stage import PlannedStage, batches_of
from iossim.schedule.problem import ScheduleProblem, bits
from iossim.schedule.schedule import Schedule
from iossim.search import lattice, unsearched
from iossim.search.block_parts import Part
from iossim.search.block_search import solve_block
from iossim.search.counting import width
from iossim.search.endings import Endings, Labels, StateGraph, find_endings, summed_bounds
from iossim.search.ios import STRATEGIES
from iossim.search.lattice import Lattice, build_lattice, no_merges
from iossim.search.measured import Budget
from iossim.search.measured.search import schedule_measured
from iossim.search.options import SearchOptions, StageSpace
from iossim.search.scheduler import schedule
from iossim.search.unsearched import greedy_stages
from iossim.testing.conformance import least_price_us


def random_bounds(units: int, seed: int) -> StageBounds:
    draw = np.random.default_rng(seed)
    return StageBounds(draw.random(units), 1 + draw.random(units), draw.random((units, 3)), draw.random(units))


def lattice_of(problem: ScheduleProblem) -> Lattice:
    lattice = build_lattice(problem, 1 << 12)
    assert lattice is not None
    return lattice


@given(problems(7), spaces, st.integers(0, 99))
def test_every_ending_once_with_its_bound(problem: ScheduleProblem, space: StageSpace, seed: int) -> None:
    lattice, bounds = lattice_of(problem), random_bounds(len(problem), seed)
    labels = Labels.of(len(lattice), np.zeros(2))
    labels.leaving[:] = np.random.default_rng(seed).random(labels.leaving.shape)
    endings = Endings.room(1 << 13)
    given = StateGraph.of(problem, lattice, space), summed_bounds(bounds), labels, False, GrowingTable().table, endings
    end, filled, full = find_endings(0, len(lattice), *given, 0)
    assert (end, full) == (len(lattice), False)
    found = {}
    for index in range(filled):
        target, bit = divmod(int(endings.label[index]), 2)
        found[int(endings.source[index]), target] = bit, int(endings.stage[index]), float(endings.least_us[index])
    assert len(found) == filled
    masks = lattice.masks.tolist()
    edges = {(before, unit) for unit, own in enumerate(problem.predecessors.tolist()) for before in bits(own)}
    expected = {}
    for target, mask in enumerate(masks):
        for ending, _, several in stages_of(frozenset(bits(mask)), edges, [-1] * len(problem), space, True, False):
            stage = sum(1 << unit for unit in ending)
            source = masks.index(mask & ~stage)
            least_us = labels.leaving[source, int(several)] + least_price_us(bounds, problem.groups(stage))
            expected[source, target] = int(several), stage, pytest.approx(least_us, rel=1e-12)
    assert found == expected
    general = [
        sum(1 << unit for unit in ending)
        for mask in masks
        for ending, _, _ in stages_of(frozenset(bits(mask)), edges, [-1] * len(problem), StageSpace(), True, False)
    ]
    assert {stage for stage in general if space.holds(problem, stage)} == {stage for _, stage, _ in found.values()}


@settings(max_examples=20)
@given(problems(12), spaces, st.integers(0, 99), st.floats(0, 20))
def test_bounds_change_what_is_priced_and_not_what_it_costs(
    problem: ScheduleProblem, space: StageSpace, seed: int, barrier_us: float
) -> None:
    model = RandomCostModel(seed=seed, spread=0.0, barrier_us=barrier_us)
    part = Part(problem, lattice_of(problem), tuple(range(len(problem))), space, no_merges())
    bounded, plain = (solve_block(part, prices, entry=0) for prices in (model, Unbounded(model)))
    costs = [min(path.cost_us for path in each.paths if path is not None) for each in (bounded, plain)]
    assert costs[0] == pytest.approx(costs[1], rel=1e-12)
    assert bounded.priced_stages <= plain.priced_stages


SPACES = (StageSpace(), StageSpace(max_group_size=2, max_groups=2), StageSpace("paper"))


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


def test_what_a_wide_problem_is_not_taken_for() -> None:
    """It is not priced as a whole; some of its units are a problem of their own, and a stage holds no more than fit."""
    wide = _ladder(50)
    part = wide.restrict(range(30, 70))
    assert part.predecessors.dtype == np.uint64
    assert part.predecessors.tolist() == [int(mask) >> 30 for mask in wide.predecessors[30:70].tolist()]
    with pytest.raises(ValueError, match="is wide: restrict it"):
        StageBatch.concurrent(wide, np.ones(1, dtype=np.uint64))
    with pytest.raises(PlanError, match="a stage has 70 units, and may have 64; split it in two"):
        list(batches_of(ScheduleProblem.of_edges(70, []), [PlannedStage((1 << 70) - 1, Strategy.CONCURRENT)]))
    ready = greedy_stages(ScheduleProblem.of_edges(100, []))
    assert [stage.mask.bit_count() for stage in ready] == [64, 36]


@contextmanager
def narrow_code() -> Iterator[None]:
    """As if compiled code took eight units at most: then small networks, solved otherwise, have wide blocks."""
    with pytest.MonkeyPatch.context() as patch:
        for each in (problem, planned_stage, lattice, unsearched):
            patch.setattr(each, "MAX_UNITS", 8)
        yield


@given(st.integers(0, 2**20))
@settings(max_examples=40)
def test_wide_blocks_are_searched_as_well_as_they_can_be(seed: int) -> None:
    network = cut_blocks(random_network(seed, blocks=1, units=14))
    prices = RandomCostModel(seed=seed)
    exact = {name: schedule(network, prices, name) for name in STRATEGIES}
    with narrow_code():
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


def test_a_path_costs_the_same_in_runs_of_few_units() -> None:
    network, prices = random_network(13, blocks=1, units=30), RandomCostModel(seed=2)
    with narrow_code():
        whole = ScheduleProblem.of_block(network, network.blocks[0])
        assert whole.is_wide
        stages = greedy_stages(whole)
        path = price_path(whole, stages, prices)
    for stage, price_us in zip(stages, path.prices_us, strict=True):
        units = bits(stage.mask)
        alone = whole.restrict(units)
        masks = np.array([alone.full], dtype=np.uint64)
        assert prices.price_stages(StageBatch.concurrent(alone, masks)).tolist() == [price_us]


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
