"""Timing of plans on the GPU.

The device is first brought to its working clock. In each round every plan runs once, in random order, so that drift
affects all alike. Around each round a *sentinel* is timed, a kernel of fixed arithmetic, whose time depends on the
clock alone: a round beside an unusual sentinel is rejected and repeated.

A plan of one graph is timed by two events around its launch, after a kernel that waits until the host has issued all
of it (:mod:`.clock`); it ends when its last kernel does. Any other plan is timed by the host's clock, from its
first call until the host has waited for the last.

*Warm*: the plan ran once just before, untimed. *Cold*: a buffer of several times the L2 was read just before, so that
neither weights nor inputs are there. In a network that runs as a whole, weights are mostly gone from the cache and a
stage's inputs were written just now: its time lies between the two. A cold time is that of a single run, and includes
the cost of starting a graph: the time of an empty graph after the same flush is given among the conditions.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from statistics import median_low

import numpy as np

from iossim.backends.cupy_cudnn.capture import captured
from iossim.backends.cupy_cudnn.clock import FLUSH, LEAD_IN_US, SENTINEL, WorkingClock
from iossim.backends.cupy_cudnn.driver import Driver, Stream
from iossim.backends.cupy_cudnn.prepared_plan import Run
from iossim.backends.cupy_cudnn.views import BLOCK_THREADS
from iossim.base.errors import Progress, ignore
from iossim.execution.backend import EMPTY_GRAPH, Samples, Timing
from iossim.execution.lead import Lead


def conditions(pci_bus: str) -> dict[str, float | str]:
    """Readings of NVML by name: none without ``nvidia-ml-py``, and without those that the device does not give.

    The device is found by its place on the bus (``0000:1b:00.0``): CUDA and NVML number devices differently, and
    CUDA's identifier (UUID) of a part of a GPU (MIG) is one for which NVML tells neither clocks nor power.
    """
    try:
        import pynvml as nvml
    except ImportError:
        return {}
    try:
        nvml.nvmlInit()
        handle = nvml.nvmlDeviceGetHandleByPciBusId(pci_bus)
    except nvml.NVMLError:
        return {}
    readings: dict[str, Callable[[], float | str | bytes]] = {
        "sm_clock_mhz": lambda: float(nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM)),
        "memory_clock_mhz": lambda: float(nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_MEM)),
        "temperature_c": lambda: float(nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU)),
        "power_w": lambda: nvml.nvmlDeviceGetPowerUsage(handle) / 1e3,
        "throttle_reasons": lambda: hex(nvml.nvmlDeviceGetCurrentClocksEventReasons(handle)),
        "gpu": lambda: nvml.nvmlDeviceGetUUID(handle),
    }
    found: dict[str, float | str] = {}
    for name, reading in readings.items():
        with suppress(nvml.NVMLError, AttributeError):  # the GPU does not tell, or this version does not ask
            value = reading()
            found[name] = value.decode() if isinstance(value, bytes) else value
    return found


def first_and_last(before: dict[str, float | str], after: dict[str, float | str]) -> dict[str, float | str]:
    """Two readings as one: each number as it was first and last, each text as it was last."""
    numbers = {name: value for name, value in after.items() if not isinstance(value, str)}
    first = {f"{name}_first": before[name] for name in numbers if name in before}
    last = {f"{name}_last" if name in numbers else name: value for name, value in after.items()}
    return first | last


#: What a flush reads, in sizes of the L2: more than it, since the cache does not drop what is oldest first.
FLUSHED = 4
SENTINEL_STEPS = 10_000
SENTINEL_BLOCKS = 256
#: Times of an empty graph that its median is of.
EMPTY_ROUNDS = 5
#: How far a sentinel may be from the median of all.
USUAL = 0.05
#: Rounds that are taken at most, for each that is wanted.
MOST_ROUNDS = 2


@dataclass(frozen=True, slots=True)
class _Round:
    """A time of each run, and the sentinels before and after."""

    times_us: list[float]
    sentinels_us: tuple[float, float]


class Stopwatch:
    """Times runs on one stream of one device."""

    def __init__(self, driver: Driver, main: Stream, clock: WorkingClock) -> None:
        self._driver, self._main, self._clock = driver, main, clock
        self._flush_elements = FLUSHED * driver.facts.l2_bytes // np.float32().nbytes
        self._flushed = driver.allocate(self._flush_elements * np.float32().nbytes)
        self._flush = driver.kernel(FLUSH, "flush")
        self._sentinel = driver.kernel(SENTINEL, "sentinel")

    def measure(self, runs: Sequence[Run], timing: Timing, progress: Progress = ignore) -> list[Samples]:
        """Samples of each run; ``progress`` is called with the numbers of timed runs done and in all.

        At least one round is accepted: where times fall into two clusters, those of the larger one.
        """
        leads = [Lead() for _ in runs]
        thrown_away, late = [0] * len(runs), [0] * len(runs)
        generator = random.Random(timing.seed)
        wanted = timing.warm_up + timing.rounds
        taken: list[_Round] = []
        pci_bus = self._driver.facts.pci_bus
        before = conditions(pci_bus)
        self._clock.ensure()
        start = {EMPTY_GRAPH: self._empty_graph_us()} if timing.cold and all(run.is_one_graph for run in runs) else {}
        self._sentinel_us()  # loads it
        last_us = self._sentinel_us()
        number = 0
        while number < wanted or (
            len(_undisturbed(taken)) < timing.rounds and len(taken) < MOST_ROUNDS * timing.rounds
        ):
            times = [0.0] * len(runs)
            for index in generator.sample(range(len(runs)), len(runs)):
                times[index], away, ahead = self._time_us(runs[index], timing.cold, leads[index])
                thrown_away[index] += away
                late[index] += not ahead
            own_us = self._sentinel_us()
            if number >= timing.warm_up:
                taken.append(_Round(times, (last_us, own_us)))
            last_us = own_us
            number += 1
            progress(min(number, wanted) * len(runs), wanted * len(runs))
        accepted = _undisturbed(taken)[: timing.rounds]
        sentinels = [sentinel for one in taken for sentinel in one.sentinels_us]
        found = first_and_last(before, conditions(pci_bus))
        least_us, most_us = min(sentinels), max(sentinels)
        found |= {"sentinel_first_us": sentinels[0], "sentinel_least_us": least_us, "sentinel_most_us": most_us}
        found |= {"l2": "cold" if timing.cold else "warm", **start}
        return [
            Samples(
                tuple(one.times_us[index] for one in accepted),
                len(taken) - len(accepted) + thrown_away[index],
                {**found, "issue_us": leads[index].largest_us, "host_was_behind": float(late[index])},
            )
            for index in range(len(runs))
        ]

    def _time_us(self, run: Run, cold: bool, lead: Lead) -> tuple[float, int, bool]:
        """Time of a run, number of times rejected before it, and whether the host issued it in time."""
        driver = self._driver
        if run.is_one_graph:
            launch = partial(driver.launch_graph, run.graphs[0], self._main)
            found = self._clock.timer.take(launch, self._empty_cache if cold else launch, lead)
            self._clock.worked()
            return found
        if cold:
            self._empty_cache()
            driver.synchronize()
        else:
            run.run()
        begin_us = driver.host_us()
        run.run()
        taken_us = driver.host_us() - begin_us
        self._clock.worked()
        lead.add(taken_us)
        return taken_us, 0, True

    def _empty_graph_us(self) -> float:
        """Time of a graph without nodes, after a flush."""
        self._driver.synchronize()
        launch = partial(self._driver.launch_graph, captured(self._driver, self._main, []), self._main)
        timer, lead = self._clock.timer, Lead()
        return median_low([timer.take(launch, self._empty_cache, lead).time_us for _ in range(EMPTY_ROUNDS)])

    def _empty_cache(self) -> None:
        blocks = -(-self._flush_elements // BLOCK_THREADS)
        arguments = (np.uint32(self._flush_elements), np.uint64(self._flushed.address))
        self._driver.launch(self._flush, blocks, BLOCK_THREADS, arguments, self._main)

    def _sentinel_us(self) -> float:
        arguments = (np.int32(SENTINEL_STEPS), np.uint64(self._flushed.address))
        launch = partial(self._driver.launch, self._sentinel, SENTINEL_BLOCKS, 256, arguments, self._main)
        return self._clock.timer.once(launch, LEAD_IN_US).time_us


def _undisturbed(taken: Sequence[_Round]) -> list[_Round]:
    """The rounds whose sentinels both are near the median of all."""
    if not taken:
        return []
    usual_us = median_low([one.sentinels_us[1] for one in taken])
    undisturbed = [
        one for one in taken if all(abs(sentinel - usual_us) <= USUAL * usual_us for sentinel in one.sentinels_us)
    ]
    return undisturbed or [min(taken, key=lambda one: sum(abs(each - usual_us) for each in one.sentinels_us))]
