"""The search of streams: the stream of each launch, and the order in which the host issues them.

The search begins with given schedules, and with list scheduling in two to eight streams. It proceeds part by part: the
launches between two that are ordered with all others. Each is searched locally from several starts: a batch of random
changes (:func:`draw`) is priced at a time, and the best is accepted even if it is a little worse, less so later. An
interrupt ends it with the best known, also within a part.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import NamedTuple

import numpy as np

from iossim.base.compiled import Floats, Integers, jit
from iossim.cost.capabilities import StreamCostModel
from iossim.cost.facts import LaunchWork, StreamPrices
from iossim.cost.model import problems_of
from iossim.ir.network import Network
from iossim.schedule.masks import scramble
from iossim.schedule.streams import MAX_STREAMS, IssuedLaunch, StreamBatch, StreamProblem, flat
from iossim.search.anytime import Clock, Steps
from iossim.search.streams.bounds import critical_us, cut

#: Changes priced at a time; without a time limit, schedules priced per launch of a part, and at most; starts of a part.
_TOGETHER, _PRICED_A_LAUNCH, _MOST_OF_A_PART, _STARTS = 16, 240, 32_000, 4
#: Number of schedules, the best found, that are kept.
_MOST_KEPT = 8
#: Largest relative loss of an accepted move at the beginning; it falls to 0.
_WORSE = 0.01
#: Weight of the time of issue: an early host is ahead in the next part.
_ISSUE_WEIGHT = 1e-3


#: Objective of the search: one value a schedule, to be minimised.
Values = Callable[[StreamPrices], Floats]


def latencies(prices: StreamPrices) -> Floats:
    """End of the last kernel of each schedule, us."""
    return prices.latency_us


class Ordered(NamedTuple):
    """Launches in their order of issue, and the stream of each launch."""

    order: Integers
    streams: Integers


@dataclass(frozen=True, eq=False)
class _Part:
    """Launches to be searched: ``members`` of the whole problem, of which the ``first`` precede the part."""

    problem: StreamProblem
    members: tuple[int, ...]
    first: int


def search_launches(
    network: Network,
    cost_model: StreamCostModel,
    starts: Sequence[Sequence[IssuedLaunch]],
    seed: int,
    steps: Steps,
    seconds: float | None,
    values_of: Callable[[StreamProblem], Values] = lambda problem: latencies,
) -> list[list[IssuedLaunch]]:
    """Schedules of these launches: those found, the best first, and then the ``starts``, of the same launches.

    The best has the least value of ``values_of`` the launches. Without ``seconds`` the search prices a number of
    schedules that grows with the network.
    """
    order = starts[0]
    problem = problem_of(network, order)
    number = {launch.units: index for index, launch in enumerate(order)}
    ordered: list[Ordered] = []
    for start in starts:
        issued = np.array([number[launch.units] for launch in start], dtype=np.int64)
        streams = np.empty(len(order), dtype=np.int64)
        streams[issued] = [launch.stream for launch in start]
        ordered.append(Ordered(issued, streams))
    search = _Search(problem, cost_model, seed, seconds, values_of)
    steps.take(None, search.run, *ordered)
    steps.interrupted |= search.interrupted
    found = [one for _, one in sorted(search.kept, key=lambda one: one[0])[:_MOST_KEPT]]
    return [problem.issued(one.order.tolist(), one.streams.tolist()) for one in (*found, *ordered)]


def problem_of(network: Network, launches: Sequence[IssuedLaunch]) -> StreamProblem:
    """The problem of a network's launches, in their order of issue."""
    units = [[network.unit_index[unit] for unit in launch.units] for launch in launches]
    return StreamProblem.of(network, units, [launch.variant for launch in launches])


