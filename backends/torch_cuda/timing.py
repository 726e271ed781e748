"""Timed rounds: every run once a round, in an order drawn from a seed, so that drift affects all alike.

A replay of one CUDA graph is timed by two events around it, after a kernel that sleeps until the host has issued all
of it (:mod:`iossim.execution.lead`). Any other run is timed by the host's clock, until it has waited. *Warm*: the run
ran once just before, untimed. *Cold*: more than the caches hold was written just before. Backend ``cupy_cudnn`` times
between the same two events.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch

from iossim.base.errors import Progress, first_line, ignore
from iossim.execution.backend import BackendError, Samples, Timing
from iossim.execution.lead import Lead, Once, take

#: Runs before a capture: lazy initialisation and cuDNN's search for algorithms may not happen inside one.
_RUNS_BEFORE_CAPTURE = 3
#: What is written before a cold run on the CPU: more than its caches hold.
_CPU_CACHES_BYTES = 256 * 2**20

#: How long the device is kept busy before the first round, so that it is at the clock at which it works.
_WARM_CLOCK_S = 0.3
#: Cycles of the device in a microsecond, at least as many as its fastest clock has.
_CYCLES_PER_US = 2_500


@dataclass(frozen=True, slots=True)
class Run:
    """Something to time: ``call`` issues it to the current stream; a ``replay`` is one CUDA graph."""

    call: Callable[[], object]
    replay: bool = False


def time_rounds(runs: Sequence[Run], timing: Timing, device: str, progress: Progress = ignore) -> list[Samples]:
    """The times of each run, microseconds; ``device`` is ``cpu`` or ``cuda``. No round is rejected."""
    synchronise: Callable[[], object] = torch.cuda.synchronize if device == "cuda" else lambda: None
    flush = _flush(device) if timing.cold else None
    generator = random.Random(timing.seed)
    times_us: list[list[float]] = [[] for _ in runs]
    leads, late = [Lead() for _ in runs], [0] * len(runs)
    total = timing.warm_up + timing.rounds
    end_s = time.perf_counter() + _WARM_CLOCK_S
    while device == "cuda" and time.perf_counter() < end_s:  # a device that has idled is clocked down
        for run in runs:
            run.call()
        synchronise()
    for done in range(total):
        for index in generator.sample(range(len(runs)), len(runs)):
            run = runs[index]
            (run.call if flush is None else flush)()
            synchronise()
            if run.replay:
                time_us, _, ahead = take(partial(_replay, run), leads[index])
                late[index] += not ahead
            else:
                start_s = time.perf_counter()
                run.call()
                synchronise()
                time_us = 1e6 * (time.perf_counter() - start_s)
            if done >= timing.warm_up:
                times_us[index].append(time_us)
        progress(done + 1, total)
    state: dict[str, float | str] = {"load": os.getloadavg()[0]} if hasattr(os, "getloadavg") else {}
    clocks: list[dict[str, float | str]] = [
        {"clock": "cuda events", "host_was_behind": float(count)} if run.replay else {"clock": "host"}
        for run, count in zip(runs, late, strict=True)
    ]
    return [Samples(tuple(times), conditions={**clock, **state}) for times, clock in zip(times_us, clocks, strict=True)]


def _replay(run: Run, sleep_us: float) -> Once:
    """A replay after a sleep."""
    waiting, begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(3))
    start_s = time.perf_counter()
    waiting.record()
    torch.cuda._sleep(int(_CYCLES_PER_US * sleep_us))
    begin.record()
    run.call()
    end.record()
    issue_us = 1e6 * (time.perf_counter() - start_s)
    torch.cuda.synchronize()
    return Once(1e3 * float(begin.elapsed_time(end)), issue_us, 1e3 * float(waiting.elapsed_time(begin)))


def _flush(device: str) -> Callable[[], object]:
    """Writes more than the caches hold."""
    size_bytes = _CPU_CACHES_BYTES
    if device == "cuda":
        size_bytes = 2 * torch.cuda.get_device_properties(0).L2_cache_size
    memory = torch.empty(size_bytes, dtype=torch.uint8, device=device)
    return lambda: memory.fill_(1)


def prepared(name: str, module: Callable[..., object], inputs: Sequence[torch.Tensor], captured: bool) -> Run:
    """The module on fixed inputs, run once so that what happens at a first run is done."""

    def run() -> None:
        module(*inputs)

    try:
        run()
        return Run(_captured(run), replay=True) if captured else Run(run)
    except RuntimeError as error:
        # Errors of torch.compile contain the whole log of a compiler.
        raise BackendError(f"{name} cannot run here: {first_line(error)}; leave it out") from error


def _captured(run: Callable[[], object]) -> Callable[[], object]:
    """A replay of one CUDA graph of all that ``run`` issues."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(_RUNS_BEFORE_CAPTURE):
            run()
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        run()
    replay: Callable[[], object] = graph.replay
    return replay
