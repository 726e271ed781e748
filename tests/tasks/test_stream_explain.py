"""What is told of a schedule of streams: the critical path adds up, slack is what it says, arrows are the waits."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from random_networks import random_network, random_schedule
from random_streams import random_stream_batch

from iossim.backends.simulator.cost_model import SimulatorCostModel
from iossim.base.errors import OptionError
from iossim.cost.random import RandomCostModel
from iossim.execution.engine import Engine
from iossim.hardware.load import device
from iossim.ir.network import Network
from iossim.report.traces import stream_trace
from iossim.schedule.schedule import StreamSchedule
from iossim.schedule.streams import as_streams, in_streams
from iossim.tasks.stream_explain import Cause, StreamExplanation, explain_streams

SEEDS = st.integers(0, 2**20)
ENGINES = st.sampled_from([Engine.PAPER, Engine.GRAPH])


def explained(seed: int, engine: Engine) -> tuple[Network, StreamExplanation]:
    network = random_network(seed)
    batch = random_stream_batch(network, seed, count=1, most=3)
    made = in_streams(network, batch.problem.issued(batch.orders[0].tolist(), batch.streams[0].tolist()))
    template = as_streams(random_schedule(network, seed), network).model_copy(update=made)
    schedule = StreamSchedule.model_validate(template.model_dump())
    model = SimulatorCostModel(device("v100-sxm2"), network.precision, engine)
    found = explain_streams(schedule, network, model)
    assert found.latency_us == pytest.approx(model.price_streams(batch).latency_us[0], rel=1e-9)
    return network, found


@settings(max_examples=30)
@given(SEEDS, ENGINES)
def test_the_critical_path_adds_up_to_the_latency(seed: int, engine: Engine) -> None:
    _, found = explained(seed, engine)
    assert sum(found.path_us.values()) == pytest.approx(found.latency_us, rel=1e-6)
    path = found.critical
    assert path[-1].end_us == found.latency_us
    assert [one.behind for one in path] == [None, *(one.unit for one in path[:-1])]
    assert path[0].cause in (Cause.BEGIN, Cause.HOST)


@settings(max_examples=30)
@given(SEEDS)
def test_slack_is_nothing_on_the_path_and_no_more_than_there_is(seed: int) -> None:
    _, found = explained(seed, Engine.GRAPH)
    for one in found.launches:
        assert 0.0 <= one.slack_us <= found.latency_us - one.end_us + 1e-6
        assert one.slack_us <= 1e-6 or not one.is_critical
        assert one.sharing_us >= 0.0


@settings(max_examples=20)
@given(SEEDS, ENGINES)
def test_a_trace_has_a_track_a_stream_and_an_arrow_a_wait(seed: int, engine: Engine) -> None:
    network, found = explained(seed, engine)
    events = json.loads(stream_trace(network, found))["traceEvents"]
    tracks = [event["args"]["name"] for event in events if event["name"] == "thread_name"]
    assert tracks == [f"stream {number}" for number in range(len(found.schedule.streams))]
    kernels = [event for event in events if event["ph"] == "X"]
    assert len(kernels) == len(found.spans)
    begins, ends = ({event["id"]: event for event in events if event["ph"] == phase} for phase in "sf")
    assert begins.keys() == ends.keys()
    assert all(begins[number]["ts"] <= ends[number]["ts"] + 1e-3 for number in begins)
    waits = sum(len(one.after) for one in found.launches)
    inside = sum(one.is_critical and one.behind is not None and one.behind not in one.after for one in found.launches)
    assert len(begins) == waits + inside
    critical = sum(event["cat"] == "critical path" for event in begins.values())
    assert critical == len(found.critical) - 1


def test_prices_of_stages_alone_explain_no_streams() -> None:
    network = random_network(1)
    schedule = as_streams(random_schedule(network, 1), network)
    with pytest.raises(OptionError, match="cost model 'random' prices stages alone"):
        explain_streams(schedule, network, RandomCostModel(0))