class _Search:
    """Searches the streams of one problem, part by part, and keeps each improvement of the whole."""

    def __init__(
        self,
        problem: StreamProblem,
        cost_model: StreamCostModel,
        seed: int,
        seconds: float | None,
        values_of: Callable[[StreamProblem], Values],
    ) -> None:
        self.problem, self.cost_model, self.seconds = problem, cost_model, seconds
        self.work, self.values = cost_model.launch_work(problem), values_of(problem)
        self.random = np.random.default_rng(seed)
        self.interrupted = False
        #: Schedules, each better than those before, and their values.
        self.kept: list[tuple[float, Ordered]] = []
        problems = problems_of(problem.network, cost_model)
        self._priced = {unit: key for own in problems for unit, key in zip(own.units, own.signatures, strict=True)}
        self._solved: dict[tuple[object, ...], list[Ordered]] = {}

    def run(self, *starts: Ordered) -> None:
        """Search from the given schedules."""
        parts = list(self._parts())
        launches = sum(len(part.members) - part.first for part in parts)
        began = perf_counter()
        best = min(starts, key=self._whole_us)
        best_us = self._whole_us(best)
        for part in parts:
            if self.interrupted:
                break
            seconds = None
            if self.seconds is not None:
                done = perf_counter() - began
                seconds = max(0.0, self.seconds - done) * (len(part.members) - part.first) / max(1, launches)
            launches -= len(part.members) - part.first
            begin = [self._restricted(one, part) for one in (best, *(one for one in starts if one is not best))]
            for own in self._search(part, begin, self._ahead_us(best, part), seconds):
                whole = self._with(best, part, own)
                whole_us = self._whole_us(whole)
                if whole_us < best_us:
                    best, best_us = whole, whole_us
                    self.kept.append((whole_us, whole))

    def _parts(self) -> Iterator[_Part]:
        before: tuple[int, ...] = ()
        for members in cut(self.problem):
            if len(members) > 1:
                inside = (*before, *members)
                yield _Part(self.problem.part(inside), inside, len(before))
            before = (members[-1],)

    def _restricted(self, whole: Ordered, part: _Part) -> Ordered:
        number = {launch: index for index, launch in enumerate(part.members)}
        order = np.array([number[one] for one in whole.order.tolist() if one in number], dtype=np.int64)
        streams = whole.streams[list(part.members)].copy()
        if part.first:
            streams = _renamed(streams, {int(streams[0]): 0})
        return Ordered(order, streams)

    def _with(self, whole: Ordered, part: _Part, own: Ordered) -> Ordered:
        """The whole schedule with a part's launches in their order and streams.

        The stream that the part begins in, and then the streams in the order of their launches, keep their names.
        """
        members = set(part.members[part.first :])
        places = [place for place, launch in enumerate(whole.order.tolist()) if launch in members]
        order = whole.order.copy()
        order[places] = [part.members[one] for one in own.order.tolist() if one >= part.first]
        streams = whole.streams.copy()
        names = {int(own.streams[0]): int(streams[part.members[0]])} if part.first else {}
        renamed = _renamed(own.streams, names)
        streams[list(part.members[part.first :])] = renamed[part.first :]
        # After the part its last launch continues in its stream.
        last = part.members[-1]
        was, now = int(whole.streams[last]), int(streams[last])
        if was != now:
            later = order[places[-1] + 1 :]
            swapped = streams[later]
            streams[later] = np.where(swapped == was, now, np.where(swapped == now, was, swapped))
        return Ordered(order, streams)

    def _whole_us(self, one: Ordered) -> float:
        batch = StreamBatch(self.problem, one.order[None], one.streams[None])
        return float(self.values(self.cost_model.price_streams(batch))[0])

    def _ahead_us(self, whole: Ordered, part: _Part) -> float:
        """Approximate lead of the host over the device at the start of a part."""
        if not self.work.host_us.any() or not part.first:
            return 0.0
        place = whole.order.tolist().index(part.members[0])
        before = whole.order[:place].tolist()
        if not before:
            return 0.0
        batch = StreamBatch(self.problem.part(before), np.arange(place)[None], whole.streams[before][None])
        prices = self.cost_model.price_streams(batch)
        return float(prices.latency_us[0] - prices.issued_us[0])

    def _search(self, part: _Part, start: list[Ordered], ahead_us: float, seconds: float | None) -> list[Ordered]:
        """Schedules of a part, the best last; parts that are priced alike are searched once."""
        ahead = round(ahead_us, -1) if self.work.host_us.any() else 0.0
        key = part.problem.key(self._priced), part.first, ahead
        if key not in self._solved:
            self._solved[key] = self._search_anew(part, start, ahead_us, seconds)
        return self._solved[key]

    def _search_anew(self, part: _Part, start: list[Ordered], ahead_us: float, seconds: float | None) -> list[Ordered]:
        clock, starts = Clock(seconds), list(start)
        for one in list_schedules(part.problem, self.cost_model.launch_work(part.problem)):
            starts.append(one)
            if clock.is_up:
                break
        batch = StreamBatch(
            part.problem, np.stack([one.order for one in starts]), np.stack([one.streams for one in starts]), ahead_us
        )
        began = perf_counter()
        values = self._values(batch)
        ranked = [starts[index] for index in np.argsort(values, kind="stable").tolist()]
        rounds = min(_MOST_OF_A_PART, _PRICED_A_LAUNCH * len(part.members)) // (_TOGETHER * _STARTS) + 1
        results: list[tuple[float, Ordered]] = []
        number = 0
        while not self.interrupted and (number < _STARTS or seconds is not None):
            spent = perf_counter() - began
            if seconds is not None and number and spent >= seconds:
                break
            origin = ranked[number] if number < min(2, len(ranked)) else min(results, key=lambda one: one[0])[1]
            until = None if seconds is None else began + min(seconds, spent + seconds / _STARTS)
            results.append(self._descend(part, origin, ahead_us, rounds, until))
            number += 1
        results.sort(key=lambda one: -one[0])
        return [one for _, one in results] or ranked[:1]

    def _descend(
        self, part: _Part, start: Ordered, ahead_us: float, rounds: int, until: float | None
    ) -> tuple[float, Ordered]:
        """Local search from one schedule, until a time or for a number of rounds; an interrupt ends it."""
        problem = part.problem
        near = Neighbours.room(problem, _TOGETHER)
        most = min(MAX_STREAMS, len(problem))
        now = best = start
        now_value = best_value = float(
            self._values(StreamBatch(problem, start.order[None], start.streams[None], ahead_us))[0]
        )
        began, number = perf_counter(), 0
        try:
            while number < rounds if until is None else perf_counter() < until:
                gone = number / rounds if until is None else (perf_counter() - began) / max(1e-9, until - began)
                seed = np.uint64(self.random.integers(1, 2**62))
                draw(now.order, now.streams, part.first, most, seed, near)
                values = self._values(StreamBatch(problem, near.orders, near.streams, ahead_us))
                at = int(values.argmin())
                if values[at] <= now_value * (1.0 + _WORSE * max(0.0, 1.0 - 1.25 * gone) ** 2):
                    now, now_value = Ordered(near.orders[at].copy(), near.streams[at].copy()), float(values[at])
                    if now_value < best_value:
                        best, best_value = now, now_value
                number += 1
        except KeyboardInterrupt:
            self.interrupted = True
        return best_value, best

    def _values(self, batch: StreamBatch) -> Floats:
        prices = self.cost_model.price_streams(batch)
        return self.values(prices) + _ISSUE_WEIGHT * prices.issued_us


