"""A cost model: so many microseconds a unit of the longest group."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from iossim.base.errors import OptionError
from iossim.cost.model import CostModelIdentity, Prices, StageBounds
from iossim.hardware.profile import DeviceProfile
from iossim.ir.types import Precision
from iossim.schedule.batch import StageBatch, Strategy
from iossim.schedule.problem import ScheduleProblem


@dataclass(frozen=True)
class PerUnit:
    unit_us: float
    device: str

    @property
    def identity(self) -> CostModelIdentity:
        return CostModelIdentity("per-unit", self.device, version=str(self.unit_us))

    def price_keys(self, problem: ScheduleProblem) -> Sequence[str]:
        """All units cost the same."""
        return [""] * len(problem)

    def price_stages(self, batch: StageBatch) -> Prices:
        longest = [
            max(group.bit_count() for group in batch.problem.groups(mask)) if strategy is Strategy.CONCURRENT else 1
            for mask, strategy in batch.stages()
        ]
        return self.unit_us * np.array(longest, dtype=np.float64)

    def price_boundary(self, left_concurrent: bool, right_concurrent: bool) -> float:
        return 0.0

    def bounds(self, problem: ScheduleProblem) -> StageBounds | None:
        return None


def create(device: DeviceProfile | None, precision: Precision, engine: str, argument: str) -> PerUnit:
    try:
        return PerUnit(float(argument or 1), device.name if device else "none")
    except ValueError:
        raise OptionError(f"per-unit:{argument}: give microseconds") from None
