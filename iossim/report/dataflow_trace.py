"""A plan on an edge device as a Chrome trace: a track for its operators, one a unit, and those of DMA and of the memories."""

from __future__ import annotations

from typing import Any

from iossim.edge.planned import Dataflow, memory_rows
from iossim.report.dataflow_lanes import dataflow_lanes
from iossim.report.trace_events import PROCESS, complete, trace_text

_OPERATORS = 1
_MOST_UNITS = 64


def dataflow_trace(found: Dataflow, title: str) -> str:
    """The trace of the plan that is written as JSON text, with what is in use of each memory as counters; of more than
    64 units every nth is there."""
    plan_name, (plan, timed) = list(found.runs.items())[-1]
    names = [step.operator.name for step in plan.steps]
    tracks: dict[int, str] = {_OPERATORS: "operators"}
    events: list[dict[str, Any]] = []
    for index, (step, (start_us, end_us)) in enumerate(zip(plan.steps, timed.steps, strict=True)):
        if plan.places[index][1].first_unit == 0:  # others run beside them, and their units tell
            arguments = {"kind": step.operator.kind, "slices": len(step.slices)}
            events.append(complete(names[index], "operator", _OPERATORS, start_us, end_us, arguments))
    for track, each in enumerate(dataflow_lanes(timed, found.device, _MOST_UNITS), _OPERATORS + 1):
        tracks[track] = each.name
        for span in each.spans:
            operator = names[span.step]
            name = operator if span.what == "compute" else f"{operator}: {span.what}"
            events.append(complete(name, each.resource, track, span.start_us, span.end_us, {"what": span.what}))
    for row in memory_rows(plan, timed):
        events += [
            _counter(f"{memory} memory in use, bytes", row.start_us, getattr(row, f"{memory}_bytes"))
            for memory in ("private", "shared", "external")
        ]
    other = {"device": found.device.name, "plan": plan_name, "latency_us": timed.total_us}
    return trace_text(title, tracks, events, other)


def _counter(name: str, time_us: float, value: float) -> dict[str, Any]:
    return {"ph": "C", "name": name, "pid": PROCESS, "ts": round(time_us * 1000) / 1000, "args": {"value": value}}
