"""The trace is valid, has a track per stream and one of stages, and says what ran."""

from __future__ import annotations

import json

import pytest
from fake_timelines import fake_execution, fake_timeline
from hypothesis import given, settings
from hypothesis import strategies as st
from random_networks import make_stage, one_block, random_network, random_schedule
from trace_format import check_trace, counters

from iossim.execution.execution import Span
from iossim.hardware.lowering.unit import main_kind
from iossim.ir.builder import GraphBuilder
from iossim.ir.network import Network
from iossim.ir.ops.slice import Concat
from iossim.report.colours import reserved_colour
from iossim.report.traces import perfetto_trace
from iossim.schedule.schedule import Schedule


@pytest.fixture
def network() -> Network:
    b = GraphBuilder("small")
    x = b.input("x", (1, 3, 4, 4))
    with b.block("main"):
        a, c = b.conv(x, 2, name="a"), b.conv(x, 5, kernel=3, padding=1, name="c")
        y = b.add(Concat(), a, c, name="d")
    return b.network([y])


@pytest.fixture
def schedule(network: Network) -> Schedule:
    return one_block(network, make_stage([["a"], ["c"]]), make_stage([["d"]]))


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 2**20), st.integers(0, 2**20))
def test_any_trace_is_valid(network: int, schedule: int) -> None:
    drawn = random_network(network)
    plan = random_schedule(drawn, schedule)
    spans = fake_timeline(drawn, plan, kernels=2)
    tracks = check_trace(perfetto_trace(drawn, plan, spans))
    assert len(tracks["stages"]) == len(plan.stages)
    assert len(tracks) == 1 + plan.streams
    assert sum(len(events) for events in tracks.values()) == len(plan.stages) + len(spans)


def test_tracks_and_arguments(network: Network, schedule: Schedule) -> None:
    spans = [
        Span("concat_kernel", "d", 1, 0, 30, 35.5),
        Span("gemm", "a", 0, 0, 5, 10),
        Span("winograd", "c", 0, 1, 6, 20),
    ]
    tracks = check_trace(perfetto_trace(network, schedule, spans))
    assert list(tracks) == ["stages", "stream 0", "stream 1"]
    assert [(event["name"], event["ts"], event["dur"]) for event in tracks["stages"]] == [
        ("stage 0 (2 groups)", 5, 15),
        ("stage 1 (1 group)", 30, 5.5),
    ]
    assert [event["name"] for event in tracks["stream 0"]] == ["a", "d"]
    (event,) = tracks["stream 1"]
    assert event["args"] == {
        "unit": "c",
        "kernel": "winograd",
        "stage": 0,
        "kind": "Conv",
        "inputs": ["fp32[1x3x4x4]"],
        "outputs": ["fp32[1x5x4x4]"],
        "flops": 2 * 5 * 16 * 27 + 5 * 16,
    }


def test_a_merged_stage_is_described_as_the_convolution_it_runs_as(network: Network) -> None:
    schedule = one_block(network, make_stage([["a", "c"]], "merge"), make_stage([["d"]]))
    tracks = check_trace(perfetto_trace(network, schedule, fake_timeline(network, schedule)))
    assert tracks["stages"][0]["name"] == "stage 0 (merge of 2)"
    arguments = tracks["stream 0"][0]["args"]
    assert (arguments["kind"], arguments["outputs"]) == ("merged Conv", ["fp32[1x7x4x4]"])
    assert arguments["flops"] == 2 * 7 * 16 * 27 + 7 * 16


def test_neighbours_that_meet_do_not_overlap_after_rounding(network: Network, schedule: Schedule) -> None:
    third = 1 / 3
    spans = [Span("k", "a", 0, 0, i * third, (i + 1) * third) for i in range(30)]
    check_trace(perfetto_trace(network, schedule, spans))


def test_the_check_finds_an_overlap(network: Network, schedule: Schedule) -> None:
    spans = [Span("k", "a", 0, 0, 0, 10), Span("k", "a", 0, 0, 9, 12)]
    with pytest.raises(AssertionError):
        check_trace(perfetto_trace(network, schedule, spans))


def test_kernels_have_the_colour_of_their_kind(network: Network, schedule: Schedule) -> None:
    events = json.loads(perfetto_trace(network, schedule, fake_timeline(network, schedule)))["traceEvents"]
    kernels = [event for event in events if event.get("cat") == "kernel"]
    assert kernels
    for event in kernels:
        stage = schedule.stages[event["args"]["stage"]]
        unit = network.units[network.unit_index[stage.units[0] if stage.strategy == "merge" else event["args"]["unit"]]]
        assert event["cname"] == reserved_colour(main_kind(network, unit))
    assert len({event["cname"] for event in kernels}) > 1
    assert all("cname" not in event for event in events if event.get("cat") != "kernel")


def test_names_of_any_kind_are_escaped() -> None:
    b = GraphBuilder('quo"ted\\')
    with b.block("b"):
        y = b.conv(b.input("x", (1, 1, 1, 1)), 1, name='a "b"\n')
    network = b.network([y])
    schedule = one_block(network, make_stage([[y]]))
    tracks = check_trace(perfetto_trace(network, schedule, fake_timeline(network, schedule)))
    assert tracks["stream 0"][0]["name"] == 'a "b"\n'


def test_the_document_says_what_it_is_of(network: Network, schedule: Schedule) -> None:
    document = json.loads(perfetto_trace(network, schedule, fake_timeline(network, schedule)))
    assert document["otherData"]["graph_hash"] == network.graph.hash
    assert document["traceEvents"][0]["args"]["name"] == "small on test-device, batch 1, fp32, paper engine, random"


def test_counters_show_what_the_device_was_doing(network: Network, schedule: Schedule) -> None:
    spans = fake_timeline(network, schedule)
    assert counters(perfetto_trace(network, schedule, spans)) == {}
    text = perfetto_trace(network, schedule, spans, fake_execution(spans))
    check_trace(text)
    found = counters(text)
    in_use = [f"{name} in use, %" for name in ("issue", "L2", "DRAM", "power")]
    assert list(found) == ["active warps", *in_use]
    assert [value for _, value in found["active warps"]] == [0, 16, 8, 0]
    assert [value for _, value in found["issue in use, %"]] == [0, 50, 12.5, 0]
    assert found["DRAM in use, %"][-1] == (round(max(span.end_us for span in spans), 3), 0)
