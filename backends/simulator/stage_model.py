"""What a concurrent stage costs: its groups' kernels sharing the device, issued by the host one by one.

A fluid model. Each group runs its kernels one after another on a stream of its own; a kernel cannot start before the
host, which issues group after group, lowest unit first, has issued it.

Kernels share two things. *SMs*: the blocks of a kernel that are resident at a time lie on all SMs, or, where they do not
divide evenly, one more lies on a part of them: on the SMs with most room, those that hold the fewest warps when the
kernel starts. So the SMs fall into a few segments of equal load. An SM whose blocks ask for more than it has makes them
wait, and a kernel is as slow as its slowest SM. *The device*: DRAM bandwidth and power, shared by all in proportion to
their demands. While nothing is asked for more than there is, every kernel runs as fast as alone. Kernels that meet
disturb each other besides: with ``n`` of them on an SM, or at DRAM, what they ask for counts ``1 + crowding * (n - 1)``
times.

A stage of one group is no fluid: it costs the sum over its units of the longer of host and device time, so that
cutting a chain into stages changes nothing.

All compiled code is in this one file.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from iossim.compiled import jit

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
Masks = NDArray[np.uint64]

#: An upper bound on the groups of a stage.
MAX_GROUPS = 64


class StageKernels(NamedTuple):
    """The kernels of a problem's units, flat: ``kernel_begin[u]`` to ``kernel_begin[u + 1]`` are unit ``u``'s.

    ``single_us`` has an entry a unit, all others one a kernel; see ``KernelPrice`` and ``UnitPrice``.
    """

    kernel_begin: Integers
    alone_us: Floats
    issue_demand: Floats
    device_demand: Floats
    spread: Floats
    warps: Floats
    host_us: Floats
    single_us: Floats


class _Room(NamedTuple):
    """Arrays to work in: groups, their kernels in order of issue, and the segments of the SMs."""

    groups: Masks
    group_begin: Integers
    order: Integers
    issued_us: Floats
    position: Integers
    remaining: Floats
    started: Integers
    stretch: Floats
    #: Of each segment: the part of the SMs, its load, its warps, and the kernels with blocks on it.
    segments: Floats
    members: NDArray[np.bool_]


@jit
def price_masks(masks: Masks, predecessors: Masks, kernels: StageKernels, crowding: float, prices: Floats) -> None:
    """Write the price of each mask, as a concurrent stage, to ``prices``."""
    room = _make_room(len(kernels.alone_us))
    spans = np.empty((0, 3), dtype=np.float64)
    for index in range(len(masks)):
        prices[index] = _price(masks[index], predecessors, kernels, crowding, room, spans)


@jit
def stage_spans(mask: np.uint64, predecessors: Masks, kernels: StageKernels, crowding: float, spans: Floats) -> float:
    """The price of one stage; for each of its kernels ``spans[kernel]`` becomes stream, start and end."""
    price: float = _price(mask, predecessors, kernels, crowding, _make_room(len(kernels.alone_us)), spans)
    return price


@jit
def _make_room(kernels: int) -> _Room:
    return _Room(
        np.empty(MAX_GROUPS, dtype=np.uint64),
        np.empty(MAX_GROUPS + 1, dtype=np.int64),
        np.empty(kernels, dtype=np.int64),
        np.empty(kernels, dtype=np.float64),
        np.empty(MAX_GROUPS, dtype=np.int64),
        np.empty(MAX_GROUPS, dtype=np.float64),
        np.empty(MAX_GROUPS, dtype=np.int64),
        np.empty(MAX_GROUPS, dtype=np.float64),
        np.empty((MAX_GROUPS + 1, 3), dtype=np.float64),
        np.empty((MAX_GROUPS + 1, MAX_GROUPS), dtype=np.bool_),
    )


@jit
def _price(
    mask: np.uint64, predecessors: Masks, kernels: StageKernels, crowding: float, room: _Room, spans: Floats
) -> float:
    """The price of one stage."""
    count = _find_groups(mask, predecessors, room.groups)
    if count <= 1:
        return _single_group(mask, kernels, spans)
    # The kernels of each group in order, and when the host has issued them.
    place = 0
    clock = 0.0
    for group in range(count):
        room.group_begin[group] = place
        members = room.groups[group]
        while members:
            unit = _lowest_bit(members)
            members &= members - np.uint64(1)
            for kernel in range(kernels.kernel_begin[unit], kernels.kernel_begin[unit + 1]):
                clock += kernels.host_us[kernel]
                room.order[place] = kernel
                room.issued_us[place] = clock
                place += 1
    room.group_begin[count] = place
    return _share(count, kernels, crowding, room, spans)


@jit
def _share(count: int, kernels: StageKernels, crowding: float, room: _Room, spans: Floats) -> float:
    """Advance from event to event (a kernel ends, a kernel is issued) until all groups are done."""
    for group in range(count):
        room.position[group] = room.group_begin[group]
        room.remaining[group] = -1.0  # none runs
    active = 0  # groups whose kernel runs, in the order in which they started, in ``room.started``
    now = 0.0
    while True:
        next_issue = np.inf
        for group in range(count):
            place = room.position[group]
            if room.remaining[group] >= 0.0 or place == room.group_begin[group + 1]:
                continue
            if room.issued_us[place] > now:
                next_issue = min(next_issue, room.issued_us[place])
                continue
            room.remaining[group] = kernels.alone_us[room.order[place]]
            room.started[active] = group
            active += 1
            if len(spans):
                spans[room.order[place], 0] = group
                spans[room.order[place], 1] = now
        if active == 0:
            if next_issue == np.inf:
                return now
            now = next_issue
            continue
        _stretches(active, kernels, crowding, room)
        # The next event: the first kernel to end, unless one is issued before.
        step = np.inf
        for slot in range(active):
            step = min(step, room.remaining[room.started[slot]] * room.stretch[slot])
        if now + step > next_issue:
            step = next_issue - now
            now = next_issue
        else:
            now += step
        kept = 0
        for slot in range(active):
            group = room.started[slot]
            left = room.remaining[group] - step / room.stretch[slot]
            if left <= 1e-12 * now:
                room.remaining[group] = -1.0
                if len(spans):
                    spans[room.order[room.position[group]], 2] = now
                room.position[group] += 1
            else:
                room.remaining[group] = left
                room.started[kept] = group
                kept += 1
        active = kept


@jit
def _stretches(active: int, kernels: StageKernels, crowding: float, room: _Room) -> None:
    """How many times longer than alone each active kernel takes now, into ``room.stretch``."""
    device = 0.0
    most = 0.0  # an upper bound on the load of any SM
    for slot in range(active):
        kernel = room.order[room.position[room.started[slot]]]
        device += kernels.device_demand[kernel]
        most += kernels.issue_demand[kernel] / kernels.spread[kernel] * np.ceil(kernels.spread[kernel])
    crowded = 1.0 + crowding * (active - 1)
    shared = max(1.0, device * crowded)
    for slot in range(active):
        room.stretch[slot] = shared
    if most * crowded <= 1.0:
        return
    count = 1
    room.segments[0, 0], room.segments[0, 1], room.segments[0, 2] = 1.0, 0.0, 0.0
    room.members[0, :active] = False
    for slot in range(active):
        kernel = room.order[room.position[room.started[slot]]]
        count = _place(
            slot, active, count, kernels.spread[kernel], kernels.issue_demand[kernel], kernels.warps[kernel], room
        )
    for segment in range(count):
        met = 0
        for slot in range(active):
            met += room.members[segment, slot]
        load = room.segments[segment, 1] * (1.0 + crowding * (met - 1))
        for slot in range(active):
            if room.members[segment, slot]:
                room.stretch[slot] = max(room.stretch[slot], load)


@jit
def _place(slot: int, active: int, count: int, spread: float, demand: float, warps: float, room: _Room) -> int:
    """Add a kernel's resident blocks to the segments; returns how many segments there are then."""
    segments = room.segments
    load = demand / spread  # of one block on the SM that holds it
    everywhere = np.floor(spread + 1e-9)
    rest = spread - everywhere
    if everywhere > 0.0:
        for segment in range(count):
            segments[segment, 1] += everywhere * load
            segments[segment, 2] += everywhere * warps
            room.members[segment, slot] = True
    # One more block on a part of the SMs: those with the fewest warps, the first of equals.
    while rest > 1e-9:
        least = -1
        for segment in range(count):
            # Segments that have got theirs carry a negative width until all have.
            if segments[segment, 0] > 0.0 and (least < 0 or segments[segment, 2] < segments[least, 2]):
                least = segment
        width = segments[least, 0]
        if width > rest + 1e-9:
            # Split: what gets no block stays behind as a segment of its own.
            segments[count, 0] = width - rest
            segments[count, 1] = segments[least, 1]
            segments[count, 2] = segments[least, 2]
            for other in range(active):
                room.members[count, other] = room.members[least, other]
            segments[least, 0] = rest
            width = rest
            count += 1
        segments[least, 1] += load
        segments[least, 2] += warps
        room.members[least, slot] = True
        segments[least, 0] = -width  # done; turned back below
        rest -= width
    for segment in range(count):
        segments[segment, 0] = abs(segments[segment, 0])
    return count