def list_schedules(problem: StreamProblem, work: LaunchWork) -> Iterator[Ordered]:
    """List scheduling in two to eight streams.

    The ready launch with the longest path to the end, among equals the one with most work, goes to the stream that is
    free first, among equals to one that produced an input.
    """
    critical = critical_us(problem, work)
    total_us = work.work_us.sum(axis=1)
    serial_us = work.serial_us.tolist()
    for width in range(2, min(8, len(problem)) + 1):
        free_us = [0.0] * width
        end_us: dict[int, float] = {}
        streams = np.zeros(len(problem), dtype=np.int64)
        order: list[int] = []
        starts: list[float] = []
        missing = [len(before) for before in problem.reads]
        ready = {one for one, count in enumerate(missing) if not count}
        while ready:
            launch = max(ready, key=lambda one: (critical[one], float(total_us[one]), -one))
            there_us = max((end_us[one] for one in problem.reads[launch]), default=0.0)
            made = {int(streams[one]) for one in problem.reads[launch]}
            begin = [max(free, there_us) for free in free_us]
            *_, stream = min((begin[one], one not in made, one) for one in range(width))
            end_us[launch] = free_us[stream] = begin[stream] + serial_us[launch]
            streams[launch] = stream
            order.append(launch)
            starts.append(begin[stream])
            ready.remove(launch)
            for reader in problem.readers[launch]:
                missing[reader] -= 1
                if not missing[reader]:
                    ready.add(reader)
        # A launch that all others read stays first.
        sequence = sorted(range(len(order)), key=lambda index: (starts[index], index))
        yield Ordered(np.array([order[index] for index in sequence], dtype=np.int64), streams)


def _renamed(streams: Integers, names: dict[int, int]) -> Integers:
    """Streams renumbered: by the given names, and for the others the lowest free numbers, in the order of launches."""
    free = (name for name in range(len(streams) + len(names) + 1) if name not in set(names.values()))
    known = dict(names)
    for stream in streams.tolist():
        if stream not in known:
            known[stream] = next(free)
    return np.array([known[stream] for stream in streams.tolist()], dtype=np.int64)


