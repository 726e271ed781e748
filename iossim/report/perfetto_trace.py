"""The timeline of a schedule as a Chrome trace (:mod:`iossim.report.trace_events`).

There is a track for the stages and one for each stream. Where it is known what the device was doing, counters show
resident warps, and the parts in use of issue capacity, L2, DRAM and board power. Kernels have the colour of their kind of op
(``cname``), as far as the format has names for it: chrome://tracing shows it, Perfetto colours by name.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from iossim.execution.execution import Execution
from iossim.execution.timeline import Span
from iossim.hardware.lowering.unit import main_kind
from iossim.ir.merging import merged_convolution
from iossim.ir.network import Network
from iossim.ir.types import TensorType
from iossim.report.kind_colours import reserved_colour
from iossim.report.stage_extent import StageExtent, stage_extents
from iossim.report.trace_events import complete, counters, trace_text
from iossim.schedule.schedule import Schedule, Stage
from iossim.schedule.strategy import Strategy

STAGES_TRACK = 1
_FIRST_STREAM_TRACK = 2


def perfetto_trace(
    network: Network, schedule: Schedule, spans: Sequence[Span], execution: Execution | None = None
) -> str:
    """The trace as JSON text, with counters where ``execution`` is given; equal arguments give equal text."""
    streams = sorted({span.stream for span in spans})
    tracks = {STAGES_TRACK: "stages", **{_FIRST_STREAM_TRACK + stream: f"stream {stream}" for stream in streams}}
    title = f"{schedule.network} on {schedule.device}, batch {schedule.source.batch}, {schedule.scheduler}"
    events = [_stage_event(schedule, extent) for extent in stage_extents(schedule, spans)]
    for span in sorted(spans, key=lambda span: (span.stream, span.start_us, span.end_us)):
        events.append(_kernel_event(network, schedule.stages[span.stage], span))
    if execution is not None:
        events += counters(execution)
    other = {
        "network": schedule.network,
        "graph_hash": schedule.graph_hash,
        "device": schedule.device,
        "precision": schedule.precision,
        "engine": schedule.engine,
        "scheduler": schedule.scheduler,
        "latency_us": schedule.latency_us,
    }
    return trace_text(title, tracks, events, other)


def _stage_event(schedule: Schedule, extent: StageExtent) -> dict[str, Any]:
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
    return complete(
        f"stage {extent.number} ({what})", "stage", STAGES_TRACK, extent.start_us, extent.end_us, arguments
    )


def _kernel_event(network: Network, stage: Stage, span: Span) -> dict[str, Any]:
    members = stage.units if stage.strategy is Strategy.MERGE else [span.unit]
    arguments = {"unit": span.unit, "kernel": span.name, "stage": span.stage, **_work(network, members)}
    if span.sms is not None:
        arguments["sms"] = f"{span.sms.start}-{span.sms.stop - 1}"
    kind = main_kind(network, network.units[network.unit_index[members[0]]])
    track = _FIRST_STREAM_TRACK + span.stream
    return complete(span.unit, "kernel", track, span.start_us, span.end_us, arguments, reserved_colour(kind))


def _work(network: Network, members: Sequence[str]) -> dict[str, Any]:
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
