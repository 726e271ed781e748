"""What a concurrent stage costs: its groups' kernels sharing the device, issued by the host one by one.

A fluid model. Each group runs its kernels one after another on a stream of its own; all kernels that run at a time
share issue capacity and DRAM in proportion to their demands. While the larger of the two sums of demands is at most 1,
every kernel runs as fast as alone; above, all stretch by it. A stream too many hurts: with ``n`` kernels active, the
demands count ``1 + crowding * (n - 1)`` times. The host issues the kernels group after group, lowest unit first, and
a kernel cannot start before it is issued.

A stage of one group is no fluid: it costs the sum over its units of the longer of host and device time, so that
cutting a chain into stages changes nothing.

All compiled code is in this one file. ``kernel_begin[u]`` to ``kernel_begin[u + 1]`` are unit ``u``'s kernels.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from iossim.compiled import jit

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
Masks = NDArray[np.uint64]

#: An upper bound on the groups of a stage.
MAX_GROUPS = 64


@jit
def price_masks(
    masks: Masks,
    predecessors: Masks,
    kernel_begin: Integers,
    alone_us: Floats,
    issue_demand: Floats,
    dram_demand: Floats,
    host_us: Floats,
    single_us: Floats,
    crowding: float,
    prices: Floats,
) -> None:
    """Write the price of each mask, as a concurrent stage, to ``prices``."""
    kernels = len(alone_us)
    order = np.empty(kernels, dtype=np.int64)
    issued_us = np.empty(kernels, dtype=np.float64)
    group_begin = np.empty(MAX_GROUPS + 1, dtype=np.int64)
    groups = np.empty(MAX_GROUPS, dtype=np.uint64)
    spans = np.empty((0, 3), dtype=np.float64)
    for index in range(len(masks)):
        prices[index] = _price(
            masks[index], predecessors, kernel_begin, alone_us, issue_demand, dram_demand, host_us, single_us,
            crowding, groups, group_begin, order, issued_us, spans,
        )  # fmt: skip


@jit
def stage_spans(
    mask: np.uint64,
    predecessors: Masks,
    kernel_begin: Integers,
    alone_us: Floats,
    issue_demand: Floats,
    dram_demand: Floats,
    host_us: Floats,
    single_us: Floats,
    crowding: float,
    spans: Floats,
) -> float:
    """The price of one stage; for each of its kernels ``spans[kernel]`` becomes stream, start and end."""
    kernels = len(alone_us)
    return _price(
        mask, predecessors, kernel_begin, alone_us, issue_demand, dram_demand, host_us, single_us, crowding,
        np.empty(MAX_GROUPS, dtype=np.uint64), np.empty(MAX_GROUPS + 1, dtype=np.int64),
        np.empty(kernels, dtype=np.int64), np.empty(kernels, dtype=np.float64), spans,
    )  # fmt: skip


@jit
def _price(
    mask: np.uint64,
    predecessors: Masks,
    kernel_begin: Integers,
    alone_us: Floats,
    issue_demand: Floats,
    dram_demand: Floats,
    host_us: Floats,
    single_us: Floats,
    crowding: float,
    groups: Masks,
    group_begin: Integers,
    order: Integers,
    issued_us: Floats,
    spans: Floats,
) -> float:
    """The price of one stage; ``groups``, ``group_begin``, ``order`` and ``issued_us`` are room to work in."""
    count = _find_groups(mask, predecessors, groups)
    if count <= 1:
        return _single_group(mask, kernel_begin, alone_us, single_us, spans)
    # The kernels of each group in order, and when the host has issued them.
    place = 0
    clock = 0.0
    for group in range(count):
        group_begin[group] = place
        members = groups[group]
        while members:
            unit = _lowest_bit(members)
            members &= members - np.uint64(1)
            for kernel in range(kernel_begin[unit], kernel_begin[unit + 1]):
                clock += host_us[kernel]
                order[place] = kernel
                issued_us[place] = clock
                place += 1
    group_begin[count] = place
    return _share(
        count, group_begin, order, issued_us, alone_us, issue_demand, dram_demand, crowding, spans
    )  # fmt: skip


@jit
def _share(
    count: int,
    group_begin: Integers,
    order: Integers,
    issued_us: Floats,
    alone_us: Floats,
    issue_demand: Floats,
    dram_demand: Floats,
    crowding: float,
    spans: Floats,
) -> float:
    """Advance from event to event (a kernel ends, a kernel is issued) until all groups are done."""
    position = np.empty(count, dtype=np.int64)
    remaining = np.empty(count, dtype=np.float64)
    active = np.zeros(count, dtype=np.bool_)
    for group in range(count):
        position[group] = group_begin[group]
    now = 0.0
    while True:
        running = 0
        issue = 0.0
        dram = 0.0
        next_issue = np.inf
        for group in range(count):
            place = position[group]
            if place == group_begin[group + 1]:
                continue
            kernel = order[place]
            if not active[group]:
                if issued_us[place] > now:
                    next_issue = min(next_issue, issued_us[place])
                    continue
                active[group] = True
                remaining[group] = alone_us[kernel]
                if len(spans):
                    spans[kernel, 0] = group
                    spans[kernel, 1] = now
            running += 1
            issue += issue_demand[kernel]
            dram += dram_demand[kernel]
        if running == 0:
            if next_issue == np.inf:
                return now
            now = next_issue
            continue
        stretch = max(1.0, max(issue, dram) * (1.0 + crowding * (running - 1)))
        step = np.inf
        for group in range(count):
            if active[group]:
                step = min(step, remaining[group])
        # The next event: the first kernel to end, unless one is issued before.
        if now + step * stretch > next_issue:
            step = (next_issue - now) / stretch
            now = next_issue
        else:
            now += step * stretch
        for group in range(count):
            if active[group]:
                if remaining[group] <= step:
                    active[group] = False
                    if len(spans):
                        spans[order[position[group]], 2] = now
                    position[group] += 1
                else:
                    remaining[group] -= step


@jit
def _single_group(
    mask: np.uint64, kernel_begin: Integers, alone_us: Floats, single_us: Floats, spans: Floats
) -> float:
    """The units of a chain one after another; a unit waits for the host before its kernels run."""
    now = 0.0
    while mask:
        unit = _lowest_bit(mask)
        mask &= mask - np.uint64(1)
        if len(spans):
            device_us = 0.0
            for kernel in range(kernel_begin[unit], kernel_begin[unit + 1]):
                device_us += alone_us[kernel]
            start = now + max(0.0, single_us[unit] - device_us)
            for kernel in range(kernel_begin[unit], kernel_begin[unit + 1]):
                spans[kernel, 0] = 0
                spans[kernel, 1] = start
                start += alone_us[kernel]
                spans[kernel, 2] = start
        now += single_us[unit]
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
