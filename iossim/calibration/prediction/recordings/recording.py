"""Kernels as a profiler recorded them, and the table of kernels that they make."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from iossim.measurements.rows import NumberedRow
from iossim.measurements.text_files import CsvError

MICROSECONDS = {"ns": 1e-3, "us": 1.0, "ms": 1e3, "s": 1e6}
#: Of its time, beside others, that makes what a kernel took no time alone.
_OVERLAP_TOLD = 0.05


@dataclass(frozen=True, slots=True)
class Recording:
    """Kernels in the order in which they started, in the columns of tables of kernels; ``place`` is what their numbers count,
    if not lines."""

    rows: tuple[NumberedRow, ...]
    place: str = ""
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Recorded:
    """A kernel: where it stands, when it ran, on which device and in which queue, and its cells but for the stream."""

    place: int
    start_us: float
    duration_us: float
    device: str
    queue: tuple[str, str]
    cells: Mapping[str, str]


def number(text: str, column: str, line: int) -> float:
    """A cell of a recording, finite; raises CsvError."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise CsvError(f"{column}: {text!r} is not a number", "export the report again", line)
    return value


def recording(
    kernels: Iterable[Recorded], place: str, others: int, notes: Sequence[str], one_by_one: bool = False
) -> Recording:
    """Kernels as a table; ``one_by_one``: their starts say no more than their order."""
    ordered = sorted(kernels, key=lambda kernel: (kernel.start_us, kernel.place))
    if not ordered:
        raise CsvError("the recording has no kernels", "record with CUDA's activity traced")
    devices = dict.fromkeys(kernel.device for kernel in ordered)
    if len(devices) > 1:
        raise CsvError(f"holds kernels of {len(devices)} devices, {', '.join(devices)}", "export those of one")
    told = list(notes)
    contexts = {kernel.queue[0] for kernel in ordered}
    if len(contexts) > 1:
        numbers = {queue: str(number) for number, queue in enumerate(dict.fromkeys(one.queue for one in ordered))}
        told.append(f"streams of {len(contexts)} contexts are numbered from 0, in the order in which they started")
    else:
        numbers = {kernel.queue: kernel.queue[1] for kernel in ordered}
    timed = [one for one in ordered if not one_by_one and math.isfinite(one.start_us + one.duration_us)]
    beside = _beside_others(timed)
    if beside:
        told.append(
            f"{beside} of {len(ordered)} kernels ran beside others when they were recorded: what they took then stands "
            "for their time alone, and may be too long (record with CUDA_LAUNCH_BLOCKING=1)"
        )
    if others:
        told.append(f"copies and memsets are left out: {others}")
    rows = tuple(
        NumberedRow(
            kernel.place,
            {**kernel.cells, "stream": numbers[kernel.queue], "alone_us": f"{kernel.duration_us:.9g}"},
        )
        for kernel in ordered
    )
    return Recording(rows, place, tuple(told))


def _beside_others(kernels: Sequence[Recorded]) -> int:
    """How many kernels ran beside others for more than a small part of their time."""
    changes = sorted(
        change for kernel in kernels for change in ((kernel.start_us, 1), (kernel.start_us + kernel.duration_us, -1))
    )
    # The time for which two or more ran, up to each change.
    shared_us: dict[float, float] = {}
    running, total_us, before_us = 0, 0.0, 0.0
    for time_us, change in changes:
        if running > 1:
            total_us += time_us - before_us
        shared_us[time_us] = total_us
        running, before_us = running + change, time_us
    return sum(
        shared_us[kernel.start_us + kernel.duration_us] - shared_us[kernel.start_us]
        > _OVERLAP_TOLD * kernel.duration_us
        for kernel in kernels
    )
