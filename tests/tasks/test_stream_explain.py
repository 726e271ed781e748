"""Schedules of streams and plans of edge devices, explained."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from edge_devices import made
from hypothesis import given, settings
from hypothesis import strategies as st
from random_networks import random_network, random_schedule
from random_streams import random_stream_batch

from iossim import related
from iossim.backends.simulator.cost_model import SimulatorCostModel
from iossim.base.errors import OptionError
from iossim.cost.random import RandomCostModel
from iossim.edge.explain import PAIRS, explain_dataflow, explanation_lines, explanation_overview
from iossim.edge.plan import Variant
from iossim.edge.simulator.events import simulate
from iossim.execution.engine import Engine
from iossim.hardware.load import device
from iossim.ir.builder import GraphBuilder
from iossim.ir.network import Network
from iossim.ir.ops.conv import Conv
from iossim.ir.ops.unary import Relu
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


def two_convs(channels: int = 64, size: int = 16) -> Network:
    b = GraphBuilder("two")
    x = b.input("x", (1, channels, size, size))
    for name in ("first", "second"):
        with b.unit(name, "Conv-Relu"):
            x = b.add(Relu(), b.add(Conv((1, 1)), x, b.constant(f"{name}.w", (channels, channels, 1, 1))))
    return b.network([x])


@pytest.mark.parametrize(
    ("device", "bound"),
    [
        ({"multiply_adds_per_cycle__fp32": 0.01}, "arithmetic"),
        ({"cache_bytes": 0, "shared__line_bytes": 1024}, "waiting for lines"),
        ({"port_gbps": 0.01, "cache_bytes": 10**9}, "ports of units"),
        ({"shared__bandwidth_gbps": 0.05, "cache_bytes": 10**9}, "shared memory"),
        ({"external__bandwidth_gbps": 0.001}, "external memory"),
        ({"dma__setup_us": 1200.0, "cache_bytes": 10**9}, "DMA"),
    ],
)
def test_what_a_device_lacks_bounds(device: dict[str, float], bound: str) -> None:
    # One unit alone needs no DMA, and takes longer only with much arithmetic.
    network = two_convs(256 if bound == "DMA" else 64)
    explained = explain_dataflow(related.dataflow(network, made(**device)))
    first = explained.operators[0]
    assert first.bound == bound
    assert first.saves_us[bound] > 0.8 * first.time_us
    assert bound in explanation_overview(explained)[1]
    assert f"bound by {bound}" in explanation_lines(first)[2]


def test_what_it_says_is_what_the_simulator_says() -> None:
    found = related.dataflow("ios_sample", "c6678")
    explained = explain_dataflow(found)
    assert sum(one.share for one in explained.operators) == pytest.approx(1)
    faster = found.device.changed({"port_gbps": 20e6, "multiply_adds_per_cycle.fp32": 8e6})
    again = simulate(replace(found.plans[Variant.FULL], device=faster))
    saved_us = found.total_us(Variant.FULL) - again.total_us
    assert explained.saves_us["arithmetic and ports"] == pytest.approx(saved_us)
    for one in explained.operators:
        for pair, parts in PAIRS.items():
            assert one.saves_us[pair] >= max(one.saves_us[part] for part in parts) - 0.01 * one.time_us
        assert all(-0.01 * one.time_us <= us <= one.time_us for us in one.saves_us.values())


def test_linking_and_other_splits_are_told() -> None:
    found = related.dataflow("mobilenet_v1", "c6678")
    rows = {row.operator: row for row in found.operators}
    explained = {one.operator: one for one in explain_dataflow(found, ["conv1"]).operators}
    reader, writer = explained["conv2.pointwise"], explained["conv2.depthwise"]
    assert reader.reads_linked == ("conv2.depthwise",)
    assert reader.linking_us == rows["conv2.pointwise"].horizontal_us - rows["conv2.pointwise"].full_us > 0
    assert writer.linked is not None
    assert writer.linked.readers == ("conv2.pointwise",)
    assert writer.linked.bytes < writer.linked.unlinked_bytes
    # Only what is searched has the best of all grids behind each axis by itself.
    splits = {name: [other.partition for other in explained[name].others] for name in ("conv1", "conv2.pointwise")}
    assert splits["conv2.pointwise"] == ["outC 8", "inH 8", "inW 8"]
    best = explained["conv1"].others[-1]
    assert best.priced_us <= min(other.priced_us for other in explained["conv1"].others)
    searched = related.dataflow("mobilenet_v1", "c6678", policy="exhaustive").operators[0]
    assert best.partition == searched.partition
    text = "\n".join(explanation_lines(reader))
    assert "in 2 slices" in text
    assert "reads in sequence what conv2.depthwise wrote for it" in text
    with pytest.raises(OptionError, match="'conv99' is not in the network"):
        explain_dataflow(found, ["conv99"])
