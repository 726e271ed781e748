"""How long a kernel takes alone, what it asks of the device meanwhile, and which candidate of an op is fastest.

A kernel that leaves SMs idle, or waits for latency, leaves room for others. ``issue_demand`` is the part of the
device's achievable issue capacity that it uses while running alone: its arithmetic (or L2) time on a full device over
its duration; ``device_demand`` the same of what all SMs share, DRAM bandwidth or the board's power, whichever it needs
more of. It has ``spread`` blocks resident on each SM, if that is a whole number, and else one more on a part of them.
The durations are those of :mod:`iossim.backends.simulator.kernel_times`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import product
from math import ceil, fsum

import numpy as np

from iossim.backends.simulator.kernel_times import (
    ALONE,
    DRAM,
    ISSUE,
    POWER,
    device_rates,
    kernel_table,
    time_kernels,
)
from iossim.devices.compute_capability import WARP_THREADS
from iossim.devices.profile import DeviceProfile
from iossim.errors import PlanError, did_you_mean
from iossim.lowering.kernel import Candidate, Kernel, Libraries
from iossim.schedule.batch import FASTEST, steps_of, variant_of


@dataclass(frozen=True, slots=True)
class KernelPrice:
    """``alone_us`` on an idle device; demands are fractions of the device's capacity, 0 to 1.

    ``spread`` is the blocks that are resident at a time over the number of SMs, ``warps`` those of one block.
    """

    alone_us: float
    issue_demand: float
    device_demand: float
    spread: float
    warps: float


class KernelModel:
    """Prices kernels of ``libraries`` on one device, or on ``sms`` of its SMs: demands are then of what those have.

    ``gap_factor`` shortens the profile's gap between kernels of a stream.
    """

    def __init__(
        self,
        profile: DeviceProfile,
        gap_factor: float = 1.0,
        libraries: Libraries = Libraries.CURRENT,
        sms: int | None = None,
    ) -> None:
        self.profile = profile
        self.libraries = libraries
        self.rates = device_rates(profile, gap_factor=gap_factor, sms=sms)

    def prices(self, kernels: Iterable[Kernel]) -> list[KernelPrice]:
        """Duration and demands of each kernel; one of which no block fits an SM takes forever."""
        table = kernel_table(self.profile.limits, kernels)
        times = time_kernels(table, self.rates)
        device_us = np.maximum(times[:, DRAM], times[:, POWER])
        spread = np.minimum(table["blocks"] / self.rates.sms, table["resident"])
        warps = np.ceil(table["threads"] / WARP_THREADS)
        columns = (times[:, ALONE], times[:, ISSUE], device_us, spread, warps)
        return [_price(*row) for row in np.stack(columns, axis=1).tolist()]

    def price(self, kernel: Kernel) -> KernelPrice:
        """Duration and demands of one kernel."""
        return self.prices((kernel,))[0]

    def named(self, candidates: Iterable[Candidate], algorithm: str) -> tuple[Candidate, tuple[KernelPrice, ...]]:
        """The candidate of that name, with its kernels' prices; PlanError where the device cannot run one of that name."""
        known = {candidate.algorithm: candidate for candidate in self._fitting(candidates)}
        if algorithm not in known:
            raise PlanError(
                f"{self.profile.name} runs no kernel candidate {algorithm!r} here; {did_you_mean(algorithm, known)}"
            )
        return known[algorithm], tuple(self.prices(known[algorithm].kernels))

    def chosen(
        self, steps: Sequence[Sequence[Candidate]], variant: str = FASTEST
    ) -> list[tuple[Candidate, tuple[KernelPrice, ...]]]:
        """What each step of a unit runs as, with its kernels' prices: the candidates that a variant names, or the fastest.

        Raises PlanError for a variant that the unit does not have on this device.
        """
        if variant == FASTEST:
            return [self.fastest(candidates) for candidates in steps]
        names = steps_of(variant)
        if len(names) != len(steps):
            raise PlanError(
                f"variant {variant!r} names candidates of {len(names)} steps, and the unit has {len(steps)}; name one for each"
            )
        return [self.named(candidates, name) for candidates, name in zip(steps, names, strict=True)]

    def variants(self, steps: Sequence[Sequence[Candidate]]) -> tuple[str, ...]:
        """All variants of a unit on this device, by name: every way to choose a candidate for each step."""
        names = [[candidate.algorithm for candidate in self._fitting(candidates)] for candidates in steps]
        return tuple(variant_of(way) for way in product(*names)) if steps else ()

    def _fitting(self, candidates: Iterable[Candidate]) -> list[Candidate]:
        """Those that the libraries have and of which each kernel's blocks fit an SM."""
        return [
            one
            for one in self.available(candidates)
            if all(price.alone_us < float("inf") for price in self.prices(one.kernels))
        ]

    def available(self, candidates: Iterable[Candidate]) -> list[Candidate]:
        """The candidates whose kernels the libraries have."""
        return [one for one in candidates if one.is_in(self.libraries)]

    def fastest(self, candidates: Sequence[Candidate]) -> tuple[Candidate, tuple[KernelPrice, ...]]:
        """The candidate that is fastest where calls are timed one after another, as a library's benchmark does; with its
        kernels' prices. Of equals, the first."""
        known = self.available(candidates)
        prices = self.prices(kernel for candidate in known for kernel in candidate.kernels)
        best: tuple[Candidate, tuple[KernelPrice, ...]] | None = None
        best_us = float("inf")
        begin = 0
        dispatch_us = self.profile.engine.dispatch_kernel_us
        for candidate in known:
            own = tuple(prices[begin : begin + len(candidate.kernels)])
            begin += len(own)
            total_us = fsum(price.alone_us for price in own) + dispatch_us * len(own)
            if best is None or total_us < best_us:
                best, best_us = (candidate, own), total_us
        assert best is not None, "every op has a candidate"
        return best


def _price(alone_us: float, issue_us: float, device_us: float, spread: float, warps: float) -> KernelPrice:
    if alone_us == float("inf"):
        return KernelPrice(alone_us, 1.0, 1.0, 1.0, warps)
    if alone_us == 0.0:
        return KernelPrice(0.0, 0.0, 0.0, spread, warps)
    # The busiest SM has all that it needs: a part of the rounding up to whole blocks is never seen (``wave_quantisation``).
    most = min(1.0, spread / ceil(spread))
    return KernelPrice(alone_us, min(most, issue_us / alone_us), min(1.0, device_us / alone_us), spread, warps)
