"""The happens-before checker: proves that a plan computes the same however its queues interleave.

Each queue counts its launches, and carries a *vector clock*: for every queue, how many of its launches are sure to
have run (Fidge 1988, Mattern 1989). A record copies its queue's clock into the event, a wait takes the maximum of
both, a synchronise gives everyone the maximum of all. An access then happens before another exactly if the other's
clock has reached its count. Two accesses *conflict* if they touch the same memory and one of them writes.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

from iossim.errors import ScheduleError
from iossim.execution.plan import Launch, Plan, Queue, Record, Region, Synchronize, Wait

Clock = dict[Queue, int]


@dataclass(frozen=True, slots=True)
class _Access:
    """A launch touches memory; it is launch number ``count`` of ``queue``."""

    who: str
    buffer: str
    region: Region
    writes: bool
    queue: Queue | None
    count: int

    def happens_before(self, clock: Clock) -> bool:
        """Whether it is sure to have run for one that sees ``clock``; the host's inputs always have."""
        return self.queue is None or clock.get(self.queue, 0) >= self.count


def check_happens_before(plan: Plan) -> None:
    """Raise ScheduleError, naming the pair of accesses, unless ``plan`` is free of races.

    Proved are: each read comes after a write of all it reads, the host's reads of the outputs included; of two
    accesses that conflict one is sure to come first; each wait is for an event recorded before, and once.
    """
    clocks: defaultdict[Queue, Clock] = defaultdict(dict)
    synchronised: Clock = {}
    events: dict[int, Clock] = {}
    accesses: defaultdict[str, list[_Access]] = defaultdict(list)
    for name in plan.inputs:
        region = plan.region(name)
        accesses[region.storage].append(_Access("the host", name, region, True, None, 0))
    for command in plan.commands:
        match command:
            case Launch():
                clock = _joined(clocks[command.queue], synchronised)
                count = clock.get(command.queue, 0) + 1
                touched = [(name, False) for name in command.reads] + [(name, True) for name in command.writes]
                for name, writes in touched:
                    access = _Access(str(command), name, plan.region(name), writes, command.queue, count)
                    _check(access, accesses[access.region.storage], clock)
                    accesses[access.region.storage].append(access)
                clocks[command.queue] = {**clock, command.queue: count}
            case Record():
                if command.event in events:
                    raise ScheduleError(
                        f"event {command.event} is recorded twice; give each record an event of its own"
                    )
                events[command.event] = _joined(clocks[command.queue], synchronised)
            case Wait():
                if command.event not in events:
                    raise ScheduleError(
                        f"{command.queue} waits for event {command.event}, which is recorded nowhere before; "
                        "record it first"
                    )
                clocks[command.queue] = _joined(clocks[command.queue], events[command.event])
            case Synchronize():
                for clock in clocks.values():
                    synchronised = _joined(synchronised, clock)
    for name in plan.outputs:
        # The host knows of what it has synchronised with, and of nothing after.
        region = plan.region(name)
        _check(_Access("the host", name, region, False, None, 0), accesses[region.storage], synchronised)


def _check(access: _Access, earlier: list[_Access], clock: Clock) -> None:
    """Compare an access that sees ``clock`` with all that were issued before it to the same storage."""
    verb = "writes" if access.writes else "reads"
    written = False
    for other in earlier:
        if not other.region.overlaps(access.region) or not (other.writes or access.writes):
            continue
        if not other.happens_before(clock):
            raise ScheduleError(
                f"{access.who} {verb} {access.buffer!r}, {other.who} {'writes' if other.writes else 'reads'} "
                f"{other.buffer!r}, and nothing orders the two; put an event or a synchronise between them"
            )
        written |= other.writes and other.region.contains(access.region)
    if not access.writes and not written:
        raise ScheduleError(
            f"{access.who} reads {access.buffer!r}, which nothing has written before; launch what makes it first"
        )


def _joined(left: Clock, right: Clock) -> Clock:
    """The clock of one who has seen both."""
    return {queue: max(left.get(queue, 0), right.get(queue, 0)) for queue in {**left, **right}}
