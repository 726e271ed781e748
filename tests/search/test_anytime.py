"""Searches that end at any moment: by an interrupt, or when their time is up; here a clock moves on by one second
whenever it is looked at.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from command_line import printed, refused
from hypothesis import given, settings
from hypothesis import strategies as st
from interrupts import Calls
from measuring_model import Measuring
from random_networks import random_network

import iossim
from iossim.backends.simulator.cost_model import SimulatorCostModel
from iossim.base.errors import OptionError
from iossim.cost.model import CostModel
from iossim.cost.random import RandomCostModel
from iossim.execution.engine import Engine
from iossim.hardware.load import device as load_device
from iossim.ir.network import Network
from iossim.microbatching.micro_batches_transform import MicroBatch
from iossim.models.random_graphs import seeded_network
from iossim.schedule.fit import fit
from iossim.schedule.schedule import AnySchedule
from iossim.search import anytime
from iossim.search.ios import STRATEGIES
from iossim.search.measured import Budget
from iossim.search.options import SearchLimits, SearchOptions, StageSpace
from iossim.search.scheduler import STREAM_SCHEDULER, schedule, schedule_any, scheduler_names, without_search
from iossim.serving.coschedule import STREAMS as TOGETHER
from iossim.serving.coschedule import coschedule
from iossim.serving.coschedule_report import bound_words
from iossim.tasks.task import Task, compare
from iossim.transforms.rewriting.backtracking import RewriteBudget
from iossim.transforms.rewriting.rule_sets import rule_set
from iossim.transforms.rewriting.scheduled import Rewrite


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(anytime, "perf_counter", _clock())


def _clock() -> Callable[[], float]:
    ticks = count()
    return lambda: float(next(ticks))


@settings(max_examples=60)
@given(st.integers(0, 10_000), st.integers(1, 120), st.sampled_from(sorted(STRATEGIES)))
def test_whatever_time_there_is_the_schedule_is_whole(seed: int, seconds: int, name: str) -> None:
    network = random_network(seed, units=9)
    prices = RandomCostModel(seed)
    best = schedule(network, prices, name)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(anytime, "perf_counter", _clock())
        found = schedule(network, prices, name, SearchOptions(seconds=seconds))
    fit(found, network)
    assert found.complete
    assert found.latency_us >= best.latency_us * (1 - 1e-12)
    assert found.latency_us <= schedule(network, prices, "sequential").latency_us * (1 + 1e-12)
    if name != "ios-merge":
        assert found.latency_us <= schedule(network, prices, "greedy").latency_us * (1 + 1e-12)
    assert found.lower_bound_us is not None
    assert found.lower_bound_us <= best.latency_us * (1 + 1e-12)
    assert found.proven == (not found.notes)
    if found.proven:
        assert found.latency_us == best.latency_us


@pytest.mark.usefixtures("clock")
def test_more_time_finds_no_worse_and_then_the_best() -> None:
    network = iossim.load("randwire")
    prices = RandomCostModel(3)
    pruned = SearchOptions(StageSpace(max_group_size=2, max_groups=3))
    best = schedule(network, prices, "ios-parallel", pruned)
    found = []
    for seconds in (1, 40, 120, 1e6):
        one = schedule(network, prices, "ios-parallel", SearchOptions(pruned.space, seconds=seconds))
        found.append(one.latency_us)
    assert found == sorted(found, reverse=True)
    assert found[0] > found[-1] == best.latency_us


def test_without_seconds_there_is_one_search() -> None:
    asked = []
    found = SimpleNamespace(complete=True)

    def search(options: SearchOptions, progress: object, before: object) -> SimpleNamespace:
        asked.append((options.space.max_group_size, options.space.max_groups, before))
        return found

    anytime.within(SearchOptions(), lambda done, total: None, search)
    assert asked == [(None, None, None)]
    asked.clear()
    anytime.within(SearchOptions(StageSpace(max_group_size=2), seconds=9), lambda done, total: None, search)
    assert asked == [(1, 4, None), (2, 8, found), (2, None, found)]


@pytest.mark.usefixtures("clock")
def test_the_command_says_that_the_time_was_up(tmp_path: Path) -> None:
    told = printed(f"optimize randwire --device v100-sxm2 --seconds 30 --out {tmp_path}")
    said = " ".join(told.split())
    assert "the search was ended after 30 s: not all stages were considered" in said
    assert "Not proven optimal" in said
    assert "Interrupted" not in said
    assert (tmp_path / "schedule.json").is_file()


def test_what_has_no_time_is_refused() -> None:
    said = refused("optimize squeezenet --cost-model onnxruntime_cpu:threads=1 --budget 10 --seconds 2")
    assert "give --budget 2s" in said
    for seconds in (0.0, float("nan")):
        with pytest.raises(OptionError, match="leaves no time to search"):
            SearchOptions(seconds=seconds)
    with pytest.raises(OptionError, match="max_states 1 allows no block"):
        SearchLimits(max_states=1)


def test_what_needs_no_search_has_no_more_groups_than_are_asked_for() -> None:
    prices, options = RandomCostModel(barrier_us=0), SearchOptions(StageSpace(max_groups=2))
    found = [without_search(NETWORK, prices, name, options).streams for name in ("greedy", "ios-both")]
    assert found == [3, 1]


NETWORK, BATCHED = seeded_network(3, units=5, blocks=2), seeded_network(3, units=5, blocks=1, batch=4)
RULES = (*rule_set("metaflow"), *rule_set("simplify"))


Whole = tuple[AnySchedule, Network]
Search = Callable[[], Whole]


def _task(prices: CostModel, network: Network = NETWORK, **fields: Any) -> Search:
    task = Task(network, prices, **fields)

    def run() -> Whole:
        found = task.run()
        return found.schedule.model_copy(update={"complete": found.complete}), found.network

    return run


def _streams(prices: CostModel, name: str) -> Search:
    return lambda: (schedule_any(NETWORK, prices, name), NETWORK)


def _comparison(prices: CostModel) -> Search:
    task = Task(NETWORK, prices)

    def run() -> Whole:
        found = compare(task, ["sequential", "greedy", "ios-both"])
        return found.best.model_copy(update={"complete": found.complete or found.best.proven}), NETWORK

    return run


def _coschedule(prices: CostModel) -> Search:
    networks = {"a": seeded_network(1, units=4, blocks=1), "b": seeded_network(2, units=3, blocks=1)}

    def run() -> Whole:
        found = coschedule(networks, prices)
        way = next(way for way in found.ways if way.name == TOGETHER)
        assert way.schedule is not None
        return way.schedule.model_copy(update={"complete": found.complete}), found.network

    return run


#: All searches that claim to end with the best schedule so far, at given prices, by name.
SEARCHES: dict[str, Callable[[CostModel], Search]] = {
    **{name: partial(_task, scheduler=name) for name in scheduler_names()},
    STREAM_SCHEDULER: partial(_streams, name=STREAM_SCHEDULER),
    "company": partial(_task, options=SearchOptions(company=True)),
    "workspace limit": partial(_task, options=SearchOptions(workspace_limit_bytes=1 << 30)),
    "measured": lambda prices: _task(Measuring(prices), BATCHED, budget=Budget(measurements=9), device="t4"),
    "rewriting": partial(_task, transforms=(Rewrite(RULES, budget=RewriteBudget(graphs=6), unproved=True),)),
    "micro-batches": partial(_task, network=BATCHED, transforms=(MicroBatch("auto"),)),
    "comparison": _comparison,
    "coschedule": _coschedule,
}

#: Those whose test takes about a second.
QUICK = {*scheduler_names(), STREAM_SCHEDULER, "measured", "comparison", "coschedule"}


def _simulator() -> SimulatorCostModel:
    return SimulatorCostModel(load_device("t4"), NETWORK.precision, Engine.GRAPH)


@pytest.mark.usefixtures("clock")
def test_what_there_is_no_time_for_is_left_out_and_said() -> None:
    """Neither bounds nor runs event by event, which take most."""
    soon, prices = SearchOptions(seconds=0.5), _simulator()
    run = Counter[str]()
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(prices, "simulated_plan_us", lambda *given: run.update(["simulated"]))
        streams = schedule_any(NETWORK, prices, "ios-streams", soon)
        together = coschedule({"a": NETWORK, "b": NETWORK}, prices, soon)
        company = schedule_any(NETWORK, prices, "ios-both", replace(soon, company=True))
    assert not run
    for found in (streams, company):
        fit(found, NETWORK)
        assert found.complete
        assert any("the time was up" in note for note in found.notes)
    assert "ios-streams: no lower bound of streams, so that the gap is not known: the time was up" in streams.notes
    assert together.complete
    assert (together.bound_us, together.to_json()["bound_us"]) == (None, None)
    assert {way.simulated_us for way in together.ways} == {None}
    assert "not every way was run event by event: the time was up" in together.notes
    assert "not known" in bound_words(together)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # one may fall into a generator's end
@pytest.mark.parametrize(
    ("search", "moments"),
    [
        pytest.param(search, moments, marks=marks)
        for search in SEARCHES
        for moments, marks in ((3, () if search in QUICK else pytest.mark.slow), (40, pytest.mark.slow))
    ],
)
def test_an_interrupt_at_any_moment_leaves_a_whole_schedule(search: str, moments: int) -> None:
    SEARCHES[search](_simulator())()  # counting the calls that load modules takes half a minute
    calls, run = Calls(), SEARCHES[search](_simulator())
    with calls.counted():
        whole, _ = run()
    assert whole.complete
    interrupts = 0
    for moment in range(moments):
        run = SEARCHES[search](_simulator())
        # As soon as arguments are checked and the search has begun, and then later and later.
        interrupted = Calls(at=60 + int((calls.count - 60) * (moment / moments) ** 2))
        with interrupted.counted():
            found, network = run()
        fit(found, network)
        interrupts += interrupted.interrupted
        if found.complete:  # nothing was left to be searched
            assert found.latency_us == whole.latency_us
        else:
            assert interrupted.interrupted
            assert not found.proven
            sequential = schedule(network, _simulator(), "sequential")
            assert found.latency_us <= sequential.latency_us * (1 + 1e-9)
    assert interrupts > moments / 2  # what is loaded once takes calls, too
