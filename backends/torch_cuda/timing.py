"""Timed rounds: every run once a round, in an order drawn from a seed, so that drift meets all alike.

On CUDA a run is timed by two events of the stream that it is issued to, with the device idle before; the host's own time,
until it has waited for the end, is kept beside it. On the CPU it is the host's clock.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Sequence

import numpy as np
import torch

from iossim.execution.backend import Samples, Timing

#: What is written before a cold run on the CPU: more than its caches hold.
_CPU_CACHES_BYTES = 256 * 2**20

Run = Callable[[], None]


def time_rounds(
    runs: Sequence[Run],
    timing: Timing,
    device: str,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> list[Samples]:
    """The times of each run, microseconds; ``device`` is ``cpu`` or ``cuda``.

    On CUDA each run must leave the current stream behind all of its work. No round is rejected.
    """
    once = _once_on_cuda if device == "cuda" else _once_on_cpu
    flush = _flush(device) if timing.cold else None
    generator = random.Random(timing.seed)
    times_us: list[list[float]] = [[] for _ in runs]
    host_us: list[list[float]] = [[] for _ in runs]
    total = timing.warm_up + timing.rounds
    for done in range(total):
        order = list(range(len(runs)))
        generator.shuffle(order)
        for index in order:
            if flush is not None:
                flush()
            device_time_us, host_time_us = once(runs[index])
            if done >= timing.warm_up:
                times_us[index].append(device_time_us)
                host_us[index].append(host_time_us)
        progress(done + 1, total)
    return [
        Samples(tuple(times), conditions=_conditions(device, host))
        for times, host in zip(times_us, host_us, strict=True)
    ]


def _once_on_cuda(run: Run) -> tuple[float, float]:
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    start_s = time.perf_counter()
    begin.record()
    run()
    end.record()
    torch.cuda.synchronize()
    host_us = 1e6 * (time.perf_counter() - start_s)
    return 1e3 * float(begin.elapsed_time(end)), host_us


def _once_on_cpu(run: Run) -> tuple[float, float]:
    start_s = time.perf_counter()
    run()
    host_us = 1e6 * (time.perf_counter() - start_s)
    return host_us, host_us


def _flush(device: str) -> Run:
    """Writes more than the caches hold."""
    size_bytes = _CPU_CACHES_BYTES
    if device == "cuda":
        properties = torch.cuda.get_device_properties(0)
        # torch before 2.4 does not tell the size of the L2; no GPU's is larger than this.
        size_bytes = 2 * int(getattr(properties, "L2_cache_size", 128 * 2**20))
    memory = torch.empty(size_bytes, dtype=torch.uint8, device=device)
    return lambda: memory.fill_(1) and None


def _conditions(device: str, host_us: Sequence[float]) -> dict[str, float | str]:
    load: dict[str, float | str] = {"load": os.getloadavg()[0]} if hasattr(os, "getloadavg") else {}
    if device == "cpu":
        return {"clock": "host", **load}
    return {"clock": "cuda events", "host_median_us": float(np.median(host_us)) if host_us else 0.0, **load}
