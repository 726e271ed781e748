"""Cost of a whole plan in the fluid model of :mod:`~iossim.backends.simulator.stage_model`: host, streams and events.

The commands are those of the event-driven engine (:mod:`~iossim.backends.simulator.events`): the host issues them in
order on its own clock, and runs ahead until it awaits the device; a stream runs what it was given one after another.
Only kernels are a fluid here, and blocks there. Kernels that become ready together start in the order of their issue.

:func:`price_streams` makes the commands of many schedules of one set of launches, as
:mod:`iossim.execution.lower` does, and runs them: tens of microseconds a schedule of some tens of launches.
"""

from __future__ import annotations

import numpy as np

from iossim.backends.simulator.device_sharing import (
    ALONE,
    BEGIN,
    HOST,
    ISSUED,
    NOT_BEGUN,
    NUMBERS,
    READY,
    REMAINING,
    RUNNING,
    STARTED,
    STRETCH,
    WAITING,
    Floats,
    Integers,
    begin_waves,
    left_after,
    shortest_step,
    slowdowns,
)
from iossim.base.compiled import jit
from iossim.schedule.problem import Masks
from iossim.schedule.streams import MAX_STREAMS

#: Kinds of commands.
KERNEL, RECORD, WAIT, AWAIT_DEVICE = range(4)
#: Columns of the commands: its kind, its stream, its kernel (a row) or event, and the next command of the stream.
KIND, STREAM, REFERENCE, NEXT = range(4)
#: Columns of their times: the host's and the stream's time for it, its issue, and its begin and end.
HOST_US, STREAM_US, ISSUED_US, BEGAN_US, ENDED_US = range(5)
#: Costs of events: of the host for each, and of a stream for a fork and a join in a graph, and a wait in a session;
#: then how far apart kernels start.
EVENT_US, FORK_US, JOIN_US, WAIT_US, APART_US = range(5)

#: Rows of the work space of :mod:`~iossim.backends.simulator.device_sharing` that it leaves to whoever calls it: for
#: each stream when its next kernel may start (inf: none may), when all before has run, and its next command.
_START, _FREE, _HEAD = ISSUED, READY, BEGIN
_ROOM = MAX_STREAMS + 1


@jit
def run_commands(
    count: int,
    commands: Integers,
    times: Floats,
    columns: Floats,
    interference: float,
    max_kernels: int,
    apart_us: float,
    clock_us: float,
    events_us: Floats,
    numbers: Floats,
    integers: Integers,
    sets: Masks,
) -> float:
    """When the last kernel of the first ``count`` commands ends, us from when the device is there.

    The host begins at ``clock_us``. ``columns`` are those of
    :class:`~iossim.backends.simulator.stage_model.StageKernels`. ``events_us`` has room for an event each;
    ``numbers``, ``integers`` and ``sets`` are the work space of :mod:`~iossim.backends.simulator.device_sharing`.
    """
    last_us = 0.0
    now_us = 0.0
    for event in range(len(events_us)):
        events_us[event] = np.inf
    begin = 0
    while begin < count:
        end = begin
        while end < count and commands[end, KIND] != AWAIT_DEVICE:
            clock_us += times[end, HOST_US]
            times[end, ISSUED_US] = clock_us
            end += 1
        numbers[_FREE, MAX_STREAMS] = last_us
        now_us = _run_segment(
            begin,
            end,
            now_us,
            commands,
            times,
            columns,
            interference,
            max_kernels,
            apart_us,
            events_us,
            numbers,
            integers,
            sets,
        )
        last_us = numbers[_FREE, MAX_STREAMS]
        if end < count:
            clock_us = max(clock_us, now_us) + times[end, HOST_US]
        begin = end + 1
    return last_us


