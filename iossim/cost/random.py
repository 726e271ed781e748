"""Random prices from a seed: a cost model without a device, for tests and for exercising a search.

Prices are structured: each unit has a time and a share of the machine, a stage takes the maximum of its longest group
and its total work, times a seeded factor of at most ``1 + spread``, so that the bounds below hold and optima are
not trivial. A price depends on the stage only (each group's sequence of unit signatures), not on its block,
so that a block solved in parts costs the same as the whole block.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from iossim.base.compiled import Floats, jit
from iossim.base.errors import OptionError
from iossim.cost.model import CostModelIdentity, Prices, StageBounds
from iossim.hardware.profile import DeviceProfile
from iossim.ir.types import Precision
from iossim.schedule.batch import StageBatch
from iossim.schedule.masks import find_groups, lowest_bit, stage_hashes, unit_keys
from iossim.schedule.problem import Masks, ScheduleProblem, bits


@dataclass(frozen=True)
class RandomCostModel:
    """Unit times are log-normal around 20 us; a boundary of a stage of several groups takes ``barrier_us``."""

    seed: int = 0
    spread: float = 0.5
    barrier_us: float = 8.0
    device: str = "random"
    precision: str = ""

    @property
    def identity(self) -> CostModelIdentity:
        return CostModelIdentity("random", self.device, self.precision, "", f"seed={self.seed},spread={self.spread}")

    def price_stages(self, batch: StageBatch) -> Prices:
        """Microseconds of each stage, shape ``[len(batch)]``; inf for units that do not merge."""
        batch.refuse_variants()
        problem = batch.problem
        serial_us, share = self._units(problem)
        least_us, is_concurrent = np.empty(len(batch)), np.empty(len(batch), dtype=np.bool_)
        units_us = np.ascontiguousarray(serial_us), serial_us * share
        _without_noise(batch.masks, problem.predecessors, *units_us, least_us, is_concurrent)
        keys = unit_keys([f"{signature}\0noise" for signature in problem.works], self.seed)
        hashes = stage_hashes(StageBatch.concurrent(problem, batch.masks), keys)
        noise = (hashes >> np.uint64(11)) / 2.0**53
        prices: Prices = np.where(is_concurrent, least_us * (1.0 + self.spread * noise), least_us)
        for index in np.flatnonzero(batch.merged):
            units = bits(int(batch.masks[index]))
            one_class = len({int(problem.merge_class[unit]) for unit in units}) == 1
            mergeable = len(units) > 1 and one_class and problem.merge_class[units[0]] >= 0
            # A merged stage takes between half and all of the sequential time of its units.
            factor = 0.5 + 0.5 * prices[index] / (1 + prices[index])
            prices[index] = factor * serial_us[units].sum() if mergeable else np.inf
        return prices

    def price_keys(self, problem: ScheduleProblem) -> Sequence[str]:
        """Keys by work: prices depend only on the work of units."""
        return problem.works

    def price_boundary(self, left_concurrent: bool, right_concurrent: bool) -> float:
        return self.barrier_us if left_concurrent or right_concurrent else 0.0

    def bounds(self, problem: ScheduleProblem) -> StageBounds:
        serial_us, share = self._units(problem)
        return StageBounds(serial_us, serial_us, (serial_us * share)[:, None])

    def _units(self, problem: ScheduleProblem) -> tuple[Floats, Floats]:
        """Time alone in us, and share of the machine in (0, 1], of each unit."""
        drawn = np.array([_drawn(self.seed, signature) for signature in problem.works]).reshape(-1, 2)
        return drawn[:, 0], drawn[:, 1]


def create(
    device: DeviceProfile | None, precision: Precision, engine: str, argument: str = "", store: Path | None = None
) -> RandomCostModel:
    """The cost model of a seed, ``argument``; only the device's name is used."""
    if argument and not argument.isdecimal():
        raise OptionError(f"`cost_model` random:{argument}: the seed is not a whole number; give random:7, say")
    return RandomCostModel(
        seed=int(argument or 0), device=device.name if device else "random", precision=str(precision)
    )


@lru_cache(maxsize=1 << 16)
def _drawn(seed: int, signature: str) -> tuple[float, float]:
    """Time alone in us, and share of the machine, of the units with a signature."""
    digest = hashlib.sha256(f"{seed}\0{signature}\0unit".encode()).digest()
    generator = np.random.default_rng(int.from_bytes(digest[:16], "little"))
    return 20.0 * float(np.exp(0.7 * generator.standard_normal())), float(generator.uniform(0.15, 1.0))


@jit
def _without_noise(
    masks: Masks,
    predecessors: Masks,
    serial_us: Floats,
    work_us: Floats,
    least_us: Floats,
    is_concurrent: NDArray[np.bool_],
) -> None:
    """Write for each stage the longer of its longest group and its work, and whether it has several groups."""
    groups = np.zeros(len(predecessors), dtype=np.uint64)
    for index in range(len(masks)):
        count = find_groups(masks[index], predecessors, groups)
        longest_us = 0.0
        total_us = 0.0
        for g in range(count):
            group_us = 0.0
            rest = groups[g]
            while rest:
                unit = lowest_bit(rest)
                rest &= rest - np.uint64(1)
                group_us += serial_us[unit]
                total_us += work_us[unit]
            longest_us = max(longest_us, group_us)
        # A single group has no contention, and takes exactly its own time.
        least_us[index] = max(longest_us, total_us) if count > 1 else longest_us
        is_concurrent[index] = count > 1
