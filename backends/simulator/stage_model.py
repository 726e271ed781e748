"""What a concurrent stage costs: its groups' kernels sharing the device, issued by the host one by one.

A fluid model. Each group runs its kernels one after another on a stream of its own; a kernel cannot start before the
host, which issues group after group, lowest unit first, has issued it.

*Slots.* Kernels get room on the SMs (warps, blocks, registers, shared memory) in the order in which they start. One that
finds room for a part of its blocks runs that part as fast; one that finds none waits, until a kernel before it reaches its
last wave, which leaves room, or ends. Room is counted over all SMs together.

*SMs*: a kernel of at least one resident block an SM counts as lying on all SMs evenly; the blocks of any other lie, one an
SM, on a part of them: on the SMs with most room, those that hold the fewest warps when the kernel starts. So the SMs fall
into a few segments of equal load. An SM whose blocks ask for more than it has makes them wait, and a kernel is as slow as its
slowest SM; but full waves go round an SM that is slow: they are as fast as all SMs on average.

*The device*: DRAM bandwidth and the board's power, each shared by all who ask for it in proportion to their demands. While
nothing is asked for more than there is, every kernel runs as fast as alone. What kernels touch together has to fit into the
part of L2 that keeps operands: what does not comes from DRAM. An input that two of them read counts twice: they may lose
less than that.

On a CPU, kernels that run side by side disturb each other besides: what they ask for counts ``1 + interference`` times. On GPUs
measurements show none of it.

The cores of a CPU run one thread each: while all are busy, further kernels queue, and the one that has waited
longest comes first (``max_kernels``).

A stage of one group is no fluid: it costs the sum over its units of the longer of host and device time, so that
cutting a chain into stages changes nothing.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from iossim.backends.simulator.kernel_times import lost_part
from iossim.base.compiled import jit
from iossim.schedule.masks import find_groups, lowest_bit
from iossim.schedule.problem import Masks

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

#: An upper bound on the groups of a stage.
MAX_GROUPS = 64
#: A kernel of at least so many resident blocks an SM counts as lying on all SMs evenly: at most 1, as ``_segments`` lays
#: one block an SM.
EVEN_SPREAD = 1.0


class StageKernels(NamedTuple):
    """The kernels of a problem's units, flat: ``kernel_begin[u]`` to ``kernel_begin[u + 1]`` are unit ``u``'s.

    ``columns`` has a row a kernel, and the columns below; ``single_us`` is what each unit takes in a stage of one group.
    """

    kernel_begin: Integers
    columns: Floats
    single_us: Floats


#: Columns of ``StageKernels.columns``: those of ``KernelPrice``, its ``slots`` last; then what the host needs to issue the
#: kernel, the load of one resident block on its SM, and the largest part that its blocks have of any kind of slots.
ALONE, ISSUE_DEMAND, DRAM_DEMAND, POWER_DEMAND, SPREAD, WARPS, LAST_US, LAST_SPREAD, FOOTPRINT, KEPT_DEMAND = range(
    10
)
SLOTS, SLOT_KINDS = 10, 4
HOST, BLOCK_LOAD, HELD = range(SLOTS + SLOT_KINDS, SLOTS + SLOT_KINDS + 3)

# Room to work in is three arrays, passed down one by one: taking an array out of a tuple costs as much as an event.
# Rows of the numbers, an entry a group, a segment, a kernel in order of issue, one that runs, or a kind of slots ...
_REMAINING, _STRETCH, _WIDTH, _LOAD, _SEGMENT_WARPS, _ISSUED, _READY, _PART, _TAKEN = range(9)
# ... of the integers (kernels in order of issue; of each group, where its own begin and which is next; the groups whose
# kernels run, in the order in which they started, and those kernels; of them, the sparse ones) ...
_ORDER, _BEGIN, _POSITION, _STARTED, _RUNNING, _SPARSE = range(6)
# ... and of the masks: units of a group, and sparse kernels with blocks on a segment.
_GROUPS, _MEMBERS = range(2)


@jit
def price_masks(
    masks: Masks,
    predecessors: Masks,
    kernel_begin: Integers,
    columns: Floats,
    single_us: Floats,
    interference: float,
    prices: Floats,
    max_kernels: int = MAX_GROUPS,
) -> None:
    """Write the price of each mask, as a concurrent stage, to ``prices``, us; both have shape ``[stages]``.

    ``predecessors`` are the problem's, uint64 of shape ``[units]``; the others those of :class:`StageKernels`.
    At most ``max_kernels`` kernels run at a time.
    """
    size = max(MAX_GROUPS + 1, len(columns))
    numbers = np.empty((9, size), dtype=np.float64)
    integers = np.empty((6, size), dtype=np.int64)
    sets = np.empty((2, MAX_GROUPS + 1), dtype=np.uint64)
    spans = np.empty((0, 3), dtype=np.float64)
    for index in range(len(masks)):
        prices[index] = _price(
            masks[index],
            predecessors,
            kernel_begin,
            columns,
            single_us,
            interference,
            max_kernels,
            numbers,
            integers,
            sets,
            spans,
        )


@jit
def stage_spans(
    mask: np.uint64,
    predecessors: Masks,
    kernel_begin: Integers,
    columns: Floats,
    single_us: Floats,
    interference: float,
    spans: Floats,
    max_kernels: int = MAX_GROUPS,
) -> float:
    """The price of one stage, us; for each of its kernels ``spans[kernel]`` becomes stream, start and end.

    ``spans`` has shape ``[kernels of the problem, 3]``; the others are those of :func:`price_masks`.
    """
    size = max(MAX_GROUPS + 1, len(columns))
    numbers = np.empty((9, size), dtype=np.float64)
    integers = np.empty((6, size), dtype=np.int64)
    sets = np.empty((2, MAX_GROUPS + 1), dtype=np.uint64)
    return _price(
        mask,
        predecessors,
        kernel_begin,
        columns,
        single_us,
        interference,
        max_kernels,
        numbers,
        integers,
        sets,
        spans,
    )


@jit
def _price(
    mask: np.uint64,
    predecessors: Masks,
    kernel_begin: Integers,
    columns: Floats,
    single_us: Floats,
    interference: float,
    max_kernels: int,
    numbers: Floats,
    integers: Integers,
    sets: Masks,
    spans: Floats,
) -> float:
    """The price of one stage."""
    count = find_groups(mask, predecessors, sets[_GROUPS])
    if count <= 1:
        return _single_group(mask, kernel_begin, columns, single_us, spans)
    # The kernels of each group in order, and when the host has issued them.
    place = 0
    clock = 0.0
    for group in range(count):
        integers[_BEGIN, group] = place
        members = sets[_GROUPS, group]
        while members:
            unit = lowest_bit(members)
            members &= members - np.uint64(1)
            for kernel in range(kernel_begin[unit], kernel_begin[unit + 1]):
                clock += columns[kernel, HOST]
                integers[_ORDER, place] = kernel
                numbers[_ISSUED, place] = clock
                place += 1
    integers[_BEGIN, count] = place
    return _share(count, columns, interference, max_kernels, numbers, integers, sets, spans)


# What happens at each event is inlined, and divisions are not checked (each is by what was seen to be above 0): a call
# passes three arrays, and together these took a fifth of the time.
@jit(error_model="numpy")
def _share(
    count: int,
    columns: Floats,
    interference: float,
    max_kernels: int,
    numbers: Floats,
    integers: Integers,
    sets: Masks,
    spans: Floats,
) -> float:
    """Advance from event to event (a kernel ends, a kernel is issued) until all groups are done."""
    for group in range(count):
        integers[_POSITION, group] = integers[_BEGIN, group]
        numbers[_REMAINING, group] = -1.0  # none runs
        numbers[_READY, group] = numbers[_ISSUED, integers[_BEGIN, group]]
    active = 0  # groups whose kernel runs
    now = 0.0
    while True:
        next_issue = np.inf
        for group in range(count):
            place = integers[_POSITION, group]
            if numbers[_REMAINING, group] >= 0.0 or place == integers[_BEGIN, group + 1]:
                continue
            if numbers[_ISSUED, place] > now:
                next_issue = min(next_issue, numbers[_ISSUED, place])
                continue
            if max_kernels < count and not _is_next(group, count, max_kernels - active, now, numbers, integers):
                continue
            kernel = integers[_ORDER, place]
            numbers[_REMAINING, group] = columns[kernel, ALONE]
            integers[_STARTED, active] = group
            integers[_RUNNING, active] = kernel
            active += 1
            if len(spans):
                spans[kernel, 0] = group
                spans[kernel, 1] = -1.0  # not yet
        if active == 0:
            if next_issue == np.inf:
                return now
            now = next_issue
            continue
        waves_matter = _slowdowns(active, columns, interference, numbers, integers, sets)
        if len(spans):
            for slot in range(active):
                if numbers[_STRETCH, slot] < np.inf and spans[integers[_RUNNING, slot], 1] < 0.0:
                    spans[integers[_RUNNING, slot], 1] = now
        # The next event: the first kernel to end, or to free slots for those that wait, unless one is issued before.
        step = np.inf
        for slot in range(active):
            left = numbers[_REMAINING, integers[_STARTED, slot]]
            if waves_matter and _has_full_waves(left, integers[_RUNNING, slot], columns):
                left -= columns[integers[_RUNNING, slot], LAST_US]
            step = min(step, left * numbers[_STRETCH, slot])
        if now + step > next_issue:
            step = next_issue - now
            now = next_issue
        else:
            now += step
        kept = 0
        for slot in range(active):
            group = integers[_STARTED, slot]
            left = numbers[_REMAINING, group] - step / numbers[_STRETCH, slot]
            if left <= 1e-12 * now:
                numbers[_REMAINING, group] = -1.0
                if len(spans):
                    spans[integers[_RUNNING, slot], 2] = now
                integers[_POSITION, group] += 1
                numbers[_READY, group] = now
            else:
                numbers[_REMAINING, group] = left
                integers[_STARTED, kept] = group
                integers[_RUNNING, kept] = integers[_RUNNING, slot]
                kept += 1
        active = kept


@jit
def _is_next(group: int, count: int, free: int, now: float, numbers: Floats, integers: Integers) -> bool:
    """Whether a group whose kernel is issued is among the ``free`` that have waited longest; of equals, the first."""
    for other in range(count):
        place = integers[_POSITION, other]
        is_waiting = (
            numbers[_REMAINING, other] < 0.0
            and place < integers[_BEGIN, other + 1]
            and numbers[_ISSUED, place] <= now
            and other != group
        )
        since = numbers[_READY, other]
        if is_waiting and (since < numbers[_READY, group] or (since == numbers[_READY, group] and other < group)):
            free -= 1
    return free > 0


@jit(inline="always")
def _has_full_waves(remaining_us: float, kernel: int, columns: Floats) -> bool:
    """Whether a kernel with that much left, as if alone, is not in its last wave."""
    has_full: bool = remaining_us > columns[kernel, LAST_US] * (1.0 + 1e-9)
    return has_full


@jit(inline="always")
def _give_slots(active: int, columns: Floats, numbers: Floats, integers: Integers) -> bool:
    """The part of the blocks that it would have resident for which each active kernel finds slots, in the order in which
    they started; whether any has less than all.
    """
    held_back = False
    for kind in range(SLOT_KINDS):
        numbers[_TAKEN, kind] = 0.0
    for slot in range(active):
        kernel = integers[_RUNNING, slot]
        remaining_us = numbers[_REMAINING, integers[_STARTED, slot]]
        blocks = columns[kernel, SPREAD if _has_full_waves(remaining_us, kernel, columns) else LAST_SPREAD]
        part = 1.0
        # Whoever started first has what it has alone, whatever rounding says.
        if slot > 0:
            for kind in range(SLOT_KINDS):
                wanted = blocks * columns[kernel, SLOTS + kind]
                room = max(0.0, 1.0 - numbers[_TAKEN, kind])
                if room < wanted * (1.0 - 1e-9):
                    part = min(part, room / wanted)
                    held_back = True
        numbers[_PART, slot] = part
        if part > 0.0:
            for kind in range(SLOT_KINDS):
                numbers[_TAKEN, kind] += part * blocks * columns[kernel, SLOTS + kind]
    return held_back


@jit(inline="always")
def _slowdowns(
    active: int, columns: Floats, interference: float, numbers: Floats, integers: Integers, sets: Masks
) -> bool:
    """How many times longer than alone each active kernel takes now; whether slots hold any of them back."""
    wanted = 0.0
    for slot in range(active):
        wanted += columns[integers[_RUNNING, slot], HELD]
        numbers[_PART, slot] = 1.0
    held_back = wanted > 1.0 and _give_slots(active, columns, numbers, integers)
    dram = 0.0
    power = 0.0
    footprint = 0.0
    everywhere = 0.0  # load of kernels that lie on all SMs
    even_warps = 0.0
    most = 0.0  # an upper bound on what the others add to the load of any SM
    total = 0.0  # their resident blocks over the number of SMs
    sparse = 0
    for slot in range(active):
        kernel = integers[_RUNNING, slot]
        part = numbers[_PART, slot]
        if part == 0.0:
            continue
        demand = columns[kernel, ISSUE_DEMAND] * part
        spread = columns[kernel, SPREAD]
        dram += columns[kernel, DRAM_DEMAND] * part
        power += columns[kernel, POWER_DEMAND] * part
        footprint += columns[kernel, FOOTPRINT]
        if spread >= EVEN_SPREAD:
            everywhere += demand
            even_warps += spread * columns[kernel, WARPS]
        elif demand > 0.0:
            most += columns[kernel, BLOCK_LOAD] * part
            total += spread
            integers[_SPARSE, sparse] = slot
            sparse += 1
    lost = lost_part(footprint, 1.0)
    if lost > 0.0 and active > 1:
        dram += _lost_dram(active, lost, columns, numbers, integers)
    waves_matter = held_back
    demand_factor = 1.0 + interference if active > 1 else 1.0
    dram *= demand_factor
    power *= demand_factor
    heaviest = max(1.0, everywhere * demand_factor)
    evenly = heaviest
    for slot in range(active):
        numbers[_STRETCH, slot] = evenly
    if sparse > 0 and (most + everywhere) * demand_factor > evenly:
        speed = 1.0 / evenly
        if total <= 1.0:
            # Each has SMs of its own.
            for index in range(sparse):
                slot = integers[_SPARSE, index]
                kernel = integers[_RUNNING, slot]
                load = max(evenly, (everywhere + columns[kernel, BLOCK_LOAD] * numbers[_PART, slot]) * demand_factor)
                numbers[_STRETCH, slot] = load
                heaviest = max(heaviest, load)
                speed += columns[kernel, SPREAD] * (1.0 / load - 1.0 / evenly)
        else:
            heaviest, speed = _segments(
                sparse, everywhere, even_warps, demand_factor, columns, numbers, integers, sets
            )
            heaviest = max(heaviest, evenly)
        if everywhere > 0.0 and heaviest > evenly:
            # What lies on all SMs is in its last wave as slow as the SM that is asked for most; before, that SM gets fewer
            # blocks.
            for slot in range(active):
                kernel = integers[_RUNNING, slot]
                if columns[kernel, SPREAD] >= EVEN_SPREAD:
                    if _has_full_waves(numbers[_REMAINING, integers[_STARTED, slot]], kernel, columns):
                        numbers[_STRETCH, slot] = 1.0 / speed
                        waves_matter = True
                    else:
                        numbers[_STRETCH, slot] = heaviest
    if dram > 1.0 or power > 1.0:
        for slot in range(active):
            kernel = integers[_RUNNING, slot]
            if columns[kernel, DRAM_DEMAND] > 0.0:
                numbers[_STRETCH, slot] = max(numbers[_STRETCH, slot], dram)
            if columns[kernel, POWER_DEMAND] > 0.0:
                numbers[_STRETCH, slot] = max(numbers[_STRETCH, slot], power)
    if held_back:
        for slot in range(active):
            part = numbers[_PART, slot]
            numbers[_STRETCH, slot] = numbers[_STRETCH, slot] / part if part > 0.0 else np.inf
    return waves_matter


@jit(inline="always")
def _lost_dram(active: int, lost: float, columns: Floats, numbers: Floats, integers: Integers) -> float:
    """What kernels ask of DRAM besides, where all that they touch together does not stay in L2."""
    more = 0.0
    for slot in range(active):
        kernel = integers[_RUNNING, slot]
        kept = columns[kernel, KEPT_DEMAND] * numbers[_PART, slot]
        if kept > 0.0:
            alone = lost_part(columns[kernel, FOOTPRINT], 1.0)
            if alone < lost:
                more += kept * (lost - alone) / (1.0 - alone)
    return more


@jit
def _segments(
    sparse: int,
    everywhere: float,
    even_warps: float,
    demand_factor: float,
    columns: Floats,
    numbers: Floats,
    integers: Integers,
    sets: Masks,
) -> tuple[float, float]:
    """Lay the blocks of sparse kernels on segments of the SMs; slows them down, and returns the heaviest load of any."""
    numbers[_WIDTH, 0], numbers[_LOAD, 0], numbers[_SEGMENT_WARPS, 0] = 1.0, everywhere, even_warps
    sets[_MEMBERS, 0] = np.uint64(0)
    count = 1
    for index in range(sparse):
        kernel = integers[_RUNNING, integers[_SPARSE, index]]
        bit = np.uint64(1) << np.uint64(index)
        load = columns[kernel, BLOCK_LOAD] * numbers[_PART, integers[_SPARSE, index]]
        # A block on a part of the SMs: those with the fewest warps, the first of equals.
        rest = columns[kernel, SPREAD]
        while rest > 1e-9:
            least = -1
            for segment in range(count):
                has_it = sets[_MEMBERS, segment] & bit
                if not has_it and (least < 0 or numbers[_SEGMENT_WARPS, segment] < numbers[_SEGMENT_WARPS, least]):
                    least = segment
            if least < 0:
                break
            if numbers[_WIDTH, least] > rest + 1e-9:
                # Split: what gets no block stays behind as a segment of its own.
                numbers[_WIDTH, count] = numbers[_WIDTH, least] - rest
                numbers[_LOAD, count] = numbers[_LOAD, least]
                numbers[_SEGMENT_WARPS, count] = numbers[_SEGMENT_WARPS, least]
                sets[_MEMBERS, count] = sets[_MEMBERS, least]
                numbers[_WIDTH, least] = rest
                count += 1
                rest = 0.0
            else:
                rest -= numbers[_WIDTH, least]
            numbers[_LOAD, least] += load
            numbers[_SEGMENT_WARPS, least] += columns[kernel, WARPS]
            sets[_MEMBERS, least] |= bit
    heaviest = 0.0
    speed = 0.0
    for segment in range(count):
        load = numbers[_LOAD, segment] * demand_factor
        heaviest = max(heaviest, load)
        speed += numbers[_WIDTH, segment] / max(1.0, load)
        if load > 1.0:
            found = sets[_MEMBERS, segment]
            while found:
                slot = integers[_SPARSE, lowest_bit(found)]
                found &= found - np.uint64(1)
                numbers[_STRETCH, slot] = max(numbers[_STRETCH, slot], load)
    return heaviest, speed


@jit
def _single_group(
    mask: np.uint64, kernel_begin: Integers, columns: Floats, single_us: Floats, spans: Floats
) -> float:
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
