"""Keep the prices of a slow cost model by signature, so that equal work is priced once, wherever it stands.

The signature of a stage is its strategy and, of each group, the sequence of its units' signatures: shapes and attributes,
neither names nor graph. Two stages of equal signature cost the same in any block, model or rewrite.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from iossim.cost.model import CostModel, CostModelIdentity, Prices, StageBounds
from iossim.schedule.batch import StageBatch, Strategy
from iossim.schedule.problem import ScheduleProblem, bits

Signature = tuple[int, tuple[tuple[str, ...], ...]]


@dataclass
class MemoCostModel:
    """Asks ``inner`` for each signature once."""

    inner: CostModel
    prices: dict[Signature, float] = field(default_factory=dict)

    @property
    def identity(self) -> CostModelIdentity:
        return self.inner.identity

    def price_stages(self, batch: StageBatch) -> Prices:
        signatures = [
            stage_signature(batch.problem, mask, Strategy(strategy))
            for mask, strategy in zip(batch.masks.tolist(), batch.strategies.tolist(), strict=True)
        ]
        first: dict[Signature, int] = {}
        for index, signature in enumerate(signatures):
            if signature not in self.prices:
                first.setdefault(signature, index)
        if first:
            chosen = np.array(list(first.values()))
            asked = StageBatch(batch.problem, batch.masks[chosen], batch.strategies[chosen])
            self.prices.update(zip(first, self.inner.price_stages(asked).tolist(), strict=True))
        return np.array([self.prices[signature] for signature in signatures])

    def price_boundary(self, left_concurrent: bool, right_concurrent: bool) -> float:
        return self.inner.price_boundary(left_concurrent, right_concurrent)

    def bounds(self, problem: ScheduleProblem) -> StageBounds | None:
        return self.inner.bounds(problem)


def stage_signature(problem: ScheduleProblem, mask: int, strategy: Strategy) -> Signature:
    """What a stage's price depends on. Groups count as a set of sequences: their order is the engine's business."""
    groups = problem.groups(mask) if strategy is Strategy.CONCURRENT else [mask]
    sequences = [tuple(problem.signatures[unit] for unit in bits(group)) for group in groups]
    return int(strategy), tuple(sorted(sequences))
