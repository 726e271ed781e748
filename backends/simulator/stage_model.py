"""Cost of a concurrent stage: its groups' kernels share the device, and the host issues them one by one.

A fluid model. Each group runs its kernels one after another on a stream of its own; a kernel cannot start before the
host, which issues group after group, lowest unit first, has issued it, nor sooner than ``apart_us`` after another
kernel: what starts the nodes of a graph starts one after another, and fetches code that no running kernel has; nor
``follow_us`` after its predecessor in the group, while others run. From
event to event (a kernel ends, a kernel is issued) each kernel runs as much slower than alone as
:mod:`~iossim.backends.simulator.device_sharing` says. The cores of a CPU run one thread each: further kernels queue,
longest waiting first (``max_kernels``). Whole plans (:mod:`~iossim.backends.simulator.plan_model`) take the same
steps, and differ in which kernel starts next.

A stage of one group is no fluid: it costs the sum over its units of the longer of host and device time, so that
cutting a chain into stages changes nothing.
"""

from __future__ import annotations

import numpy as np

from iossim.backends.simulator.device_sharing import (
    AFTER,
    AGAIN_US,
    ALONE,
    BEGIN,
    BEHIND,
    CODE,
    GROUPS,
    HOST,
    ISSUED,
    LAST_US,
    MOST_KNOWN,
    NOT_BEGUN,
    ORDER,
    PART,
    POSITION,
    READY,
    REMAINING,
    RUNNING,
    STARTED,
    STRETCH,
    WAITING,
    Fluid,
    StageKernels,
    has_full_waves,
    slowdowns,
    waits_long,
)
from iossim.base.compiled import Floats, jit
from iossim.cost.model import SAFE
from iossim.schedule.masks import find_groups, lowest_bit, scramble
from iossim.schedule.problem import Masks

#: How finely the parts of the blocks of running kernels are told apart.
_PARTS = 2.0**40


@jit
def price_masks(masks: Masks, predecessors: Masks, fluid: Fluid, prices: Floats, limits_us: Floats) -> None:
    """Write the price of each mask, as a concurrent stage, to ``prices``, us; both have shape ``[stages]``.

    ``predecessors`` are the problem's, uint64 of shape ``[units]``. A price that is no less than the stage's entry in
    ``limits_us`` may be left unknown: then the negative of a lower bound is written, which is no less either. Spans
    become those of the last stage.
    """
    kernel_begin, columns = fluid.kernels.kernel_begin, fluid.kernels.columns
    numbers, integers, sets = fluid.numbers, fluid.integers, fluid.sets
    for index in range(len(masks)):
        count = find_groups(masks[index], predecessors, sets[GROUPS])
        if count <= 1:
            prices[index] = _single_group(masks[index], fluid)
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
        prices[index] = _share(count, limits_us[index], fluid)


# The code of an event is inlined, and divisions, whose divisors were seen to be above 0, are not checked: calls and
# checks took a fifth of the time.
@jit(error_model="numpy")
def _share(count: int, limit_us: float, fluid: Fluid) -> float:
    """Advance from event to event (a kernel ends, a kernel is issued) until all groups are done, or one of them cannot
    end before the limit: then the result is negative.
    """
    numbers, integers = fluid.numbers, fluid.integers
    for group in range(count):
        integers[POSITION, group] = integers[BEGIN, group]
        numbers[REMAINING, group] = -1.0  # none runs
        numbers[READY, group] = numbers[ISSUED, integers[BEGIN, group]]
    active = 0  # groups whose kernel runs
    key = np.uint64(0)  # identifies the kernels that run
    now = 0.0
    may_start = 0.0  # when another kernel may start
    while True:
        next_start = np.inf
        for group in range(count):
            if numbers[REMAINING, group] >= 0.0:
                continue
            place = integers[POSITION, group]
            if place == integers[BEGIN, group + 1]:
                numbers[REMAINING, group] = np.inf  # all have ended
                continue
            if numbers[ISSUED, place] > now:
                next_start = min(next_start, numbers[ISSUED, place])
                if place == integers[BEGIN, group]:
                    break  # the host issues the groups after this one later
                continue
            from_us = starts_from(may_start, integers[ORDER, place], active, fluid)
            if active > 0 and place > integers[BEGIN, group]:
                from_us = max(from_us, numbers[READY, group] + fluid.follow_us)
            if now < from_us:
                next_start = min(next_start, from_us)
                continue
            if fluid.max_kernels < count and not _is_next(group, count, fluid.max_kernels - active, now, fluid):
                continue
            key = start(integers[ORDER, place], group, active, key, fluid)
            numbers[AFTER, group] = numbers[BEHIND, place]
            integers[POSITION, group] = place + 1
            active += 1
            may_start = now + fluid.apart_us
        if active == 0:
            if next_start == np.inf:
                return now
            now = next_start
            continue
        active, key, now, left_us = run_on(active, key, now, next_start, fluid)
        if (now + left_us) * SAFE >= limit_us:
            return -(now + left_us) * SAFE


