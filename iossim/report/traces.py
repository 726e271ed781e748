"""Runs in the Chrome trace event format ("Trace Event Format", Duv & Nelson, 2016), which ui.perfetto.dev and
chrome://tracing open.

A trace is one process with a track (a "thread") for each thing that runs concurrently. A run is a complete event (``ph:
"X"``) with start ``ts`` and duration ``dur`` in microseconds, to the nanosecond; counters (``ph: "C"``) show resident
warps, and the parts in use of issue capacity, L2, DRAM and board power. Kernels name the colour of their kind of op
(``cname``) for chrome://tracing.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from iossim.execution.execution import Execution, Span
from iossim.hardware.lowering.unit import main_kind
from iossim.ir.merging import merged_convolution
from iossim.ir.network import Network
from iossim.ir.shown_names import shown_names
from iossim.ir.types import TensorType
from iossim.report.colours import reserved_colour
from iossim.report.figures.timeline import StageExtent, stage_extents
from iossim.report.schedule_tables import setup_words
from iossim.schedule.batch import Strategy
from iossim.schedule.schedule import SavedSchedule, Schedule, Stage
from iossim.tasks.stream_explain import LaunchExplanation, StreamExplanation

PROCESS = 1
#: An event in that format.
Event = dict[str, object]


def trace_text(title: str, tracks: Mapping[int, str], events: list[Event], other: Mapping[str, object]) -> str:
    """The trace as JSON text: ``tracks`` by number from top to bottom, their events, and ``other`` metadata."""
    named = [_metadata("process_name", {"name": title})]
    for order, (track, name) in enumerate(tracks.items()):
        named.append(_metadata("thread_name", {"name": name}, track))
        named.append(_metadata("thread_sort_index", {"sort_index": order}, track))
    document = {"traceEvents": named + events, "displayTimeUnit": "ns", "otherData": dict(other)}
    return json.dumps(document, indent=1) + "\n"


def counters(execution: Execution) -> list[Event]:
    """Resident warps (busy cores of a processor) and parts in use: one value per change, and none in use at the end."""
    tracks = {"busy cores" if execution.of_cores else "active warps": execution.active_warps.tolist()}
    for what in ("issue", "L2", "DRAM", "power"):
        parts = getattr(execution, what.lower()).tolist()
        tracks[f"{what} in use, %"] = [round(100 * part, 2) for part in parts]
    return [
        counter(name, time_us, value)
        for name, values in tracks.items()
        for time_us, value in zip(execution.time_us.tolist(), [*values, 0], strict=True)
    ]


def counter(name: str, time_us: float, value: float) -> Event:
    """A value from a time on, of the counter of that name."""
    return {"ph": "C", "name": name, "pid": PROCESS, "ts": round(time_us * 1000) / 1000, "args": {"value": value}}


def _metadata(name: str, arguments: dict[str, object], track: int | None = None) -> Event:
    where = {"pid": PROCESS} if track is None else {"pid": PROCESS, "tid": track}
    return {"ph": "M", "name": name, **where, "args": arguments}


def complete(
    name: str,
    category: str,
    track: int,
    start_us: float,
    end_us: float,
    arguments: dict[str, object],
    colour: str | None = None,
) -> Event:
    """A complete event on a track, from its start to its end."""
    # Both ends are rounded before subtraction, so that neighbours meet and never overlap.
    start_ns, end_ns = round(start_us * 1000), round(end_us * 1000)
    return {
        "ph": "X",
        "name": name,
        "cat": category,
        "pid": PROCESS,
        "tid": track,
        "ts": start_ns / 1000,
        "dur": (end_ns - start_ns) / 1000,
        "args": arguments,
        **({"cname": colour} if colour else {}),
    }


STAGES_TRACK = 1
_FIRST_STREAM_TRACK = 2


def perfetto_trace(
    network: Network, schedule: Schedule, spans: Sequence[Span], execution: Execution | None = None
) -> str:
    """The trace as JSON text, with counters where ``execution`` is given; equal arguments give equal text."""
    network, schedule, spans = shown_names(network)((network, schedule, tuple(spans)))
    streams = sorted({span.stream for span in spans})
    tracks = {STAGES_TRACK: "stages", **{_FIRST_STREAM_TRACK + stream: f"stream {stream}" for stream in streams}}
    events = [_stage_event(extent) for extent in stage_extents(schedule, spans)]
    for span in sorted(spans, key=lambda span: (span.stream, span.start_us, span.end_us)):
        events.append(_span_event(network, schedule.stages[span.stage], span))
    return _schedule_trace(schedule, tracks, events, execution)


def stream_trace(network: Network, found: StreamExplanation, execution: Execution | None = None) -> str:
    """The trace of a schedule of streams as JSON text: one track per stream, and one arrow per wait; with counters
    where ``execution`` is given, the run that was explained.

    Arrows are flow events (``ph: "s"`` and ``"f"``); those of the critical path have their own category.
    """
    network, found = shown_names(network)((network, found))
    schedule = found.schedule
    tracks = {_FIRST_STREAM_TRACK + stream: f"stream {stream}" for stream in range(len(schedule.streams))}
    launch_of = {one.unit: one for one in found.launches}
    events = []
    for span in sorted(found.spans, key=lambda span: (span.stream, span.start_us, span.end_us)):
        one, members = launch_of[span.unit], found.units_of[span.unit]
        said = {name: getattr(one, name) for name in ("after", "cause", "behind", "slack_us", "is_critical")}
        events.append(_kernel_event(network, span, members, said))
    named = {unit: one for one in found.launches for unit in found.units_of[one.unit]}
    number = 0
    for one in found.launches:
        path = one.behind if one.is_critical and one.behind is not None else None
        for source in dict.fromkeys([*(named[unit].unit for unit in one.after), *([path] if path else [])]):
            category = "critical path" if source == path else "wait"
            begin = {"ph": "s", **_flow(launch_of[source], launch_of[source].end_us, category, number)}
            events += [begin, {"ph": "f", "bp": "e", **_flow(one, one.start_us, category, number)}]
            number += 1
    return _schedule_trace(schedule, tracks, events, execution)


def _schedule_trace(
    schedule: SavedSchedule, tracks: Mapping[int, str], events: list[Event], execution: Execution | None
) -> str:
    title = f"{schedule.network} on {schedule.device}, {', '.join(setup_words(schedule))}"
    told = ("network", "graph_hash", "device", "precision", "engine", "scheduler", "latency_us")
    ran = [] if execution is None else counters(execution)
    return trace_text(title, tracks, events + ran, {name: getattr(schedule, name) for name in told})


def _flow(one: LaunchExplanation, time_us: float, category: str, number: int) -> Event:
    track = _FIRST_STREAM_TRACK + one.stream
    return {"name": category, "cat": category, "id": number, "pid": PROCESS, "tid": track, "ts": round(time_us, 3)}


def _stage_event(extent: StageExtent) -> Event:
    stage = extent.stage
    groups = f"{len(stage.groups)} group{'s' if len(stage.groups) > 1 else ''}"
    what = f"merge of {len(stage.units)}" if stage.strategy is Strategy.MERGE else groups
    arguments = {
        "block": extent.block,
        "strategy": stage.strategy,
        "groups": [" > ".join(group) for group in stage.groups],
        "latency_us": stage.latency_us,
        "boundary_us": stage.boundary_us,
    }
    return complete(f"stage {extent.number} ({what})", "stage", STAGES_TRACK, extent.start_us, extent.end_us, arguments)


def _span_event(network: Network, stage: Stage, span: Span) -> Event:
    members = stage.units if stage.strategy is Strategy.MERGE else [span.unit]
    sms = {} if span.sms is None else {"sms": f"{span.sms.start}-{span.sms.stop - 1}"}
    return _kernel_event(network, span, members, {"stage": span.stage, **sms})


def _kernel_event(network: Network, span: Span, members: Sequence[str], said: Mapping[str, object]) -> Event:
    arguments = {"unit": span.unit, "kernel": span.name, **said, **_work(network, members)}
    kind = main_kind(network, network.unit(members[0]))
    track = _FIRST_STREAM_TRACK + span.stream
    return complete(span.unit, "kernel", track, span.start_us, span.end_us, arguments, reserved_colour(kind))


def _work(network: Network, members: Sequence[str]) -> dict[str, object]:
    """Kind, shapes and arithmetic of a unit, or of the one convolution that merged units run as."""
    graph, indices = network.graph, [network.unit_index[name] for name in members]
    units = [network.units[index] for index in indices]
    if len(units) > 1:
        merged = merged_convolution(network, indices)
        kind, outputs = f"merged {units[0].kind}", [merged.output]
        bias = [TensorType(merged.weight.shape[:1], merged.weight.dtype)] if merged.has_bias else []
        flops = merged.op.flops([graph.types[merged.input], merged.weight, *bias], outputs)
        flops += sum(graph.work(node).flops for unit in units for node in network.unit_nodes(unit)[1:])
    else:
        kind, outputs = units[0].kind, [graph.types[value] for value in units[0].outputs]
        flops = sum(graph.work(node).flops for node in network.unit_nodes(units[0]))
    inputs = [graph.types[value] for value in units[0].inputs]
    return {
        "kind": kind,
        "inputs": [str(value) for value in inputs],
        "outputs": [str(value) for value in outputs],
        "flops": flops,
    }
