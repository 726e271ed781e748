"""Timing of plans on a machine with other load.

In each round every plan that still needs samples runs once, in an order drawn from the seed. A sample is *disturbed*
if a thread of this process lost its core meanwhile, or if others kept more than a tenth of a core busy.
Disturbed samples are rejected; on a machine that is never quiet there would be none left, so that after three
times the requested rounds the least disturbed ones are kept, and the conditions report their number.

Other load is the time in which the cores available to this process did other work: the time for which ``/proc/stat``
reports them busy or stolen by a hypervisor, minus the run time of this process. ``/proc/stat`` counts in hundredths of
a second, so that it is meaningful for tenths of a second and more; two hundredths are subtracted as rounding. What
Linux does not report of the CPU is omitted.
"""

from __future__ import annotations

import gc
import os
import resource
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import fmean

import numpy as np

from iossim.backends.onnxruntime_cpu.program import Segment, SessionProgram
from iossim.backends.onnxruntime_cpu.worker_pool import WorkerPool
from iossim.base.errors import Progress
from iossim.execution.backend import Samples, Timing
from iossim.hardware.host_measuring import SYSTEM, cache_bytes, cpu_facts, system_text
from iossim.ir.op import Array

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
#: Busy time that may be due to rounding in ``/proc/stat``.
_ROUNDING_S = 2 / _TICKS_PER_S
#: Assumed if Linux does not report the size of the last-level cache: larger than most.
_UNKNOWN_CACHE_BYTES = 64 << 20


def cpu_model() -> str:
    """The CPU's model with family, model and stepping, which distinguish CPUs of the same name."""
    facts = cpu_facts()
    name = facts.get("model name") or facts.get("Hardware") or os.uname().machine
    numbers = [
        f"{what} {facts[key]}"
        for what, key in (("family", "cpu family"), ("model", "model"), ("stepping", "stepping"))
        if key in facts
    ]
    return f"{name} ({' '.join(numbers)})" if numbers else name


def last_level_cache_bytes() -> int:
    """The size of the largest cache that the first core sees."""
    return max(map(cache_bytes, SYSTEM.glob("cpu0/cache/index*")), default=0) or _UNKNOWN_CACHE_BYTES


def governor(core: int) -> str:
    """The frequency governor of a core; empty if Linux does not report it, as in most virtual machines."""
    return system_text(SYSTEM / f"cpu{core}/cpufreq/scaling_governor")


def frequency_mhz(core: int) -> float | None:
    """The current frequency of a core, or the nominal one in a virtual machine."""
    current = system_text(SYSTEM / f"cpu{core}/cpufreq/scaling_cur_freq")
    if current.isdigit():
        return int(current) / 1000
    lines = system_text(Path("/proc/cpuinfo")).splitlines()
    frequencies = [line.partition(":")[2] for line in lines if line.startswith("cpu MHz")]
    return float(frequencies[min(core, len(frequencies) - 1)]) if frequencies else None


