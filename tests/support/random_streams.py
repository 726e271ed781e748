"""Random stream schedules of networks, from a seed."""

from __future__ import annotations

import random

import numpy as np
from random_networks import sequential_schedule

from iossim.ir.network import Network
from iossim.schedule.schedule import StreamSchedule
from iossim.schedule.streams import StreamBatch, StreamProblem, as_streams, in_streams


def random_order(problem: StreamProblem, generator: random.Random) -> list[int]:
    """Launches in a random order, each after all that it reads."""
    order: list[int] = []
    done: set[int] = set()
    while len(order) < len(problem):
        ready = [one for one in range(len(problem)) if one not in done and done.issuperset(problem.reads[one])]
        order.append(generator.choice(ready))
        done.add(order[-1])
    return order


def random_stream_batch(network: Network, seed: int, count: int = 4, most: int = 5) -> StreamBatch:
    """Schedules of all units of a network, each launched alone, in at most so many streams."""
    generator = random.Random(seed)
    problem = StreamProblem.of(network, [[unit] for unit in range(len(network.units))])
    orders = np.array([random_order(problem, generator) for _ in range(count)], dtype=np.int64)
    streams = np.array([[generator.randrange(most) for _ in range(len(problem))] for _ in range(count)], dtype=np.int64)
    return StreamBatch(problem, orders, streams)


def issued_streams(network: Network, batch: StreamBatch) -> StreamSchedule:
    """The first schedule of a batch, with the fewest waits."""
    issued = batch.problem.issued(batch.orders[0].tolist(), batch.streams[0].tolist())
    return as_streams(sequential_schedule(network), network).model_copy(update=in_streams(network, issued))
