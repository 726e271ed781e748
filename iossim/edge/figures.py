"""Dataflow on one edge device in pictures: the activity of units, DMA and memories over time, one lane each; and the
contents of each memory (Xenos, figure 9).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from iossim.base.tables import Cell
from iossim.edge.plan import EdgePlan, Variant
from iossim.edge.planned import Dataflow, memory_rows
from iossim.edge.simulator.events import BusySpan, Timed
from iossim.hardware.edge import EdgeDevice
from iossim.report.figures.figure import Figure, LegendEntry, Panel, Spec
from iossim.report.figures.timeline import LINE_PIXELS, fitting_label, from_to_ms, staggered, text_pixels
from iossim.report.figures.vega import PALETTE, colour_scale, described
from iossim.report.traces import Event, complete, counter, trace_text

#: Beyond this number of units, every nth is shown.
MOST_UNITS = 16
_BUSY_MEMORIES = ("shared", "external")


@dataclass(frozen=True, slots=True)
class DataflowLane:
    """Non-overlapping spans, in order; ``resource`` is ``units``, ``dma``, ``shared`` or ``external``."""

    name: str
    resource: str
    spans: tuple[BusySpan, ...]


def dataflow_lanes(timed: Timed, device: EdgeDevice, most_units: int = MOST_UNITS) -> list[DataflowLane]:
    """Lanes of a plan from top to bottom."""
    ordered = sorted(timed.spans, key=lambda span: (span.start_us, span.end_us))
    of = {lane: tuple(span for span in ordered if span.lane == lane) for lane in ("units", "dma", *_BUSY_MEMORIES)}
    found = []
    for unit in shown_units(device, most_units):
        found.append(DataflowLane(f"unit {unit}", "units", tuple(span for span in of["units"] if unit in span.units)))
    found += [DataflowLane(f"DMA {number}", "dma", spans) for number, spans in enumerate(_apart(of["dma"]), 1)]
    return found + [DataflowLane(f"{memory} memory", memory, of[memory]) for memory in _BUSY_MEMORIES]


def shown_units(device: EdgeDevice, most_units: int = MOST_UNITS) -> range:
    """All units, or every nth if there are many."""
    units = device.units.value
    return range(0, units, -(-units // most_units))


def _apart(spans: Iterable[BusySpan]) -> list[tuple[BusySpan, ...]]:
    """Spans in as few lanes as keep them apart: each goes to the first free lane."""
    lanes: list[list[BusySpan]] = []
    for span in spans:
        lane = next((each for each in lanes if each[-1].end_us <= span.start_us), None)
        if lane is None:
            lanes.append([span])
        else:
            lane.append(span)
    return [tuple(lane) for lane in lanes]


_LANES_PIXELS, _LANE_PIXELS = 1000, 13
#: Narrower bars are drawn merged with their neighbours of the same kind.
_LEAST_PIXELS = 0.5
#: Meanings of the bars, by what a lane shows.
_LANE_PARTS = {
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
    """One panel per plan, each over its own time; operators' names are drawn where there is room."""
    records: list[dict[str, Cell]] = []
    panels = []
    for name, (plan, timed) in found.runs.items():
        records += _lane_records(name, plan, timed)
        lanes = list(dict.fromkeys(str(record["lane"]) for record in records if record["plan"] == name))
        total_ms = timed.total_us / 1e3
        spec = _lanes([lane for lane in lanes if lane != _TOP], total_ms)
        panels.append(Panel(f"{name}: {total_ms:,.2f} ms", spec, {"plan": name}))
    shown, units = len(shown_units(found.device)), found.device.units.value
    every = "" if shown == units else f" Of the {units} units one in {-(-units // shown)} is shown."
    return Figure(
        name="timeline",
        title=f"What units and memories are at: {title}",
        finding=f"{_finding(found)}{every}",
        records=tuple(records),
        panels=tuple(panels),
        legend=tuple(LegendEntry(part, colour) for part, colour in _LANE_PARTS.items()),
        stacked=True,
        panel_pixels=_LANES_PIXELS,
    )


def _finding(found: Dataflow) -> str:
    """Share of the units' time spent computing, in each plan."""
    shares = []
    for name, (_, timed) in found.runs.items():
        computing = [span for span in timed.spans if span.what == "compute" and span.units]
        busy_us = sum((span.end_us - span.start_us) * len(span.units) for span in computing)
        shares.append(f"{busy_us / found.device.units.value / timed.total_us:.0%} ({name})")
    return f"Units compute {', '.join(shares)} of their time."


#: Font size of operators' names, and the most lines over which they are staggered.
_TOP, _NAME_PIXELS, _MOST_LINES = "", 8, 8


