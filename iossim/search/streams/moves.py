"""Small changes of stream schedules, compiled: a search draws many, and prices them together."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from iossim.base.compiled import Integers, jit
from iossim.schedule.masks import scramble
from iossim.schedule.streams import StreamProblem, flat

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
