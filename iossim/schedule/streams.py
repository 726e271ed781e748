"""Schedules of streams: in which order the host issues them, and what a schedule of stages is as one."""

from __future__ import annotations

from iossim.base.errors import ScheduleError
from iossim.schedule.schedule import SavedSchedule, Schedule, StreamLaunch, StreamSchedule
from iossim.schedule.strategy import Strategy


def issue_order(schedule: StreamSchedule) -> list[tuple[int, StreamLaunch]]:
    """The launches with the numbers of their streams, each behind all that it waits for: of the next ones of all streams that
    wait for nothing more the one of the first stream.

    Raises ScheduleError, naming a launch, where streams wait for each other, or for a unit that is in none.
    """
    position = [0] * len(schedule.streams)
    issued: set[str] = set()
    order: list[tuple[int, StreamLaunch]] = []
    while True:
        heads = {
            stream: launches[position[stream]]
            for stream, launches in enumerate(schedule.streams)
            if position[stream] < len(launches)
        }
        if not heads:
            return order
        ready = next((stream for stream, launch in heads.items() if issued.issuperset(launch.after)), None)
        if ready is None:
            stream, launch = next(iter(heads.items()))
            missing = next(unit for unit in launch.after if unit not in issued)
            raise ScheduleError(
                f"stream {stream}: {'+'.join(launch.units)!r} waits for {missing!r}, which never ends before: streams "
                "wait for each other, or none holds it; take a wait out"
            )
        position[ready] += 1
        issued.update(heads[ready].units)
        order.append((ready, heads[ready]))


def as_streams(schedule: Schedule) -> StreamSchedule:
    """The same order of the same work: group ``i`` of a stage is in stream ``i``, and waits for all groups of the stage before.

    Its latency is still that of the stages, whose boundaries may cost more than events do.
    """
    streams: list[list[StreamLaunch]] = [[] for _ in range(schedule.streams)]
    ended: dict[int, str] = {}
    for stage in schedule.stages:
        merged = stage.strategy is Strategy.MERGE
        last: dict[int, str] = {}
        for stream, group in enumerate(stage.groups):
            after = [unit for other, unit in ended.items() if other != stream]
            for units in [group] if merged else [[unit] for unit in group]:
                variant = "" if merged else stage.variants.get(units[0], "")
                streams[stream].append(StreamLaunch(units=units, after=after, variant=variant))
                after = []
            last[stream] = group[-1]
        ended = last
    said = {name: getattr(schedule, name) for name in SavedSchedule.model_fields if name != "format_version"}
    return StreamSchedule(**said, streams=streams)
