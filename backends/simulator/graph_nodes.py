"""Forks and joins among the commands of a captured graph: nodes that cost a stream time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from iossim.execution.plan import Command, Copy, Launch, Queue, Record, Synchronize, Wait


def forks_and_joins(commands: Sequence[Command]) -> tuple[set[int], set[int]]:
    """The places of the records that are forks, and of the waits that are joins, of a captured graph.

    What waits for an event that was recorded before anything was launched follows nothing.

    A *fork* is a node that several follow: a record behind a launch whose event several streams wait for, its own
    counted where it launches more before it waits for anything. A *join* is a node that follows several: a wait of a
    stream that has launched since its last record, or that stands behind another wait of its stream.
    """
    of_queue: dict[Queue, list[tuple[int, Launch | Copy | Record | Wait]]] = {}
    for place, command in enumerate(commands):
        if not isinstance(command, Synchronize):
            of_queue.setdefault(command.queue, []).append((place, command))
    void: set[int] = set()
    launching: set[Queue] = set()
    for command in commands:
        if isinstance(command, Launch | Copy):
            launching.add(command.queue)
        elif isinstance(command, Record) and command.queue not in launching:
            void.add(command.event)
    waiting = Counter(command.event for command in commands if isinstance(command, Wait))
    forks: set[int] = set()
    joins: set[int] = set()
    for own in of_queue.values():
        launched = open_end = False
        in_a_row: list[int] = []
        for index, (place, command) in enumerate(own):
            match command:
                case Launch() | Copy():
                    launched = open_end = True
                    in_a_row = []
                case Record():
                    open_end = False
                    in_a_row = []
                    next_one = next((c for _, c in own[index + 1 :] if not isinstance(c, Record)), None)
                    if launched and waiting[command.event] + isinstance(next_one, Launch | Copy) > 1:
                        forks.add(place)
                case Wait() if command.event not in void:
                    # Waits in a row are one join, which follows the last of them.
                    joins.difference_update(in_a_row)
                    in_a_row.append(place)
                    if open_end or len(in_a_row) > 1:
                        joins.add(place)
    return forks, joins
