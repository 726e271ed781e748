"""Kernels side by side as a Chrome trace: a track for each stream, and counters of what the device was doing."""

from __future__ import annotations

from typing import Any

from iossim.calibration.prediction.corun import Corun, CorunKernel
from iossim.report.trace_events import complete, counters, trace_text


def corun_trace(run: Corun, title: str) -> str:
    """The trace as JSON text; equal arguments give equal text. Each kernel tells who slowed it, and through what."""
    streams = sorted({row.kernel.stream for row in run.kernels})
    tracks = {stream: track for track, stream in enumerate(streams, 1)}
    order = sorted(run.kernels, key=lambda row: (row.kernel.stream, row.start_us, row.end_us))
    events = [_kernel_event(run, row, tracks[row.kernel.stream]) for row in order]
    named = {track: f"stream {stream}" for stream, track in tracks.items()}
    other = {"makespan_us": run.makespan_us, "alone_us": run.alone_us, "sequential_us": run.sequential_us}
    return trace_text(title, named, events + counters(run.execution), other)


def _kernel_event(run: Corun, row: CorunKernel, track: int) -> dict[str, Any]:
    raw = row.kernel
    arguments = {
        "blocks": raw.blocks,
        "threads": raw.threads,
        "alone_us": row.alone_us,
        "waited_us": row.start_us - row.ready_us,
        "slowed_by": [
            {"kernel": run.kernels[one.by].kernel.name, "row": one.by, "through": one.through, "us": one.us}
            for one in row.slowed_by
        ],
    }
    return complete(raw.name, "kernel", track, row.start_us, row.end_us, arguments)
