"""A simulator that errs as simulators do, on which a search that measures is tried."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace

import numpy as np

from iossim.backends.simulator.kernel_model import KernelPrice
from iossim.backends.simulator.unit_prices import UnitPrice

#: Standard deviations of the logarithms of the factors of a structured error.
TIME_SIGMA, SHARE_SIGMA = 0.15, 0.2


@dataclass(frozen=True, slots=True)
class StructuredError:
    """Makes a simulator err as simulators do: in each operator's time, and in what it takes of each shared resource.

    The factors come from the seed and the unit's signature, so that a unit is off alike wherever it runs. A search
    that measures is tried on it: what it learns from some stages holds for others.
    """

    seed: int

    def __call__(self, unit: UnitPrice, signature: str) -> UnitPrice:
        """The price of a unit (or of a merged convolution) with its error."""
        digest = hashlib.sha256(f"{self.seed} {signature}".encode()).digest()
        drawn = np.random.default_rng(int.from_bytes(digest[:16], "little")).standard_normal(3)
        time, issue, device = np.exp(drawn * (TIME_SIGMA, SHARE_SIGMA, SHARE_SIGMA)).tolist()
        return replace(unit, prices=tuple(_with_error(price, time, issue, device) for price in unit.prices))


def _with_error(price: KernelPrice, time: float, issue: float, device: float) -> KernelPrice:
    # Blocks that fill more of an SM, or spread over more of them, ask for more together; no more than there is.
    asked = min(1.0, price.issue_demand * issue) / price.issue_demand if price.issue_demand > 0 else 1.0
    return price._replace(
        alone_us=price.alone_us * time,
        last_us=price.last_us * time,
        again_us=price.again_us * time,
        issue_demand=price.issue_demand * asked,
        spread=price.spread * asked,
        last_spread=price.last_spread * asked,
        dram_demand=min(1.0, price.dram_demand * device),
        power_demand=min(1.0, price.power_demand * device),
    )
