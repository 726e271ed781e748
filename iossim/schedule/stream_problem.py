"""Problem of a stream search: launches and their dependences; and batches of schedules of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from iossim.base.errors import ScheduleError
from iossim.ir.network import Network
from iossim.schedule.streams import IssuedLaunch

Integers = NDArray[np.int64]

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
