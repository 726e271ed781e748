"""Prices of whole plans: stages cost what their prices say, streams what their plans do, whoever makes the commands."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from random_networks import random_network, random_schedule
from random_streams import random_stream_batch

from iossim.backends.simulator.cost_model import SimulatorCostModel
from iossim.base.errors import OptionError
from iossim.execution.engine import Engine
from iossim.execution.lower import lower_schedule
from iossim.hardware.load import device
from iossim.schedule.schedule import StreamSchedule
from iossim.schedule.streams import StreamBatch, as_streams, in_streams, reduced_waits
from iossim.search.assemble import reprice

SEEDS = st.integers(0, 2**20)
ENGINES = st.sampled_from([Engine.PAPER, Engine.GRAPH])


def simulator(engine: Engine, name: str = "v100-sxm2") -> SimulatorCostModel:
    profile = device(name)
    return SimulatorCostModel(profile, random_network(0).precision, engine)


@settings(max_examples=40)
@given(SEEDS, SEEDS)
def test_a_graph_of_stages_takes_the_sum_of_their_prices(drawn: int, seed: int) -> None:
    """But for the joins before stages that launch nothing, such as a concat in place by itself."""
    network = random_network(drawn)
    model = simulator(Engine.GRAPH)
    stages = reprice(random_schedule(network, seed), network, model)
    plan_us = model.plan_us(network, lower_schedule(stages, network, Engine.GRAPH))
    costs = device("v100-sxm2").engine
    joins_us = (costs.fork_us + costs.join_us) * sum(stage.latency_us == 0.0 for stage in stages.stages)
    assert stages.latency_us - joins_us <= plan_us * (1 + 1e-9)
    assert plan_us <= stages.latency_us * (1 + 1e-9)


@settings(max_examples=40)
@given(SEEDS, SEEDS)
def test_stages_that_a_host_issues_take_what_their_prices_say_but_for_issuing(drawn: int, seed: int) -> None:
    """A stage of one group is priced as if the host were there with it: it may be ahead, or late behind a stage."""
    network = random_network(drawn)
    model = simulator(Engine.PAPER)
    stages = reprice(random_schedule(network, seed), network, model)
    plan_us = model.plan_us(network, lower_schedule(stages, network, Engine.PAPER))
    issued_us = model.launch_work(random_stream_batch(network, seed).problem).host_us.sum()
    assert abs(plan_us - stages.latency_us) <= issued_us


@settings(max_examples=60)
@given(SEEDS, SEEDS, ENGINES)
def test_many_schedules_cost_what_their_plans_do(drawn: int, seed: int, engine: Engine) -> None:
    network = random_network(drawn)
    model = simulator(engine)
    batch = random_stream_batch(network, seed, count=3)
    prices = model.price_streams(batch)
    template = as_streams(random_schedule(network, 0), network)
    for index in range(len(batch)):
        order, streams = batch.orders[index].tolist(), batch.streams[index].tolist()
        made = in_streams(network, batch.problem.issued(order, streams))
        schedule = StreamSchedule.model_validate(template.model_copy(update=made).model_dump())
        plan = lower_schedule(schedule, network, engine)
        assert model.plan_us(network, plan) == pytest.approx(prices.latency_us[index], rel=1e-9)
        ended_us = {span.unit: span.end_us for span in model.plan_spans(network, plan)}
        for launch, units in enumerate(batch.problem.launches):
            name = "+".join(network.units[unit].name for unit in units)
            assert prices.ends_us[index, launch] == pytest.approx(ended_us.get(name, 0.0), rel=1e-9)
        waits = sum(map(len, reduced_waits(*_in_order(batch, index))))
        assert sum(len(launch.after) for launch in schedule.launches) == waits


def _in_order(batch: StreamBatch, index: int) -> tuple[list[int], list[list[int]]]:
    order = batch.orders[index].tolist()
    place = {launch: number for number, launch in enumerate(order)}
    reads = [[place[before] for before in batch.problem.reads[launch]] for launch in order]
    return [int(batch.streams[index][launch]) for launch in order], reads


@settings(max_examples=40)
@given(SEEDS, SEEDS)
def test_a_host_that_began_earlier_makes_nothing_later_of_a_chain(drawn: int, seed: int) -> None:
    network = random_network(drawn)
    model = simulator(Engine.PAPER)
    batch = random_stream_batch(network, seed, count=1, most=1)
    ahead = StreamBatch(batch.problem, batch.orders, batch.streams, ahead_us=1e6)
    early, late = model.price_streams(ahead).latency_us[0], model.price_streams(batch).latency_us[0]
    assert early <= late
    # Nothing is left of the host: what one stream takes is the sum of its launches.
    assert early == pytest.approx(model.launch_work(batch.problem).serial_us.sum(), rel=1e-9)


def test_what_is_not_priced_is_refused() -> None:
    network = random_network(1)
    batch = random_stream_batch(network, 1)
    with pytest.raises(OptionError, match="`engine` partition divides stages, and streams have none"):
        simulator(Engine.PARTITION).price_streams(batch)
    many = StreamBatch(batch.problem, batch.orders, np.full_like(batch.streams, 64))
    with pytest.raises(OptionError, match="a schedule of more than 64 streams is not priced"):
        simulator(Engine.GRAPH).price_streams(many)
    moving = random_network(4, movers=True)
    plan = lower_schedule(random_schedule(moving, 1), moving, in_place=True)
    with pytest.raises(OptionError, match="the plan moves values in place"):
        simulator(Engine.GRAPH).plan_us(moving, plan)
