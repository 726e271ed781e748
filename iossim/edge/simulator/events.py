"""Event-driven time of a plan: units compute, DMA moves, and both wait for the memories that they share.

A shared memory is a server: it serves transfers in turn, and none is faster than its requester. Units with equal work
do it at the same time, and are one process that moves all of their bytes.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Sequence
from dataclasses import dataclass
from itertools import zip_longest

import simpy

from iossim.edge.linking import MemoryKind
from iossim.edge.plan import EdgePlan, Lane, Transfer, Work, rate_gbps, unit_work
from iossim.edge.splitting import equal_units

_Process = Generator[simpy.Event, object, None]


@dataclass(frozen=True, slots=True)
class BusySpan:
    """Activity of ``units`` that work alike (``wait`` for lines, ``compute``, ``stream`` once that is done), or,
    without units, of DMA or a memory.
    """

    step: int
    lane: str
    what: str
    start_us: float
    end_us: float
    units: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Timed:
    """Start and end of each step, the spans, and the bytes that each memory moved (whole lines, of all units)."""

    total_us: float
    steps: tuple[tuple[float, float], ...]
    spans: tuple[BusySpan, ...]
    moved_bytes: tuple[dict[MemoryKind, int], ...]

    @property
    def steps_us(self) -> list[float]:
        return [end_us - start_us for start_us, end_us in self.steps]


def simulate(plan: EdgePlan) -> Timed:
    """Simulate a plan."""
    run = _Run(plan)
    run.environment.run(run.environment.process(run.stages()))
    return Timed(run.environment.now, tuple(run.ends), tuple(run.spans), tuple(run.moved))


class _Run:
    def __init__(self, plan: EdgePlan) -> None:
        self.plan = plan
        self.environment = simpy.Environment()
        self.servers = {
            MemoryKind.SHARED: (simpy.Resource(self.environment), plan.device.shared.bandwidth_gbps.value * 1e3),
            MemoryKind.EXTERNAL: (simpy.Resource(self.environment), plan.device.external.bandwidth_gbps.value * 1e3),
        }
        self.channels = simpy.Resource(self.environment, plan.device.dma.channels.value)
        self.ends = [(0.0, 0.0)] * len(plan.steps)
        self.spans: list[BusySpan] = []
        self.moved = [{MemoryKind.SHARED: 0, MemoryKind.EXTERNAL: 0} for _ in plan.steps]

    def stages(self) -> _Process:
        for stage in self.plan.stages:
            yield self._all(self._lane(lane) for lane in stage)

    def _lane(self, lane: Lane) -> _Process:
        for index in lane.steps:
            start, step = self.environment.now, self.plan.steps[index]
            for part in step.slices:
                yield self._all(self._dma(index, each.value, each.bytes) for each in part.inputs)
                yield self._all(
                    self._alike(
                        index, [lane.first_unit + unit for unit in members], unit_work(self.plan, step, part, most)
                    )
                    for members, most in equal_units(part.partition)
                )
                if part.output is not None:
                    yield self.environment.process(self._dma(index, part.output.value, part.output.bytes))
            self.ends[index] = (start, self.environment.now)

    def _all(self, processes: Iterable[_Process]) -> simpy.Event:
        return self.environment.all_of([self.environment.process(each) for each in processes])

    def _beside(self, us: float, process: _Process) -> simpy.Event:
        """Event after so many microseconds and the end of the process."""
        return self.environment.all_of([self.environment.timeout(us), self.environment.process(process)])

    def _alike(self, index: int, units: Sequence[int], works: Sequence[Work]) -> _Process:
        """Units with equally many elements to compute, each with the chunks of the one whose elements are in most
        boxes: in sequence; the parameters of the next arrive during the current one.
        """
        coming: simpy.Event | None = None
        count = len(units)
        for work, following in zip_longest(works, works[1:]):
            yield coming or self._parameters(index, count, work)
            coming = self._parameters(index, count, following) if following and following.ahead else None
            start = self.environment.now
            direct = () if work.by_dma else work.parameters
            for each in (*direct, *work.reads):
                if not each.streamed:
                    yield self.environment.process(self._move(index, each, count))
            ready = self.environment.now
            streamed = [each for each in (*direct, *work.reads) if each.streamed]
            yield self._beside(work.compute_us, self._in_turn(index, [*streamed, *work.writes], count))
            computed = ready + work.compute_us
            ends = {"wait": (start, ready), "compute": (ready, computed), "stream": (computed, self.environment.now)}
            self.spans += [
                BusySpan(index, "units", what, *times, tuple(units))
                for what, times in ends.items()
                if times[0] < times[1]
            ]

    def _parameters(self, index: int, units: int, work: Work) -> simpy.Event:
        if not work.by_dma or not work.parameters:
            return self.environment.timeout(0)
        size = sum(each.bytes for each in work.parameters)
        return self.environment.process(self._dma(index, "parameters", size, units))

    def _in_turn(self, index: int, transfers: Sequence[Transfer], units: int) -> _Process:
        for each in transfers:
            yield self.environment.process(self._move(index, each, units))

    def _move(self, index: int, transfer: Transfer, units: int) -> _Process:
        self.moved[index][transfer.memory] += transfer.bytes * units
        own_us = transfer.bytes / rate_gbps(self.plan, transfer.memory) / 1e3
        yield self._beside(own_us, self._serve(index, transfer.memory, transfer.what, transfer.bytes * units))

    def _serve(self, index: int, memory: MemoryKind, what: str, size: int) -> _Process:
        server, bytes_per_us = self.servers[memory]
        with server.request() as turn:
            yield turn
            start = self.environment.now
            yield self.environment.timeout(size / bytes_per_us)
            self.spans.append(BusySpan(index, str(memory), what, start, self.environment.now))

    def _dma(self, index: int, what: str, size: int, count: int = 1) -> _Process:
        """Equal transfers, as many at a time as there are channels: one request per channel."""
        dma = self.plan.device.dma
        start = self.environment.now
        self.moved[index][MemoryKind.EXTERNAL] += size * count
        rounds = -(-count // dma.channels.value)
        with self.channels.request() as channel:
            yield channel
            yield self.environment.timeout(dma.setup_us.value)
            channel_us = rounds * size / dma.channel_gbps.value / 1e3
            yield self._beside(channel_us, self._serve(index, MemoryKind.EXTERNAL, what, size * count))
        self.spans.append(BusySpan(index, "dma", what, start, self.environment.now))