@jit(error_model="numpy")
def _run_segment(
    begin: int,
    end: int,
    now_us: float,
    commands: Integers,
    times: Floats,
    columns: Floats,
    interference: float,
    max_kernels: int,
    apart_us: float,
    events_us: Floats,
    numbers: Floats,
    integers: Integers,
    sets: Masks,
) -> float:
    """Advance from event to event until all streams are done; returns when the last of them is."""
    width = 0
    for place in range(begin, end):
        width = max(width, commands[place, STREAM] + 1)
    for stream in range(width):
        integers[_HEAD, stream] = -1
        numbers[REMAINING, stream] = -1.0  # no kernel of it runs
        numbers[_START, stream] = np.inf
        numbers[_FREE, stream] = now_us
    for place in range(end - 1, begin - 1, -1):
        stream = commands[place, STREAM]
        commands[place, NEXT] = integers[_HEAD, stream]
        integers[_HEAD, stream] = place
    _advance(width, commands, times, events_us, numbers, integers)
    active = 0
    now = now_us
    may_start = now_us
    while True:
        next_start = np.inf
        while True:
            first = -1
            for stream in range(width):
                at = numbers[_START, stream]
                if at < np.inf and (
                    first < 0
                    or at < numbers[_START, first]
                    or (at == numbers[_START, first] and integers[_HEAD, stream] < integers[_HEAD, first])
                ):
                    first = stream
            if first < 0:
                break
            if max(numbers[_START, first], may_start) > now:
                next_start = max(numbers[_START, first], may_start)
                break
            if active >= max_kernels:
                break
            place = integers[_HEAD, first]
            kernel = commands[place, REFERENCE]
            numbers[_START, first] = np.inf
            numbers[REMAINING, first] = columns[kernel, ALONE]
            numbers[WAITING, first] = NOT_BEGUN
            integers[STARTED, active] = first
            integers[RUNNING, active] = kernel
            times[place, BEGAN_US] = -1.0  # waits for slots
            active += 1
            may_start = now + apart_us
        if active == 0:
            if next_start == np.inf:
                break
            now = next_start
            continue
        waves_matter = slowdowns(active, columns, interference, numbers, integers, sets)
        if waves_matter:
            begin_waves(active, columns, numbers, integers)
        for slot in range(active):
            place = integers[_HEAD, integers[STARTED, slot]]
            if times[place, BEGAN_US] < 0.0 and numbers[STRETCH, slot] < np.inf:
                times[place, BEGAN_US] = now
        step = shortest_step(active, waves_matter, columns, numbers, integers)
        if now + step > next_start:
            step = next_start - now
            now = next_start
        else:
            now += step
        kept = 0
        for slot in range(active):
            stream = integers[STARTED, slot]
            left = left_after(step, slot, columns, numbers, integers)
            if left <= 1e-12 * now:
                place = integers[_HEAD, stream]
                times[place, ENDED_US] = now
                integers[_HEAD, stream] = commands[place, NEXT]
                numbers[REMAINING, stream] = -1.0
                numbers[_FREE, stream] = now
            else:
                numbers[REMAINING, stream] = left
                integers[STARTED, kept] = stream
                integers[RUNNING, kept] = integers[RUNNING, slot]
                kept += 1
        if kept < active:
            active = kept
            numbers[_FREE, MAX_STREAMS] = now
            _advance(width, commands, times, events_us, numbers, integers)
    for stream in range(width):
        now = max(now, numbers[_FREE, stream])
    return now


@jit
def _advance(
    width: int, commands: Integers, times: Floats, events_us: Floats, numbers: Floats, integers: Integers
) -> None:
    """Take streams that run no kernel through their records and waits, to the next kernel or what has not fired."""
    fired = True
    while fired:
        fired = False
        for stream in range(width):
            if numbers[REMAINING, stream] >= 0.0 or numbers[_START, stream] < np.inf:
                continue
            place = integers[_HEAD, stream]
            while place >= 0:
                kind = commands[place, KIND]
                at = max(numbers[_FREE, stream], times[place, ISSUED_US])
                if kind == KERNEL:
                    numbers[_START, stream] = at
                    break
                if kind == WAIT:
                    event_us = events_us[commands[place, REFERENCE]]
                    if event_us == np.inf:
                        break
                    at = max(at, event_us)
                at += times[place, STREAM_US]
                if kind == RECORD:
                    events_us[commands[place, REFERENCE]] = at
                    fired = True
                numbers[_FREE, stream] = at
                place = commands[place, NEXT]
            integers[_HEAD, stream] = place


