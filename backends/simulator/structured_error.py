"""A simulator that is off as simulators are: each operator's time, and what it takes of each shared resource.

The factors come from the seed and the unit's signature, so that a unit is off alike wherever it runs. A search that
measures is tried on it: what it learns from some stages holds for others.
"""

from __future__ import annotations

import hashlib
from dataclasses import replace

import numpy as np

from iossim.backends.simulator.cost_model import SimulatorCostModel, UnitKey
from iossim.backends.simulator.preparation import UnitPrice
from iossim.devices.profile import DeviceProfile
from iossim.execution.engine import Engine
from iossim.ir.network import Network
from iossim.ir.types import Precision
from iossim.schedule.problem import ScheduleProblem, bits

#: Standard deviations of the logarithms of the factors.
TIME_SIGMA, SHARE_SIGMA = 0.15, 0.2


def with_structured_error(
    profile: DeviceProfile, precision: Precision, engine: Engine = Engine.PAPER, seed: int = 0
) -> SimulatorCostModel:
    """The simulator of a device with a structured error."""
    return _StructuredError(profile, precision, engine, seed)


class _StructuredError(SimulatorCostModel):
    def __init__(self, profile: DeviceProfile, precision: Precision, engine: Engine, seed: int) -> None:
        super().__init__(profile, precision, engine)
        self._seed = seed
        self._off: dict[UnitKey, UnitPrice] = {}

    def _unit(self, network: Network, unit: int, key: UnitKey) -> UnitPrice:
        if key not in self._off:
            self._off[key] = self._perturbed(super()._unit(network, unit, key), key[0])
        return self._off[key]

    def _merged_unit(self, problem: ScheduleProblem, mask: int) -> UnitPrice | None:
        merged = super()._merged_unit(problem, mask)
        if merged is None:
            return None
        signatures = [problem.signatures[unit] for unit in bits(mask)]
        return self._perturbed(merged, "merged " + " ".join(signatures))

    def _perturbed(self, unit: UnitPrice, signature: str) -> UnitPrice:
        digest = hashlib.sha256(f"{self._seed} {signature}".encode()).digest()
        drawn = np.random.default_rng(int.from_bytes(digest[:16], "little")).standard_normal(3)
        time, issue, device = np.exp(drawn * (TIME_SIGMA, SHARE_SIGMA, SHARE_SIGMA)).tolist()
        # Blocks that fill more of an SM, or spread over more of them, ask for more together; no more than there is.
        asked = [min(1.0, demand * issue) / demand if demand > 0 else 1.0 for demand in unit.issue_demand]
        return replace(
            unit,
            alone_us=tuple(one * time for one in unit.alone_us),
            issue_demand=tuple(one * factor for one, factor in zip(unit.issue_demand, asked, strict=True)),
            spread=tuple(one * factor for one, factor in zip(unit.spread, asked, strict=True)),
            device_demand=tuple(min(1.0, one * device) for one in unit.device_demand),
        )
