"""What units, DMA and memories of an edge device are at over time, a lane each, as nobody split the network, split, and linked."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from iossim.base.tables import Cell
from iossim.edge.plan import EdgePlan
from iossim.edge.planned import Dataflow
from iossim.edge.simulator.events import BusySpan, Timed
from iossim.report.dataflow_lanes import dataflow_lanes, shown_units
from iossim.report.figures.figure import Figure, LegendEntry, Panel
from iossim.report.figures.specifications import need_altair, only, specification
from iossim.report.figures.theme import PALETTE
from iossim.report.figures.timeline import fitting_label

_WIDTH_PIXELS, _LANE_PIXELS = 1000, 13
#: Bars that are narrower are drawn as one with their neighbours of the same kind.
_LEAST_PIXELS = 0.5
#: What a bar stands for, by what a lane is of.
_PARTS = {
    "computing": PALETTE[0],
    "waiting for lines": PALETTE[5],
    "reading and writing on": PALETTE[4],
    "DMA": PALETTE[3],
    "shared memory": PALETTE[2],
    "external memory": PALETTE[1],
}
_OF_UNITS = {"compute": "computing", "wait": "waiting for lines", "stream": "reading and writing on"}
_OF_OTHERS = {"dma": "DMA", "shared": "shared memory", "external": "external memory"}


def dataflow_timeline_figure(found: Dataflow, title: str) -> Figure:
    """A panel a plan, each over its own time; the operators' names stand where there is room."""
    records: list[dict[str, Cell]] = []
    panels = []
    for name, (plan, timed) in found.runs.items():
        records += _records(name, plan, timed)
        lanes = list(dict.fromkeys(str(record["lane"]) for record in records if record["plan"] == name))
        total_ms = timed.total_us / 1e3
        spec = _specification([lane for lane in lanes if lane != _TOP], total_ms)
        panels.append(Panel(f"{name}: {total_ms:,.2f} ms", spec, {"plan": name}))
    shown, units = len(shown_units(found.device)), found.device.units.value
    every = "" if shown == units else f" Of the {units} units one in {-(-units // shown)} is shown."
    return Figure(
        name="timeline",
        title=f"What units and memories are at: {title}",
        finding=f"{_finding(found)}{every}",
        records=tuple(records),
        panels=tuple(panels),
        legend=tuple(LegendEntry(part, colour) for part, colour in _PARTS.items()),
        stacked=True,
        panel_pixels=_WIDTH_PIXELS,
    )


def _finding(found: Dataflow) -> str:
    """How much of the units' time they compute, in each plan."""
    shares = []
    for name, (_, timed) in found.runs.items():
        busy_us = sum(
            (span.end_us - span.start_us) * len(span.units)
            for span in timed.spans
            if span.what == "compute" and span.units
        )
        shares.append(f"{busy_us / found.device.units.value / timed.total_us:.0%} ({name})")
    return f"Units compute {', '.join(shares)} of their time."


#: Where operators' names stand.
_TOP = ""


def _records(plan_name: str, plan: EdgePlan, timed: Timed) -> Iterator[dict[str, Cell]]:
    pixels_per_us = _WIDTH_PIXELS / timed.total_us
    names = [step.operator.name for step in plan.steps]
    for index, name in enumerate(names):
        start_us, end_us = timed.steps[index]
        common: dict[str, Cell] = {"plan": plan_name, "lane": _TOP, "operator": name}
        times: dict[str, Cell] = {"start_ms": start_us / 1e3, "end_ms": end_us / 1e3}
        if plan.places[index][1].first_unit:  # beside what is marked already
            continue
        yield {"what": "operator", "odd": index % 2, **common, **times}
        text, size = fitting_label([name, name.rpartition(".")[2]], (end_us - start_us) * pixels_per_us - 2)
        if text:
            middle: dict[str, Cell] = {"start_ms": (start_us + end_us) / 2e3, "size": size, "text": text}
            yield {"what": "name", **common, **middle}
    for lane in dataflow_lanes(timed, plan.device):
        for span in _drawn(lane.spans, _LEAST_PIXELS / pixels_per_us):
            yield {
                "what": "bar",
                "plan": plan_name,
                "lane": lane.name,
                "operator": names[span.step],
                "part": _OF_UNITS[span.what] if span.units else _OF_OTHERS[span.lane],
                "moved": "" if span.units else span.what,
                "start_ms": span.start_us / 1e3,
                "end_ms": span.end_us / 1e3,
            }
        if not lane.spans:
            yield {"what": "none", "plan": plan_name, "lane": lane.name}


def _drawn(spans: Sequence[BusySpan], least_us: float) -> Iterator[BusySpan]:
    """The spans; those of an operator and of one kind that nothing visible parts are one."""
    last: BusySpan | None = None
    for span in spans:
        if last is None:
            last = span
        elif (last.step, last.what, last.units) == (span.step, span.what, span.units) and (
            span.start_us - last.end_us < least_us
        ):
            last = BusySpan(last.step, last.lane, last.what, last.start_us, span.end_us, last.units)
        else:
            yield last
            last = span
    if last is not None:
        yield last


def _specification(lanes: Sequence[str], total_ms: float) -> Mapping[str, Any]:
    alt = need_altair()
    x = alt.X("start_ms:Q", title="ms", scale=alt.Scale(domain=[0, total_ms], nice=False, zero=False))
    y = alt.Y(
        "lane:N",
        title=None,
        sort=list(lanes),
        axis=alt.Axis(labelOverlap=False),
        scale=alt.Scale(domain=list(lanes), paddingInner=0.15),
    )
    whole = {"y": alt.value(0), "y2": alt.value("height")}
    tooltip = [
        alt.Tooltip("lane:N"),
        alt.Tooltip("operator:N"),
        alt.Tooltip("part:N"),
        alt.Tooltip("moved:N"),
        alt.Tooltip("start_ms:Q", format=".4~f"),
        alt.Tooltip("end_ms:Q", format=".4~f"),
    ]
    return specification(
        only("operator")
        .transform_filter("datum.odd == 1")
        .mark_rect(color="#8b939c", opacity=0.16)
        .encode(x=x, x2="end_ms:Q", **whole),
        only("bar")
        .mark_bar()
        .encode(
            x=x,
            x2="end_ms:Q",
            y=y,
            color=alt.Color("part:N", scale=alt.Scale(domain=list(_PARTS), range=list(_PARTS.values())), legend=None),
            tooltip=tooltip,
        ),
        only("name").mark_text(baseline="bottom", dy=-3, fontSize=8).encode(x=x, y=alt.value(0), text="text:N"),
        height={"step": _LANE_PIXELS},
    )
