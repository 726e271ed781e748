"""Recordings of profilers as tables of kernels: which stream ran what, with which grid, and for how long.

Two are read. Nsight Systems, as CSV::

    nsys stats --report cuda_gpu_trace --format csv report.nsys-rep > kernels.csv

and the trace of the PyTorch profiler (Kineto), ``export_chrome_trace("trace.json")``. Rows come in the order in which kernels
started. What a kernel took when it was recorded stands for its time alone, and is not where others ran beside it. Neither tells
bytes or arithmetic. Copies and memsets are left out.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from iossim.measurements.chrome_trace import TraceEvent, complete_events, is_chrome_trace, parse_trace
from iossim.measurements.rows import NumberedRow
from iossim.prediction.csv_rows import CsvError, csv_rows

_AXES = "XYZ"
_MICROSECONDS = {"ns": 1e-3, "us": 1.0, "ms": 1e3, "s": 1e6}
_BYTES = {"B": 1.0, "KB": 1e3, "MB": 1e6, "GB": 1e9, "KiB": 1024.0, "MiB": 1024.0**2, "GiB": 1024.0**3}
#: Of its time, beside others, that makes what a kernel took no time alone.
_OVERLAP_TOLD = 0.05
#: A column of Nsight Systems, and its unit.
_WITH_UNIT = re.compile(r"(.*\S)\s*\((\w+)\)")
_NSYS_COLUMNS = ("Start", "Duration", *(f"{of}{axis}" for of in ("Grd", "Blk") for axis in _AXES), "Strm", "Name")


@dataclass(frozen=True, slots=True)
class Recording:
    """Kernels in the order in which they started, in the columns of tables of kernels; ``place`` is what their numbers count,
    if not lines."""

    rows: tuple[NumberedRow, ...]
    place: str
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Recorded:
    """A kernel: where it stands, when it ran, on which device and in which queue, and its cells but for the stream."""

    place: int
    start_us: float
    duration_us: float
    device: str
    queue: tuple[str, str]
    cells: Mapping[str, str]


def recording_of(text: str) -> Recording | None:
    """The kernels of a recording; None for what is none. Raises CsvError for one that cannot be read."""
    if is_chrome_trace(text[:100_000]):
        return _of_trace(text)
    lines = text.splitlines(keepends=True)
    header = next((number for number, line in enumerate(lines[:40]) if _is_nsys_header(line)), None)
    return None if header is None else _of_nsys(lines, header)


def _is_nsys_header(line: str) -> bool:
    names = {_name_and_unit(cell.strip().strip('"'))[0] for cell in line.split(",")}
    return {"Duration", "GrdX", "BlkX"} <= names


def _name_and_unit(column: str) -> tuple[str, str]:
    found = _WITH_UNIT.fullmatch(column)
    return (found[1], found[2]) if found else (column, "")


def _of_nsys(lines: Sequence[str], header: int) -> Recording:
    # What the tool told before the header becomes empty lines, so that lines keep their numbers.
    table = csv_rows("\n" * header + "".join(lines[header:]))
    units = dict(map(_name_and_unit, table.columns))
    columns = {_name_and_unit(column)[0]: column for column in table.columns}
    for name in _NSYS_COLUMNS:
        if name not in columns:
            raise CsvError(f"the column {name!r} is missing", "export the report cuda_gpu_trace", header + 1)
    start_us, duration_us = (_scale(units, name, _MICROSECONDS, "ns", header) for name in ("Start", "Duration"))
    shared = [name for name in ("StcSMem", "DymSMem") if name in columns]
    shared_scales = [_scale(units, name, _BYTES, "MB", header) for name in shared]
    kernels: list[_Recorded] = []
    for row in table.rows:
        told = {name: str(row.cells[column]).strip() for name, column in columns.items()}
        if not told["GrdX"]:
            continue
        start, duration = (
            _number(told[name], name, row.line) * scale
            for name, scale in (("Start", start_us), ("Duration", duration_us))
        )
        held = [
            _number(told[name], name, row.line) * scale
            for name, scale in zip(shared, shared_scales, strict=True)
            if told[name]
        ]
        cells = {
            "name": told["Name"],
            "blocks": "x".join(told[f"Grd{axis}"] for axis in _AXES),
            "threads": "x".join(told[f"Blk{axis}"] for axis in _AXES),
            "registers_per_thread": told.get("Reg/Trd", ""),
            "shared_bytes": str(round(sum(held))) if held else "",
        }
        queue = told.get("Ctx", ""), told["Strm"]
        kernels.append(_Recorded(row.line, start, duration, told.get("Device", ""), queue, cells))
    notes = []
    if any(float(kernel.cells["shared_bytes"] or 0) for kernel in kernels) and max(shared_scales) > 1e3:
        notes.append("shared memory is as Nsight Systems rounds it, to three digits behind the point of its unit")
    return _recording(kernels, "", len(table.rows) - len(kernels), notes)


def _scale(units: Mapping[str, str], name: str, known: Mapping[str, float], default: str, header: int) -> float:
    unit = units[name] or default
    if unit not in known:
        raise CsvError(f"the unit of {name!r} is {unit!r}", f"known: {', '.join(known)}", header + 1)
    return known[unit]


def _number(text: str, column: str, line: int) -> float:
    try:
        return float(text)
    except ValueError:
        raise CsvError(f"{column}: {text!r} is not a number", "export the report again", line) from None


def _of_trace(text: str) -> Recording:
    try:
        events = list(complete_events(parse_trace(text)))
    except ValueError as error:
        raise CsvError(f"is no whole trace: {error}", "it may be cut short, record it again") from None
    on_device = [event for event in events if event.category in ("kernel", "gpu_memcpy", "gpu_memset")]
    kernels = [
        _Recorded(number, event.begin_us, event.duration_us, *_place_of(event), _cells_of(event))
        for number, event in enumerate(on_device, 1)
        if event.category == "kernel"
    ]
    return _recording(kernels, "GPU event", len(on_device) - len(kernels), [])


def _place_of(event: TraceEvent) -> tuple[str, tuple[str, str]]:
    told = {name: str(event.arguments.get(name, "")) for name in ("device", "context", "stream")}
    return told["device"], (told["context"], told["stream"])


def _cells_of(event: TraceEvent) -> dict[str, str]:
    told = event.arguments
    return {
        "name": event.name,
        "blocks": _extent(told.get("grid")),
        "threads": _extent(told.get("block")),
        "registers_per_thread": str(told.get("registers per thread", "")),
        "shared_bytes": str(told.get("shared memory", "")),
    }


def _extent(sizes: object) -> str:
    return "x".join(map(str, sizes)) if isinstance(sizes, list) else ""


def _recording(kernels: Iterable[_Recorded], place: str, others: int, notes: Sequence[str]) -> Recording:
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
    beside = _beside_others([one for one in ordered if math.isfinite(one.start_us + one.duration_us)])
    if beside:
        told.append(
            f"{beside} of {len(ordered)} kernels ran beside others when they were recorded: what they took then stands "
            "for their time alone, and may be too long (record with CUDA_LAUNCH_BLOCKING=1)"
        )
    if others:
        told.append(f"{others} copies and memsets are left out")
    rows = tuple(
        NumberedRow(
            kernel.place,
            {**kernel.cells, "stream": numbers[kernel.queue], "alone_us": f"{kernel.duration_us:.9g}"},
        )
        for kernel in ordered
    )
    return Recording(rows, place, tuple(told))


def _beside_others(kernels: Sequence[_Recorded]) -> int:
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
