"""Slowdown of concurrent kernels at one moment: they share slots, SMs and the device.

*Slots.* Kernels get room on the SMs (warps, blocks, registers, shared memory) in the order in which they start. One
that finds room for a part of its blocks runs that part as fast; one that finds none waits, until a kernel before it
reaches its last wave, which leaves room, or ends. Room is counted over all SMs together. But a block that needs a whole
SM finds room only on SMs without other blocks, which lie one an SM while they can; in clusters, only as many as fit
what is left of a GPC, if those blocks lie evenly over the GPCs; and of a single wave of such blocks, those that find
no room run as a second wave, once there is room for all of them or the first ones have ended.

*SMs.* A kernel of at least one resident block an SM counts as lying on all SMs evenly; the blocks of any other lie,
one an SM, on those SMs that hold the fewest warps when it starts. So the SMs fall into a few segments of equal load.
An SM whose blocks ask for more than it has makes them wait, and a kernel is as slow as its slowest SM; but full waves
run at the average.

*The device.* DRAM bandwidth and the board's power are shared in proportion to demands; while neither is asked for
more than there is, every kernel runs as fast as alone. What kernels touch together beyond the part of L2 that keeps
operands comes from DRAM; an input of two of them counts twice.

On a CPU what kernels side by side ask for counts ``1 + interference`` times. On GPUs measurements show none of it.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from iossim.base.compiled import jit
from iossim.hardware.lowering.residence import lost_part
from iossim.schedule.masks import lowest_bit, scramble
from iossim.schedule.problem import Masks

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

#: Resident blocks an SM from which on a kernel counts as lying on all SMs evenly: at most 1, for ``_segments``.
EVEN_SPREAD = 1.0

#: Columns of ``StageKernels.columns`` (:mod:`~iossim.backends.simulator.stage_model`): those of ``KernelPrice``, its
#: ``slots`` last; then what the host needs to issue the kernel, the load of one resident block on its SM, and the
#: largest part that its blocks have of any kind of slots, or more than all where they need whole SMs.
ALONE, ISSUE_DEMAND, DRAM_DEMAND, POWER_DEMAND, SPREAD, WARPS = range(6)
LAST_US, LAST_SPREAD, FOOTPRINT, KEPT_DEMAND, GPC_CLUSTERS, AGAIN_US = range(6, 12)
SLOTS, SLOT_KINDS = 12, 5
#: The last kind of slots: SMs that a block has to itself.
SMS = SLOTS + SLOT_KINDS - 1
HOST, BLOCK_LOAD, HELD = range(SLOTS + SLOT_KINDS, SLOTS + SLOT_KINDS + 3)

# The work space is three arrays, passed down one by one: taking an array out of a tuple costs as much as an event.
# The rows of the numbers have an entry a group, a segment, a kernel in order, a running one, or a kind of slots.
REMAINING, STRETCH, _WIDTH, _LOAD, _SEGMENT_WARPS, ISSUED, READY, _PART, _TAKEN, BEHIND, WAITING = range(11)
#: In the row of what waits, a kernel that has not begun; else the part of its blocks that become a second wave.
NOT_BEGUN, NUMBERS = -1.0, 11
#: A second wave waits for the end of a first one that has at most this part of its time left.
_ENDING = 0.25
# The rows of the integers: kernels in order of issue; for each group, where its own begin and which is next; the
# groups whose kernels run, in the order in which they started, and those kernels; which of them are sparse.
ORDER, BEGIN, POSITION, STARTED, RUNNING, _SPARSE = range(6)
# The rows of the masks: units of a group, and sparse kernels with blocks on a segment.
GROUPS, _MEMBERS = range(2)


@jit(inline="always")
def has_full_waves(remaining_us: float, kernel: int, columns: Floats) -> bool:
    """True where a kernel with that much left, as if alone, is not in its last wave."""
    has_full: bool = remaining_us > columns[kernel, LAST_US] * (1.0 + 1e-9)
    return has_full


@jit(inline="always")
def _give_slots(active: int, columns: Floats, numbers: Floats, integers: Integers) -> bool:
    """The part of the blocks that it would have resident for which each active kernel finds slots, in the order in
    which they started; whether any has less than it asks for.
    """
    held_back = False
    is_blocked = False
    shared = 0.0  # SMs with blocks of kernels that do not need whole ones
    for kind in range(SLOT_KINDS):
        numbers[_TAKEN, kind] = 0.0
    for slot in range(active):
        kernel = integers[RUNNING, slot]
        remaining_us = numbers[REMAINING, integers[STARTED, slot]]
        is_full = has_full_waves(remaining_us, kernel, columns)
        blocks = columns[kernel, SPREAD if is_full else LAST_SPREAD]
        asked = numbers[_PART, slot]
        # A first wave keeps its place, whatever comes before it; blocks that wait may all find room by now.
        kept = asked if is_full and asked < 1.0 else 0.0
        part = kept if is_blocked else asked
        if kept > 0.0 and not is_blocked and _waits_long(remaining_us, kernel, columns):
            part = 1.0
        # Whoever started first has what it has alone, whatever rounding says.
        if slot > 0 and part > kept:
            for kind in range(SLOT_KINDS):
                wanted = blocks * columns[kernel, SLOTS + kind]
                left = _whole_sms(shared, columns[kernel, GPC_CLUSTERS]) if SLOTS + kind == SMS else 1.0
                room = max(0.0, left - numbers[_TAKEN, kind])
                if room < part * wanted * (1.0 - 1e-9):
                    part = room / wanted if room > 1e-9 else 0.0
        if kept > 0.0:
            part = 1.0 if part == 1.0 else kept
            is_full = part < 1.0
        numbers[_PART, slot] = part
        if part < asked or kept > 0.0:
            held_back = True
        is_blocked = is_blocked or part < asked or is_full
        if part > 0.0:
            for kind in range(SLOT_KINDS):
                numbers[_TAKEN, kind] += part * blocks * columns[kernel, SLOTS + kind]
            if columns[kernel, SMS] == 0.0:
                shared = min(1.0, shared + part * blocks)
    return held_back


@jit(inline="always")
def _whole_sms(shared: float, gpc_clusters: float) -> float:
    """Part of the SMs that blocks with whole ones may have where others lie on ``shared`` of them."""
    if gpc_clusters == 0.0:
        return 1.0 - shared
    return math.floor(gpc_clusters * (1.0 - shared)) / math.floor(gpc_clusters)


@jit(inline="always")
def slowdowns(
    active: int, columns: Floats, interference: float, numbers: Floats, integers: Integers, sets: Masks
) -> bool:
    """Slowdown of each active kernel relative to running alone, and whether slots hold any of them back."""
    wanted = 0.0
    are_parts = False
    for slot in range(active):
        wanted += columns[integers[RUNNING, slot], HELD]
        numbers[_PART, slot] = asked = _asked_part(slot, columns, numbers, integers)
        are_parts = are_parts or asked < 1.0
    held_back = (wanted > 1.0 or are_parts) and _give_slots(active, columns, numbers, integers)
    dram = 0.0
    power = 0.0
    footprint = 0.0
    everywhere = 0.0  # load of kernels that lie on all SMs
    even_warps = 0.0
    most = 0.0  # an upper bound on what the others add to the load of any SM
    total = 0.0  # their resident blocks over the number of SMs
    sparse = 0
    for slot in range(active):
        kernel = integers[RUNNING, slot]
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
        numbers[STRETCH, slot] = evenly
    if sparse > 0 and (most + everywhere) * demand_factor > evenly:
        speed = 1.0 / evenly
        if total <= 1.0:
            # Each has SMs of its own.
            for index in range(sparse):
                slot = integers[_SPARSE, index]
                kernel = integers[RUNNING, slot]
                load = max(evenly, (everywhere + columns[kernel, BLOCK_LOAD] * numbers[_PART, slot]) * demand_factor)
                numbers[STRETCH, slot] = load
                heaviest = max(heaviest, load)
                speed += columns[kernel, SPREAD] * (1.0 / load - 1.0 / evenly)
        else:
            heaviest, speed = _segments(sparse, everywhere, even_warps, demand_factor, columns, numbers, integers, sets)
            heaviest = max(heaviest, evenly)
        if everywhere > 0.0 and heaviest > evenly:
            # A kernel on all SMs is in its last wave as slow as the SM that is asked for most; before, it gets fewer.
            for slot in range(active):
                kernel = integers[RUNNING, slot]
                if columns[kernel, SPREAD] >= EVEN_SPREAD:
                    if has_full_waves(numbers[REMAINING, integers[STARTED, slot]], kernel, columns):
                        numbers[STRETCH, slot] = 1.0 / speed
                        waves_matter = True
                    else:
                        numbers[STRETCH, slot] = heaviest
    if dram > 1.0 or power > 1.0:
        for slot in range(active):
            kernel = integers[RUNNING, slot]
            if columns[kernel, DRAM_DEMAND] > 0.0:
                numbers[STRETCH, slot] = max(numbers[STRETCH, slot], dram)
            if columns[kernel, POWER_DEMAND] > 0.0:
                numbers[STRETCH, slot] = max(numbers[STRETCH, slot], power)
    if held_back:
        for slot in range(active):
            part = numbers[_PART, slot]
            if part == 0.0:
                numbers[STRETCH, slot] = np.inf
            elif not _begins_in_part(slot, columns, numbers, integers):
                numbers[STRETCH, slot] *= max(1.0, _asked_part(slot, columns, numbers, integers) / part)
    return waves_matter


@jit(inline="always")
def _begins_in_part(slot: int, columns: Floats, numbers: Floats, integers: Integers) -> bool:
    """True where the blocks for which a kernel finds room run as fast as if all did."""
    is_new = numbers[WAITING, integers[STARTED, slot]] == NOT_BEGUN
    return bool(is_new and columns[integers[RUNNING, slot], AGAIN_US] > 0.0)


@jit(inline="always")
def _asked_part(slot: int, columns: Floats, numbers: Floats, integers: Integers) -> float:
    """Part of its resident blocks that an active kernel has in its present wave, or asks room for."""
    group = integers[STARTED, slot]
    waiting = numbers[WAITING, group]
    if waiting <= 0.0:
        return 1.0
    is_first = has_full_waves(numbers[REMAINING, group], integers[RUNNING, slot], columns)
    return float(1.0 - waiting if is_first else waiting)


@jit(inline="always")
def _waits_long(remaining_us: float, kernel: int, columns: Floats) -> bool:
    """True where waiting blocks may begin before the first wave of their kernel ends: not if it ends soon."""
    waits: bool = remaining_us > columns[kernel, ALONE] + _ENDING * columns[kernel, AGAIN_US]
    return waits


@jit(inline="always")
def begin_waves(active: int, columns: Floats, numbers: Floats, integers: Integers) -> None:
    """A second wave of the blocks for which a kernel of one wave, of whole SMs, found no room; none once all have."""
    for slot in range(active):
        group, kernel, part = integers[STARTED, slot], integers[RUNNING, slot], numbers[_PART, slot]
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
def left_after(step_us: float, slot: int, columns: Floats, numbers: Floats, integers: Integers) -> float:
    """Time left of an active kernel, as if alone. Blocks that wait for whole SMs are ready when they get them."""
    remaining_us = numbers[REMAINING, integers[STARTED, slot]]
    if numbers[STRETCH, slot] == np.inf:
        again_us = columns[integers[RUNNING, slot], AGAIN_US]
        return float(max(remaining_us - step_us, again_us) if again_us > 0.0 else remaining_us)
    return float(remaining_us - step_us / numbers[STRETCH, slot])


#: Largest set of kernels whose slowdowns are kept, and how finely the parts of their blocks are told apart.
_MOST_KNOWN, _PARTS = 7, 2.0**40


class KnownSlowdowns(NamedTuple):
    """Table of slowdowns at one interference, by the set of running kernels: a search meets few sets, again and again.

    ``keys`` identify up to :data:`_MOST_KNOWN` kernels in the order of their starts; ``values`` say whether waves
    matter, then each kernel's slowdown, and the part of its blocks that runs. An entry replaces one in its place.
    """

    keys: Masks
    values: Floats

    @staticmethod
    def room(size: int = 1 << 13) -> KnownSlowdowns:
        return KnownSlowdowns(np.zeros(size, dtype=np.uint64), np.zeros((size, 1 + 2 * _MOST_KNOWN)))


@jit(inline="always")
def with_kernel(key: np.uint64, left_us: float, waiting: float, kernel: int, columns: Floats, keys: Masks) -> np.uint64:
    """Key of a running set with one kernel more, which has ``left_us`` of its time alone ahead, and a part of its
    blocks ``waiting``.
    """
    own = keys[kernel, 1 if has_full_waves(left_us, kernel, columns) else 0]
    if waiting > 0.0:
        own ^= scramble(np.uint64(waiting * _PARTS) + np.uint64(_waits_long(left_us, kernel, columns)))
    return np.uint64(key * np.uint64(0x9E3779B97F4A7C15) + own)


@jit(inline="always")
def known_slowdowns(
    active: int,
    key: np.uint64,
    columns: Floats,
    interference: float,
    numbers: Floats,
    integers: Integers,
    sets: Masks,
    known: KnownSlowdowns,
) -> bool:
    """Results of :func:`slowdowns` for the set with this key, looked up or entered."""
    keys, values = known
    entry = scramble(key) & np.uint64(len(keys) - 1)
    if keys[entry] == key and active <= _MOST_KNOWN:
        for slot in range(active):
            numbers[STRETCH, slot] = values[entry, 1 + slot]
        if values[entry, 0] == 0.0:
            return False
        for slot in range(active):
            numbers[_PART, slot] = values[entry, 1 + _MOST_KNOWN + slot]
        return True
    waves_matter = slowdowns(active, columns, interference, numbers, integers, sets)
    keys[entry], values[entry, 0] = key, 1.0 if waves_matter else 0.0
    for slot in range(min(active, _MOST_KNOWN)):
        values[entry, 1 + slot] = numbers[STRETCH, slot]
        values[entry, 1 + _MOST_KNOWN + slot] = numbers[_PART, slot]
    return waves_matter


@jit
def is_next(group: int, count: int, free: int, now: float, numbers: Floats, integers: Integers) -> bool:
    """True where a group whose kernel is issued is among the ``free`` that waited longest; ties go to the first."""
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


@jit(inline="always")
def shortest_step(active: int, waves_matter: bool, columns: Floats, numbers: Floats, integers: Integers) -> float:
    """Time until the first active kernel ends, or frees slots for waiting ones, us."""
    step = np.inf
    for slot in range(active):
        left = numbers[REMAINING, integers[STARTED, slot]]
        if waves_matter and has_full_waves(left, integers[RUNNING, slot], columns):
            left -= columns[integers[RUNNING, slot], LAST_US]
        step = min(step, left * numbers[STRETCH, slot])
    return float(step)


@jit(inline="always")
def _lost_dram(active: int, lost: float, columns: Floats, numbers: Floats, integers: Integers) -> float:
    """The additional demand for DRAM where all that the kernels touch together does not stay in L2."""
    more = 0.0
    for slot in range(active):
        kernel = integers[RUNNING, slot]
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
    """Lay the blocks of sparse kernels on segments of the SMs, and slow them down; returns the heaviest load."""
    numbers[_WIDTH, 0], numbers[_LOAD, 0], numbers[_SEGMENT_WARPS, 0] = 1.0, everywhere, even_warps
    sets[_MEMBERS, 0] = np.uint64(0)
    count = 1
    for index in range(sparse):
        kernel = integers[RUNNING, integers[_SPARSE, index]]
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
                # Split: SMs that get no block stay as a segment of their own.
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
                numbers[STRETCH, slot] = max(numbers[STRETCH, slot], load)
    return heaviest, speed
