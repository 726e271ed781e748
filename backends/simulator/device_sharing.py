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

from iossim.base.compiled import Floats, Integers, jit
from iossim.hardware.lowering.residence import lost_part
from iossim.schedule.masks import lowest_bit
from iossim.schedule.problem import Masks

#: Resident blocks an SM from which on a kernel counts as lying on all SMs evenly: at most 1, for ``_segments``.
EVEN_SPREAD = 1.0

#: Columns of ``StageKernels.columns``: those of ``KernelPrice``, its ``slots`` last; then what the host needs to issue
#: the kernel, the load of one resident block on its SM, and the largest part that its blocks have of any kind of slots,
#: or more than all where they need whole SMs.
ALONE, ISSUE_DEMAND, DRAM_DEMAND, POWER_DEMAND, SPREAD, WARPS = range(6)
LAST_US, LAST_SPREAD, FOOTPRINT, KEPT_DEMAND, GPC_CLUSTERS, AGAIN_US, CODE = range(6, 13)
SLOTS, SLOT_KINDS = 13, 5
#: The last kind of slots: SMs that a block has to itself.
SMS = SLOTS + SLOT_KINDS - 1
HOST, BLOCK_LOAD, HELD = range(SLOTS + SLOT_KINDS, SLOTS + SLOT_KINDS + 3)

# The rows of the numbers have an entry a stream, a segment, a kernel in order, a running one, or a kind of slots.
REMAINING, STRETCH, _WIDTH, _LOAD, _SEGMENT_WARPS, ISSUED, READY, PART, _TAKEN, BEHIND, AFTER, WAITING = range(12)
#: In the row of what waits, a kernel that has not begun; else the part of its blocks that become a second wave.
NOT_BEGUN = -1.0
#: A second wave waits for the end of a first one that has at most this part of its time left.
_ENDING = 0.25
# The rows of the integers: kernels in order of issue; for each stream, where its own begin and which is next; the
# streams whose kernels run, in the order in which they started, and those kernels; which of them are sparse.
ORDER, BEGIN, POSITION, STARTED, RUNNING, _SPARSE = range(6)
# The rows of the masks: units of a group, and sparse kernels with blocks on a segment.
GROUPS, _MEMBERS = range(2)

#: An upper bound on the groups of a stage, and on streams.
MAX_GROUPS = 64
#: Largest set of kernels whose slowdowns are kept.
MOST_KNOWN = 7


class StageKernels(NamedTuple):
    """The kernels of a problem's units, flat: ``kernel_begin[u]`` to ``kernel_begin[u + 1]`` are unit ``u``'s.

    ``columns`` has a row a kernel; ``single_us`` is what each unit takes in a stage of one group; ``keys``,
    ``[kernels, 2]``, are those of a kernel in its last wave and before, equal for kernels that are priced alike.
    """

    kernel_begin: Integers
    columns: Floats
    single_us: Floats
    keys: Masks


class KnownSlowdowns(NamedTuple):
    """Slowdowns at one interference, by the set of running kernels: a search meets few sets, again and again.

    ``keys`` identify up to :data:`MOST_KNOWN` kernels in the order of their starts; ``values`` say if waves matter,
    then each kernel's slowdown, and the part of its blocks that runs. An entry replaces one in its place; a table
    without rows keeps nothing.
    """

    keys: Masks
    values: Floats

    @staticmethod
    def room(size: int = 1 << 13) -> KnownSlowdowns:
        return KnownSlowdowns(np.zeros(size, dtype=np.uint64), np.zeros((size, 1 + 2 * MOST_KNOWN)))


class Fluid(NamedTuple):
    """Kernels that share a device, and the room in which compiled code follows them.

    At most ``max_kernels`` run at a time, and start ``apart_us`` after one another at the soonest, ``code_us`` more
    with code that none of them has, and ``follow_us`` after their predecessor in the stream while others run.
    ``spans``, ``[kernels, 3]``, become the stream, start and end of each; nothing is recorded where it has no rows.
    """

    kernels: StageKernels
    interference: float
    max_kernels: int
    apart_us: float
    code_us: float
    follow_us: float
    known: KnownSlowdowns
    spans: Floats
    numbers: Floats
    integers: Integers
    sets: Masks

    @staticmethod
    def of(
        kernels: StageKernels,
        interference: float,
        max_kernels: int = MAX_GROUPS,
        apart_us: float = 0.0,
        code_us: float = 0.0,
        follow_us: float = 0.0,
        known: KnownSlowdowns | None = None,
        has_spans: bool = False,
    ) -> Fluid:
        """``known`` are of this interference, and of one thread."""
        spans = np.zeros((len(kernels.columns) if has_spans else 0, 3))
        size = max(MAX_GROUPS + 1, len(kernels.columns))
        room = np.empty((12, size)), np.empty((6, size), dtype=np.int64), np.empty((2, MAX_GROUPS + 1), dtype=np.uint64)
        known = KnownSlowdowns.room() if known is None else known
        return Fluid(kernels, interference, max_kernels, apart_us, code_us, follow_us, known, spans, *room)


