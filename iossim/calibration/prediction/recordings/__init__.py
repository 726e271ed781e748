"""Recordings of profilers as tables of kernels: which stream ran what, with which grid, and for how long.

One file a profiler. Rows come in the order in which kernels started. What a kernel took when it was recorded stands for its
time alone, and is not where others ran beside it. Copies and memsets are left out.
"""

from __future__ import annotations

from iossim.calibration.prediction.recordings import nsight_compute, nsight_systems, pytorch_profiler
from iossim.calibration.prediction.recordings.recording import Recording
from iossim.measurements.chrome_trace import is_chrome_trace

__all__ = ["Recording", "recording_of"]

#: Lines of what a tool or a program tells before the header, and letters by which a trace is known.
_LINES_BEFORE, _HEAD = 200, 100_000


def recording_of(text: str) -> Recording | None:
    """The kernels of a recording; None for what is none. Raises CsvError for one that cannot be read."""
    if is_chrome_trace(text[:_HEAD]):
        return pytorch_profiler.read(text)
    lines = text.splitlines(keepends=True)
    for number, line in enumerate(lines[:_LINES_BEFORE]):
        columns = [cell.strip().strip('"') for cell in line.split(",")]
        if nsight_systems.is_header(columns):
            return nsight_systems.read(lines, number)
        if nsight_compute.is_header(columns):
            return nsight_compute.read(lines, number)
    return None