def _lane_records(plan_name: str, plan: EdgePlan, timed: Timed) -> Iterator[dict[str, Cell]]:
    pixels_per_us = _LANES_PIXELS / timed.total_us
    names = [step.operator.name for step in plan.steps]
    # An operator on other units runs beside one that is marked already.
    marked = [index for index in range(len(names)) if not plan.places[index][1].first_unit]
    middles_us = [sum(timed.steps[index]) / 2 for index in marked]
    halves_us = [text_pixels(f"{names[index]} ", _NAME_PIXELS) / 2 / pixels_per_us for index in marked]
    lines = staggered([(at - half, at + half) for at, half in zip(middles_us, halves_us, strict=True)])
    for index, middle_us, line in zip(marked, middles_us, lines, strict=True):
        (start_us, end_us), text = timed.steps[index], names[index]
        common: dict[str, Cell] = {"plan": plan_name, "lane": _TOP, "operator": text}
        yield {"what": "operator", "odd": index % 2, **common, **from_to_ms(start_us, end_us)}
        has_lines = max(lines) < _MOST_LINES
        if not has_lines:
            text = fitting_label([text, text.rpartition(".")[2]], (end_us - start_us) * pixels_per_us - 2)
        if text:
            above = 3 + LINE_PIXELS * _NAME_PIXELS * line * has_lines
            yield {"what": "name", **common, "start_ms": middle_us / 1e3, "text": text, "above": above}
    for lane in dataflow_lanes(timed, plan.device):
        for span in _drawn(lane.spans, _LEAST_PIXELS / pixels_per_us):
            yield {
                "what": "bar",
                "plan": plan_name,
                "lane": lane.name,
                "operator": names[span.step],
                "part": _OF_UNITS[span.what] if span.units else _OF_OTHERS[span.lane],
                "moved": "" if span.units else span.what,
                **from_to_ms(span.start_us, span.end_us),
            }
        if not lane.spans:
            yield {"what": "none", "plan": plan_name, "lane": lane.name}


def _drawn(spans: Sequence[BusySpan], least_us: float) -> Iterator[BusySpan]:
    """Spans, with those of one operator and kind merged where no visible gap separates them."""
    last: BusySpan | None = None
    for span in spans:
        alike = last is not None and (last.step, last.what, last.units) == (span.step, span.what, span.units)
        if last is not None and alike and span.start_us - last.end_us < least_us:
            last = replace(last, end_us=span.end_us)
        else:
            yield from filter(None, [last])
            last = span
    yield from filter(None, [last])


def _lanes(lanes: Sequence[str], total_ms: float) -> Spec:
    return described(
        __package__,
        "lanes",
        domain_ms=[0, total_ms],
        lanes=list(lanes),
        colours=colour_scale(_LANE_PARTS),
        name_size=_NAME_PIXELS,
        step=_LANE_PIXELS,
    )


_MIB = 1 << 20
_MEMORIES = ("private", "shared", "external")
_COLOURS = dict(zip(_MEMORIES, (PALETTE[0], PALETTE[1], PALETTE[5]), strict=True))


def memory_figure(found: Dataflow, title: str) -> Figure:
    """One panel per plan; ``private`` is the memory of the unit that holds most."""
    variants = (Variant.VANILLA, Variant.FULL)
    records = tuple(
        {
            "plan": str(variant),
            "operator": row.operator,
            "memory": memory,
            **from_to_ms(row.start_us, row.end_us),
            "mib": getattr(row, f"{memory}_bytes") / _MIB,
        }
        for variant in variants
        for row in found.memory(variant)
        for memory in _MEMORIES
    )
    spec = described(__package__, "memory", colours=colour_scale(_COLOURS))
    busy = [row for row in found.memory(Variant.VANILLA) if row.external_bytes]
    last = f", last by {busy[-1].operator} until {busy[-1].end_us / 1e3:,.1f} ms" if busy else ""
    return Figure(
        name="memory",
        title=f"Memory over time: {title}",
        finding=f"Without optimisation {len(busy)} operators need external memory while they run{last}.",
        records=records,
        panels=tuple(Panel(str(variant), spec, {"plan": str(variant)}) for variant in variants),
        legend=tuple(LegendEntry(memory, _COLOURS[memory]) for memory in _MEMORIES),
        stacked=True,
        panel_pixels=720,
    )


_OPERATORS_TRACK = 1
_MOST_TRACKS = 64


def dataflow_trace(found: Dataflow, title: str) -> str:
    """The trace of the written plan as JSON text, with the use of each memory as counters; beyond 64 units, every nth
    is included.
    """
    plan_name, (plan, timed) = list(found.runs.items())[-1]
    names = [step.operator.name for step in plan.steps]
    tracks: dict[int, str] = {_OPERATORS_TRACK: "operators"}
    events: list[Event] = []
    for index, (step, (start_us, end_us)) in enumerate(zip(plan.steps, timed.steps, strict=True)):
        if plan.places[index][1].first_unit == 0:  # others run beside them, and are covered by their units
            arguments = {"kind": step.operator.kind, "slices": len(step.slices)}
            events.append(complete(names[index], "operator", _OPERATORS_TRACK, start_us, end_us, arguments))
    for track, each in enumerate(dataflow_lanes(timed, found.device, _MOST_TRACKS), _OPERATORS_TRACK + 1):
        tracks[track] = each.name
        for span in each.spans:
            operator = names[span.step]
            name = operator if span.what == "compute" else f"{operator}: {span.what}"
            events.append(complete(name, each.resource, track, span.start_us, span.end_us, {"what": span.what}))
    for row in memory_rows(plan, timed):
        events += [
            counter(f"{memory} memory in use, bytes", row.start_us, getattr(row, f"{memory}_bytes"))
            for memory in _MEMORIES
        ]
    other = {"device": found.device.name, "plan": plan_name, "latency_us": timed.total_us}
    return trace_text(title, tracks, events, other)
