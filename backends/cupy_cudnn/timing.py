"""How plans are timed on the GPU.

Rounds are interleaved: in each, every plan runs once, in a random order, so that drift of clocks and temperature meets all
alike; a *sentinel*, a kernel of fixed arithmetic, is timed in each round to see that drift. A plan of one graph is timed by
two events around its launch, behind a kernel that waits until the host has issued all of it (the *spin*), so that the host
does not count; it ends when its last kernel does. Any other plan is timed by the host's clock, from its first call until
the host has waited for the last. *Warm*: the plan ran once just before, untimed. *Cold*: a buffer larger than the L2 cache
was written just before.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from time import perf_counter

import numpy as np

from iossim.backends.cupy_cudnn.conditions import Conditions, first_and_last
from iossim.backends.cupy_cudnn.driver import Driver, Stream
from iossim.backends.cupy_cudnn.engines import GraphRun, Run
from iossim.backends.cupy_cudnn.service_kernels import SENTINEL, SPIN
from iossim.execution.backend import Samples, Timing

#: How much more than the time that the host needs is spun, and at least: host times scatter.
SPIN_MARGIN = 2.0
LEAST_SPIN_US = 20.0
MOST_SPIN_US = 20_000.0
SENTINEL_STEPS = 10_000
SENTINEL_BLOCKS = 256


class Stopwatch:
    """Times runs on one stream of one device."""

    def __init__(self, driver: Driver, main: Stream) -> None:
        self._driver, self._main = driver, main
        self._conditions = Conditions()
        self._start, self._end = driver.event(timing=True), driver.event(timing=True)
        self._flush_bytes = 2 * driver.facts.l2_bytes
        self._flush = driver.allocate(self._flush_bytes)
        self._spin = driver.kernel(SPIN, "spin")
        self._sentinel = driver.kernel(SENTINEL, "sentinel")

    def measure(
        self, runs: Sequence[Run], timing: Timing, progress: Callable[[int, int], None] = lambda done, total: None
    ) -> list[Samples]:
        """The samples of each run; ``progress`` is told how many of all timed runs are done."""
        times: list[list[float]] = [[] for _ in runs]
        sentinels: list[float] = []
        issue_us = [MOST_SPIN_US] * len(runs)
        generator = random.Random(timing.seed)
        rounds = timing.warm_up + timing.rounds
        before = self._conditions.read()
        for number in range(rounds):
            for index in generator.sample(range(len(runs)), len(runs)):
                time_us, host_us = self._time_us(runs[index], timing.cold, issue_us[index])
                issue_us[index] = min(issue_us[index], host_us)
                if number >= timing.warm_up:
                    times[index].append(time_us)
            sentinels.append(self._sentinel_us())
            progress((number + 1) * len(runs), rounds * len(runs))
        conditions = first_and_last(before, self._conditions.read())
        conditions |= {
            "sentinel_first_us": sentinels[0],
            "sentinel_least_us": min(sentinels),
            "sentinel_most_us": max(sentinels),
            "l2": "cold" if timing.cold else "warm",
        }
        return [
            Samples(tuple(own), 0, {**conditions, "issue_us": host_us})
            for own, host_us in zip(times, issue_us, strict=True)
        ]

    def _time_us(self, run: Run, cold: bool, issue_us: float) -> tuple[float, float]:
        """One time of a run, and what the host took to issue it."""
        if isinstance(run, GraphRun) and len(run.graphs) == 1:
            return self._graph_us(run, cold, issue_us)
        if cold:
            self._driver.clear(self._flush.address, self._flush_bytes, self._main)
            self._driver.synchronize()
        else:
            run.run()
        begin = perf_counter()
        run.run()
        taken_us = (perf_counter() - begin) * 1e6
        return taken_us, taken_us

    def _graph_us(self, run: GraphRun, cold: bool, issue_us: float) -> tuple[float, float]:
        driver, main = self._driver, self._main
        (graph,) = run.graphs
        if cold:
            driver.clear(self._flush.address, self._flush_bytes, main)
        else:
            driver.launch_graph(graph, main)
        spin_us = min(MOST_SPIN_US, LEAST_SPIN_US + SPIN_MARGIN * issue_us)  # the most at first: nothing is known yet
        cycles = np.int64(spin_us * driver.facts.clock_khz / 1e3)
        driver.launch(self._spin, 1, 1, (cycles,), main)
        driver.record(self._start, main)
        begin = perf_counter()
        driver.launch_graph(graph, main)
        host_us = (perf_counter() - begin) * 1e6
        driver.record(self._end, main)
        driver.synchronize()
        return driver.elapsed_us(self._start, self._end), host_us

    def _sentinel_us(self) -> float:
        driver, main = self._driver, self._main
        arguments = (np.int32(SENTINEL_STEPS), np.uint64(self._flush.address))
        driver.record(self._start, main)
        driver.launch(self._sentinel, SENTINEL_BLOCKS, 256, arguments, main)
        driver.record(self._end, main)
        driver.synchronize()
        return driver.elapsed_us(self._start, self._end)