@jit
def price_streams(
    orders: Integers,
    streams: Integers,
    reads: Integers,
    read_begin: Integers,
    kernel_begin: Integers,
    columns: Floats,
    costs: Floats,
    interference: float,
    max_kernels: int,
    ahead_us: float,
    result: Floats,
) -> None:
    """Write to ``result``, ``[schedules, 2 + launches]``, when the last kernel of each ends, when the host has issued
    all, and when each launch ends.

    ``orders`` and ``streams`` are those of a :class:`~iossim.schedule.streams.StreamBatch`, ``reads`` of its
    problem; ``kernel_begin[l]`` to ``kernel_begin[l + 1]`` are launch ``l``'s kernels, ``costs`` those of events.
    """
    launches = len(read_begin) - 1
    most = len(columns) + 2 * len(reads) + launches
    commands = np.empty((most, 4), dtype=np.int64)
    times = np.empty((most, 5), dtype=np.float64)
    events_us = np.empty(launches, dtype=np.float64)
    numbers = np.empty((NUMBERS, _ROOM), dtype=np.float64)
    integers = np.empty((6, _ROOM), dtype=np.int64)
    sets = np.empty((2, _ROOM), dtype=np.uint64)
    waits = np.empty(len(reads) + 1, dtype=np.int64)
    places = np.empty((7, max(launches, MAX_STREAMS)), dtype=np.int64)
    clocks = np.empty((launches, MAX_STREAMS), dtype=np.int64)
    launch_of = np.empty(len(columns), dtype=np.int64)
    for launch in range(launches):
        for kernel in range(kernel_begin[launch], kernel_begin[launch + 1]):
            launch_of[kernel] = launch
    for index in range(len(orders)):
        _find_waits(orders[index], streams[index], reads, read_begin, waits, places, clocks)
        count = _emit(
            orders[index], streams[index], read_begin, kernel_begin, columns, costs, waits, places, commands, times
        )
        result[index, 0] = run_commands(
            count,
            commands,
            times,
            columns,
            interference,
            max_kernels,
            costs[APART_US],
            -ahead_us,
            events_us,
            numbers,
            integers,
            sets,
        )
        issued_us = -ahead_us
        for launch in range(launches):
            result[index, 2 + launch] = 0.0
        for place in range(count):
            issued_us += times[place, HOST_US]
            if commands[place, KIND] == KERNEL:
                # Those of a launch run in order.
                result[index, 2 + launch_of[commands[place, REFERENCE]]] = times[place, ENDED_US]
        result[index, 1] = issued_us


# Rows of the places. Of a launch: its place in the order of issue and in its stream, how many waits it has, how many
# launches wait for it, and whether the next one of its stream has no waits. Of a stream: its last launch, and whether
# it has launched since its last record.
_PLACE, _POSITION, _WAITS, _WAITING, _GOES_ON, _LAST, _IS_OPEN = range(7)


