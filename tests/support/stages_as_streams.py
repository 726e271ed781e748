"""Schedules of stages as schedules of streams that do the same."""

from __future__ import annotations

from iossim.schedule.batch import Strategy
from iossim.schedule.schedule import SavedSchedule, Schedule, StreamLaunch, StreamSchedule


def as_streams(schedule: Schedule) -> StreamSchedule:
    """The same order of the same work: group ``i`` is in stream ``i``, and waits for all groups of the stage before.

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
