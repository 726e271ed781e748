"""Memory of plans: storages share it only if no order of the queues lets one disturb the other, and that is proven.

*Planning.* Storages are at offsets of one arena. Two may share bytes only if every access to one *happens before* every
access to the other: a plan's queues run in any order that its events allow, so positions in the list of commands are
irrelevant. Storages that may not share *interfere*. Finding the smallest arena is bin packing (NP-hard); the plan is
the best of a few greedy orders, each storage at the lowest offset that its neighbours leave (Pisarchyk and Lee,
"Efficient Memory Management for Deep Neural Net Inference", 2020: greedy by size is the best of theirs).

*Checking.* That a plan's results do not depend on the interleaving of its queues is proven for any plan. Each queue
counts its launches and copies, and has a *vector clock*: for every queue, the number of those that are sure to have run
(Fidge 1988, Mattern 1989). A record copies its queue's clock into the event, a wait takes the maximum of both, a
synchronise sets all to the maximum of all. An access then happens before another exactly if the other's clock has
reached its count. Two accesses *conflict* if they touch the same memory and one of them writes.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from iossim.base.errors import ScheduleError
from iossim.execution.lower import lower_stage
from iossim.execution.plan import (
    Buffer,
    Copy,
    Launch,
    Plan,
    Queue,
    Record,
    Region,
    Synchronize,
    Wait,
    accesses,
    aligned,
)
from iossim.ir.network import Network
from iossim.ir.op import Array
from iossim.schedule.batch import Strategy

Clock = dict[Queue, int]


@dataclass(frozen=True, slots=True)
class Access:
    """An access to memory by command number ``count`` of ``queue``, at vector clock ``clock``.

    The host's accesses have no queue: it fills the inputs first, and reads the outputs after synchronising.
    """

    who: str
    buffer: str
    region: Region
    writes: bool
    is_scratch: bool
    queue: Queue | None
    count: int
    clock: Clock
    sms: range | None = None
    #: The read of a launch that updates it in place.
    is_updated: bool = False

    def happens_before(self, other: Access) -> bool:
        """True if it is sure to have run when ``other`` runs."""
        return self.queue is None or other.clock.get(self.queue, 0) >= self.count


def timed_accesses(plan: Plan) -> Iterator[Access]:
    """All accesses of a plan in the order of issue, the host's to inputs first and to outputs last.

    Raises ScheduleError for a wait whose event was not recorded before, or an event that is recorded twice.
    """
    clocks: defaultdict[Queue, Clock] = defaultdict(dict)
    synchronised: Clock = {}
    events: dict[int, Clock] = {}
    for name in plan.inputs:
        yield Access("the host", name, plan.region(name), True, False, None, 0, {})
    for command in plan.commands:
        match command:
            case Launch() | Copy():
                seen = _joined(clocks[command.queue], synchronised)
                count = seen.get(command.queue, 0) + 1
                workspace = command.workspace if isinstance(command, Launch) else None
                updated = command.adds_to if isinstance(command, Launch) else None
                made = partial(Access, queue=command.queue, count=count, clock=seen, sms=command.sms)
                for names, writes in zip(accesses(command), (False, True), strict=True):
                    for name in names:
                        scratch, is_updated = name == workspace, not writes and name == updated
                        region = plan.region(name)
                        yield made(str(command), name, region, writes, is_scratch=scratch, is_updated=is_updated)
                clocks[command.queue] = {**seen, command.queue: count}
            case Record():
                if command.event in events:
                    raise ScheduleError(
                        f"event {command.event} is recorded twice; give each record an event of its own"
                    )
                events[command.event] = _joined(clocks[command.queue], synchronised)
            case Wait():
                if command.event not in events:
                    raise ScheduleError(
                        f"queue {command.queue} waits for event {command.event}, which is recorded nowhere before; "
                        "record it first"
                    )
                clocks[command.queue] = _joined(clocks[command.queue], events[command.event])
            case Synchronize():
                for clock in clocks.values():
                    synchronised = _joined(synchronised, clock)
    for name in plan.outputs:
        yield Access("the host", name, plan.region(name), False, False, None, 0, synchronised)


def check_happens_before(plan: Plan) -> None:
    """Raise ScheduleError, naming the pair of accesses, unless ``plan`` is free of races.

    It proves that each read, including the host's of the outputs, sees the last write to all that it reads,
    and nothing written to the same memory for another buffer; that two conflicting accesses are ordered;
    and that each wait is for an event recorded before, and once. Workspaces are ordinary memory, of which
    nothing is read by another command. A launch may update in place the buffer that it adds to, and no other input.
    If the device is partitioned, concurrent commands have separate SMs.
    """
    if any(isinstance(command, Launch | Copy) and command.sms is not None for command in plan.commands):
        _check_division(plan)
    earlier: defaultdict[str, list[Access]] = defaultdict(list)
    shared = _sharing(plan)
    for access in timed_accesses(plan):
        storage = access.region.storage
        _check(access, earlier[storage], [other for name in shared[storage] for other in earlier[name]])
        earlier[storage].append(access)


def _check_division(plan: Plan) -> None:
    issued: defaultdict[Queue, list[Access]] = defaultdict(list)
    for access in timed_accesses(plan):
        queue = access.queue
        if queue is None or (issued[queue] and issued[queue][-1].count == access.count):
            continue
        for other in (one for own in issued.values() for one in _not_before(own, access)):
            if other.queue != queue and _share_sms(access.sms, other.sms):
                raise ScheduleError(
                    f"{access.who} and {other.who} may run at once and share SMs; divide the device between them, "
                    "or put an event between them"
                )
        issued[queue].append(access)


def _not_before(issued: Sequence[Access], access: Access) -> Iterator[Access]:
    """The accesses of one queue, in order, that need not have run when ``access`` runs."""
    for other in reversed(issued):
        if other.happens_before(access):
            return
        yield other


def _share_sms(one: range | None, other: range | None) -> bool:
    """True if a command with SMs of its own shares some with another; None means all SMs."""
    if one is None or other is None:
        return one is not other
    return one.start < other.stop and other.start < one.stop


def _check(access: Access, same: Sequence[Access], foreign: Sequence[Access]) -> None:
    """Compare an access with earlier ones to the same storage, and to others that share its memory."""
    conflicting = [other for other in same if other.region.overlaps(access.region)]
    for other in (*conflicting, *foreign):
        if (other.writes or access.writes) and not (other.happens_before(access) or _updates(access, other)):
            raise ScheduleError(
                f"{access.who} {_verb(access)} {access.buffer!r}, {other.who} {_verb(other)} "
                f"{other.buffer!r}, and nothing orders the two; put an event or a synchronise between them"
            )
    if access.writes:
        return
    spoilers = [other for other in foreign if other.writes]
    written = [
        other.region
        for other in conflicting
        if other.writes and not other.is_scratch and all(spoiler.happens_before(other) for spoiler in spoilers)
    ]
    if not access.region.covered_by(written):
        if spoilers and any(other.writes for other in conflicting):
            raise ScheduleError(
                f"{access.who} reads {access.buffer!r}, to whose memory {spoilers[-1].who} writes "
                f"{spoilers[-1].buffer!r}; plan the memory again"
            )
        raise ScheduleError(
            f"{access.who} reads {access.buffer!r}, which nothing has written before; launch what makes it first"
        )


def _updates(access: Access, other: Access) -> bool:
    """True if the two belong to one launch, which updates an input in place."""
    is_own = (other.queue, other.count) == (access.queue, access.count)
    return is_own and other.is_updated and access.writes and other.region == access.region


def _verb(access: Access) -> str:
    return "writes" if access.writes else "reads"


def _sharing(plan: Plan) -> dict[str, list[str]]:
    """For each storage, the others that overlap its bytes."""
    found: dict[str, list[str]] = {storage.name: [] for storage in plan.storages}
    if plan.offsets is None:
        return found
    placed = sorted((plan.offsets[one.name], one.name, one.bytes) for one in plan.storages)
    for index, (begin, name, size_bytes) in enumerate(placed):
        for other_begin, other, _ in placed[index + 1 :]:
            if other_begin >= begin + size_bytes:
                break
            found[name].append(other)
            found[other].append(name)
    return found


def _joined(left: Clock, right: Clock) -> Clock:
    """The element-wise maximum of two clocks."""
    return {queue: max(left.get(queue, 0), right.get(queue, 0)) for queue in {**left, **right}}


def with_memory(plan: Plan) -> Plan:
    """The plan itself if its memory is planned, else with its memory planned."""
    return plan if plan.offsets is not None else plan_memory(plan)


def plan_memory(plan: Plan) -> Plan:
    """The plan with its storages at offsets of one arena, each a multiple of 256 bytes.

    Inputs keep their memory to the end, so that the plan can run again; outputs keep theirs from their first write.
    """
    storages = plan.storages
    interferes = interference(plan)
    sizes = [aligned(storage.bytes) for storage in storages]
    degree = interferes.astype(np.int64) @ np.array(sizes, dtype=np.int64)
    orders: tuple[Callable[[int], tuple[int, ...]], ...] = (
        lambda i: (-sizes[i], i),
        lambda i: (-int(degree[i]), -sizes[i], i),
        lambda i: (i,),
        lambda i: (-sizes[i] * int(degree[i]), i),
    )
    plans = [_packed(sorted(range(len(storages)), key=key), sizes, interferes) for key in orders]
    peaks = [max(map(sum, zip(offsets, sizes, strict=True)), default=0) for offsets in plans]
    best = plans[peaks.index(min(peaks))]
    names = [storage.name for storage in storages]
    return replace(plan, offsets=dict(zip(names, best, strict=True)), arena_bytes=min(peaks))


def interference(plan: Plan) -> NDArray[np.bool_]:
    """Pairs of storages (in the order of ``plan.storages``) that must not share memory: ``[storages, storages]``."""
    index = {storage.name: number for number, storage in enumerate(plan.storages)}
    queues = {queue: column for column, queue in enumerate(plan.queues)}
    shape = (len(index), max(1, len(queues)))
    first = np.full(shape, np.iinfo(np.int64).max)  # the commands that are sure to have run at every access
    last = np.zeros(shape, dtype=np.int64)  # the last access of each queue
    for access in timed_accesses(plan):
        row = index[access.region.storage]
        for queue, column in queues.items():
            first[row, column] = min(first[row, column], access.clock.get(queue, 0))
        if access.queue is not None:
            column = queues[access.queue]
            last[row, column] = max(last[row, column], access.count)
    # Inputs, which the host fills before all commands, are kept for the next run.
    kept = [index[plan.region(name).storage] for name in (*plan.inputs, *plan.outputs)]
    last[kept] = np.iinfo(np.int64).max
    # [a, b]: all of a happens before all of b
    before = np.asarray((first[None, :, :] >= last[:, None, :]).all(axis=2))
    never = np.asarray((last == 0).all(axis=1))  # not accessed at all: never live
    result: NDArray[np.bool_] = ~(before | before.T | never[:, None] | never[None, :])
    np.fill_diagonal(result, False)
    return result


def memory_lower_bound_bytes(plan: Plan) -> int:
    """Lower bound of any arena: the maximum of live bytes, in the order of issue."""
    first: dict[str, int] = {}  # by storage the numbers of its first and last command in the order of issue
    last: dict[str, int] = {}
    number = 0
    command: tuple[Queue | None, int] = (None, 0)
    for access in timed_accesses(plan):
        if (access.queue, access.count) != command:
            number, command = number + 1, (access.queue, access.count)
        first.setdefault(access.region.storage, number)
        last[access.region.storage] = number
    for name in plan.inputs:
        first[plan.region(name).storage], last[plan.region(name).storage] = 0, number
    alive_bytes = np.zeros(number + 1, dtype=np.int64)
    for storage in plan.storages:
        if storage.name in first:
            alive_bytes[first[storage.name] : last[storage.name] + 1] += aligned(storage.bytes)
    return int(alive_bytes.max())


def needed_bytes(network: Network) -> tuple[int, int]:
    """Bytes of a network's weights, tied ones once, and the least of its activations, run unit by unit."""
    sequential = lower_stage(network, [range(len(network.units))], Strategy.CONCURRENT, in_place=True)
    weights = {id(constant.origin): constant.type.bytes for constant in network.graph.constants.values()}
    return sum(weights.values()), memory_lower_bound_bytes(sequential)


