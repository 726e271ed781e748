"""Schedules of streams: conversion of stages to them, and the problem of a search for them.

A conversion is the same work without barriers, with events where data crosses. In each stage the groups with the most
work go first, each to the stream with the least work of the stage so far, and among these to the one that produced most
of its inputs, so that few events are needed. The events are the fewest that order consumers after producers: the
transitive reduction (Aho, Garey and Ullman, SIAM J. Comput. 1, 1972) of the data dependences of launches and of the
order of each stream.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from iossim.base.compiled import Integers, jit
from iossim.base.errors import ScheduleError
from iossim.ir.network import Network
from iossim.schedule.batch import Strategy
from iossim.schedule.schedule import AnySchedule, SavedSchedule, Schedule, Stage, StreamLaunch, StreamSchedule


def as_streams(schedule: AnySchedule, network: Network, most: int | None = None) -> StreamSchedule:
    """The streams of a schedule that fits ``network``; at most ``most``, so that groups of a stage share some.

    In a schedule that already has more streams they share in turn: the first with that of number ``most``, and so on.

    Its latency is still that of the stages, whose boundaries may cost more than events do.
    """
    if isinstance(schedule, StreamSchedule):
        return _sharing(schedule, network, most or len(schedule.streams))
    width = min(schedule.streams, most or schedule.streams)
    order: list[IssuedLaunch] = []
    stream_of: dict[str, int] = {}
    for stage in schedule.stages:
        held = [0] * width
        for group in sorted(stage.groups, key=lambda one: _multiply_adds(network, one), reverse=True):
            near = _bytes_made(network, group, stream_of, width)
            *_, stream = min((held[one], -near[one], one) for one in range(width))
            held[stream] += 1 + _multiply_adds(network, group)
            stream_of |= dict.fromkeys(group, stream)
            order += [IssuedLaunch(units, stream, variant) for units, variant in _launches(stage, group)]
    return StreamSchedule(**_said(schedule), **in_streams(network, order))


def with_barriers(schedule: Schedule) -> StreamSchedule:
    """The same work in the same order: group ``i`` is in stream ``i``, and waits for all groups of the previous stage.

    Its latency is still that of the stages, whose boundaries may cost more than events do.
    """
    streams: list[list[StreamLaunch]] = [[] for _ in range(schedule.streams)]
    ended: dict[int, str] = {}
    for stage in schedule.stages:
        last: dict[int, str] = {}
        for stream, group in enumerate(stage.groups):
            after = [unit for other, unit in ended.items() if other != stream]
            for units, variant in _launches(stage, group):
                streams[stream].append(StreamLaunch(units=list(units), after=after, variant=variant))
                after = []
            last[stream] = group[-1]
        ended = last
    return StreamSchedule(**_said(schedule), streams=streams)


def _launches(stage: Stage, group: Sequence[str]) -> list[tuple[tuple[str, ...], str]]:
    """The units of each launch of a group, and their variant: one launch of all that are merged."""
    if stage.strategy is Strategy.MERGE:
        return [(tuple(group), "")]
    return [((unit,), stage.variants.get(unit, "")) for unit in group]


def _said(schedule: Schedule) -> dict[str, object]:
    return {name: getattr(schedule, name) for name in SavedSchedule.model_fields if name != "format_version"}


def _sharing(schedule: StreamSchedule, network: Network, most: int) -> StreamSchedule:
    if most >= len(schedule.streams):
        return schedule
    order = [
        IssuedLaunch(tuple(launch.units), stream % most, launch.variant) for stream, launch in issue_order(schedule)
    ]
    return schedule.model_copy(update=in_streams(network, order))


@dataclass(frozen=True, slots=True)
class IssuedLaunch:
    """A launch and the number of its stream; one of several units is their stacked convolution."""

    units: tuple[str, ...]
    stream: int
    variant: str = ""


def in_streams(network: Network, order: Sequence[IssuedLaunch]) -> dict[str, list[list[StreamLaunch]] | list[int]]:
    """The ``streams`` and the ``issue`` of a :class:`StreamSchedule` of launches in their order of issue.

    Streams without launches are left out.
    """
    launch_of = {unit: number for number, launch in enumerate(order) for unit in launch.units}
    reads = [
        sorted({launch_of[before] for unit in launch.units for before in units_read(network, unit)}) for launch in order
    ]
    numbers = sorted({launch.stream for launch in order})
    streams: list[list[StreamLaunch]] = [[] for _ in numbers]
    issue = [numbers.index(launch.stream) for launch in order]
    for stream, launch, awaited in zip(issue, order, reduced_waits(issue, reads), strict=True):
        after = sorted((order[one].units[-1] for one in awaited), key=lambda unit: issue[launch_of[unit]])
        streams[stream].append(StreamLaunch(units=list(launch.units), after=after, variant=launch.variant))
    by_default = [stream for stream, _ in ready_order(streams)]
    return {"streams": streams, "issue": [] if issue == by_default else issue}


def reduced_waits(stream_of: Sequence[int], reads: Sequence[Iterable[int]]) -> list[list[int]]:
    """For each launch, in the order of issue, the launches of other streams whose events it must wait for.

    ``stream_of`` are the streams of launches, ``reads`` the earlier launches that each reads. No wait is implied by
    others and the order of streams.
    """
    found = Waits.of(*flat([list(before) for before in reads]), max(stream_of, default=0) + 1)
    find_waits(np.arange(len(stream_of)), np.array(stream_of, dtype=np.int64), found)
    counts = found.places[WAITS, : len(stream_of)]
    return [found.waits[at : at + count].tolist() for at, count in zip(found.begin[:-1], counts, strict=True)]


# Rows of the places. Of a launch: its place in the order of issue and in its stream, how many waits it has, how many
# launches wait for it, and whether the next one of its stream has no waits. Of a stream: its last launch.
_PLACE, _POSITION, WAITS, READERS, GOES_ON, _LAST = range(6)


class Waits(NamedTuple):
    """Reads of launches, those of launch ``l`` (earlier launches) from ``begin[l]`` to ``begin[l + 1]``; and room for
    the waits among these, from ``begin[l]`` on, for places, and for clocks: the ended launches of each stream.
    """

    reads: Integers
    begin: Integers
    waits: Integers
    places: Integers
    clocks: Integers

    @staticmethod
    def of(reads: Integers, begin: Integers, streams: int) -> Waits:
        launches = len(begin) - 1
        places = np.empty((6, max(launches, streams)), dtype=np.int64)
        return Waits(reads, begin, np.empty_like(reads), places, np.empty((launches, streams), dtype=np.int64))


@jit
def find_waits(order: Integers, streams: Integers, found: Waits) -> None:
    """Waits as :func:`reduced_waits` finds them, in any order of issue; ``streams[l]`` is that of launch ``l``."""
    reads, read_begin, waits, places, clocks = found
    launches = len(order)
    width = 0
    for place in range(launches):
        launch = order[place]
        width = max(width, streams[launch] + 1)
        places[_PLACE, launch] = place
        places[READERS, launch] = 0
        places[GOES_ON, launch] = 0
    for stream in range(width):
        places[_LAST, stream] = -1
    for place in range(launches):
        launch = order[place]
        stream = streams[launch]
        last = places[_LAST, stream]
        for other in range(width):
            clocks[launch, other] = clocks[last, other] if last >= 0 else 0
        places[_POSITION, launch] = clocks[launch, stream]
        begin = read_begin[launch]
        end = read_begin[launch + 1]
        # The launch that was issued last comes first: it implies those before it.
        for at in range(begin, end):
            before = reads[at]
            into = at
            while into > begin and places[_PLACE, waits[into - 1]] < places[_PLACE, before]:
                waits[into] = waits[into - 1]
                into -= 1
            waits[into] = before
        kept = begin
        for at in range(begin, end):
            before = waits[at]
            if clocks[launch, streams[before]] <= places[_POSITION, before]:
                waits[kept] = before
                kept += 1
                places[READERS, before] += 1
                for other in range(width):
                    clocks[launch, other] = max(clocks[launch, other], clocks[before, other])
        places[WAITS, launch] = kept - begin
        if kept == begin and last >= 0:
            places[GOES_ON, last] = 1
        clocks[launch, stream] = places[_POSITION, launch] + 1
        places[_LAST, stream] = launch


def units_read(network: Network, name: str) -> list[str]:
    """The units whose outputs a unit reads, by their names."""
    return [network.units[before].name for before in network.predecessors[network.unit_index[name]]]


def _multiply_adds(network: Network, group: Sequence[str]) -> int:
    return sum(network.multiply_adds(network.unit(name)) for name in group)


def _bytes_made(network: Network, group: Sequence[str], stream_of: dict[str, int], width: int) -> list[int]:
    """By stream, the bytes of a group's inputs that it produced."""
    found = [0] * width
    reads = {value for name in group for value in network.unit(name).inputs}
    for value in reads:
        maker = network.unit_of_value.get(value)
        if maker is not None and (stream := stream_of.get(network.units[maker].name)) is not None:
            found[stream] += network.graph.types[value].bytes
    return found


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


