"""How long a kernel takes alone, what it asks of the device meanwhile, and which candidate of an op is fastest.

A kernel that leaves SMs idle, or waits for latency, leaves room for others. ``issue_demand`` is the part of the
device's achievable issue capacity that it uses while running alone: its arithmetic (or L2) time on a full device over
its duration; ``device_demand`` the same of what all SMs share, DRAM bandwidth or the board's power, whichever it needs
more of. It has ``spread`` blocks resident on each SM, if that is a whole number, and else one more on a part of them.
The durations are those of :mod:`iossim.backends.simulator.kernel_times`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
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
from iossim.lowering.kernel import Candidate, Kernel, Libraries


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
    """Prices kernels of ``libraries`` on one device; ``gap_factor`` shortens the profile's gap between kernels of a stream."""

    def __init__(
        self, profile: DeviceProfile, gap_factor: float = 1.0, libraries: Libraries = Libraries.CURRENT
    ) -> None:
        self.profile = profile
        self.libraries = libraries
        self.rates = device_rates(profile, gap_factor=gap_factor)

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

    def available(self, candidates: Iterable[Candidate]) -> list[Candidate]:
        """The candidates whose kernels the device's libraries have."""
        known = [one for one in candidates if one.is_in(self.libraries)]
        return [one for one in known if one.runs_on(self.profile.architecture)]

    def fastest(self, candidates: Iterable[Candidate]) -> tuple[Candidate, tuple[KernelPrice, ...]]:
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
