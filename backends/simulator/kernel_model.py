"""Time of a kernel alone, its demands on the device, and the fastest candidate of an op.

A kernel that leaves SMs idle, or waits for latency, leaves room for others. ``issue_demand`` is the part of the
device's achievable issue capacity that it uses while running alone: its arithmetic (or L2) time on a full device over
its duration; ``dram_demand`` and ``power_demand`` the same of what all SMs share, DRAM bandwidth and the board's
power. It has ``spread`` blocks resident on each SM, if that is a whole number, and else one more on a part of them;
in its last wave ``last_spread``. The durations are those of :mod:`iossim.backends.simulator.kernel_times`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from math import fsum
from typing import NamedTuple
from zlib import crc32

import numpy as np

from iossim.backends.simulator.device_rates import DeviceRates, device_rates
from iossim.backends.simulator.kernel_rows import TILED_CLASSES, KernelRows, kernel_table
from iossim.backends.simulator.kernel_times import ALONE, DRAM, FOOTPRINT, ISSUE, KEPT, POWER, grid_blocks, time_kernels
from iossim.base.compiled import Floats, jit
from iossim.base.errors import PlanError, did_you_mean
from iossim.hardware.compute_capability import WARP_THREADS
from iossim.hardware.lowering.kernel import Candidate, Issue, Kernel, Libraries, block_slots
from iossim.hardware.profile import DeviceProfile
from iossim.schedule.batch import FASTEST, steps_of


class KernelPrice(NamedTuple):
    """``alone_us`` on an idle device; demands are fractions of the device's capacity, 0 to 1.

    ``spread`` is the blocks that are resident at a time over the number of SMs, ``warps`` those of one block. The
    last ``last_us`` it runs its last wave, of ``last_spread``. ``footprint`` is what it touches, over the part of L2
    that keeps operands; once L2 loses all of it to others, it asks for ``kept_demand`` of DRAM besides. A block has
    these parts of an SM's ``slots``: warps, blocks, registers and shared memory, and the SM itself if it leaves no room
    for others; in clusters also its part of the SMs that they leave over. A GPC has room for ``gpc_clusters`` of them.
    Where all blocks run at once, each with an SM to itself, a second wave of them takes ``again_us``. Products and
    convolutions have a number of their ``code``, others, of few instructions, 0.
    """

    alone_us: float
    issue_demand: float
    dram_demand: float
    power_demand: float
    spread: float
    warps: float
    last_us: float
    last_spread: float
    footprint: float
    kept_demand: float
    gpc_clusters: float = 0.0
    again_us: float = 0.0
    code: float = 0.0
    slots: tuple[float, float, float, float, float] = (0.0, 0.0, 0.0, 0.0, 0.0)


#: Part of an SM's slots with more than which a block leaves no room for other kernels' blocks.
_WHOLE = 0.95
# Columns of the numbers of a price.
_MEASURES = range(10)
_ALONE, _ISSUE, _DRAM, _POWER, _SPREAD, _WARPS, _LAST, _LAST_SPREAD, _FOOTPRINT, _KEPT = _MEASURES


class KernelModel:
    """Prices kernels of ``libraries`` on one device, or on ``sms`` of its SMs: demands are then of what those have.

    ``issue`` is how kernels come to the device.
    """

    def __init__(
        self,
        profile: DeviceProfile,
        issue: Issue = Issue.CALLS,
        libraries: Libraries = Libraries.CURRENT,
        sms: int | None = None,
    ) -> None:
        self.profile = profile
        self.libraries = libraries
        self.issue = issue
        self.rates = device_rates(profile, issue, sms)

    def prices(self, kernels: Iterable[Kernel]) -> list[KernelPrice]:
        """Duration and demands of each kernel; one of which no block fits an SM takes forever."""
        kernels = list(kernels)
        table = kernel_table(self.profile.limits, kernels)
        times = time_kernels(table, self.rates)
        columns = np.empty((len(kernels), len(_MEASURES)), dtype=np.float64)
        _lay_out(table, times, self.rates, columns)
        prices = []
        for kernel, row in zip(kernels, columns.tolist(), strict=True):
            gpc_clusters, slots = self._room(kernel)
            is_one_wave = slots[-1] > 0.0 and row[_LAST] == row[_ALONE]
            again_us = row[_ALONE] - self.rates.gap_us if is_one_wave else 0.0
            code = crc32(kernel.name.encode()) if kernel.work_class in TILED_CLASSES else 0
            prices.append(KernelPrice._make((*row, gpc_clusters, again_us, code, slots)))
        return prices

    def _room(self, kernel: Kernel) -> tuple[float, tuple[float, ...]]:
        """Clusters that a GPC has room for, on average, 0 without clusters; and the slots that a block takes."""
        profile = self.profile
        slots = block_slots(profile.limits, *kernel.block_needs)
        sms = profile.sm_count / profile.sms_for_clusters(kernel.cluster) if max(slots) > _WHOLE else 0.0
        room = profile.sm_count / len(profile.gpcs) / kernel.cluster if kernel.cluster > 1 and profile.gpcs else 0.0
        return room if room >= 1.0 else 0.0, (*slots, sms)

    def alone_us(self, kernels: Sequence[Kernel]) -> Floats:
        """Duration of each kernel alone, ``[len(kernels)]``: :meth:`prices` without the demands."""
        times: Floats = time_kernels(kernel_table(self.profile.limits, kernels), self.rates)[:, ALONE]
        return times

    def price(self, kernel: Kernel) -> KernelPrice:
        """Duration and demands of one kernel."""
        return self.prices((kernel,))[0]

    def named(self, candidates: Iterable[Candidate], algorithm: str) -> tuple[Candidate, tuple[KernelPrice, ...]]:
        """The candidate of that name, with its kernels' prices; PlanError where none can run."""
        known = {candidate.algorithm: candidate for candidate in self.fitting(candidates)}
        if algorithm not in known:
            raise PlanError(
                f"{self.profile.name} runs no kernel candidate {algorithm!r} here; {did_you_mean(algorithm, known)}"
            )
        return known[algorithm], tuple(self.prices(known[algorithm].kernels))

    def chosen(
        self, steps: Sequence[Sequence[Candidate]], variant: str = FASTEST
    ) -> list[tuple[Candidate, tuple[KernelPrice, ...]]]:
        """Candidate of each step of a unit, with its kernels' prices: a variant's, or the fastest.

        Raises PlanError for a variant that the unit does not have on this device.
        """
        if variant == FASTEST:
            return [self.fastest(candidates) for candidates in steps]
        names = steps_of(variant)
        if len(names) != len(steps):
            raise PlanError(
                f"variant {variant!r} names candidates of {len(names)} steps, and the unit has {len(steps)}; name "
                "one for each"
            )
        return [self.named(candidates, name) for candidates, name in zip(steps, names, strict=True)]

    def fitting(self, candidates: Iterable[Candidate]) -> list[Candidate]:
        """The candidates that the libraries have and whose kernels' blocks all fit an SM."""
        available = (one for one in candidates if one.is_in(self.libraries))
        return [one for one in available if np.isfinite(self.alone_us(one.kernels)).all()]

    def fastest(self, candidates: Sequence[Candidate]) -> tuple[Candidate, tuple[KernelPrice, ...]]:
        """The first candidate that is fastest alone, as a library's benchmark finds it; with its kernels' prices.

        A benchmark runs a candidate repeatedly: there its weights are in L2, whatever the price is here.
        """
        known = [one for one in candidates if one.is_in(self.libraries)]
        prices = self.prices(kernel for candidate in known for kernel in candidate.kernels)
        repeated_us = [price.alone_us for price in prices]
        if self.profile.parameters.dram_latency_factor > 1.0:
            called = (replace(each, waits_for_dram=False) for candidate in known for each in candidate.kernels)
            repeated_us = self.alone_us(list(called)).tolist()
        best: tuple[Candidate, tuple[KernelPrice, ...]] | None = None
        best_us = float("inf")
        begin = 0
        dispatch_us = self.profile.engine.dispatch_kernel_us
        for candidate in known:
            own = slice(begin, begin + len(candidate.kernels))
            begin = own.stop
            total_us = fsum(repeated_us[own]) + dispatch_us * len(candidate.kernels)
            total_us += candidate.passed_over_us
            if best is None or total_us < best_us:
                best, best_us = (candidate, tuple(prices[own])), total_us
        assert best is not None, "every op has a candidate"
        return best


