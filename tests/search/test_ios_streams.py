"""Streams: the best on small networks, never worse than the stages, and no bound above any schedule."""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from random_networks import random_network, random_stream_batch

from iossim.backends.simulator.cost_model import SimulatorCostModel
from iossim.base.errors import OptionError
from iossim.cost.random import RandomCostModel
from iossim.execution.engine import Engine
from iossim.execution.lower import lower_schedule
from iossim.execution.memory import check_happens_before, with_memory
from iossim.hardware.load import device
from iossim.schedule.fit import fit
from iossim.schedule.schedule import StreamSchedule
from iossim.schedule.streams import StreamBatch, StreamProblem
from iossim.search.anytime import Steps
from iossim.search.options import SearchOptions
from iossim.search.scheduler import schedule, schedule_any, scheduler_names
from iossim.search.streams.bounds import ancestors, cut, stream_bound_us
from iossim.search.streams.search import Neighbours, draw, list_schedules, search_launches
from iossim.testing.conformance import twin_network

SEEDS = st.integers(0, 2**20)
ENGINES = st.sampled_from([Engine.PAPER, Engine.GRAPH])
MODELS = {engine: SimulatorCostModel(device("v100-sxm2"), random_network(0).precision, engine) for engine in Engine}


def is_order(launches: Sequence[int], problem: StreamProblem) -> bool:
    """True if each launch of the problem is among them once, after all that it reads."""
    place = {launch: number for number, launch in enumerate(launches)}
    reads = ((before, launch) for launch, own in enumerate(problem.reads) for before in own)
    return sorted(launches) == list(range(len(problem))) and all(place[one] < place[other] for one, other in reads)


def every_schedule(problem: StreamProblem) -> Iterator[tuple[list[int], list[int]]]:
    """All orders of issue, each with all partitions of the launches into streams."""
    count = len(problem)
    for order in itertools.permutations(range(count)):
        if not is_order(order, problem):
            continue
        for labels in itertools.product(range(count), repeat=count):
            if all(label <= max(labels[:at], default=-1) + 1 for at, label in enumerate(labels)):
                streams = [0] * count
                for launch, label in zip(order, labels, strict=True):
                    streams[launch] = label
                yield list(order), streams


@settings(max_examples=25)
@given(SEEDS, ENGINES)
def test_the_best_of_all_schedules_of_a_small_problem_is_found(seed: int, engine: Engine) -> None:
    network = random_network(seed, blocks=1, units=5)
    model = MODELS[engine]
    problem = random_stream_batch(network, seed).problem
    every = list(every_schedule(problem))
    batch = StreamBatch(problem, np.array([order for order, _ in every]), np.array([streams for _, streams in every]))
    least_us = model.price_streams(batch).latency_us.min()
    assert stream_bound_us(problem, model.launch_work(problem)) <= least_us
    in_turn = problem.issued(range(len(problem)), [0] * len(problem))
    found = search_launches(network, model, [in_turn], seed, Steps(), None)[0]
    order, streams = [in_turn.index(replace(one, stream=0)) for one in found], [0] * len(problem)
    for launch, one in zip(order, found, strict=True):
        streams[launch] = one.stream
    best = StreamBatch(problem, np.array([order]), np.array([streams]))
    assert model.price_streams(best).latency_us[0] == pytest.approx(least_us, rel=1e-9)


@settings(max_examples=60)
@given(SEEDS, SEEDS, ENGINES)
def test_bounds_are_below_every_schedule(drawn: int, seed: int, engine: Engine) -> None:
    network = random_network(drawn, blocks=2, units=8)
    batch = random_stream_batch(network, seed, count=50, most=6)
    bound_us = stream_bound_us(batch.problem, MODELS[engine].launch_work(batch.problem))
    assert 0.0 < bound_us <= MODELS[engine].price_streams(batch).latency_us.min()


def test_parts_stand_for_one_another_where_their_units_are_priced_alike() -> None:
    network = twin_network()
    half = len(network.units) // 2
    first, second = (StreamProblem.of(network, [[unit + begin] for unit in range(half)]) for begin in (0, half))
    assert first.key(dict(enumerate(network.signatures))) == second.key(dict(enumerate(network.signatures)))
    names = {unit: network.units[unit].name for unit in range(2 * half)}
    assert first.key(names) != second.key(names)


