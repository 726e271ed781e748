"""The SMs of a device in classes of equal content, and the placement of blocks on them.

A block goes to the SM with the most room, counted in blocks of its kernel; among equals to the one with the fewest
resident warps (Gilman et al., "Demystifying the placement policies of the NVIDIA GPU thread block scheduler", 2020),
then to the first in :func:`scheduling_order`. Placing a block leaves its SM room for exactly one less, so that ``n``
blocks over classes of SMs are dealt level by level, as one by one, without a step for each.

Blocks of a wave end in lockstep here, which they do not on real SMs. Small kernels after one which fills the device
would find most of the room on the few SMs that end first; on a device they are spread over SMs as these end. So
beside others a kernel is given no more room on an SM than its even share, or than it needs to run at full speed;
while SMs are full that could have its blocks later, no more than leaves small kernels there at full speed, too. The
rest of its blocks waits for the next end: they would only have shared the issue of that SM. For the same reason a
small kernel goes first to SMs on which it slows no other small one, and only then to those with most room.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import accumulate, pairwise

from iossim.backends.simulator.events.demand import BlockDemand, DeviceTime
from iossim.backends.simulator.events.footprint import Footprint
from iossim.hardware.profile import DeviceProfile

#: SMs of a texture processing cluster.
_TPC_SMS = 2
#: Parts of an SM that exceed it by less than this are rounding.
_ROUNDING = 1e-9


#: No demand on the device.
NOTHING = DeviceTime(0.0, 0.0, 0.0, 0.0, 0.0)


class Through(StrEnum):
    """Resource through which a kernel loses time."""

    SLOTS = "slots"  #: room on the SMs
    ISSUE = "issue"  #: instructions of an SM
    PIPE = "pipe"  #: an arithmetic pipe of an SM
    L2 = "L2"  #: an SM's port to L2, L2's bandwidth, or room in it
    DRAM = "DRAM"
    POWER = "power"


@dataclass(eq=False, slots=True)
class KernelRun:
    """One launch on the device: what is still to be placed, what is resident, and when it ran.

    ``sms`` are the SMs that it may use, None for all; ``room`` those on which its clusters last found room.
    """

    demand: BlockDemand
    number: int
    ready_us: float
    sms: range | None = None
    room: Collection[int] | None = None
    early_pending: int = field(init=False)
    last_pending: int = field(init=False)
    unfinished: int = field(init=False)
    #: The part of what L2 keeps for it that others leave no room for: it goes to DRAM.
    spilled: float = 0.0
    start_us: float = -1.0
    end_us: float = -1.0

    def __post_init__(self) -> None:
        self.early_pending, self.last_pending = self.demand.early_blocks, self.demand.last_blocks
        self.unfinished = self.demand.work.blocks

    @property
    def pending(self) -> int:
        return self.early_pending + self.last_pending


@dataclass(eq=False, slots=True)
class Cohort:
    """Blocks of one kernel placed together on each SM of a class: ``count`` on each, asking ``block_us`` each.

    ``started`` is where the progress of the class's :class:`Resident` stood; they end when it has grown by 1.
    """

    started: float
    count: int
    block_us: DeviceTime


@dataclass(eq=False, slots=True)
class Resident:
    """One kernel's blocks on each SM of a class. All of them progress at ``rate``, in blocks per microsecond.

    ``rate`` is ``base_rate``, that of the kernel alone on the SM, over what slows them: ``own_rate`` counts what the
    whole kernel asks of the device, ``sm_rate`` also others on the SM. ``sm_limit`` and ``device_limit`` say why.
    """

    run: KernelRun
    count: int = 0
    #: Demand of all its blocks on one SM on the device.
    device_us: DeviceTime = NOTHING
    dram_us: float = 0.0
    progress: float = 0.0
    base_rate: float = 0.0
    own_rate: float = 0.0
    sm_rate: float = 0.0
    rate: float = 0.0
    sm_limit: Through | None = None
    device_limit: Through | None = None
    cohorts: list[Cohort] = field(default_factory=list)

    def add(self, count: int, block_us: DeviceTime) -> None:
        """Place ``count`` blocks on each SM that ask ``block_us`` of the device each."""
        self.cohorts.append(Cohort(self.progress, count, block_us))
        self.count += count
        self._recount()

    def take_finished(self, tolerance: float) -> int:
        """Remove the blocks that are done, or within ``tolerance`` blocks of it; how many on each SM."""
        finished = 0
        while self.cohorts and self.cohorts[0].started + 1.0 - self.progress <= tolerance:
            finished += self.cohorts.pop(0).count
        if finished:
            self.count -= finished
            self._recount()
        return finished

    def _recount(self) -> None:
        # Summed anew each time: no rounding is carried on.
        dram_us = power_us = l2_us = kept_us = part = 0.0
        for cohort in self.cohorts:
            count, one = cohort.count, cohort.block_us
            dram_us += count * one.dram_us
            power_us += count * one.power_us
            l2_us += count * one.l2_us
            kept_us += count * one.kept_us
            part += count * one.part
        self.device_us = DeviceTime(dram_us, power_us, l2_us, kept_us, part)
        self.spill()
        self.base_rate = 1.0 / self.run.demand.block_us[self.count] if self.count else 0.0

    def spill(self) -> None:
        """Ask DRAM for what L2 does not keep at present."""
        self.dram_us = self.device_us.dram_us + self.run.spilled * self.device_us.kept_us

    def copy(self) -> Resident:
        cohorts = [Cohort(cohort.started, cohort.count, cohort.block_us) for cohort in self.cohorts]
        asked = self.count, self.device_us, self.dram_us
        return Resident(self.run, *asked, self.progress, self.base_rate, rate=self.rate, cohorts=cohorts)


@dataclass(eq=False, slots=True)
class MultiprocessorClass:
    """SMs (their numbers, ascending) with equal contents: ``free`` is what each has left."""

    sms: list[int]
    free: Footprint
    warps: int = 0
    residents: dict[KernelRun, Resident] = field(default_factory=dict)
    updated_us: float = 0.0
    next_us: float = float("inf")
    #: Parts of its own issue capacity and L2 port, and of the device's L2, DRAM and power, that each SM uses.
    issue_use: float = 0.0
    l2_use: float = 0.0
    l2_device_use: float = 0.0
    dram_use: float = 0.0
    power_use: float = 0.0
    #: Whether its contents changed since the rates were last shared out.
    changed: bool = True

    def advance(self, now: float) -> None:
        """Bring the progress of all blocks up to ``now``."""
        passed_us = now - self.updated_us
        if passed_us > 0.0:
            for resident in self.residents.values():
                resident.progress += resident.rate * passed_us
        self.updated_us = now

    def room_beside(self, run: KernelRun, spares: bool) -> int:
        """Number of further blocks of a kernel that each SM gets beside others; ``spares`` small kernels."""
        held = self.held(run)
        room = min(self.free.room(run.demand.footprint), run.demand.most_beside_others - held)
        if not spares or room <= 0:
            return room
        busy = sum(
            other.demand.busy(resident.count)
            for other, resident in self.residents.items()
            if other is not run and other.demand.leaves_sms
        )
        while busy and room > 0 and busy + run.demand.busy(held + room) > 1.0 + _ROUNDING:
            room -= 1
        return room

    def held(self, run: KernelRun) -> int:
        """Number of resident blocks of a kernel on each SM."""
        resident = self.residents.get(run)
        return resident.count if resident else 0

    def add(self, run: KernelRun, count: int, block_us: DeviceTime) -> None:
        """Place blocks of a kernel on each SM; the class must have been advanced to now."""
        resident = self.residents.get(run)
        if resident is None:
            resident = self.residents[run] = Resident(run)
        resident.add(count, block_us)
        footprint = run.demand.footprint
        self.free = self.free.minus(footprint, count)
        self.warps += count * footprint.warps
        self.changed = True

    def remove(self, run: KernelRun, count: int) -> None:
        """Give back what ``count`` finished blocks on each SM held."""
        footprint = run.demand.footprint
        self.free = self.free.minus(footprint, -count)
        self.warps -= count * footprint.warps
        if not self.residents[run].count:
            del self.residents[run]
        self.changed = True

    def split(self, chosen: Sequence[int]) -> MultiprocessorClass:
        """Take some of the SMs out, as a class of their own with the same contents."""
        twin = MultiprocessorClass(list(chosen), self.free)
        twin.warps, twin.updated_us = self.warps, self.updated_us
        twin.residents = {run: resident.copy() for run, resident in self.residents.items()}
        leaving = set(chosen)
        self.sms = [sm for sm in self.sms if sm not in leaving]
        return twin

    def contents(self) -> tuple[tuple[int, tuple[tuple[float, int, DeviceTime], ...]], ...]:
        """Equal for classes, advanced to one time, whose SMs hold the same blocks at the same progress."""
        return tuple(
            (
                run.number,
                tuple((each.started - resident.progress, each.count, each.block_us) for each in resident.cohorts),
            )
            for run, resident in sorted(self.residents.items(), key=lambda item: item[0].number)
        )


def overlap(one: range | None, other: range | None) -> bool:
    """True where two ranges of SMs, None for all, intersect."""
    return one is None or other is None or (one.start < other.stop and other.start < one.stop)


def scheduling_order(profile: DeviceProfile) -> tuple[int, ...]:
    """Rank of each SM in the order in which SMs of equal room and warps get blocks, shape ``[SMs]``.

    Clusters (GPCs) take turns, a TPC of two SMs at a time, and the one with most SMs left comes first, as recorded on
    an RTX 5090. Where the profile does not say which SMs are a cluster, they come by number.
    """
    if not profile.gpcs:
        return tuple(range(profile.sm_count))
    before = 0
    turns = []
    for cluster, size in enumerate(profile.gpcs):
        turns += [(index // _TPC_SMS * _TPC_SMS - size, cluster, before + index) for index in range(size)]
        before += size
    order = [0] * before
    for position, (_, _, sm) in enumerate(sorted(turns)):
        order[sm] = position
    return tuple(order)


def gpcs_of(profile: DeviceProfile) -> tuple[range, ...]:
    """SMs of each GPC; none where the profile does not say."""
    ends = (0, *accumulate(profile.gpcs))
    return tuple(range(begin, end) for begin, end in pairwise(ends))


def place(
    classes: list[MultiprocessorClass], run: KernelRun, now: float, order: Sequence[int], gpcs: Sequence[range] = ()
) -> bool:
    """Place as many of a kernel's pending blocks as there is room for; whether it then waits with all its SMs full.

    May add classes. ``order`` has the place of each SM among equals. A cluster has SMs of one of the ``gpcs``.
    """
    if run.sms is not None:
        _cut(classes, run.sms, now)
    block, most = run.demand.footprint, run.demand.most_beside_others
    if 1 < run.demand.work.cluster <= max(map(len, gpcs), default=0):
        run.room = None
        free = {sm for found in _usable(classes, run) if found.free.room(block) for sm in found.sms}
        run.room = {sm for found in classes if found.held(run) for sm in found.sms}
        run.room |= _for_clusters(run, [sorted(free.intersection(gpc), key=order.__getitem__) for gpc in gpcs])
        _cut(classes, run.room, now)
    usable = _usable(classes, run)
    full = [found for found in usable if not found.free.room(block)]
    if len(full) == len(usable):
        return True
    beside = any(other is not run for found in usable for other in found.residents)
    waits = beside and any(found.held(run) < most for found in full)

    def deal(room: Callable[[MultiprocessorClass], int]) -> None:
        if run.early_pending:
            run.early_pending -= _deal(classes, run, run.early_pending, run.demand.early_us, now, order, room)
        if not run.early_pending:
            run.last_pending -= _deal(classes, run, run.last_pending, run.demand.last_us, now, order, room)

    if not beside:
        deal(lambda found: found.free.room(block))
    else:
        if waits or run.demand.leaves_sms:
            deal(lambda found: found.room_beside(run, spares=True))
        if run.pending and not waits:
            deal(lambda found: found.room_beside(run, spares=False))
    # Room may be left that is spared for others.
    return run.pending > 0 and not any(found.free.room(block) for found in _usable(classes, run))


def _for_clusters(run: KernelRun, free: Sequence[list[int]]) -> set[int]:
    """SMs for a kernel's pending clusters, a block each, of the free ones of each GPC: of that with most left."""
    cluster, chosen = run.demand.work.cluster, set[int]()
    for _ in range(0, run.pending, cluster):
        most = max(free, key=len)
        if len(most) < cluster:
            break
        chosen.update(most[:cluster])
        del most[:cluster]
    return chosen


