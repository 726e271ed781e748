"""Schedulers on whole networks: what every schedule keeps to, how much work a search is, and views that it leaves out."""

import subprocess
import sys
from random import Random
from typing import Any, NamedTuple
from unittest.mock import Mock

import numpy as np
import pytest
from graph_builders import builder_with
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import iossim
from iossim import api
from iossim.base.errors import OptionError, ScheduleError
from iossim.cost.capabilities import LimitedCostModel
from iossim.cost.model import Prices, WrappedCostModel, problems_of
from iossim.cost.random import RandomCostModel
from iossim.ir.network import Network
from iossim.ir.ops.slice import Concat
from iossim.schedule.batch import StageBatch, Strategy
from iossim.schedule.fit import fit
from iossim.schedule.planned_stage import PlannedStage, batches_of
from iossim.schedule.problem import ScheduleProblem
from iossim.schedule.schedule import Schedule
from iossim.search import solver
from iossim.search.counting import unpruned_transitions
from iossim.search.ios import solve
from iossim.search.lattice import build_lattice, price_merges
from iossim.search.memo import SearchMemo
from iossim.search.options import SearchLimits, SearchOptions, StageSpace
from iossim.search.scheduler import schedule, scheduler_names


@pytest.fixture(scope="module")
def network() -> Network:
    return iossim.load("inception_v3")


def test_schedulers_are_named_from_the_plainest_to_the_most_able() -> None:
    assert scheduler_names() == ("sequential", "greedy", "ios-merge", "ios-parallel", "ios-both")
    with pytest.raises(OptionError, match="'ios-bth' is not known; did you mean 'ios-both'"):
        schedule(iossim.load("ios_sample"), RandomCostModel(), "ios-bth")


def test_a_schedule_of_weeks_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RandomCostModel, "price_stages", lambda self, batch: np.full(len(batch), 6e11))
    with pytest.raises(ScheduleError, match="the stage of 'b' ends after 14 days"):
        schedule(iossim.load("ios_sample"), RandomCostModel(), "sequential")


@pytest.mark.parametrize("name", ["ios-both", "ios-streams"])
def test_a_scheduler_is_found_by_the_first_who_asks_for_one(name: str) -> None:
    """In a process of its own: no other module has imported the schedulers before."""
    program = f"from iossim.search.scheduler import SCHEDULERS; assert callable(SCHEDULERS.find({name!r}))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_sequential_runs_each_unit_alone_in_order(network: Network) -> None:
    found = schedule(network, RandomCostModel(), "sequential")
    assert [stage.groups for stage in found.stages] == [[[unit.name]] for unit in network.units]
    assert found.lower_bound_us == pytest.approx(found.latency_us)


def test_greedy_runs_all_that_is_ready(network: Network) -> None:
    found = schedule(network, RandomCostModel(), "greedy")
    for block, scheduled in zip(network.blocks, found.blocks, strict=True):
        done = {unit for unit in range(len(network.units)) if unit < block.units[0]}
        for stage in scheduled.stages:
            ready = {unit for unit in {*block.units} - done if done.issuperset(network.predecessors[unit])}
            assert sorted(stage.groups) == sorted([network.units[unit].name] for unit in ready)
            done |= ready


@pytest.mark.parametrize("limits", [SearchLimits(), SearchLimits(max_states=10)], ids=["whole", "split"])
def test_progress_is_told_unit_by_unit(network: Network, limits: SearchLimits) -> None:
    """Also within a block: the widest may take as long as all others."""
    told: list[tuple[int, int]] = []
    options = SearchOptions(limits=limits)
    schedule(network, RandomCostModel(), "ios-both", options, progress=lambda done, total: told.append((done, total)))
    units = sum(len(block.units) for block in network.blocks)
    assert {total for _, total in told} == {units}
    assert [done for done, _ in told] == sorted(done for done, _ in told)
    assert told[-1] == (units, units)
    ends = set(np.cumsum([len(block.units) for block in network.blocks]).tolist())
    assert {done for done, _ in told} >= ends
    assert len({done for done, _ in told} - ends) >= units // 2


def test_a_split_block_keeps_its_place_in_the_schedule() -> None:
    network = iossim.load("inception_v3", max_block=4)
    assert network.notes
    found = schedule(network, RandomCostModel(), "ios-both")
    fit(found, network)
    assert set(network.notes) <= set(found.notes)


