"""The merged stages of a block: every set of units that may run as one stacked convolution, with its price.

There are few of them, so they are all priced before the search, and the lower bounds of their units are scaled down to
stay below what merging can reach.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations

import numpy as np

from iossim.cost.model import CostModel, Prices, StageBounds
from iossim.schedule.batch import StageBatch
from iossim.schedule.problem import Masks, ScheduleProblem
from iossim.schedule.strategy import Strategy

#: Classes of up to this many units are merged in every combination, larger ones in pairs, runs, and as a whole.
ALL_SUBSETS = 10


@dataclass(frozen=True, eq=False)
class MergedStages:
    """``masks`` (uint64) of sets of two or more units that merge, and their ``prices_us``; both ``[merges]``."""

    masks: Masks
    prices_us: Prices


def no_merges() -> MergedStages:
    return MergedStages(np.zeros(0, dtype=np.uint64), np.zeros(0))


def price_merges(problem: ScheduleProblem, cost_model: CostModel, max_groups: int) -> MergedStages:
    """Price all merged stages of at most ``max_groups`` units; those that cannot run are left out."""
    masks = np.array(_subsets(problem, max_groups), dtype=np.uint64)
    if not len(masks):
        return no_merges()
    strategies = np.full(len(masks), Strategy.MERGE.code, dtype=np.uint8)
    prices = cost_model.price_stages(StageBatch(problem, masks, strategies))
    able = np.isfinite(prices)
    return MergedStages(masks[able], prices[able])


def largest_class(problem: ScheduleProblem) -> int:
    """How many units the largest merge class has; 0 where nothing merges."""
    members = problem.merge_class[problem.merge_class >= 0]
    return int(np.bincount(members).max()) if len(members) else 0


def bounds_with_merges(bounds: StageBounds, problem: ScheduleProblem, merges: MergedStages) -> StageBounds:
    """Bounds that hold for merged stages too.

    The bounds of the units of a merge class are scaled by the least ratio, over its merged stages, of the stage's price
    to what the units' bounds add up to.
    """
    scale = np.ones(len(problem))
    for mask, price in zip(merges.masks.tolist(), merges.prices_us.tolist(), strict=True):
        units = [index for index in range(len(problem)) if mask >> index & 1]
        most = max(
            float(bounds.single_us[units].sum()),
            float(bounds.serial_us[units].max()),
            float(bounds.work_us[units].sum(axis=0).max(initial=0.0)),
        )
        if most > price:
            members = problem.merge_class == problem.merge_class[units[0]]
            scale[members] = np.minimum(scale[members], price / most)
    return StageBounds(bounds.serial_us * scale, bounds.single_us * scale, bounds.work_us * scale[:, None])


def _subsets(problem: ScheduleProblem, max_groups: int) -> list[int]:
    found: list[int] = []
    for merge_class in range(int(problem.merge_class.max(initial=-1)) + 1):
        members = np.flatnonzero(problem.merge_class == merge_class).tolist()
        largest = min(len(members), max_groups)
        if len(members) <= ALL_SUBSETS:
            chosen = {c for size in range(2, largest + 1) for c in combinations(members, size)}
        else:
            chosen = set(combinations(members, 2)) if largest >= 2 else set()
            runs = range(3, largest + 1)
            chosen |= {tuple(members[b : b + size]) for size in runs for b in range(len(members) - size + 1)}
        found += sorted(sum(1 << unit for unit in units) for units in chosen)
    return found
