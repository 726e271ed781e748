"""Orders in which a device may run a plan: all of them must give the same outputs."""

from __future__ import annotations

import random
from collections import defaultdict, deque
from collections.abc import Iterator
from dataclasses import replace

from iossim.base.errors import ScheduleError
from iossim.execution.plan import Copy, Launch, Plan, Queue, Queued, Record, Synchronize, Wait


def interleaved(plan: Plan, seed: int | None) -> Plan:
    """The plan's launches and copies in an order drawn from a seed, as events and synchronises allow; None changes nothing."""
    return plan if seed is None else replace(plan, commands=(*_drawn(plan, random.Random(seed)), Synchronize()))


def _drawn(plan: Plan, generator: random.Random) -> Iterator[Launch | Copy]:
    """Each step runs the head of a queue drawn from those that wait for nothing."""
    pending: defaultdict[Queue, deque[Queued]] = defaultdict(deque)
    fired: set[int] = set()
    for command in (*plan.commands, Synchronize()):
        if not isinstance(command, Synchronize):
            pending[command.queue].append(command)
            continue
        while any(pending.values()):
            ready = [
                queue
                for queue in sorted(pending)
                if pending[queue] and (not isinstance(head := pending[queue][0], Wait) or head.event in fired)
            ]
            if not ready:
                raise ScheduleError("the plan waits for events that are never recorded; lower the schedule again")
            head = pending[generator.choice(ready)].popleft()
            if isinstance(head, Record):
                fired.add(head.event)
            elif isinstance(head, Launch | Copy):
                yield head
