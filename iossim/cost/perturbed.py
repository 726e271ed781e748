"""A stand-in for hardware: another cost model with a seeded error on every stage, used like a measuring one.

*Independent*: the logarithm of each signature's error is drawn from a normal distribution. *Structured*
(``structured``): like the error of a simulator with wrong parameters: each operator's time, and its use of each
shared resource, have the same error everywhere; a little independent error is added.

Errors depend only on the seed and the signature, so they are the same in every process. A signature ignores the order
of groups; its price is that of its first requested stage.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from iossim.base.errors import OptionError
from iossim.cost.capabilities import MeasuredBy, NamesVariants
from iossim.cost.create import create_cost_model
from iossim.cost.model import CostModelIdentity, Prices, WrappedCostModel
from iossim.hardware.profile import DeviceProfile
from iossim.ir.types import Precision
from iossim.schedule.batch import StageBatch, UnitVariant
from iossim.schedule.masks import stage_hashes, unit_keys
from iossim.schedule.problem import Masks, ScheduleProblem

#: Standard deviation of the independent part of a structured error.
STRUCTURED_SIGMA = 0.03
STRUCTURED = "structured"


@dataclass(eq=False)
class PerturbedCostModel(WrappedCostModel):
    """``inner`` with an error: ``sigma`` is the standard deviation of the logarithm of each signature's error."""

    measured_by = MeasuredBy.STAND_IN
    sigma: float
    seed: int = 0
    _inner_us: dict[int, float] = field(default_factory=dict, repr=False)

    @property
    def identity(self) -> CostModelIdentity:
        inner = self.inner.identity
        version = f"sigma={self.sigma:g},seed={self.seed}+{inner.name}:{inner.version}"
        return CostModelIdentity("perturbed", inner.device, inner.precision, inner.engine, version)

    def signatures(self, batch: StageBatch) -> list[int]:
        """One number per stage, equal for stages that cost the same."""
        return list(self._hashes(batch).tolist())

    def price_stages(self, batch: StageBatch) -> Prices:
        """Microseconds of each stage, shape ``[len(batch)]``, with the error of its signature."""
        from scipy.special import ndtri

        hashes, first, inverse = np.unique(self._hashes(batch), return_index=True, return_inverse=True)
        numbers = hashes.tolist()
        asked = np.array([i for i, number in enumerate(numbers) if number not in self._inner_us], dtype=np.int64)
        if len(asked):
            stages = first[asked]
            prices = self.inner.price_stages(batch.take(stages))
            self._inner_us.update(zip(hashes[asked].tolist(), prices.tolist(), strict=True))
        inner_us = np.array([self._inner_us[number] for number in numbers])
        # The hash is uniform over 64-bit numbers; its upper 53 bits are a fraction inside (0, 1).
        fraction = ((hashes >> np.uint64(11)).astype(np.float64) + 0.5) / 2.0**53
        perturbed: Prices = inner_us * np.exp(self.sigma * ndtri(fraction))
        return perturbed[inverse.reshape(-1)]

    def variants(self, problem: ScheduleProblem) -> tuple[tuple[UnitVariant, ...], ...]:
        """The variants of ``inner``; each stage that names some has an error of its own."""
        assert isinstance(self.inner, NamesVariants)
        return self.inner.variants(problem)

    def bounds(self, problem: ScheduleProblem) -> None:
        """None: a stand-in for measurements has no bounds."""
        return None

    def _hashes(self, batch: StageBatch) -> Masks:
        return stage_hashes(batch, unit_keys(self.price_keys(batch.problem), self.seed))


def create(
    device: DeviceProfile | None, precision: Precision, engine: str, argument: str = "", store: Path | None = None
) -> PerturbedCostModel:
    """The cost model of an ``argument``, ``SIGMA`` or ``structured``, and a seed: ``0.1``, ``structured,7``."""
    kind, _, seed_text = argument.partition(",")
    if seed_text and not seed_text.isdecimal():
        raise OptionError(f"`cost_model` perturbed:{argument}: the seed is not a whole number; give perturbed:0.1,7")
    seed = int(seed_text or 0)
    if kind == STRUCTURED:
        inner = create_cost_model(f"simulator:structured-error={seed}", device, precision, engine)
        return PerturbedCostModel(inner, STRUCTURED_SIGMA, seed)
    try:
        sigma = float(kind)
    except ValueError:
        sigma = -1.0
    if not 0 <= sigma <= 1:
        raise OptionError(
            f"`cost_model` perturbed:{argument}: the error is a standard deviation from 0 to 1, or 'structured'; "
            "give perturbed:0.1, say"
        )
    return PerturbedCostModel(create_cost_model("simulator", device, precision, engine), sigma, seed)