def involuntary_switches() -> int:
    """Number of times that threads of this process lost their core to another one, since the process began."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw


@dataclass(frozen=True, slots=True)
class LoadReading:
    """Seconds since boot for which the cores were busy or stolen, and for which this process ran."""

    at_s: float
    busy_s: float | None
    own_s: float

    @staticmethod
    def take(cores: tuple[int, ...]) -> LoadReading:
        own = resource.getrusage(resource.RUSAGE_SELF)
        return LoadReading(time.perf_counter(), _busy_s(cores), own.ru_utime + own.ru_stime)

    def other_load_since(self, before: LoadReading) -> float:
        """Mean number of cores kept busy by others since ``before``; 0 if Linux does not report it."""
        if self.busy_s is None or before.busy_s is None or self.at_s <= before.at_s:
            return 0.0
        others_s = (self.busy_s - before.busy_s) - (self.own_s - before.own_s) - _ROUNDING_S
        return max(0.0, others_s / (self.at_s - before.at_s))


def _busy_s(cores: tuple[int, ...]) -> float | None:
    wanted = {f"cpu{core}" for core in cores}
    ticks, found = 0, False
    for line in system_text(Path("/proc/stat")).splitlines():
        name, *counts = line.split()
        if name in wanted:
            user, nice, system, _idle, _iowait, irq, softirq, steal = map(int, counts[:8])
            ticks += user + nice + system + irq + softirq + steal
            found = True
    return ticks / _TICKS_PER_S if found else None


#: Maximum number of rounds, as a multiple of the requested number.
MOST_ROUNDS = 3
#: Number of cores kept busy by others from which a sample counts as disturbed.
OTHER_LOAD = 0.1
#: Interval over which the load is read: Linux counts in hundredths of a second.
WINDOW_S, SHORTEST_WINDOW_S = 0.25, 0.1
#: Memory that is read to flush the caches, as a multiple of the largest.
FLUSH = 1.25


@dataclass(slots=True)
class _Sample:
    """One run of a plan, in round number ``round``."""

    round: int
    time_us: float
    switches: int
    other_load: float = 0.0

    @property
    def disturbed(self) -> bool:
        return self.switches > 0 or self.other_load > OTHER_LOAD


@dataclass
class _Window:
    """The samples since the last reading of the load, and that reading."""

    reading: LoadReading
    load_before: float = 0.0
    samples: list[_Sample] = field(default_factory=list)


def time_programs(
    programs: Sequence[SessionProgram],
    inputs: Sequence[Mapping[str, Array]],
    timing: Timing,
    cores: tuple[int, ...],
    threads: int,
    progress: Progress,
) -> list[Samples]:
    """Time each program ``timing.rounds`` times, from its first command until all its streams are done.

    ``inputs`` are copied into each program's buffers before it runs, outside the timed interval. ``threads`` are those
    of an op: all but one are ONNX Runtime's and not pinned. With several, or with more streams than ``cores``, threads
    of this process take cores from one another, so that losing one does not count as a disturbance.
    """
    taken: list[list[_Sample]] = [[] for _ in programs]
    total = timing.rounds * len(programs)
    generator = np.random.default_rng(timing.seed)
    streams = max((program.streams for program in programs), default=1)
    flush = _Flush(streams) if timing.cold else None
    collecting = gc.isenabled()
    gc.disable()
    try:
        with WorkerPool(streams, cores) as pool:

            def run(number: int, round_number: int) -> _Sample:
                for name, array in inputs[number].items():
                    np.copyto(programs[number].inputs[name], array)
                if flush is not None:
                    pool.run(flush.program)
                oversubscribed = threads > 1 or programs[number].streams > len(cores)
                switches = involuntary_switches()
                begin = time.perf_counter_ns()
                pool.run(programs[number])
                end = time.perf_counter_ns()
                lost = 0 if oversubscribed else involuntary_switches() - switches
                return _Sample(round_number, (end - begin) / 1e3, lost)

            window = _Window(LoadReading.take(cores))
            for _ in range(timing.warm_up):
                for number in generator.permutation(len(programs)):
                    run(number, -1)

            def lacking() -> list[int]:
                return [number for number, samples in enumerate(taken) if _quiet(samples) < timing.rounds]

            for round_number in range(MOST_ROUNDS * timing.rounds):
                if not lacking():
                    window = _judge(window, cores)  # the last one
                    if not lacking():
                        break
                for number in generator.permutation(lacking()):
                    sample = run(number, round_number)
                    taken[number].append(sample)
                    window.samples.append(sample)
                    if time.perf_counter() - window.reading.at_s > WINDOW_S:
                        window = _judge(window, cores)
                done = (max(_quiet(samples), len(samples) // MOST_ROUNDS) for samples in taken)
                progress(sum(min(timing.rounds, each) for each in done), total)
            _judge(window, cores)
    finally:
        if collecting:
            gc.enable()
    progress(total, total)
    state = _state(cores, flush)
    return [_samples(samples, timing.rounds, state) for samples in taken]


class _Flush:
    """A program that flushes the caches: each stream reads its share of a large block of memory."""

    def __init__(self, streams: int) -> None:
        words = int(FLUSH * last_level_cache_bytes()) // 8
        block = np.ones(words, dtype=np.int64)
        self.size_bytes = block.nbytes
        own, *others = (partial(np.max, share) for share in np.array_split(block, streams))
        segment = Segment((own,), tuple((stream + 1, (step,)) for stream, step in enumerate(others)))
        self.program = SessionProgram((segment,), streams)


def _quiet(samples: Sequence[_Sample]) -> int:
    return sum(not sample.disturbed for sample in samples)


def _judge(window: _Window, cores: tuple[int, ...]) -> _Window:
    """Assign to the samples of a window the load of others in it; the next window begins.

    A window too short for a reading gets the load of the previous one.
    """
    now = LoadReading.take(cores)
    long_enough = now.at_s - window.reading.at_s >= SHORTEST_WINDOW_S
    load = now.other_load_since(window.reading) if long_enough else window.load_before
    for sample in window.samples:
        sample.other_load = load
    return _Window(now, load)


def _samples(taken: Sequence[_Sample], rounds: int, state: Mapping[str, float | str]) -> Samples:
    """The ``rounds`` least disturbed samples, in the order they were taken."""
    disturbed = sum(sample.disturbed for sample in taken)
    ranked = sorted(taken, key=lambda sample: (sample.disturbed, sample.switches, sample.other_load, sample.round))
    kept = sorted(ranked[:rounds], key=lambda sample: sample.round)
    kept_disturbed = sum(sample.disturbed for sample in kept)
    rejected = disturbed - kept_disturbed
    conditions = {
        **state,
        "rejected_share": rejected / max(1, len(taken)),
        "disturbed_but_kept": float(kept_disturbed),
        "involuntary_switches": float(sum(sample.switches for sample in taken)),
        "other_load_cores": fmean(sample.other_load for sample in taken) if taken else 0.0,
    }
    return Samples(tuple(sample.time_us for sample in kept), rejected, conditions)


def _state(cores: tuple[int, ...], flush: _Flush | None) -> dict[str, float | str]:
    """Current conditions of the machine."""
    state: dict[str, float | str] = {"load_average": os.getloadavg()[0], "cores": float(len(cores))}
    if name := governor(cores[0]):
        state["governor"] = name
    if (frequency := frequency_mhz(cores[0])) is not None:
        state["frequency_mhz"] = frequency
    if flush is not None:
        state["flush_bytes"] = float(flush.size_bytes)
    return state