def memory_remarks(network: Network, capacity_bytes: int, device: str) -> list[str]:
    """A remark on a network that cannot run on a device for want of memory."""
    needed = sum(needed_bytes(network))
    told = f"{network.name} needs {needed / 2**30:.1f} GiB (weights, and activations of one unit after another)"
    return [f"{told}, and {device} has {capacity_bytes / 2**30:.1f}"] * (needed > capacity_bytes)


def _packed(order: Sequence[int], sizes: Sequence[int], interferes: NDArray[np.bool_]) -> list[int]:
    """Each storage in turn at the lowest offset without overlap with interfering ones."""
    offsets = [-1] * len(sizes)
    for index in order:
        taken = sorted(
            (offsets[other], offsets[other] + sizes[other])
            for other in np.flatnonzero(interferes[index]).tolist()
            if offsets[other] >= 0
        )
        offset = 0
        for begin, end in taken:
            if begin - offset >= sizes[index]:
                break
            offset = max(offset, end)
        offsets[index] = offset
    return offsets


def arena_of(plan: Plan, storage: Buffer) -> slice:
    """The bytes of a storage in the arena, in a plan whose memory is planned."""
    assert plan.offsets is not None, "plan the memory first"
    begin = plan.offsets[storage.name]
    return slice(begin, begin + storage.bytes)


def arrays_in(plan: Plan, arena: NDArray[np.uint8]) -> dict[str, Array]:
    """A view of the arena for each buffer of a plan whose memory is planned."""
    whole = {
        each.name: arena[arena_of(plan, each)].view(each.type.dtype.numpy).reshape(each.type.shape)
        for each in plan.storages
    }
    return {name: whole[each.view_of or name][each.box.selection] for name, each in plan.buffers.items()}
