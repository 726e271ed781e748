"""What stages in a row cost: their prices, and what stands between each two neighbours.

The one place that adds up the sum of :mod:`iossim.cost.model` for given stages. The loops of the searches relax the same sum
label by label (``scheduling.relaxation``, ``scheduling.measured.planner``).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain

from iossim.cost.model import CostModel
from iossim.schedule.planned_stage import PlannedStage, batch_of
from iossim.schedule.problem import ScheduleProblem

#: What comes before the first stage of a network, where else is the bit of a stage: no stage at all.
START = 2


@dataclass(frozen=True, slots=True)
class PricedPath:
    """The prices of stages in a row, and of the boundary before each, us; ``leaving`` is the bit of the last stage."""

    prices_us: tuple[float, ...]
    boundaries_us: tuple[float, ...]
    leaving: int

    def cost_us(self, before_us: float = 0.0) -> float:
        """All added in the order in which they run, behind what has taken ``before_us``; inf if a stage cannot run."""
        return total_us(zip(self.boundaries_us, self.prices_us, strict=True), before_us)


def price_path(
    problem: ScheduleProblem, stages: Sequence[PlannedStage], cost_model: CostModel, entry: int = START
) -> PricedPath:
    """Price stages of one problem that run in this order.

    ``entry`` says whether the stage before them runs several groups (0 or 1), or that there is none (:data:`START`).
    """
    prices = cost_model.price_stages(batch_of(problem, stages)).tolist()
    boundaries, leaving = [], entry
    for stage in stages:
        bit = stage.is_concurrent(problem)
        boundaries.append(0.0 if leaving == START else cost_model.price_boundary(bool(leaving), bit))
        leaving = int(bit)
    return PricedPath(tuple(prices), tuple(boundaries), leaving)


def total_us(pairs: Iterable[tuple[float, float]], before_us: float = 0.0) -> float:
    """The sum of boundaries and prices, one after the other, so that it is the same wherever it is added up."""
    total = before_us
    for part_us in chain.from_iterable(pairs):
        total += part_us
    return total
