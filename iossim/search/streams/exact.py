"""All stream schedules of a few launches, by branch and bound: orders of issue times assignments to streams.

Depth first: the next launch in the order of issue, and its stream; of the unused streams only the first, since their
numbers mean nothing. A schedule is pruned once a path through its decided part, including the order of its streams, is
no shorter than the best known. The others are priced, in batches.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from iossim.base.compiled import Floats, Integers, jit
from iossim.cost.capabilities import StreamCostModel
from iossim.schedule.streams import StreamBatch, StreamProblem
from iossim.search.anytime import Clock
from iossim.search.streams.bounds import critical_us

#: Schedules priced at a time, and launches tried between two checks of the clock and the limits.
_BATCH, _TRIED_AT_A_TIME = 2048, 200_000
#: Launches tried per allowed price: if bounds prune nearly everything, few schedules are ever complete.
_TRIED_A_PRICE = 40
# Rows of the state: what was chosen at each depth, and how many streams were used before; whether a launch is issued.
_CHOSEN, _USED, _ISSUED, _DEPTH = range(4)
# Rows of the ends: the earliest of each launch, that of each stream, and the latter before the choice at each depth.
_OF_LAUNCH, _OF_STREAM, _BEFORE = range(3)


@dataclass(frozen=True, eq=False)
class BestStreams:
    """The best schedule known; ``complete`` if it is optimal. ``priced``: the number of schedules priced for it."""

    order: Integers
    streams: Integers
    latency_us: float
    complete: bool
    priced: int


def best_streams(
    problem: StreamProblem,
    cost_model: StreamCostModel,
    known: StreamBatch,
    most_priced: int,
    first: int = 0,
    bounded: bool = True,
    clock: Clock | None = None,
) -> BestStreams:
    """The best schedule of a problem, starting from the ``known`` ones; gives up after ``most_priced`` prices, after
    many times as many tried launches, or when the time of the clock is up.

    The ``first`` launches come first, in stream 0. Unless ``bounded`` every schedule is priced.
    """
    count = len(problem)
    prices = cost_model.price_streams(known).latency_us
    at = int(prices.argmin())
    best = BestStreams(known.orders[at], known.streams[at], float(prices[at]), False, 0)
    serial_us = cost_model.launch_work(problem).serial_us
    critical = np.array(critical_us(problem, cost_model.launch_work(problem)))
    reads, read_begin = problem.flat_reads
    state = np.zeros((4, count + 1), dtype=np.int64)
    state[_CHOSEN] = -1
    ends = np.zeros((3, count + 1), dtype=np.float64)
    orders, streams = (np.empty((_BATCH, count), dtype=np.int64) for _ in range(2))
    priced = tried = 0
    while priced <= most_priced and tried <= _TRIED_A_PRICE * most_priced and not (clock and clock.is_up):
        upper_us = best.latency_us if bounded else np.inf
        found = _next_schedules(reads, read_begin, serial_us, critical, first, upper_us, state, ends, orders, streams)
        if found:
            batch = StreamBatch(problem, orders[:found], streams[:found], known.ahead_us)
            prices = cost_model.price_streams(batch).latency_us
            priced += found
            at = int(prices.argmin())
            if prices[at] < best.latency_us:
                best = BestStreams(orders[at].copy(), streams[at].copy(), float(prices[at]), False, priced)
        tried += int(state[_DEPTH, 1])
        if state[_DEPTH, 0] < 0:
            return BestStreams(best.order, best.streams, best.latency_us, True, priced)
    return BestStreams(best.order, best.streams, best.latency_us, False, priced)


@jit
def _next_schedules(
    reads: Integers,
    read_begin: Integers,
    serial_us: Floats,
    critical: Floats,
    first: int,
    upper_us: float,
    state: Integers,
    ends: Floats,
    orders: Integers,
    streams: Integers,
) -> int:
    """Write the next schedules, and return their number, after many tries even if there is room for more; the depth is
    below 0 once none is left.
    """
    count = len(serial_us)
    found = 0
    tried = 0
    depth = state[_DEPTH, 0]
    while depth >= 0 and found < len(orders) and tried < _TRIED_AT_A_TIME:
        chosen = state[_CHOSEN, depth]
        used = state[_USED, depth]
        if chosen >= 0:
            # Take back what was chosen here.
            state[_ISSUED, chosen // count] = 0
            ends[_OF_STREAM, chosen % count] = ends[_BEFORE, depth]
        chosen += 1
        is_possible = False
        while chosen < count * count:
            tried += 1
            launch = chosen // count
            stream = chosen % count
            is_possible = state[_ISSUED, launch] == 0 and stream <= used
            if depth < first:
                is_possible = is_possible and launch == depth and stream == 0
            start = ends[_OF_STREAM, stream] if stream < used else 0.0
            for at in range(read_begin[launch], read_begin[launch + 1]):
                is_possible = is_possible and state[_ISSUED, reads[at]] == 1
                start = max(start, ends[_OF_LAUNCH, reads[at]])
            is_possible = is_possible and start + critical[launch] < upper_us
            if is_possible:
                state[_CHOSEN, depth] = chosen
                state[_ISSUED, launch] = 1
                ends[_BEFORE, depth] = ends[_OF_STREAM, stream]
                ends[_OF_LAUNCH, launch] = start + serial_us[launch]
                ends[_OF_STREAM, stream] = ends[_OF_LAUNCH, launch]
                used = max(used, stream + 1)
                break
            chosen += 1
        if not is_possible:
            state[_CHOSEN, depth] = -1
            depth -= 1
            continue
        if depth == count - 1:
            for at in range(count):
                orders[found, at] = state[_CHOSEN, at] // count
                streams[found, state[_CHOSEN, at] // count] = state[_CHOSEN, at] % count
            found += 1
            continue
        depth += 1
        state[_USED, depth] = used
        state[_CHOSEN, depth] = -1
    state[_DEPTH, 0] = depth
    state[_DEPTH, 1] = tried
    return found