@given(SEEDS)
def test_parts_end_where_all_is_in_order(seed: int) -> None:
    problem = random_stream_batch(random_network(seed, blocks=3), seed).problem
    parts = cut(problem)
    assert sorted(itertools.chain(*parts)) == list(range(len(problem)))
    before = ancestors(problem.reads)
    for part, behind in itertools.pairwise(parts):
        assert all(before[launch] >> part[-1] & 1 for launch in behind)
        assert all(one == part[-1] or before[part[-1]] >> one & 1 for one in part)


@settings(max_examples=60)
@given(SEEDS, st.integers(0, 2), st.integers(1, 6))
def test_neighbours_are_schedules(seed: int, first: int, most: int) -> None:
    problem = random_stream_batch(random_network(seed), seed).problem
    first = min(first, len(problem) - 1)
    order, streams = np.arange(len(problem)), np.zeros(len(problem), dtype=np.int64)
    near = Neighbours.room(problem, 64)
    draw(order, streams, first, most, np.uint64(seed + 1), near)
    for one in near.orders.tolist():
        assert is_order(one, problem)
        assert one[:first] == list(range(first))
    assert near.streams.min() >= 0
    assert near.streams.max() < most


@given(SEEDS)
def test_list_schedules_are_schedules(seed: int) -> None:
    problem = random_stream_batch(random_network(seed), seed).problem
    for width, found in enumerate(list_schedules(problem, MODELS[Engine.GRAPH].launch_work(problem)), 2):
        assert is_order(found.order.tolist(), problem)
        assert found.streams.max() < width


@settings(max_examples=12)
@given(SEEDS, ENGINES)
@example(112, Engine.PAPER)  # proven: its bound is reached
def test_streams_are_valid_and_never_worse_than_the_stages(seed: int, engine: Engine) -> None:
    network = random_network(seed, blocks=2, units=8)
    model = MODELS[engine]
    stages = schedule(network, model, "ios-both")
    found = schedule_any(network, model, "ios-streams", SearchOptions(seed=seed))
    fit(found, network)
    plan = lower_schedule(found, network, engine)
    check_happens_before(with_memory(plan))
    other = lower_schedule(stages, network, engine)
    assert model.plan_us(network, plan) <= model.plan_us(network, other)
    assert model.simulated_plan_us(network, plan) <= model.simulated_plan_us(network, other) * (1 + 1e-12)
    assert found.scheduler == "ios-streams"
    assert found.relaxed_bound_us is not None
    assert found.relaxed_bound_us <= found.latency_us
    if isinstance(found, StreamSchedule):
        assert found.latency_us == model.plan_us(network, plan)
        assert StreamSchedule.model_validate_json(found.model_dump_json()) == found
    else:
        assert found.latency_us == stages.latency_us


def test_the_same_seed_finds_the_same_and_seconds_no_worse_than_the_stages() -> None:
    network = random_network(11, blocks=2, units=12)
    model = MODELS[Engine.GRAPH]
    found = [schedule_any(network, model, "ios-streams", SearchOptions(seed=3)) for _ in range(2)]
    kept = [one.model_dump(exclude={"search_s"}) for one in found]
    assert kept[0] == kept[1]
    soon = schedule_any(network, model, "ios-streams", SearchOptions(seconds=0.2))
    assert soon.latency_us <= schedule(network, model, "ios-both").latency_us * (1 + 1e-9)


def test_what_streams_cannot_be_searched_for_is_refused() -> None:
    network = random_network(1)
    assert "ios-streams" not in scheduler_names()
    with pytest.raises(OptionError, match=r"finds streams .iossim.optimize_streams., and stages are needed here"):
        schedule(network, MODELS[Engine.GRAPH], "ios-streams")
    with pytest.raises(OptionError, match="cost model 'random' prices stages alone; give `cost_model` simulator"):
        schedule_any(network, RandomCostModel(0), "ios-streams")
    with pytest.raises(OptionError, match="`workspace_limit` is for stages"):
        schedule_any(network, MODELS[Engine.GRAPH], "ios-streams", SearchOptions(workspace_limit_bytes=1))
    with pytest.raises(OptionError, match="`stream_seed` -1 is not possible"):
        SearchOptions(seed=-1)
