"""Random prices from a seed: a cost model without a device, for tests and for exercising a search.

Not mere noise: each unit has a time and a share of the machine, a stage takes what its longest group or its total work
takes, and a seeded factor of at most ``1 + spread`` comes on top, so that the bounds below hold and optima are not trivial.
A price depends on the stage alone (each group's sequence of unit signatures), not on the block that it stands in, so that
a block solved in parts costs what the whole block costs.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from iossim.compiled import jit
from iossim.cost.model import CostModelIdentity, Prices, StageBounds
from iossim.errors import OptionError
from iossim.schedule.batch import StageBatch, Strategy
from iossim.schedule.problem import Masks, ScheduleProblem, bits

if TYPE_CHECKING:
    from iossim.devices.profile import DeviceProfile
    from iossim.ir.types import Precision


@dataclass(frozen=True)
class RandomCostModel:
    """Unit times are log-normal around 20 us; ``barrier_us`` stands between stages of which one runs several groups."""

    seed: int = 0
    spread: float = 0.5
    barrier_us: float = 8.0
    device: str = "random"
    precision: str = ""

    @property
    def identity(self) -> CostModelIdentity:
        return CostModelIdentity("random", self.device, self.precision, "", f"seed={self.seed},spread={self.spread}")

    def price_stages(self, batch: StageBatch) -> Prices:
        problem = batch.problem
        serial_us, share = self._units(problem)
        work_us = serial_us * share
        noise_keys = np.array(
            [_seed(self.seed, signature, "noise") % 2**64 for signature in problem.signatures], dtype=np.uint64
        )
        prices: Prices = _price(batch.masks, problem.predecessors, serial_us, work_us, noise_keys, self.spread)
        for index in np.flatnonzero(batch.strategies == Strategy.MERGE):
            units = bits(int(batch.masks[index]))
            one_class = len({int(problem.merge_class[unit]) for unit in units}) == 1
            mergeable = len(units) > 1 and one_class and problem.merge_class[units[0]] >= 0
            # Merged, the units run as one kernel in between half and all of the time that they take one by one.
            factor = 0.5 + 0.5 * prices[index] / (1 + prices[index])
            prices[index] = factor * serial_us[units].sum() if mergeable else np.inf
        return prices

    def price_boundary(self, left_concurrent: bool, right_concurrent: bool) -> float:
        return self.barrier_us if left_concurrent or right_concurrent else 0.0

    def bounds(self, problem: ScheduleProblem) -> StageBounds:
        serial_us, share = self._units(problem)
        return StageBounds(serial_us, serial_us, (serial_us * share)[:, None])

    def _units(self, problem: ScheduleProblem) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Time alone in us, and share of the machine in (0, 1], of each unit."""
        drawn = [np.random.default_rng(_seed(self.seed, signature, "unit")) for signature in problem.signatures]
        serial = np.array([20.0 * float(np.exp(0.7 * generator.standard_normal())) for generator in drawn])
        share = np.array([float(generator.uniform(0.15, 1.0)) for generator in drawn])
        return serial, share


def create(device: DeviceProfile | None, precision: Precision, engine: str, argument: str = "") -> RandomCostModel:
    """``argument`` is the seed; the device lends its name alone."""
    if argument and not argument.isdecimal():
        raise OptionError(f"--cost-model random:{argument}: the seed is not a whole number; give random:7, say")
    return RandomCostModel(
        seed=int(argument or 0), device=device.name if device else "random", precision=str(precision)
    )


def _seed(*parts: object) -> int:
    return int.from_bytes(hashlib.sha256("\0".join(map(str, parts)).encode()).digest()[:16], "little")


@jit(inline="always")
def _mix(value: np.uint64) -> np.uint64:
    """The finaliser of splitmix64."""
    value = (value ^ value >> np.uint64(30)) * np.uint64(0xBF58476D1CE4E5B9)
    value = (value ^ value >> np.uint64(27)) * np.uint64(0x94D049BB133111EB)
    return value ^ value >> np.uint64(31)


@jit
def _price(
    masks: Masks,
    predecessors: Masks,
    serial_us: NDArray[np.float64],
    work_us: NDArray[np.float64],
    noise_keys: NDArray[np.uint64],
    spread: float,
) -> NDArray[np.float64]:
    prices = np.empty(len(masks))
    groups = np.zeros(len(predecessors), dtype=np.uint64)
    group_us = np.zeros(len(predecessors))
    for index in range(len(masks)):
        count = 0
        total = 0.0
        for unit in range(len(predecessors)):
            bit = np.uint64(1) << np.uint64(unit)
            if masks[index] & bit == 0:
                continue
            total += work_us[unit]
            joined, joined_us, kept = bit, serial_us[unit], 0
            for g in range(count):
                if groups[g] & predecessors[unit]:
                    joined |= groups[g]
                    joined_us += group_us[g]
                else:
                    groups[kept], group_us[kept] = groups[g], group_us[g]
                    kept += 1
            groups[kept], group_us[kept] = joined, joined_us
            count = kept + 1
        longest = 0.0
        hashed = np.uint64(0)
        for g in range(count):
            longest = max(longest, group_us[g])
            sequence = np.uint64(0)
            for unit in range(len(predecessors)):
                if groups[g] >> np.uint64(unit) & np.uint64(1):
                    sequence = _mix(sequence ^ noise_keys[unit]) + np.uint64(1)
            hashed += _mix(sequence)
        noise = float(_mix(hashed) >> np.uint64(11)) / 2.0**53
        # A group alone has no one to contend with, and takes exactly its time.
        prices[index] = longest if count == 1 else max(longest, total) * (1.0 + spread * noise)
    return prices