def _usable(classes: list[MultiprocessorClass], run: KernelRun) -> list[MultiprocessorClass]:
    """The classes on whose SMs a kernel may run: each lies in its range, or room, as a whole or not at all."""
    sms = run.sms if run.room is None else run.room
    return classes if sms is None else [found for found in classes if found.sms[0] in sms]


def _deal(
    classes: list[MultiprocessorClass],
    run: KernelRun,
    count: int,
    block_us: DeviceTime,
    now: float,
    order: Sequence[int],
    room_of: Callable[[MultiprocessorClass], int],
) -> int:
    """Place up to ``count`` blocks, each asking ``block_us`` of the device, as there is room; returns how many."""
    block = run.demand.footprint
    roomy = [(room, found) for found in _usable(classes, run) if (room := room_of(found)) > 0]
    total = sum(room * len(found.sms) for room, found in roomy)
    level, extra = _level(roomy, count) if count < total else (0, 0)
    reached = [(room, found) for room, found in roomy if room >= level]
    for (room, found), chosen in zip(reached, _first(reached, level, block.warps, extra, order), strict=True):
        others = len(found.sms) - len(chosen)
        found.advance(now)
        if chosen:
            taking = found.split(chosen) if others else found
            if others:
                classes.append(taking)
            taking.add(run, room - level + 1, block_us)
        if others and room > level:
            found.add(run, room - level, block_us)
    return min(count, total)