#: Maximum number of streams of a schedule that is priced.
MAX_STREAMS = 64


@dataclass(frozen=True, eq=False)
class StreamProblem:
    """Launches in a possible order of issue.

    ``launches[i]`` are units by their index in the network; several run as one stacked convolution, whose launch has
    no variant. ``reads[i]`` are the launches, all earlier, whose outputs launch ``i`` reads; ``variants[i]`` its
    variant.
    """

    network: Network
    launches: tuple[tuple[int, ...], ...]
    reads: tuple[tuple[int, ...], ...]
    variants: tuple[str, ...]

    @staticmethod
    def of(network: Network, launches: Sequence[Sequence[int]], variants: Sequence[str] = ()) -> StreamProblem:
        """The problem of some launches: their inputs from others are already available.

        Raises ScheduleError if a launch precedes one that it reads.
        """
        launch_of = {unit: number for number, units in enumerate(launches) for unit in units}
        reads = []
        for number, units in enumerate(launches):
            before = {launch_of[one] for unit in units for one in network.predecessors[unit] if one in launch_of}
            if before and max(before) >= number:
                raise ScheduleError(f"{network.units[units[0]].name!r} is launched before what it reads; swap the two")
            reads.append(tuple(sorted(before)))
        return StreamProblem(
            network, tuple(map(tuple, launches)), tuple(reads), tuple(variants) or ("",) * len(launches)
        )

    def __len__(self) -> int:
        return len(self.launches)

    def part(self, members: Sequence[int]) -> StreamProblem:
        """The problem of some of the launches."""
        launches = [self.launches[one] for one in members]
        return StreamProblem.of(self.network, launches, [self.variants[one] for one in members])

    def key(self, priced: Mapping[int, str]) -> tuple[object, ...]:
        """A key equal for problems whose launches, in the same positions, have units with equal texts in ``priced``."""
        return tuple(tuple(priced[unit] for unit in units) for units in self.launches), self.reads, self.variants

    @cached_property
    def flat_reads(self) -> tuple[Integers, Integers]:
        """``reads`` concatenated, and the start of each launch's part, shape ``[len(self) + 1]``."""
        return flat(self.reads)

    @cached_property
    def readers(self) -> tuple[tuple[int, ...], ...]:
        """Consumers of each launch."""
        found: list[list[int]] = [[] for _ in self.launches]
        for launch, before in enumerate(self.reads):
            for one in before:
                found[one].append(launch)
        return tuple(map(tuple, found))

    def issued(self, order: Sequence[int], streams: Sequence[int]) -> list[IssuedLaunch]:
        """The launches by name, in the order of issue; ``streams`` has one entry per launch."""
        names = [tuple(self.network.units[unit].name for unit in units) for units in self.launches]
        return [IssuedLaunch(names[launch], int(streams[launch]), self.variants[launch]) for launch in order]


@dataclass(frozen=True, eq=False)
class StreamBatch:
    """Schedules of one problem: ``orders``, ``[n, launches]``, are launches in the order of issue, each after all
    that it reads; ``streams``, of the same shape, has the stream number of each launch.

    The host starts issuing ``ahead_us`` before the device is available.
    """

    problem: StreamProblem
    orders: Integers
    streams: Integers
    ahead_us: float = 0.0

    def __len__(self) -> int:
        return len(self.orders)


def flat(lists: Sequence[Sequence[int]]) -> tuple[Integers, Integers]:
    """Lists of numbers concatenated, and the start of each list."""
    begin = np.cumsum([0, *map(len, lists)], dtype=np.int64)
    return np.array([one for own in lists for one in own], dtype=np.int64), begin
