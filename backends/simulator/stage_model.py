"""Cost of a concurrent stage: its groups' kernels share the device, and the host issues them one by one.

A fluid model. Each group runs its kernels one after another on a stream of its own; a kernel cannot start before the
host, which issues group after group, lowest unit first, has issued it, nor sooner than ``apart_us`` after another
kernel: what starts the nodes of a graph starts one after another. From event to event (a kernel ends, a kernel
is issued) each kernel runs as much slower than alone as :mod:`~iossim.backends.simulator.device_sharing` says. The
cores of a CPU run one thread each: further kernels queue, longest waiting first (``max_kernels``).

A stage of one group is no fluid: it costs the sum over its units of the longer of host and device time, so that
cutting a chain into stages changes nothing.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from iossim.backends.simulator.device_sharing import (
    ALONE,
    BEGIN,
    BEHIND,
    GROUPS,
    HOST,
    ISSUED,
    NOT_BEGUN,
    NUMBERS,
    ORDER,
    POSITION,
    READY,
    REMAINING,
    RUNNING,
    STARTED,
    STRETCH,
    WAITING,
    Floats,
    Integers,
    KnownSlowdowns,
    begin_waves,
    is_next,
    known_slowdowns,
    left_after,
    shortest_step,
    with_kernel,
)
from iossim.base.compiled import jit
from iossim.schedule.masks import find_groups, lowest_bit
from iossim.schedule.problem import Masks

#: An upper bound on the groups of a stage.
MAX_GROUPS = 64
#: Factor on lower bounds, so that rounding in the fluid never lifts one above a price.
KEPT = 1.0 - 1e-9


class StageKernels(NamedTuple):
    """The kernels of a problem's units, flat: ``kernel_begin[u]`` to ``kernel_begin[u + 1]`` are unit ``u``'s.

    ``columns`` has a row a kernel, and the columns of :mod:`~iossim.backends.simulator.device_sharing`; ``single_us``
    is what each unit takes in a stage of one group; ``keys``, ``[kernels, 2]``, are those of a kernel in its last wave
    and before, equal for kernels that are priced alike.
    """

    kernel_begin: Integers
    columns: Floats
    single_us: Floats
    keys: Masks


@jit
def price_masks(
    masks: Masks,
    predecessors: Masks,
    kernel_begin: Integers,
    columns: Floats,
    single_us: Floats,
    keys: Masks,
    interference: float,
    prices: Floats,
    limits_us: Floats,
    max_kernels: int,
    apart_us: float,
    spans: Floats,
    known: KnownSlowdowns,
) -> None:
    """Write the price of each mask, as a concurrent stage, to ``prices``, us; both have shape ``[stages]``.

    ``predecessors`` are the problem's, uint64 of shape ``[units]``; the others those of :class:`StageKernels`.
    A price that is no less than the stage's entry in ``limits_us`` may be left unknown: then the negative of a lower
    bound is written, which is no less either. At most ``max_kernels`` kernels run at a time. ``spans``, ``[kernels of
    the problem, 3]``, becomes the stream, start and end of each kernel of the last stage; nothing is recorded where it
    has no rows.
    """
    size = max(MAX_GROUPS + 1, len(columns))
    numbers = np.empty((NUMBERS, size), dtype=np.float64)
    integers = np.empty((6, size), dtype=np.int64)
    sets = np.empty((2, MAX_GROUPS + 1), dtype=np.uint64)
    for index in range(len(masks)):
        count = find_groups(masks[index], predecessors, sets[GROUPS])
        if count <= 1:
            prices[index] = _single_group(masks[index], kernel_begin, columns, single_us, spans)
            continue
        # Kernels of each group in order, their times of issue, and the least time of those after each of them.
        place = 0
        clock_us = 0.0
        for group in range(count):
            integers[BEGIN, group] = place
            members = sets[GROUPS, group]
            while members:
                unit = lowest_bit(members)
                members &= members - np.uint64(1)
                for kernel in range(kernel_begin[unit], kernel_begin[unit + 1]):
                    clock_us += columns[kernel, HOST]
                    integers[ORDER, place] = kernel
                    numbers[ISSUED, place] = clock_us
                    place += 1
            behind_us = 0.0
            for before in range(place - 1, integers[BEGIN, group] - 1, -1):
                numbers[BEHIND, before] = behind_us
                behind_us += columns[integers[ORDER, before], ALONE]
        integers[BEGIN, count] = place
        prices[index] = _share(
            count, columns, keys, interference, limits_us[index], max_kernels, apart_us, numbers, integers, sets, spans,
            known,
        )  # fmt: skip


# The code of an event is inlined, and divisions, whose divisors were seen to be above 0, are not checked: calls, which
# pass three arrays, and checks took a fifth of the time.
@jit(error_model="numpy")
def _share(
    count: int,
    columns: Floats,
    keys: Masks,
    interference: float,
    limit_us: float,
    max_kernels: int,
    apart_us: float,
    numbers: Floats,
    integers: Integers,
    sets: Masks,
    spans: Floats,
    known: KnownSlowdowns,
) -> float:
    """Advance from event to event (a kernel ends, a kernel is issued) until all groups are done, or one of them cannot
    end before the limit: then the result is negative.
    """
    for group in range(count):
        integers[POSITION, group] = integers[BEGIN, group]
        is_empty = integers[BEGIN, group] == integers[BEGIN, group + 1]
        numbers[REMAINING, group] = np.inf if is_empty else -1.0  # all have ended, or none runs
        numbers[READY, group] = numbers[ISSUED, integers[BEGIN, group]]
    active = 0  # groups whose kernel runs
    key = np.uint64(0)  # identifies the kernels that run
    now = 0.0
    next_start = 0.0  # when another kernel may start
    while True:
        next_issue = np.inf
        for group in range(count):
            if numbers[REMAINING, group] >= 0.0:
                continue
            place = integers[POSITION, group]
            if numbers[ISSUED, place] > now:
                next_issue = min(next_issue, numbers[ISSUED, place])
                if place == integers[BEGIN, group]:
                    break  # the host issues the groups after this one later
                continue
            if now < next_start:
                next_issue = min(next_issue, next_start)
                continue
            if max_kernels < count and not is_next(group, count, max_kernels - active, now, numbers, integers):
                continue
            kernel = integers[ORDER, place]
            numbers[REMAINING, group] = columns[kernel, ALONE]
            numbers[WAITING, group] = NOT_BEGUN
            integers[STARTED, active] = group
            integers[RUNNING, active] = kernel
            key = with_kernel(key, columns[kernel, ALONE], NOT_BEGUN, kernel, columns, keys)
            active += 1
            next_start = now + apart_us
            if len(spans):
                spans[kernel, 0] = group
                spans[kernel, 1] = -1.0  # not yet
        if active == 0:
            if next_issue == np.inf:
                return now
            now = next_issue
            continue
        waves_matter = known_slowdowns(active, key, columns, interference, numbers, integers, sets, known)
        if waves_matter:
            begin_waves(active, columns, numbers, integers)
        if len(spans):
            for slot in range(active):
                if numbers[STRETCH, slot] < np.inf and spans[integers[RUNNING, slot], 1] < 0.0:
                    spans[integers[RUNNING, slot], 1] = now
        # The next event: the first kernel to end, or to free slots, unless one is issued before.
        step = shortest_step(active, waves_matter, columns, numbers, integers)
        if now + step > next_issue:
            step = next_issue - now
            now = next_issue
        else:
            now += step
        kept = 0
        key = np.uint64(0)
        left_us = 0.0  # least time until the last of the groups ends
        for slot in range(active):
            group = integers[STARTED, slot]
            kernel = integers[RUNNING, slot]
            left = left_after(step, slot, columns, numbers, integers)
            if left <= 1e-12 * now:
                if len(spans):
                    spans[kernel, 2] = now
                integers[POSITION, group] += 1
                is_last = integers[POSITION, group] == integers[BEGIN, group + 1]
                numbers[REMAINING, group] = np.inf if is_last else -1.0
                numbers[READY, group] = now
            else:
                numbers[REMAINING, group] = left
                left_us = max(left_us, min(left, columns[kernel, ALONE]) + numbers[BEHIND, integers[POSITION, group]])
                integers[STARTED, kept] = group
                integers[RUNNING, kept] = kernel
                key = with_kernel(key, left, numbers[WAITING, group], kernel, columns, keys)
                kept += 1
        active = kept
        if (now + left_us) * KEPT >= limit_us:
            return -(now + left_us) * KEPT


@jit
def _single_group(mask: np.uint64, kernel_begin: Integers, columns: Floats, single_us: Floats, spans: Floats) -> float:
    """The units of a chain one after another; a unit waits for the host before its kernels run."""
    now = 0.0
    while mask:
        unit = lowest_bit(mask)
        mask &= mask - np.uint64(1)
        if len(spans):
            device_us = 0.0
            for kernel in range(kernel_begin[unit], kernel_begin[unit + 1]):
                device_us += columns[kernel, ALONE]
            start = now + max(0.0, single_us[unit] - device_us)
            for kernel in range(kernel_begin[unit], kernel_begin[unit + 1]):
                spans[kernel, 0] = 0
                spans[kernel, 1] = start
                start += columns[kernel, ALONE]
                spans[kernel, 2] = start
        now += single_us[unit]
    return now
