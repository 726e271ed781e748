"""Kernels as recorded by a profiler, and their conversion to a table of kernels.

Rows of the table are in the order in which kernels started. A kernel's recorded duration is used as its
time alone, which is wrong if others ran concurrently. Copies and memsets are left out.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from iossim.base.user_files import LARGEST, NumberError, read_number
from iossim.base.values import LONGEST_US
from iossim.measurements.measurement import device_of_product
from iossim.measurements.text_files import CsvError, CsvRow

MICROSECONDS = {"ns": 1e-3, "us": 1.0, "ms": 1e3, "s": 1e6}
#: The duration of a kernel is not its time alone if others ran for more than this fraction of it.
_OVERLAP_TOLD = 0.05
DURATION = "alone_us"


@dataclass(frozen=True, slots=True)
class ProfiledKernel:
    """A kernel: its position in the file, its time span, its device and its queue (context and stream).

    ``cells`` has its name, its grid, its resources and traffic, if recorded, in the columns of tables of
    kernels. ``faults`` has the unreadable values by column. ``ranges`` are the cells of NVTX ranges around it.
    """

    place: int
    start_us: float
    duration_us: float
    device: str
    queue: tuple[str, str]
    cells: Mapping[str, str]
    faults: Mapping[str, CsvError] = field(default_factory=dict)
    ranges: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Profile:
    """All kernels of a file in its order; ``others`` is the number of copies and memsets besides them.

    ``place`` is the unit of the kernels' positions, if not lines. If they ran ``one_by_one``, starts are only an order.
    ``product`` is the driver's name of the device; empty if the file does not name it.
    """

    kernels: tuple[ProfiledKernel, ...]
    place: str = ""
    others: int = 0
    notes: tuple[str, ...] = ()
    one_by_one: bool = False
    product: str = ""


@dataclass(frozen=True, slots=True)
class KernelRows:
    """Rows of a table of kernels; ``place`` is the unit of their numbers, if not lines.

    For a recording ``device`` is the recorded device, empty if unknown; ``recorded_us`` is the time from the
    first start to the last end, and ``idle_us`` the part of it without kernels; None if kernels ran one by one.
    """

    rows: tuple[CsvRow, ...]
    place: str = ""
    notes: tuple[str, ...] = ()
    device: str = ""
    recorded_us: float | None = None
    idle_us: float = 0.0


def number(text: str, column: str, line: int) -> float:
    """The number in a cell, 0 or more; raises CsvError."""
    try:
        return read_number(text)
    except NumberError as error:
        remedy = "profile with LC_ALL=C" if "," in text else "export the report again"
        raise CsvError(f"{column}: {text!r} {error}", remedy, line) from None


def check_time(what: str, value_us: float, least: float = 0.0, most: float = LONGEST_US) -> None:
    """Raise CsvError for an impossible time."""
    try:
        read_number(value_us, least=least, most=most)
    except NumberError as error:
        raise CsvError(f"{what}, {value_us:g} us, {error}", "record it again") from None


def side_by_side(profile: Profile) -> KernelRows:
    """The kernels of a profile as a table; raises CsvError for unreadable values, and for several devices."""
    ordered = sorted(profile.kernels, key=lambda kernel: (kernel.start_us, kernel.place))
    if not ordered:
        raise CsvError("the recording has no kernels", "record with CUDA's activity traced")
    for kernel in profile.kernels:
        for fault in kernel.faults.values():
            raise fault
    devices = dict.fromkeys(kernel.device for kernel in ordered)
    if len(devices) > 1:
        raise CsvError(f"holds kernels of {len(devices)} devices, {', '.join(devices)}", "export those of one")
    notes = list(profile.notes)
    contexts = {kernel.queue[0] for kernel in ordered}
    if len(contexts) > 1:
        numbers = {queue: str(number) for number, queue in enumerate(dict.fromkeys(one.queue for one in ordered))}
        notes.append(f"streams of {len(contexts)} contexts are numbered from 0, in the order in which they started")
    else:
        numbers = {kernel.queue: kernel.queue[1] for kernel in ordered}
    for kernel in ordered:
        check_time(f"the start of {kernel.cells['name']!r}", kernel.start_us, -LARGEST, LARGEST)
    # An impossible duration is refused in its row.
    timed = [] if profile.one_by_one else [one for one in ordered if 0 <= one.duration_us <= LONGEST_US]
    beside = _beside_others(timed)
    if beside:
        notes.append(
            f"{beside} of {len(ordered)} kernels ran concurrently with others when recorded: their durations "
            "count as times alone, and may be too long (record with CUDA_LAUNCH_BLOCKING=1)"
        )
    if profile.others:
        notes.append(f"copies and memsets are left out: {profile.others}")
    rows = []
    for kernel in ordered:
        own = {"stream": numbers[kernel.queue], DURATION: f"{kernel.duration_us:.9g}"}
        rows.append(CsvRow(kernel.place, {**kernel.cells, **own}))
    recorded_us = max(one.start_us + one.duration_us for one in timed) - ordered[0].start_us if timed else None
    busy = busy_us((one.start_us, one.start_us + one.duration_us) for one in timed)
    idle_us = recorded_us - busy if recorded_us else 0.0
    device = device_of_product(profile.product) if profile.product else ""
    return KernelRows(tuple(rows), profile.place, tuple(notes), device, recorded_us, idle_us)


def busy_us(spans_us: Iterable[tuple[float, float]]) -> float:
    """Total length of the union of spans."""
    busy, end = 0.0, -math.inf
    for begin, until in sorted(spans_us):
        busy += max(0.0, until - max(begin, end))
        end = max(end, until)
    return busy


def repetitions(names: Sequence[str]) -> int:
    """Number of repetitions of the shortest sequence that generates ``names``."""
    sizes = (size for size in range(1, len(names) + 1) if len(names) % size == 0)
    return next(len(names) // size for size in sizes if list(names) == list(names[:size]) * (len(names) // size))


def _beside_others(kernels: Sequence[ProfiledKernel]) -> int:
    """Number of kernels that overlapped others for more than a small fraction of their time."""
    changes = sorted(
        change for kernel in kernels for change in ((kernel.start_us, 1), (kernel.start_us + kernel.duration_us, -1))
    )
    # Cumulative time for which two or more ran, at each change.
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