@jit
def _is_next(group: int, count: int, free: int, now: float, fluid: Fluid) -> bool:
    """True where a group whose kernel is issued is among the ``free`` that waited longest; ties go to the first."""
    numbers, integers = fluid.numbers, fluid.integers
    for other in range(count):
        place = integers[POSITION, other]
        is_waiting = (
            numbers[REMAINING, other] < 0.0
            and place < integers[BEGIN, other + 1]
            and numbers[ISSUED, place] <= now
            and other != group
        )
        since = numbers[READY, other]
        if is_waiting and (since < numbers[READY, group] or (since == numbers[READY, group] and other < group)):
            free -= 1
    return free > 0


@jit
def _single_group(mask: np.uint64, fluid: Fluid) -> float:
    """The units of a chain one after another; a unit waits for the host before its kernels run."""
    kernel_begin, columns, single_us, _ = fluid.kernels
    spans = fluid.spans
    now = 0.0
    while mask:
        unit = lowest_bit(mask)
        mask &= mask - np.uint64(1)
        if len(spans):
            device_us = 0.0
            for kernel in range(kernel_begin[unit], kernel_begin[unit + 1]):
                device_us += columns[kernel, ALONE]
            start_us = now + max(0.0, single_us[unit] - device_us)
            for kernel in range(kernel_begin[unit], kernel_begin[unit + 1]):
                spans[kernel, 0] = 0
                spans[kernel, 1] = start_us
                start_us += columns[kernel, ALONE]
                spans[kernel, 2] = start_us
        now += single_us[unit]
    return now


@jit(inline="always")
def starts_from(may_start_us: float, kernel: int, active: int, fluid: Fluid) -> float:
    """When a kernel may start: later where it has code that none of ``active`` others has."""
    columns, integers = fluid.kernels.columns, fluid.integers
    is_new = active > 0 and columns[kernel, CODE] > 0.0
    for slot in range(active):
        is_new = is_new and columns[integers[RUNNING, slot], CODE] != columns[kernel, CODE]
    return may_start_us + fluid.code_us if is_new else may_start_us


@jit(inline="always")
def start(kernel: int, stream: int, active: int, key: np.uint64, fluid: Fluid) -> np.uint64:
    """Start a kernel of a stream beside ``active`` others, whose key is ``key``; returns that of all."""
    numbers, integers, spans = fluid.numbers, fluid.integers, fluid.spans
    alone_us = fluid.kernels.columns[kernel, ALONE]
    numbers[REMAINING, stream], numbers[WAITING, stream] = alone_us, NOT_BEGUN
    integers[STARTED, active], integers[RUNNING, active] = stream, kernel
    if len(spans):
        spans[kernel, 0], spans[kernel, 1] = stream, -1.0  # not yet
    return _with_kernel(key, alone_us, NOT_BEGUN, kernel, fluid.kernels)


@jit(inline="always")
def run_on(
    active: int, key: np.uint64, now: float, next_start: float, fluid: Fluid
) -> tuple[int, np.uint64, float, float]:
    """Run the active kernels until the first of them ends or frees slots, at most until ``next_start``.

    Streams whose kernel ended are ``READY``. Returns how many kernels run on, their key, the time, and the least time
    from then until they and what is ``AFTER`` each of them end.
    """
    columns, numbers, integers = fluid.kernels.columns, fluid.numbers, fluid.integers
    spans = fluid.spans
    waves_matter = _known_slowdowns(active, key, fluid)
    if waves_matter:
        _begin_waves(active, fluid)
    if len(spans):
        for slot in range(active):
            if numbers[STRETCH, slot] < np.inf and spans[integers[RUNNING, slot], 1] < 0.0:
                spans[integers[RUNNING, slot], 1] = now
    step = _shortest_step(active, waves_matter, fluid)
    if now + step > next_start:
        step = next_start - now
        now = next_start
    else:
        now += step
    kept = 0
    key = np.uint64(0)
    left_us = 0.0
    for slot in range(active):
        stream = integers[STARTED, slot]
        kernel = integers[RUNNING, slot]
        left = _left_after(step, slot, fluid)
        if left <= 1e-12 * now:
            if len(spans):
                spans[kernel, 2] = now
            numbers[REMAINING, stream] = -1.0
            numbers[READY, stream] = now
        else:
            numbers[REMAINING, stream] = left
            left_us = max(left_us, min(left, columns[kernel, ALONE]) + numbers[AFTER, stream])
            integers[STARTED, kept] = stream
            integers[RUNNING, kept] = kernel
            key = _with_kernel(key, left, numbers[WAITING, stream], kernel, fluid.kernels)
            kept += 1
    return kept, key, now, left_us