def _cut(classes: list[MultiprocessorClass], sms: Collection[int], now: float) -> None:
    """Split classes, so that each lies among some SMs as a whole or not at all."""
    for found in list(classes):
        inside = [sm for sm in found.sms if sm in sms]
        if 0 < len(inside) < len(found.sms):
            found.advance(now)
            classes.append(found.split(inside))


def _level(roomy: Iterable[tuple[int, MultiprocessorClass]], count: int) -> tuple[int, int]:
    """The room left after ``count`` blocks on each SM that had as much, and how many have 1 less."""
    sms_of_room: dict[int, int] = {}
    for room, found in roomy:
        sms_of_room[room] = sms_of_room.get(room, 0) + len(found.sms)
    reached = 0
    for room, below in pairwise([*sorted(sms_of_room, reverse=True), 0]):
        reached += sms_of_room[room]
        if count < reached * (room - below):
            return room - count // reached, count % reached
        count -= reached * (room - below)
    raise AssertionError("called only where not all room is taken")


def _first(
    reached: Sequence[tuple[int, MultiprocessorClass]], level: int, block_warps: int, extra: int, order: Sequence[int]
) -> list[list[int]]:
    """For each class the SMs among the first ``extra`` of all, by resident warps, then in order."""
    first: list[list[int]] = [[] for _ in reached]
    of_warps: dict[int, list[int]] = {}
    for index, (room, found) in enumerate(reached):
        of_warps.setdefault(found.warps + (room - level) * block_warps, []).append(index)
    for _, indices in sorted(of_warps.items()):
        count = sum(len(reached[index][1].sms) for index in indices)
        if count <= extra:
            for index in indices:
                first[index] = reached[index][1].sms
        elif extra:
            equals = [sm for index in indices for sm in reached[index][1].sms]
            among = set(sorted(equals, key=order.__getitem__)[:extra])
            for index in indices:
                first[index] = [sm for sm in reached[index][1].sms if sm in among]
        extra = max(0, extra - count)
    return first
