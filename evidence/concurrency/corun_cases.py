"""Measurements of concurrent kernels, beside the results of ``corun`` for the same kernels.

A case is some raw kernels on streams and their measured ratios: the time until a stream ends, or until all do, over the
time alone. :mod:`~evidence.concurrency.corun_microbenchmarks` and :mod:`~evidence.concurrency.corun_pairs` make cases
from the measured tables.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from evidence.concurrency.pairs import KernelPair
from iossim.backends.simulator.raw_kernels import RawKernel
from iossim.execution.engine import Engine
from iossim.hardware.override import overridden
from iossim.hardware.profile import DeviceProfile
from iossim.profiles.corun import corun_kernels

#: Least part of a measured time attributed to a kernel, if the gap before it is as long as all of it.
_LEAST_PART = 0.05
MAKESPAN = "makespan"


@dataclass(frozen=True, slots=True)
class Figure:
    """A measured time over ``alone_us``, the time alone: until ``stream`` ends, or all streams (None).

    ``family`` is the kernel's kind, or the mechanism under test. ``none`` is the ratio without any interference;
    ``total`` that of a device shared in equal parts, which makes the whole as long as the sum.
    """

    what: str
    family: str
    stream: int | None
    measured: float
    alone_us: float
    none: float = 1.0
    total: float = 1.0


@dataclass(frozen=True, slots=True)
class CorunCase:
    """Concurrent kernels on a device, and their measurements.

    ``line`` is that of the table; ``changes`` are facts and parameters of the recorded board that differ from its
    profile.
    """

    data_set: str
    device: str
    line: int
    mechanism: str
    title: str
    kernels: tuple[RawKernel, ...]
    engine: Engine
    figures: tuple[Figure, ...]
    sm_share: tuple[float, ...] | None = None
    changes: tuple[tuple[str, float], ...] = ()

    @property
    def families(self) -> frozenset[str]:
        """Families of its kernels."""
        return frozenset(figure.family for figure in self.figures if figure.what != MAKESPAN)


def simulated(case: CorunCase, profile: DeviceProfile) -> tuple[float, ...]:
    """Ratio of each figure by ``corun``, counted from the start of the first kernel."""
    if case.changes:
        profile = overridden(profile, dict(case.changes))
    found = corun_kernels(case.kernels, profile, case.engine, case.sm_share)
    begin_us = 0.0 if case.engine is Engine.GRAPH else min(row.start_us for row in found.kernels)
    ends_us: dict[int, float] = {}
    for row in found.kernels:
        stream = row.kernel.stream
        ends_us[stream] = max(ends_us.get(stream, 0.0), row.end_us - begin_us)
    last_us = max(ends_us.values())
    return tuple(
        (last_us if figure.stream is None else ends_us[figure.stream]) / figure.alone_us for figure in case.figures
    )


def pair_figures(pair: KernelPair, families: Sequence[str], repeats: int = 1) -> tuple[Figure, ...]:
    """Slowdown of each of two streams of so many repeats, and the makespan over the longer of them."""
    shorter_us, longer_us = sorted(kernel.alone_us for kernel in pair.kernels)
    stretched = 1.0 + shorter_us / longer_us
    figures = [
        Figure(
            kernel.name,
            family,
            stream,
            kernel.slowdown,
            repeats * kernel.alone_us,
            total=2.0 if kernel.alone_us == shorter_us else stretched,
        )
        for stream, (kernel, family) in enumerate(zip(pair.kernels, families, strict=True))
    ]
    whole = Figure(MAKESPAN, MAKESPAN, None, pair.makespan_us / longer_us, repeats * longer_us, total=stretched)
    return (*figures, whole)


def without_gap(alone_us: float, gap_us: float) -> float:
    """A kernel's own part of the time between the starts of two in a chain."""
    return max(alone_us - gap_us, _LEAST_PART * alone_us)