#: Moves: a launch changes its stream, its place in the order of issue, or both; it joins what it reads, or what reads
#: it; two launches swap streams; after a place two streams swap all launches; or one joins another there.
_STREAM, _PLACE, _BOTH, _FOLLOW, _SWAP, _CROSS, _JOIN = range(7)
_MOVES = 7


class Neighbours(NamedTuple):
    """Changes of schedules of one problem: ``reads`` and ``readers`` of its launches, flat, and room for ``orders`` and
    ``streams`` that were changed, both ``[schedules, launches]``.
    """

    reads: Integers
    read_begin: Integers
    readers: Integers
    reader_begin: Integers
    orders: Integers
    streams: Integers

    @staticmethod
    def room(problem: StreamProblem, schedules: int) -> Neighbours:
        shape = schedules, len(problem)
        changed = np.empty(shape, dtype=np.int64), np.empty(shape, dtype=np.int64)
        return Neighbours(*problem.flat_reads, *flat(problem.readers), *changed)


@jit
def draw(
    order: Integers, streams: Integers, first: int, most_streams: int, seed: np.uint64, drawn_into: Neighbours
) -> None:
    """Draw random changes of one schedule.

    The ``first`` launches of the order stay in their places; streams are numbered below ``most_streams``.
    """
    reads, read_begin, readers, reader_begin, orders, changed = drawn_into
    count = len(order)
    place = np.empty(count, dtype=np.int64)
    state = seed
    for index in range(len(orders)):
        used = 0
        for at in range(count):
            orders[index, at] = order[at]
            changed[index, at] = streams[at]
            place[order[at]] = at
            used = max(used, streams[at] + 1)
        used = min(used + 1, most_streams)
        steps = 1
        state = scramble(state + np.uint64(0x9E3779B97F4A7C15))
        if int(state >> np.uint64(40)) % 4 == 0:
            steps = 2
        for _ in range(steps):
            state = scramble(state + np.uint64(0x9E3779B97F4A7C15))
            move = int(state >> np.uint64(40)) % _MOVES
            state = scramble(state + np.uint64(0x9E3779B97F4A7C15))
            launch = orders[index, first + int(state >> np.uint64(20)) % (count - first)]
            state = scramble(state + np.uint64(0x9E3779B97F4A7C15))
            drawn = int(state >> np.uint64(20))
            if move == _STREAM or move == _BOTH:  # noqa: PLR1714, SIM109
                changed[index, launch] = drawn % used
            if move == _FOLLOW:
                before = read_begin[launch + 1] - read_begin[launch]
                after = reader_begin[launch + 1] - reader_begin[launch]
                if before + after > 0:
                    chosen = drawn % (before + after)
                    if chosen < before:
                        changed[index, launch] = changed[index, reads[read_begin[launch] + chosen]]
                    else:
                        changed[index, launch] = changed[index, readers[reader_begin[launch] + chosen - before]]
            if move == _SWAP:
                other = orders[index, first + drawn % (count - first)]
                kept = changed[index, launch]
                changed[index, launch] = changed[index, other]
                changed[index, other] = kept
            if move == _CROSS or move == _JOIN:  # noqa: PLR1714, SIM109
                one = changed[index, launch]
                other = drawn % used
                for at in range(place[launch], count):
                    now = orders[index, at]
                    if changed[index, now] == one:
                        changed[index, now] = other
                    elif changed[index, now] == other and move == _CROSS:
                        changed[index, now] = one
            if move == _PLACE or move == _BOTH:  # noqa: PLR1714, SIM109
                state = scramble(state + np.uint64(0x9E3779B97F4A7C15))
                least = first
                for at in range(read_begin[launch], read_begin[launch + 1]):
                    least = max(least, place[reads[at]] + 1)
                most = count - 1
                for at in range(reader_begin[launch], reader_begin[launch + 1]):
                    most = min(most, place[readers[at]] - 1)
                into = least + int(state >> np.uint64(20)) % (most - least + 1)
                at = place[launch]
                while at < into:
                    orders[index, at] = orders[index, at + 1]
                    place[orders[index, at]] = at
                    at += 1
                while at > into:
                    orders[index, at] = orders[index, at - 1]
                    place[orders[index, at]] = at
                    at -= 1
                orders[index, into] = launch
                place[launch] = into
