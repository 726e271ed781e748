"""Cost of a whole plan in the fluid model of :mod:`~iossim.backends.simulator.stage_model`: host, streams and events.

The commands are those of the event-driven engine (:mod:`~iossim.backends.simulator.events`): the host issues them in
order on its own clock, and runs ahead until it awaits the device; a stream runs what it was given one after another.
Only kernels are a fluid here, and blocks there. Kernels that become ready together start in the order of their issue.

:func:`price_streams` makes the commands of many schedules of one set of launches, as
:mod:`iossim.execution.lower` does, and runs them: tens of microseconds a schedule of some tens of launches.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from iossim.backends.simulator.device_sharing import (
    AFTER,
    BEGIN,
    HOST,
    ISSUED,
    MAX_GROUPS,
    POSITION,
    READY,
    REMAINING,
    Fluid,
)
from iossim.backends.simulator.event_costs import EventCosts
from iossim.backends.simulator.stage_model import run_on, start, starts_from
from iossim.base.compiled import Floats, Integers, jit
from iossim.schedule.streams import GOES_ON, READERS, WAITS, Waits, find_waits

#: Kinds of commands.
KERNEL, RECORD, WAIT, AWAIT_DEVICE = range(4)
#: Columns of the commands: its kind, its stream, its kernel (a row) or event, and the next command of the stream.
KIND, STREAM, REFERENCE, NEXT = range(4)
#: Columns of their times: the host's and the stream's time for it, and its issue.
HOST_US, STREAM_US, ISSUED_US = range(3)

#: Rows of the work space by stream: when its next kernel may start (inf: none may), when all before has run, and its
#: next command.
_START, _FREE, _HEAD = ISSUED, READY, BEGIN
#: ... and whether its next kernel follows one of its own; while commands are written, whether it has launched since its
#: last record.
_FOLLOWS = _IS_OPEN = POSITION


class Commands(NamedTuple):
    """Commands in the order in which the host issues them and their times, us, ``[commands, 4]`` and ``[commands, 3]``;
    and room for when each event fires.
    """

    each: Integers
    times: Floats
    events_us: Floats

    @staticmethod
    def room(commands: int, events: int) -> Commands:
        return Commands(np.zeros((commands, 4), dtype=np.int64), np.zeros((commands, 3)), np.empty(events))


@jit
def run_commands(count: int, clock_us: float, commands: Commands, fluid: Fluid) -> float:
    """When the last kernel of the first ``count`` commands ends, us from when the device is there.

    The host begins at ``clock_us``. The spans of the fluid become those of the kernels.
    """
    last_us = 0.0
    now_us = 0.0
    for event in range(len(commands.events_us)):
        commands.events_us[event] = np.inf
    begin = 0
    while begin < count:
        end = begin
        while end < count and commands.each[end, KIND] != AWAIT_DEVICE:
            clock_us += commands.times[end, HOST_US]
            commands.times[end, ISSUED_US] = clock_us
            end += 1
        now_us, last_us = _run_segment(begin, end, now_us, last_us, commands, fluid)
        if end < count:
            clock_us = max(clock_us, now_us) + commands.times[end, HOST_US]
        begin = end + 1
    return last_us


@jit(error_model="numpy")
def _run_segment(
    begin: int, end: int, now: float, last_us: float, commands: Commands, fluid: Fluid
) -> tuple[float, float]:
    """Advance from event to event until all streams are done; returns when the last of them is, and the last kernel."""
    each, numbers, integers = commands.each, fluid.numbers, fluid.integers
    width = 0
    for place in range(begin, end):
        width = max(width, each[place, STREAM] + 1)
    for stream in range(width):
        integers[_HEAD, stream] = -1
        numbers[REMAINING, stream] = -1.0  # no kernel of it runs
        numbers[AFTER, stream] = 0.0
        numbers[_START, stream] = np.inf
        numbers[_FREE, stream] = now
        integers[_FOLLOWS, stream] = 0
    for place in range(end - 1, begin - 1, -1):
        stream = each[place, STREAM]
        each[place, NEXT] = integers[_HEAD, stream]
        integers[_HEAD, stream] = place
    _advance(width, commands, fluid)
    active = 0
    key = np.uint64(0)
    may_start = now
    while True:
        next_start = np.inf
        while True:
            first, first_us = _first_stream(width, active, fluid)
            if first < 0:
                break
            from_us = starts_from(may_start, each[integers[_HEAD, first], REFERENCE], active, fluid)
            if max(first_us, from_us) > now:
                next_start = max(first_us, from_us)
                break
            if active >= fluid.max_kernels:
                break
            place = integers[_HEAD, first]
            key = start(each[place, REFERENCE], first, active, key, fluid)
            numbers[_START, first] = np.inf
            integers[_FOLLOWS, first] = 1
            integers[_HEAD, first] = each[place, NEXT]
            active += 1
            may_start = now + fluid.apart_us
        if active == 0:
            if next_start == np.inf:
                break
            now = next_start
            continue
        before = active
        active, key, now, _ = run_on(active, key, now, next_start, fluid)
        if active < before:
            last_us = now
            _advance(width, commands, fluid)
    for stream in range(width):
        now = max(now, numbers[_FREE, stream])
    return now, last_us


@jit(inline="always")
def _first_stream(width: int, active: int, fluid: Fluid) -> tuple[int, float]:
    """The stream whose kernel may start first, by issue among equals, and when; -1 where none may."""
    numbers, integers = fluid.numbers, fluid.integers
    first, first_us = -1, np.inf
    for stream in range(width):
        at = numbers[_START, stream]
        if active > 0 and integers[_FOLLOWS, stream]:
            at = max(at, numbers[_FREE, stream] + fluid.follow_us)
        if at < first_us or (at == first_us < np.inf and integers[_HEAD, stream] < integers[_HEAD, first]):
            first, first_us = stream, at
    return first, first_us


@jit
def _advance(width: int, commands: Commands, fluid: Fluid) -> None:
    """Take streams that run no kernel through their records and waits, to the next kernel or what has not fired."""
    each, times, events_us = commands
    numbers, integers = fluid.numbers, fluid.integers
    fired = True
    while fired:
        fired = False
        for stream in range(width):
            if numbers[REMAINING, stream] >= 0.0 or numbers[_START, stream] < np.inf:
                continue
            place = integers[_HEAD, stream]
            while place >= 0:
                kind = each[place, KIND]
                at = max(numbers[_FREE, stream], times[place, ISSUED_US])
                if kind == KERNEL:
                    numbers[_START, stream] = at
                    break
                if kind == WAIT:
                    event_us = events_us[each[place, REFERENCE]]
                    if event_us == np.inf:
                        break
                    at = max(at, event_us)
                    integers[_FOLLOWS, stream] = 0
                at += times[place, STREAM_US]
                if kind == RECORD:
                    events_us[each[place, REFERENCE]] = at
                    fired = True
                numbers[_FREE, stream] = at
                place = each[place, NEXT]
            integers[_HEAD, stream] = place


@jit
def price_streams(
    orders: Integers,
    streams: Integers,
    costs: EventCosts,
    ahead_us: float,
    waits: Waits,
    commands: Commands,
    fluid: Fluid,
    result: Floats,
) -> None:
    """Write to ``result``, ``[schedules, 2 + launches]``, when the last kernel of each ends, when the host has issued
    all, and when each launch ends.

    ``orders`` and ``streams`` are those of a :class:`~iossim.schedule.streams.StreamBatch`; the fluid's units are the
    launches of its problem.
    """
    kernel_begin = fluid.kernels.kernel_begin
    for index in range(len(orders)):
        find_waits(orders[index], streams[index], waits)
        count = _emit(orders[index], streams[index], costs, waits, commands, fluid)
        result[index, 0] = run_commands(count, -ahead_us, commands, fluid)
        result[index, 1] = commands.times[count - 1, ISSUED_US] if count > 0 else -ahead_us
        for launch in range(len(kernel_begin) - 1):
            last = kernel_begin[launch + 1] - 1  # those of a launch run in order
            result[index, 2 + launch] = fluid.spans[last, 2] if last >= kernel_begin[launch] else 0.0


@jit
def _emit(order: Integers, streams: Integers, costs: EventCosts, found: Waits, commands: Commands, fluid: Fluid) -> int:
    """Write the commands of a schedule; returns how many there are."""
    waits, places = found.waits, found.places
    kernel_begin, columns = fluid.kernels.kernel_begin, fluid.kernels.columns
    for stream in range(MAX_GROUPS):
        fluid.integers[_IS_OPEN, stream] = 0
    count = 0
    for place in range(len(order)):
        launch = order[place]
        stream = streams[launch]
        for index in range(places[WAITS, launch]):
            # Waits in a row are one join, which follows the last of them.
            last = index == places[WAITS, launch] - 1
            joins = last and (index > 0 or fluid.integers[_IS_OPEN, stream] > 0)
            stream_us = costs.wait_us + (costs.join_us if joins else 0.0)
            count = _put(count, WAIT, stream, waits[found.begin[launch] + index], costs.host_us, stream_us, commands)
        for kernel in range(kernel_begin[launch], kernel_begin[launch + 1]):
            count = _put(count, KERNEL, stream, kernel, columns[kernel, HOST], 0.0, commands)
        fluid.integers[_IS_OPEN, stream] = 1
        if places[READERS, launch]:
            forks = places[READERS, launch] + places[GOES_ON, launch] > 1
            stream_us = costs.fork_us if forks else 0.0
            count = _put(count, RECORD, stream, launch, costs.host_us, stream_us, commands)
            fluid.integers[_IS_OPEN, stream] = 0
    return count


@jit(inline="always")
def _put(
    count: int, kind: int, stream: int, reference: int, host_us: float, stream_us: float, commands: Commands
) -> int:
    """Write one command after ``count`` others; returns how many there are then."""
    each, times, _ = commands
    each[count, KIND], each[count, STREAM], each[count, REFERENCE] = kind, stream, reference
    times[count, HOST_US], times[count, STREAM_US] = host_us, stream_us
    return count + 1
