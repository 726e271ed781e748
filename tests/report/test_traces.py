"""Schedules and plans as traces: a track for each stream and one of stages; lanes of units and memories."""

import json

import pytest
from edge_devices import made
from fake_timelines import fake_execution, fake_timeline
from graph_builders import builder_with
from hypothesis import given, settings
from hypothesis import strategies as st
from random_networks import make_stage, one_block, random_network, random_schedule
from trace_format import check_trace, counters

from iossim import related
from iossim.edge.figures import MOST_UNITS, dataflow_lanes, dataflow_timeline_figure, dataflow_trace
from iossim.edge.plan import Variant
from iossim.edge.planned import Dataflow
from iossim.execution.execution import Span
from iossim.hardware.lowering.unit import main_kind
from iossim.ir.network import Network
from iossim.ir.ops.slice import Concat
from iossim.report.colours import reserved_colour
from iossim.report.traces import perfetto_trace
from iossim.schedule.schedule import Schedule


@pytest.fixture(
    scope="module", params=[{}, {"units": 40, "dma__channels": 3, "shared__bytes": 60_000, "private_bytes": 8192}]
)
def found(request: pytest.FixtureRequest) -> Dataflow:
    return related.dataflow("ios_sample", made(**request.param))


@pytest.mark.parametrize("variant", list(Variant))
def test_lanes_hold_every_span_and_none_overlap(found: Dataflow, variant: Variant) -> None:
    timed, units = found.times[variant], found.device.units.value
    lanes = dataflow_lanes(timed, found.device, units)
    assert [lane.name for lane in lanes[:units]] == [f"unit {unit}" for unit in range(units)]
    assert [lane.name for lane in lanes[-2:]] == ["shared memory", "external memory"]
    shown = sum(len(lane.spans) for lane in lanes)
    assert shown == sum(len(span.units) or 1 for span in timed.spans)
    for lane in lanes:
        for one, other in zip(lane.spans, lane.spans[1:], strict=False):
            assert one.end_us <= other.start_us + 1e-9
        for span in lane.spans:
            start_us, end_us = timed.steps[span.step]
            assert start_us <= span.start_us <= span.end_us <= end_us + 1e-9


def test_units_compute_what_is_to_be_computed(found: Dataflow) -> None:
    """Multiply-adds and the rest over the rate: what all units together are at, whatever the partition."""
    busy_us = {
        variant: sum(
            (span.end_us - span.start_us) * len(span.units)
            for span in found.times[variant].spans
            if span.what == "compute"
        )
        for variant in Variant
    }
    assert busy_us[Variant.HORIZONTAL] == pytest.approx(busy_us[Variant.FULL])
    work = sum(
        demand.multiply_adds + demand.other_flops
        for step in found.plans[Variant.FULL].steps
        for part in step.slices
        if (demand := step.operator.demand(part.partition.space)) is not None
    )
    least_us = work / found.device.multiply_adds_per_us(found.plans[Variant.FULL].precision)
    assert busy_us[Variant.FULL] >= 0.99 * least_us


def test_the_trace_is_one(found: Dataflow) -> None:
    text = dataflow_trace(found, "a title")
    tracks = check_trace(text)
    steps = found.plans[Variant.FULL].steps
    assert [event["name"] for event in tracks["operators"]] == [step.operator.name for step in steps]
    assert {"unit 0", "shared memory", "external memory"} <= set(tracks)
    assert ("DMA 1" in tracks) == any(span.lane == "dma" for span in found.times[Variant.FULL].spans)
    assert json.loads(text)["otherData"]["latency_us"] == found.total_us(Variant.FULL)
    most = max(
        event["args"]["value"] for event in json.loads(text)["traceEvents"] if event["name"].startswith("shared")
    )
    assert most == max(row.shared_bytes for row in found.memory(Variant.FULL))


def test_the_picture_has_a_lane_a_unit_and_a_panel_a_plan(found: Dataflow) -> None:
    figure = dataflow_timeline_figure(found, "a title")
    assert [panel.where["plan"] for panel in figure.panels] == list(map(str, Variant))
    lanes = {str(record["lane"]) for record in figure.records if str(record["lane"]).startswith("unit ")}
    assert len(lanes) == min(found.device.units.value, 14 if found.device.units.value > MOST_UNITS else MOST_UNITS)
    ends = {record["plan"]: record["end_ms"] for record in figure.records if record["what"] == "operator"}
    assert ends == {str(variant): pytest.approx(found.total_us(variant) / 1e3) for variant in Variant}


@pytest.fixture
def network() -> Network:
    b, x = builder_with("small", x=(1, 3, 4, 4))
    with b.block("main"):
        a, c = b.conv(x, 2, name="a"), b.conv(x, 5, kernel=3, padding=1, name="c")
        y = b.add(Concat(), a, c, name="d")
    return b.network([y])


@pytest.fixture
def schedule(network: Network) -> Schedule:
    return one_block(network, make_stage([["a"], ["c"]]), make_stage([["d"]]))


@settings(max_examples=20)
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
    expected = [("stage 0 (2 groups)", 5, 15), ("stage 1 (1 group)", 30, 5.5)]
    assert [(event["name"], event["ts"], event["dur"]) for event in tracks["stages"]] == expected
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


def test_kernels_have_the_colour_of_their_kind(network: Network, schedule: Schedule) -> None:
    events = json.loads(perfetto_trace(network, schedule, fake_timeline(network, schedule)))["traceEvents"]
    kernels = [event for event in events if event.get("cat") == "kernel"]
    assert kernels
    for event in kernels:
        stage = schedule.stages[event["args"]["stage"]]
        unit = network.unit(stage.units[0] if stage.strategy == "merge" else event["args"]["unit"])
        assert event["cname"] == reserved_colour(main_kind(network, unit))
    assert len({event["cname"] for event in kernels}) > 1
    assert all("cname" not in event for event in events if event.get("cat") != "kernel")


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
