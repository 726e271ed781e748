"""Timelines of plans on edge devices: lanes hold all that units, DMA and memories did, once, in picture and trace."""

from __future__ import annotations

import json

import pytest
from edge_devices import made
from trace_format import check_trace

from iossim import related
from iossim.edge.figures import MOST_UNITS, dataflow_lanes, dataflow_timeline_figure, dataflow_trace
from iossim.edge.plan import Variant
from iossim.edge.planned import Dataflow


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