@jit(inline="always")
def _begin_waves(active: int, fluid: Fluid) -> None:
    """A second wave of the blocks for which a kernel of one wave, of whole SMs, found no room; none once all have."""
    columns, numbers, integers = fluid.kernels.columns, fluid.numbers, fluid.integers
    for slot in range(active):
        group, kernel, part = integers[STARTED, slot], integers[RUNNING, slot], numbers[PART, slot]
        again_us = columns[kernel, AGAIN_US]
        if part == 0.0 or again_us == 0.0:
            continue
        if numbers[WAITING, group] == NOT_BEGUN:
            numbers[WAITING, group] = 1.0 - part
            if part < 1.0:
                numbers[REMAINING, group] += again_us
        elif part == 1.0 and numbers[WAITING, group] > 0.0:
            numbers[WAITING, group] = 0.0
            numbers[REMAINING, group] = max(numbers[REMAINING, group] - again_us, again_us)


@jit(inline="always")
def _left_after(step_us: float, slot: int, fluid: Fluid) -> float:
    """Time left of an active kernel, as if alone. Blocks that wait for whole SMs are ready when they get them."""
    columns, numbers, integers = fluid.kernels.columns, fluid.numbers, fluid.integers
    remaining_us = numbers[REMAINING, integers[STARTED, slot]]
    if numbers[STRETCH, slot] == np.inf:
        again_us = columns[integers[RUNNING, slot], AGAIN_US]
        return float(max(remaining_us - step_us, again_us) if again_us > 0.0 else remaining_us)
    return float(remaining_us - step_us / numbers[STRETCH, slot])


@jit(inline="always")
def _shortest_step(active: int, waves_matter: bool, fluid: Fluid) -> float:
    """Time until the first active kernel ends, or frees slots for waiting ones, us."""
    columns, numbers, integers = fluid.kernels.columns, fluid.numbers, fluid.integers
    step = np.inf
    for slot in range(active):
        left = numbers[REMAINING, integers[STARTED, slot]]
        if waves_matter and has_full_waves(left, integers[RUNNING, slot], columns):
            left -= columns[integers[RUNNING, slot], LAST_US]
        step = min(step, left * numbers[STRETCH, slot])
    return float(step)


@jit(inline="always")
def _with_kernel(key: np.uint64, left_us: float, waiting: float, kernel: int, kernels: StageKernels) -> np.uint64:
    """Key of a running set with one kernel more, which has ``left_us`` of its time alone ahead, and a part of its
    blocks ``waiting``.
    """
    own = kernels.keys[kernel, 1 if has_full_waves(left_us, kernel, kernels.columns) else 0]
    if waiting > 0.0:
        own ^= scramble(np.uint64(waiting * _PARTS) + np.uint64(waits_long(left_us, kernel, kernels.columns)))
    return np.uint64(key * np.uint64(0x9E3779B97F4A7C15) + own)


@jit(inline="always")
def _known_slowdowns(active: int, key: np.uint64, fluid: Fluid) -> bool:
    """Results of :func:`slowdowns` for the set with this key, looked up or entered."""
    keys, values = fluid.known
    numbers = fluid.numbers
    entry = scramble(key) & np.uint64(len(keys) - 1)
    if len(keys) > 0 and keys[entry] == key and active <= MOST_KNOWN:
        for slot in range(active):
            numbers[STRETCH, slot] = values[entry, 1 + slot]
        if values[entry, 0] == 0.0:
            return False
        for slot in range(active):
            numbers[PART, slot] = values[entry, 1 + MOST_KNOWN + slot]
        return True
    waves_matter = slowdowns(active, fluid)
    if len(keys) == 0:
        return waves_matter
    keys[entry], values[entry, 0] = key, 1.0 if waves_matter else 0.0
    for slot in range(min(active, MOST_KNOWN)):
        values[entry, 1 + slot] = numbers[STRETCH, slot]
        values[entry, 1 + MOST_KNOWN + slot] = numbers[PART, slot]
    return waves_matter