@jit(inline="always")
def has_full_waves(remaining_us: float, kernel: int, columns: Floats) -> bool:
    """True where a kernel with that much left, as if alone, is not in its last wave."""
    has_full: bool = remaining_us > columns[kernel, LAST_US] * (1.0 + 1e-9)
    return has_full


@jit(inline="always")
def _give_slots(active: int, fluid: Fluid) -> bool:
    """The part of the blocks that it would have resident for which each active kernel finds slots, in the order in
    which they started; whether any has less than it asks for.
    """
    columns, numbers, integers = fluid.kernels.columns, fluid.numbers, fluid.integers
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
        asked = numbers[PART, slot]
        # A first wave keeps its place, whatever comes before it; blocks that wait may all find room by now.
        kept = asked if is_full and asked < 1.0 else 0.0
        part = kept if is_blocked else asked
        if kept > 0.0 and not is_blocked and waits_long(remaining_us, kernel, columns):
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
        numbers[PART, slot] = part
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
def slowdowns(active: int, fluid: Fluid) -> bool:
    """Slowdown of each active kernel relative to running alone, and whether slots hold any of them back."""
    columns, numbers, integers = fluid.kernels.columns, fluid.numbers, fluid.integers
    wanted = 0.0
    are_parts = False
    for slot in range(active):
        wanted += columns[integers[RUNNING, slot], HELD]
        numbers[PART, slot] = asked = _asked_part(slot, fluid)
        are_parts = are_parts or asked < 1.0
    held_back = (wanted > 1.0 or are_parts) and _give_slots(active, fluid)
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
        part = numbers[PART, slot]
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
        dram += _lost_dram(active, lost, fluid)
    waves_matter = held_back
    demand_factor = 1.0 + fluid.interference if active > 1 else 1.0
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
                load = max(evenly, (everywhere + columns[kernel, BLOCK_LOAD] * numbers[PART, slot]) * demand_factor)
                numbers[STRETCH, slot] = load
                heaviest = max(heaviest, load)
                speed += columns[kernel, SPREAD] * (1.0 / load - 1.0 / evenly)
        else:
            heaviest, speed = _segments(sparse, everywhere, even_warps, demand_factor, fluid)
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
            part = numbers[PART, slot]
            if part == 0.0:
                numbers[STRETCH, slot] = np.inf
            elif not _begins_in_part(slot, fluid):
                numbers[STRETCH, slot] *= max(1.0, _asked_part(slot, fluid) / part)
    return waves_matter


@jit(inline="always")
def _begins_in_part(slot: int, fluid: Fluid) -> bool:
    """True where the blocks for which a kernel finds room run as fast as if all did."""
    is_new = fluid.numbers[WAITING, fluid.integers[STARTED, slot]] == NOT_BEGUN
    return bool(is_new and fluid.kernels.columns[fluid.integers[RUNNING, slot], AGAIN_US] > 0.0)


@jit(inline="always")
def _asked_part(slot: int, fluid: Fluid) -> float:
    """Part of its resident blocks that an active kernel has in its present wave, or asks room for."""
    group = fluid.integers[STARTED, slot]
    waiting = fluid.numbers[WAITING, group]
    if waiting <= 0.0:
        return 1.0
    is_first = has_full_waves(fluid.numbers[REMAINING, group], fluid.integers[RUNNING, slot], fluid.kernels.columns)
    return float(1.0 - waiting if is_first else waiting)


@jit(inline="always")
def waits_long(remaining_us: float, kernel: int, columns: Floats) -> bool:
    """True where waiting blocks may begin before the first wave of their kernel ends: not if it ends soon."""
    waits: bool = remaining_us > columns[kernel, ALONE] + _ENDING * columns[kernel, AGAIN_US]
    return waits


@jit(inline="always")
def _lost_dram(active: int, lost: float, fluid: Fluid) -> float:
    """The additional demand for DRAM where all that the kernels touch together does not stay in L2."""
    columns, numbers, integers = fluid.kernels.columns, fluid.numbers, fluid.integers
    more = 0.0
    for slot in range(active):
        kernel = integers[RUNNING, slot]
        kept = columns[kernel, KEPT_DEMAND] * numbers[PART, slot]
        if kept > 0.0:
            alone = lost_part(columns[kernel, FOOTPRINT], 1.0)
            if alone < lost:
                more += kept * (lost - alone) / (1.0 - alone)
    return more


@jit
def _segments(
    sparse: int, everywhere: float, even_warps: float, demand_factor: float, fluid: Fluid
) -> tuple[float, float]:
    """Lay the blocks of sparse kernels on segments of the SMs, and slow them down; returns the heaviest load."""
    columns, numbers, integers = fluid.kernels.columns, fluid.numbers, fluid.integers
    sets = fluid.sets
    numbers[_WIDTH, 0], numbers[_LOAD, 0], numbers[_SEGMENT_WARPS, 0] = 1.0, everywhere, even_warps
    sets[_MEMBERS, 0] = np.uint64(0)
    count = 1
    for index in range(sparse):
        kernel = integers[RUNNING, integers[_SPARSE, index]]
        bit = np.uint64(1) << np.uint64(index)
        load = columns[kernel, BLOCK_LOAD] * numbers[PART, integers[_SPARSE, index]]
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