@jit
def _lay_out(kernels: KernelRows, times: Floats, rates: DeviceRates, prices: Floats) -> None:
    """Write the numbers of each kernel's :class:`KernelPrice`, slots left out, shape ``[kernels, 10]``."""
    for index in range(len(kernels)):
        kernel = kernels[index]
        alone_us = times[index, ALONE]
        spread = grid_blocks(kernel, rates) / rates.sms
        resident = min(spread, kernel["resident"])
        warps = math.ceil(kernel["threads"] / WARP_THREADS)
        prices[index] = 0.0
        prices[index, _ALONE] = prices[index, _LAST] = alone_us
        prices[index, _SPREAD], prices[index, _WARPS], prices[index, _LAST_SPREAD] = resident, warps, resident
        if alone_us == np.inf:
            for column in range(_ISSUE, _SPREAD + 1):
                prices[index, column] = 1.0
            continue
        if alone_us == 0.0:
            continue
        # The busiest SM has all that it needs: rounding up is seen in part (``wave_quantisation``).
        most = min(1.0, resident / math.ceil(resident))
        prices[index, _ISSUE] = min(most, times[index, ISSUE] / alone_us)
        prices[index, _DRAM] = min(1.0, times[index, DRAM] / alone_us)
        prices[index, _POWER] = min(1.0, times[index, POWER] / alone_us)
        prices[index, _FOOTPRINT] = min(2.0, times[index, FOOTPRINT] / max(1.0, rates.resident_bytes))
        prices[index, _KEPT] = times[index, KEPT] / alone_us
        waves = math.ceil(math.ceil(spread) / kernel["resident"])
        if waves > 1:
            last = spread - (waves - 1) * kernel["resident"]
            prices[index, _LAST] = last_wave_us(
                alone_us - rates.gap_us, waves, kernel["resident"], math.ceil(last), times[index, ISSUE] / spread
            )
            prices[index, _LAST_SPREAD] = last


@jit
def last_wave_us(total_us: float, waves: int, resident: float, last: float, block_us: float) -> float:
    """The part of ``total_us`` that the last of several waves takes, of ``last`` blocks an SM.

    A block takes ``block_us`` times those that run beside it, itself included, or what latency makes all take.
    """
    least_us = total_us / waves
    if least_us < resident * block_us:
        # Full waves are held up by their work, only the last one by latency.
        return max(total_us - (waves - 1) * resident * block_us, last * block_us)
    return least_us
