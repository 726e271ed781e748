"""Schedules of streams as plans: the same outputs as the stages that they were, whatever runs them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from plan_races import Races
from random_networks import (
    random_inputs,
    random_network,
    random_schedule,
    random_streams,
    sequential_schedule,
    unscheduled,
)

from iossim.backends.numpy_reference.execute import execute, numpy_outputs
from iossim.backends.simulator.events import run_schedule
from iossim.base.errors import ScheduleError
from iossim.execution.backends import create_backend
from iossim.execution.engine import UNDIVIDED, Engine
from iossim.execution.happens_before import check_happens_before
from iossim.execution.lower import lower_schedule
from iossim.execution.measured_run import output_difference
from iossim.execution.memory import plan_memory
from iossim.hardware.load import device
from iossim.models.load import load
from iossim.schedule.streams import with_barriers

SEEDS = st.integers(0, 2**20)
ENGINES = st.sampled_from(UNDIVIDED)
V100 = device("v100-sxm2")


@settings(max_examples=30, deadline=None)
@given(SEEDS, SEEDS, ENGINES, st.booleans(), st.booleans())
def test_streams_compute_what_the_graph_does(
    drawn: int, seed: int, engine: Engine, in_place: bool, were_stages: bool
) -> None:
    network = random_network(drawn, movers=in_place)
    schedule = with_barriers(random_schedule(network, seed)) if were_stages else random_streams(network, seed)
    lowered = lower_schedule(schedule, network, engine, in_place=in_place)
    check_happens_before(lowered)
    for mutilated, is_race in Races(lowered).mutations():
        assert _accepted(mutilated) == (not is_race)
    plan = plan_memory(lowered)
    check_happens_before(plan)
    inputs = random_inputs(network)
    expected = unscheduled(network, inputs)
    for name, array in execute(plan, network, inputs, seed).items():
        np.testing.assert_allclose(array, expected[name], rtol=1e-5, atol=1e-5)


@settings(max_examples=30, deadline=None)
@given(SEEDS, SEEDS, st.booleans())
def test_no_wait_of_a_stream_is_implied_by_others(drawn: int, seed: int, in_place: bool) -> None:
    """Though the schedule names all that is read, and values that lie in place are made by no launch."""
    network = random_network(drawn, movers=in_place)
    plan = lower_schedule(random_streams(network, seed), network, Engine.PAPER, in_place=in_place)
    assert all(is_race for _, is_race in Races(plan).mutations())


def _accepted(plan) -> bool:  # type: ignore[no-untyped-def]
    try:
        check_happens_before(plan)
    except ScheduleError:
        return False
    return True


@settings(max_examples=20, deadline=None)
@given(SEEDS, SEEDS)
def test_stages_and_the_streams_that_they_are_launch_alike(drawn: int, seed: int) -> None:
    network = random_network(drawn, movers=True)
    stages = random_schedule(network, seed)
    plans = [lower_schedule(one, network, in_place=True) for one in (stages, with_barriers(stages))]
    assert plans[0].launches == plans[1].launches
    assert plans[0].buffers == plans[1].buffers


@pytest.mark.parametrize("engine", UNDIVIDED)
def test_the_event_driven_engine_prices_streams(engine: Engine) -> None:
    network = load("inception_v3")
    stages = sequential_schedule(network)
    alike = with_barriers(stages)
    # A single stream has nothing to wait for: the same launches in the same order.
    assert run_schedule(network, alike, V100, engine=engine).latency_us == pytest.approx(
        run_schedule(network, stages, V100, engine=engine).latency_us
    )
    freely = run_schedule(network, random_streams(network, 0), V100, engine=engine)
    one_by_one = run_schedule(network, stages, V100, engine=engine)
    assert {span.unit for span in freely.spans} == {span.unit for span in one_by_one.spans}
    assert len({span.stream for span in freely.spans}) == 3


@pytest.mark.parametrize("backend", ["numpy_reference", "onnxruntime_cpu"])
def test_backends_run_streams(backend: str) -> None:
    for seed in range(4):
        network = random_network(seed, movers=True)
        for engine in UNDIVIDED:
            runner = create_backend(backend, engine=engine)
            assert output_difference(network, random_streams(network, seed), runner, numpy_outputs).relative < 1e-4
