"""Choosing kernels for concurrency: a unit's variant depends on its stage, not on the unit alone.

A candidate that is slower alone, but whose blocks are smaller, fewer, or need less of contended resources, may be
better when run concurrently. So the price of a stage of several groups is the least found over its units'
variants. Starting from the fastest alone, a unit (or all equal units, or all) is changed to another variant, always
with the largest saving, until nothing is saved. Then all choices are examined whose bound is below the best found: for
each group the sum of its units alone, for each resource the work of all. If there are at most
:data:`MOST_CHOICES` of them, or :data:`MOST_IN_THE_END` for the stages of the final schedule, which mostly have two or
three groups, the choice is optimal. No stage costs more than with its fastest kernels.

Stages of a single group, and merged ones, run as fastest alone. A search requests more stages than there is time to
choose for: the first :data:`MOST_STAGES` of each problem are priced with the choice for them, the others with
their fastest kernels, and the stages of the final schedule run with the choice for them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import fsum

import numpy as np
from numpy.typing import NDArray

from iossim.base.compiled import Floats
from iossim.base.errors import OptionError
from iossim.cost.capabilities import VariantCostModel
from iossim.cost.facts import VariantBounds, least_of_variants
from iossim.cost.model import SAFE, CostModel, CostModelIdentity, Prices, StageBounds, VariantChoosing
from iossim.schedule.batch import FASTEST, StageBatch, Strategy, UnitVariant, Variants
from iossim.schedule.masks import count_groups
from iossim.schedule.planned_stage import PlannedStage
from iossim.schedule.problem import ScheduleProblem, bits

#: Numbers of choices within the bounds up to which the best is found: during a search, and for its result.
MOST_CHOICES, MOST_IN_THE_END = 4096, 1 << 17
#: Number of choices priced at a time.
_PRICED_TOGETHER = 2048
#: Number of stages of a problem for which kernels are chosen during a search.
MOST_STAGES = 300

_Fronts = tuple[tuple[UnitVariant, ...], ...]
#: The variants of a stage's units other than the fastest, and the price of the stage with them.
_Choice = tuple[tuple[tuple[int, str], ...], float]


def chosen_for_company(cost_model: CostModel) -> ForCompany:
    """The cost model with kernels chosen for each stage; raises OptionError if it has no variants of units."""
    if not isinstance(cost_model, VariantCostModel):
        raise OptionError(
            f"`company`: cost model {cost_model.identity.name!r} does not know what else a unit may run as; "
            "use the simulator, or leave it out"
        )
    return ForCompany(cost_model)


@dataclass(eq=False)
class ForCompany(VariantChoosing):
    """``inner`` with the variants of units chosen for the stage that they run in."""

    inner: VariantCostModel
    #: By the units of a stage as a separate problem, and their possible variants.
    _choices: dict[tuple[str, _Fronts, int], _Choice] = field(default_factory=dict, repr=False)
    #: Number of stages chosen for, by the key of the problem.
    _asked: Counter[str] = field(default_factory=Counter, repr=False)

    @property
    def identity(self) -> CostModelIdentity:
        return replace(self.inner.identity, version=f"{self.inner.identity.version}+company")

    def bounds(self, problem: ScheduleProblem) -> StageBounds | None:
        """Bounds of stages whose units run as any variant."""
        return least_of_variants(self.inner.bounds_of_variants(problem))

    def price_stages(self, batch: StageBatch) -> Prices:
        """Microseconds of each stage, shape ``[len(batch)]``; a stage that names variants is priced with these."""
        prices = self.inner.price_stages(batch)
        if batch.variants is None:
            several = ~batch.merged & (count_groups(batch.masks, batch.problem.predecessors) > 1)
            left = max(0, MOST_STAGES - self._asked[batch.problem.key])
            stages = np.flatnonzero(several & np.isfinite(prices)).tolist()[:left]
            self._asked[batch.problem.key] += len(stages)
            for index in stages:
                prices[index] = self._choose(batch.problem, bits(int(batch.masks[index])), float(prices[index]))[1]
        return prices

    def chosen(self, problem: ScheduleProblem, stage: PlannedStage, most: int = MOST_IN_THE_END) -> PlannedStage:
        """The stage with the variants in its price, or better ones, the best of up to ``most`` choices."""
        if stage.variants or stage.strategy is Strategy.MERGE or not stage.is_concurrent(problem):
            return stage
        units = bits(stage.mask)
        variants, _ = self._choose(problem, units, None, most)
        return replace(stage, variants=tuple((units[unit], name) for unit, name in variants))

    def _choose(
        self, problem: ScheduleProblem, units: list[int], fastest_us: float | None, most: int = MOST_CHOICES
    ) -> _Choice:
        """The best choice found for a stage, whose price with the fastest variants may be known."""
        part = problem.restrict(units)
        key = part.key, self.inner.variants(part), most
        if key not in self._choices:
            if fastest_us is None:
                fastest = Variants(((FASTEST,),) * len(part), np.zeros((1, len(part)), dtype=np.uint16))
                (fastest_us,) = self._price(part, fastest).tolist()
            self._choices[key] = self._best(part, fastest_us, most)
        return self._choices[key]

    def _best(self, part: ScheduleProblem, fastest_us: float, most: int) -> _Choice:
        fronts = self.inner.variants(part)
        groups = [bits(group) for group in part.groups(part.full)]
        names, row, best_us = self._changed_step_by_step(part, fronts, groups, fastest_us)
        left, least_us = _left_by_bounds(self.inner.bounds_of_variants(part), groups, best_us, most)
        if len(left):
            every = tuple((FASTEST, *(one.name for one in own[1:])) for own in fronts)
        for begin in range(0, len(left), _PRICED_TOGETHER):
            if least_us[begin] >= best_us:
                break
            tried = left[begin : begin + _PRICED_TOGETHER]
            prices = self._price(part, Variants(every, tried))
            best = int(np.argmin(prices))
            if prices[best] < best_us:
                names, row, best_us = every, tried[best], float(prices[best])
        return tuple((unit, own[int(at)]) for unit, (own, at) in enumerate(zip(names, row, strict=True)) if at), best_us

    def _changed_step_by_step(
        self, part: ScheduleProblem, fronts: _Fronts, groups: Sequence[Sequence[int]], fastest_us: float
    ) -> tuple[tuple[tuple[str, ...], ...], NDArray[np.uint16], float]:
        """Variants that may be better than the fastest, by unit; a choice that no single change improves, and its
        price.
        """
        names: list[tuple[str, ...]] = [(FASTEST,)] * len(part)
        for group in groups:
            alone_us = fsum(fronts[unit][0].alone_us for unit in group)
            for unit in group:
                left_us = fastest_us - alone_us + fronts[unit][0].alone_us
                names[unit] = (FASTEST, *(one.name for one in fronts[unit][1:] if one.alone_us < left_us))
        # Units that change together: one, or all that may run as a variant, among all units or equal ones.
        changes = [
            [(unit, own.index(name)) for unit, own in enumerate(names) if name in own and unit in together]
            for together in _together(part)
            for name in dict.fromkeys(name for unit in together for name in names[unit])
        ]
        row, best_us = np.zeros(len(names), dtype=np.uint16), fastest_us
        while True:
            tried = np.repeat(row[None], len(changes), axis=0)
            for index, change in enumerate(changes):
                for unit, variant in change:
                    tried[index, unit] = variant
            prices = self._price(part, Variants(tuple(names), tried))
            best = int(np.argmin(prices))
            if not prices[best] < best_us:
                return tuple(names), row, best_us
            row, best_us = tried[best], float(prices[best])

    def _price(self, part: ScheduleProblem, variants: Variants) -> Prices:
        """The prices of all units of a problem as one stage, for each row of variants."""
        masks = np.full(len(variants.chosen), (1 << len(part)) - 1, dtype=np.uint64)
        return self.inner.price_stages(replace(StageBatch.concurrent(part, masks), variants=variants))


def _together(part: ScheduleProblem) -> list[tuple[int, ...]]:
    """Sets of units that a step changes together: each alone, equal ones, and all."""
    equal: dict[str, list[int]] = {}
    for unit, signature in enumerate(part.signatures):
        equal.setdefault(signature, []).append(unit)
    units = range(len(part))
    return list(dict.fromkeys([*((unit,) for unit in units), *map(tuple, equal.values()), tuple(units)]))


def _left_by_bounds(
    bounds: Sequence[VariantBounds], groups: Sequence[Sequence[int]], best_us: float, most: int
) -> tuple[NDArray[np.uint16], Floats]:
    """Choices of variants whose bounds are below the best stage found, least bounds first, and these bounds.

    Shape ``[choices, units]``; empty if there are more than ``most``, and the result is inconclusive. Among variants
    with equal prices one is examined.
    """
    chosen = np.zeros((1, len(bounds)), dtype=np.uint16)
    serial_us = np.array([[sum(bounds[unit].bounds.serial_us.min() for unit in group) for group in groups]])
    work_us = sum(own.bounds.work_us.min(axis=0) for own in bounds)[None]
    least_us = np.zeros(1)
    for number, group in enumerate(groups):
        for unit in group:
            own = bounds[unit].bounds
            different = np.sort(np.unique(bounds[unit].keys, return_index=True)[1])
            index = np.repeat(np.arange(len(chosen)), len(different))
            variant = np.tile(different, len(chosen))
            serial_us, work_us, chosen = serial_us[index], work_us[index], chosen[index]
            # Replace the minimum over all variants by this one's bound.
            serial_us[:, number] += own.serial_us[variant] - own.serial_us.min()
            work_us = work_us + own.work_us[variant] - own.work_us.min(axis=0)
            chosen[:, unit] = variant
            least_us = np.maximum(serial_us.max(axis=1), work_us.max(axis=1)) * SAFE
            kept = least_us < best_us
            serial_us, work_us, chosen, least_us = serial_us[kept], work_us[kept], chosen[kept], least_us[kept]
            if len(chosen) > most:
                return chosen[:0], least_us[:0]
    order = np.argsort(least_us, kind="stable")
    return chosen[order], least_us[order]