@pytest.mark.parametrize("limits", [SearchLimits(max_states=10), SearchLimits(max_transitions=10)])
@pytest.mark.parametrize("seed", range(3))
def test_what_is_not_searched_as_a_whole_is_no_worse_than_plainer_schedules(
    network: Network, limits: SearchLimits, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("iossim.search.block_parts.FEW_STATES", 0)
    options = SearchOptions(limits=limits)
    found = {name: schedule(network, RandomCostModel(seed), name, options) for name in scheduler_names()}
    assert any("windows" in note for note in found["ios-both"].notes)
    fit(found["ios-both"], network)
    latency_us = {name: one.latency_us for name, one in found.items()}
    assert latency_us["ios-parallel"] * (1 - 1e-9) <= min(latency_us["sequential"], latency_us["greedy"])
    assert latency_us["ios-both"] * (1 - 1e-9) <= min(latency_us.values())


def test_pruning_is_heeded_where_a_block_is_split_and_beyond_all_units_prunes_nothing(network: Network) -> None:
    options = SearchOptions(StageSpace(max_groups=2), SearchLimits(max_states=10))
    found = schedule(network, RandomCostModel(), "ios-parallel", options)
    assert max(len(stage.groups) for stage in found.stages) == 2
    plain, pruned = (
        schedule(
            iossim.load("ios_sample"), RandomCostModel(), "ios-both", SearchOptions(StageSpace("general", most, most))
        )
        for most in (None, 10**20)
    )
    assert pruned.blocks == plain.blocks


class Work(NamedTuple):
    """Over the distinct blocks of a network."""

    states: int
    transitions: int
    endings: int
    priced_stages: int
    priced_to_the_end: int


#: RandWire's third stage has three quarters of its transitions, and takes as long as all that is here together.
WORK = {
    ("squeezenet", ""): Work(90, 328, 122, 111, 42),
    ("inception_v3", ""): Work(1_074, 25_049, 4_160, 2_179, 1_314),
    ("nasnet_a", ""): Work(30_559, 4_062_410, 333_115, 228_203, 67_775),
    ("randwire", "stage3"): Work(12_588, 10_666_745, 405_181, 278_586, 34_400),
}


class Counting(WrappedCostModel):
    """Counts the stages that are priced to the end."""

    ended = 0

    def price_below(self, batch: StageBatch, limits_us: Prices) -> Prices:
        assert isinstance(self.inner, LimitedCostModel)
        prices = self.inner.price_below(batch, limits_us)
        self.ended += int((prices >= 0).sum())
        return prices


@pytest.mark.parametrize(("network", "without"), WORK)
def test_the_search_does_no_more_than_it_did(network: str, without: str) -> None:
    loaded = iossim.load(network)
    blocks = [ScheduleProblem.of_block(loaded, block) for block in loaded.blocks if block.name != without]
    states = transitions = 0
    for block in {block.key: block for block in blocks}.values():
        lattice = build_lattice(block, 100_000)
        assert lattice is not None
        states += len(lattice)
        transitions += int(unpruned_transitions(lattice))
    prices = Counting(iossim.cost_model("simulator", "v100-sxm2"))
    solution = solve(blocks, prices, SearchOptions())
    work = Work(states, transitions, solution.endings, solution.priced_stages, prices.ended)
    most = WORK[network, without]
    assert work[:2] == most[:2]
    for found, known in zip(work[2:], most[2:], strict=True):
        assert known * 0.9 <= found <= known * 1.001, f"{network}: {work} instead of {most}"


@pytest.mark.parametrize(
    ("space", "limits"),
    [
        (StageSpace(), SearchLimits()),
        (StageSpace("paper", 2, 3), SearchLimits()),
        (StageSpace(), SearchLimits(max_states=30)),
    ],
)
def test_schedules_are_the_same(space: StageSpace, limits: SearchLimits) -> None:
    network, prices = iossim.load("squeezenet"), RandomCostModel(seed=5)
    memo = SearchMemo(prices)

    def found(name: str, memo: SearchMemo | None) -> Schedule:
        options = SearchOptions(space, limits)
        return schedule(network, prices, name, options, memo=memo).model_copy(update={"search_s": 0.0})

    for name in scheduler_names():
        assert found(name, memo) == found(name, None)


def test_what_was_solved_is_not_solved_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where nothing merges, ios-both asks for what ios-parallel has solved; another cost model for nothing of it."""
    problem = ScheduleProblem.of_edges(5, [(0, 2), (1, 3), (1, 4)])
    solved = Mock(side_effect=solver.solve_block)
    monkeypatch.setattr(solver, "solve_block", solved)
    prices = RandomCostModel()
    memo = SearchMemo(prices)
    found = []
    for concurrent, merge, asked, calls in (
        (True, False, prices, 1),
        (True, True, prices, 1),
        (False, True, prices, 2),
        (True, True, RandomCostModel(seed=1), 3),
    ):
        found.append(solve([problem], asked, SearchOptions(StageSpace(concurrent=concurrent, merge=merge)), memo=memo))
        assert solved.call_count == calls
    assert found[0].saved_s == 0 < found[1].saved_s
    assert found[1].plans == found[0].plans


def as_it_is_and_as_it_is_searched(network: Network, **given: Any) -> tuple[Schedule, Schedule]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ScheduleProblem, "in_order", lambda problem: problem)
        expected = api.optimize(network, "v100-sxm2", **given)
    found = api.optimize(network, "v100-sxm2", **given)
    assert found.latency_us == pytest.approx(expected.latency_us, rel=1e-12)
    return expected, found


def heads(counts: list[tuple[int, int]], seed: int | None = None) -> Network:
    """So many equal convolutions of each number of filters on one input, and a concat of them, in any order by a seed."""
    b, x = builder_with("heads", x=(1, 16, 14, 14))
    with b.block("heads"):
        made = [
            b.conv(x, filters, 3, padding=1, name=f"{run}.{filters}.{index}")
            for run, (count, filters) in enumerate(counts)
            for index in range(count)
        ]
        terms = made if seed is None else Random(seed).sample(made, len(made))
        y = b.conv(b.add(Concat(1), *terms, name="all"), 8, 1, name="last")
    return b.network([y])


@settings(max_examples=15)
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
    expected, found = as_it_is_and_as_it_is_searched(network, scheduler=scheduler, cost_model=priced)
    assert found.proven == expected.proven


def test_of_equal_units_there_are_as_many_states_as_may_be_done() -> None:
    network = heads([(36, 8)])
    problem = ScheduleProblem.of_block(network, network.blocks[0]).in_order()
    lattice = build_lattice(problem, 10**6)
    assert lattice is not None
    assert len(lattice) == 37 + len(problem) - 36
    found = solve([problem], api.cost_model("simulator", "v100-sxm2"), SearchOptions())
    assert found.lower_bound_us == found.cost_us
    assert not found.notes
    assert found.priced_stages < 800
