"""Races of a plan by definition, without clocks: conflicting commands with no path between them.

Memory is byte ranges, commands are nodes of a graph whose edges are queues, events and synchronises; what is reachable is
kept as bits of whole numbers. Commands that only order others have no accesses, so that pairs of accesses that conflict
are found once, and each mutation of a plan only asks for paths.
"""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from iossim.base.errors import ScheduleError
from iossim.execution.memory import check_happens_before
from iossim.execution.plan import Plan, Queue, Record, Synchronize, Wait, accesses

Ranges = list[tuple[int, int]]


def accepted(plan: Plan) -> bool:
    """Whether the checker accepts a plan."""
    try:
        check_happens_before(plan)
    except ScheduleError:
        return False
    return True


class Races:
    """The conflicting pairs of a plan, by the numbers of its commands; the host's last read is one more."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self._begins = _begins(plan)
        touched = [self._touched(number) for number in range(len(plan.commands) + 1)]
        by_storage: dict[str, list[tuple[int, Ranges, bool]]] = {}
        for number, parts in enumerate(touched):
            for storage, ranges, writes in parts:
                by_storage.setdefault(storage, []).append((number, ranges, writes))
        groups = [*by_storage.values()]
        if plan.offsets is not None:
            groups = [[one for found in groups for one in found]]
        self.pairs = sorted(
            {
                (min(left, right), max(left, right))
                for found in groups
                for left, ranges, writes in found
                for right, others, writes_too in found
                if left < right and (writes or writes_too) and _meet(ranges, others)
            }
        )

    def exist(self, without: int | None = None) -> bool:
        """Whether some pair has no path between them, one command left out (a wait or a synchronise)."""
        before = self._before(without)
        return any(not before[right] >> left & 1 for left, right in self.pairs)

    def mutations(self) -> Iterator[tuple[Plan, bool]]:
        """The plan without each of its waits and synchronises, and whether that is a race."""
        commands = self.plan.commands
        for number, command in enumerate(commands):
            if isinstance(command, Synchronize | Wait):
                mutilated = replace(self.plan, commands=commands[:number] + commands[number + 1 :])
                yield mutilated, self.exist(number)

    def _before(self, without: int | None) -> list[int]:
        """For each command the set of those with a path to it."""
        commands = [*self.plan.commands, None]
        last_of: dict[Queue, int] = {}
        record_of: dict[int, int] = {}
        everything = synchronised = 0
        before: list[int] = []
        for number, command in enumerate(commands):
            found = synchronised
            if command is None or number == without:
                pass
            elif isinstance(command, Synchronize):
                found = synchronised = everything
            else:
                if command.queue in last_of:
                    found |= before[last_of[command.queue]] | 1 << last_of[command.queue]
                if isinstance(command, Wait) and command.event in record_of:
                    found |= before[record_of[command.event]] | 1 << record_of[command.event]
                last_of[command.queue] = number
                if isinstance(command, Record):
                    record_of[command.event] = number
            before.append(found)
            everything |= 1 << number
        return before

    def _touched(self, number: int) -> list[tuple[str, Ranges, bool]]:
        if number == len(self.plan.commands):
            return [(*self._ranges(name), False) for name in self.plan.outputs]
        reads, writes = accesses(self.plan.commands[number])
        return [(*self._ranges(name), False) for name in reads] + [(*self._ranges(name), True) for name in writes]

    def _ranges(self, name: str) -> tuple[str, Ranges]:
        """The storage of a buffer, and its byte ranges: the runs of neighbouring elements among all that it holds."""
        buffer = self.plan.buffers[name]
        storage = self.plan.buffers[buffer.view_of or name]
        begin, element = self._begins[storage.name], storage.type.bytes // storage.type.elements
        numbers = np.arange(storage.type.elements).reshape(storage.type.shape)
        for axis, start in enumerate(buffer.starts):
            numbers = numbers.take(range(start, start + buffer.type.shape[axis]), axis)
        numbers = numbers.reshape(-1)
        ends = np.flatnonzero(np.diff(numbers) != 1)
        firsts, lasts = np.append(0, ends + 1), np.append(ends, len(numbers) - 1)
        return storage.name, [
            (begin + int(numbers[first]) * element, begin + (int(numbers[last]) + 1) * element)
            for first, last in zip(firsts, lasts, strict=True)
        ]


def _begins(plan: Plan) -> dict[str, int]:
    """Where each storage begins: one after another, unless the plan says where."""
    if plan.offsets is not None:
        return dict(plan.offsets)
    begins, end = {}, 0
    for storage in plan.storages:
        begins[storage.name] = end
        end += storage.bytes
    return begins


def _meet(left: Ranges, right: Ranges) -> bool:
    return any(a < d and c < b for a, b in left for c, d in right)