@jit
def _single_group(mask: np.uint64, kernels: StageKernels, spans: Floats) -> float:
    """The units of a chain one after another; a unit waits for the host before its kernels run."""
    now = 0.0
    while mask:
        unit = _lowest_bit(mask)
        mask &= mask - np.uint64(1)
        if len(spans):
            device_us = 0.0
            for kernel in range(kernels.kernel_begin[unit], kernels.kernel_begin[unit + 1]):
                device_us += kernels.alone_us[kernel]
            start = now + max(0.0, kernels.single_us[unit] - device_us)
            for kernel in range(kernels.kernel_begin[unit], kernels.kernel_begin[unit + 1]):
                spans[kernel, 0] = 0
                spans[kernel, 1] = start
                start += kernels.alone_us[kernel]
                spans[kernel, 2] = start
        now += kernels.single_us[unit]
    return now


@jit
def _find_groups(mask: np.uint64, predecessors: Masks, groups: Masks) -> int:
    """The connected components of ``mask``, lowest unit first, into ``groups``; returns how many.

    Written as :meth:`iossim.schedule.problem.ScheduleProblem.groups`; components stay sorted because a joined one
    takes the place of its lowest part.
    """
    count = 0
    rest = mask
    while rest:
        unit = _lowest_bit(rest)
        joined = rest & (~rest + np.uint64(1))
        rest &= rest - np.uint64(1)
        before = predecessors[unit]
        place = -1
        kept = 0
        for group in range(count):
            if before & groups[group]:
                if place < 0:
                    place = kept
                    groups[kept] = groups[group] | joined
                    kept += 1
                else:
                    groups[place] |= groups[group]
            else:
                groups[kept] = groups[group]
                kept += 1
        if place < 0:
            groups[kept] = joined
            kept += 1
        count = kept
    return count


@jit
def _lowest_bit(mask: np.uint64) -> int:
    """Index of the lowest set bit of a mask that is not zero."""
    # Multiplying the isolated bit by a de Bruijn sequence puts its index in the top six bits.
    isolated = mask & (~mask + np.uint64(1))
    index: int = _DE_BRUIJN_INDEX[np.int64((isolated * np.uint64(0x022FDD63CC95386D)) >> np.uint64(58))]
    return index


def _de_bruijn_index() -> Integers:
    table = np.zeros(64, dtype=np.int64)
    for index in range(64):
        table[(0x022FDD63CC95386D << index & (1 << 64) - 1) >> 58] = index
    return table


_DE_BRUIJN_INDEX = _de_bruijn_index()
