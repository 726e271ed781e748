"""Events of the Chrome trace event format, which ui.perfetto.dev and chrome://tracing open.

One process, with a track (a "thread") for each of what runs beside others. What runs is a complete event (``ph: "X"``) with
its start ``ts`` and duration ``dur`` in microseconds, to the nanosecond, as the format has it ("Trace Event Format", Duv &
Nelson, 2016). Counters (``ph: "C"``) show what the device was doing.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from iossim.execution.execution import Execution

PROCESS = 1


def trace_text(title: str, tracks: Mapping[int, str], events: list[dict[str, Any]], other: Mapping[str, Any]) -> str:
    """The trace as JSON text: ``tracks`` by number from top to bottom, their events, and ``other`` data of the whole."""
    named = [_metadata("process_name", {"name": title})]
    for order, (track, name) in enumerate(tracks.items()):
        named.append(_metadata("thread_name", {"name": name}, track))
        named.append(_metadata("thread_sort_index", {"sort_index": order}, track))
    document = {"traceEvents": named + events, "displayTimeUnit": "ns", "otherData": dict(other)}
    return json.dumps(document, indent=1) + "\n"


def counters(execution: Execution) -> list[dict[str, Any]]:
    """Resident warps and parts in use: a value at each change; at the end, nothing is in use."""
    tracks = {
        "active warps": execution.active_warps.tolist(),
        "issue in use, %": [round(100 * part, 2) for part in execution.issue.tolist()],
        "L2 in use, %": [round(100 * part, 2) for part in execution.l2.tolist()],
        "DRAM in use, %": [round(100 * part, 2) for part in execution.dram.tolist()],
        "power in use, %": [round(100 * part, 2) for part in execution.power.tolist()],
    }
    return [
        {"ph": "C", "name": name, "pid": PROCESS, "ts": round(time_us * 1000) / 1000, "args": {"value": value}}
        for name, values in tracks.items()
        for time_us, value in zip(execution.time_us.tolist(), [*values, 0], strict=True)
    ]


def _metadata(name: str, arguments: dict[str, Any], track: int | None = None) -> dict[str, Any]:
    where = {"pid": PROCESS} if track is None else {"pid": PROCESS, "tid": track}
    return {"ph": "M", "name": name, **where, "args": arguments}


def complete(
    name: str,
    category: str,
    track: int,
    start_us: float,
    end_us: float,
    arguments: dict[str, Any],
    colour: str | None = None,
) -> dict[str, Any]:
    """Something on a track from a begin to an end."""
    # Both ends are rounded before their difference is taken, so that neighbours meet and never overlap.
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
