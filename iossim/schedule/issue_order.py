"""The order in which the host issues the launches of a schedule of streams."""

from __future__ import annotations

from collections.abc import Sequence

from iossim.base.errors import ScheduleError
from iossim.schedule.schedule import StreamLaunch, StreamSchedule


def issue_order(schedule: StreamSchedule) -> list[tuple[int, StreamLaunch]]:
    """The launches with the numbers of their streams, in the order of issue: the schedule's own, else that of
    :func:`ready_order`.

    Raises ScheduleError, naming a launch, if streams wait for each other, or for a unit that is in none, and for an
    order that does not match the streams, or issues a launch before one that it waits for.
    """
    ready = ready_order(schedule.streams)
    if not schedule.issue:
        return ready
    if sorted(schedule.issue) != sorted(stream for stream, _ in ready):
        raise ScheduleError(
            "the order of issue does not name each stream once for each of its launches; name them so, or leave it out"
        )
    left = [iter(own) for own in schedule.streams]
    order = [(stream, next(left[stream])) for stream in schedule.issue]
    issued: set[str] = set()
    for stream, launch in order:
        early = next((unit for unit in launch.after if unit not in issued), None)
        if early is not None:
            raise ScheduleError(
                f"stream {stream}: {'+'.join(launch.units)!r} is issued before {early!r}, which it waits for; swap "
                "the two in the order of issue, or leave that out"
            )
        issued.update(launch.units)
    return order


def ready_order(streams: Sequence[Sequence[StreamLaunch]]) -> list[tuple[int, StreamLaunch]]:
    """The launches with the numbers of their streams, each after all that it waits for: among the next ones of all
    streams that wait for nothing more, that of the first stream is first.

    Raises ScheduleError as :func:`issue_order`.
    """
    position = [0] * len(streams)
    issued: set[str] = set()
    order: list[tuple[int, StreamLaunch]] = []
    while True:
        heads = {
            stream: launches[position[stream]]
            for stream, launches in enumerate(streams)
            if position[stream] < len(launches)
        }
        if not heads:
            return order
        ready = next((stream for stream, launch in heads.items() if issued.issuperset(launch.after)), None)
        if ready is None:
            stream, launch = next(iter(heads.items()))
            missing = next(unit for unit in launch.after if unit not in issued)
            raise ScheduleError(
                f"stream {stream}: {'+'.join(launch.units)!r} waits for {missing!r}, which never ends before: "
                "streams wait for each other, or none holds it; take a wait out"
            )
        position[ready] += 1
        issued.update(heads[ready].units)
        order.append((ready, heads[ready]))