@jit
def _find_waits(
    order: Integers,
    streams: Integers,
    reads: Integers,
    read_begin: Integers,
    waits: Integers,
    places: Integers,
    clocks: Integers,
) -> None:
    """The transitive reduction, as :func:`iossim.schedule.streams.reduced_waits` has it."""
    launches = len(order)
    width = 0
    for place in range(launches):
        launch = order[place]
        width = max(width, streams[launch] + 1)
        places[_PLACE, launch] = place
        places[_WAITING, launch] = 0
        places[_GOES_ON, launch] = 0
    for stream in range(width):
        places[_LAST, stream] = -1
        places[_IS_OPEN, stream] = 0
    for place in range(launches):
        launch = order[place]
        stream = streams[launch]
        last = places[_LAST, stream]
        for other in range(width):
            clocks[launch, other] = clocks[last, other] if last >= 0 else 0
        places[_POSITION, launch] = clocks[launch, stream]
        begin = read_begin[launch]
        end = read_begin[launch + 1]
        # The launch that was issued last comes first: it implies those before it.
        for at in range(begin, end):
            before = reads[at]
            into = at
            while into > begin and places[_PLACE, waits[into - 1]] < places[_PLACE, before]:
                waits[into] = waits[into - 1]
                into -= 1
            waits[into] = before
        kept = begin
        for at in range(begin, end):
            before = waits[at]
            if clocks[launch, streams[before]] <= places[_POSITION, before]:
                waits[kept] = before
                kept += 1
                places[_WAITING, before] += 1
                for other in range(width):
                    clocks[launch, other] = max(clocks[launch, other], clocks[before, other])
        places[_WAITS, launch] = kept - begin
        if kept == begin and last >= 0:
            places[_GOES_ON, last] = 1
        clocks[launch, stream] = places[_POSITION, launch] + 1
        places[_LAST, stream] = launch


@jit
def _emit(
    order: Integers,
    streams: Integers,
    read_begin: Integers,
    kernel_begin: Integers,
    columns: Floats,
    costs: Floats,
    waits: Integers,
    places: Integers,
    commands: Integers,
    times: Floats,
) -> int:
    """Write the commands of a schedule; returns how many there are."""
    count = 0
    for place in range(len(order)):
        launch = order[place]
        stream = streams[launch]
        for index in range(places[_WAITS, launch]):
            # Waits in a row are one join, which follows the last of them.
            last = index == places[_WAITS, launch] - 1
            joins = last and (index > 0 or places[_IS_OPEN, stream] > 0)
            commands[count, KIND] = WAIT
            commands[count, STREAM] = stream
            commands[count, REFERENCE] = waits[read_begin[launch] + index]
            times[count, HOST_US] = costs[EVENT_US]
            times[count, STREAM_US] = costs[WAIT_US] + (costs[JOIN_US] if joins else 0.0)
            count += 1
        for kernel in range(kernel_begin[launch], kernel_begin[launch + 1]):
            commands[count, KIND] = KERNEL
            commands[count, STREAM] = stream
            commands[count, REFERENCE] = kernel
            times[count, HOST_US] = columns[kernel, HOST]
            times[count, STREAM_US] = 0.0
            count += 1
        places[_IS_OPEN, stream] = 1
        if places[_WAITING, launch]:
            forks = places[_WAITING, launch] + places[_GOES_ON, launch] > 1
            commands[count, KIND] = RECORD
            commands[count, STREAM] = stream
            commands[count, REFERENCE] = launch
            times[count, HOST_US] = costs[EVENT_US]
            times[count, STREAM_US] = costs[FORK_US] if forks else 0.0
            count += 1
            places[_IS_OPEN, stream] = 0
    return count


def run_plan_commands(
    commands: Integers,
    times: Floats,
    columns: Floats,
    events: int,
    interference: float,
    max_kernels: int,
    apart_us: float,
) -> float:
    """When the last kernel of given commands ends, us; ``times`` becomes when each kernel began and ended."""
    return run_commands(
        len(commands),
        commands,
        times,
        columns,
        interference,
        max_kernels,
        apart_us,
        0.0,
        np.empty(events, dtype=np.float64),
        np.empty((NUMBERS, _ROOM), dtype=np.float64),
        np.empty((6, _ROOM), dtype=np.int64),
        np.empty((2, _ROOM), dtype=np.uint64),
    )
