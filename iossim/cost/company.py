"""Kernels chosen for their company: what a unit runs as is a choice of its stage, not of the unit alone.

A candidate that is slower alone, but whose blocks are smaller, fewer, or ask for less of what others wait for, may be
better side by side. So the price of a stage of several groups is the least that is found over choices of its units'
variants. From what is fastest alone, a unit (or all equal units, or all) is changed to another variant, always where
that saves most, until nothing is saved. Then all choices are looked at whose bound is below what was found: of each
group the sum of its units by themselves, of each resource the work of all. Where these are at most
:data:`MOST_CHOICES`, and of the stages that a schedule takes :data:`MOST_IN_THE_END`, as of two or three groups they
mostly are, the choice is the best there is. No stage costs more than with its fastest kernels.

Stages of a single group, and merged ones, run as what is fastest alone. A search asks for more stages than there is
time to choose for: of each problem the first :data:`MOST_STAGES` have the price of their choice, the others that of
their fastest kernels, and those that the search takes run as what is chosen for them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import fsum

import numpy as np
from numpy.typing import NDArray

from iossim.base.errors import OptionError
from iossim.cost.capabilities import UnitVariant, VariantBounds, VariantCostModel, least_of_variants
from iossim.cost.model import CostModel, CostModelIdentity, Prices, StageBounds, VariantChoosing
from iossim.schedule.batch import FASTEST, StageBatch, Strategy, Variants
from iossim.schedule.masks import count_groups
from iossim.schedule.planned_stage import PlannedStage
from iossim.schedule.problem import ScheduleProblem, bits

#: Where bounds leave at most so many choices the best is found: while a problem is searched, and of what it takes.
MOST_CHOICES, MOST_IN_THE_END = 4096, 1 << 17
#: Bounds are lowered by this part, since their sums are rounded.
_KEPT = 1.0 - 1e-9
#: Choices priced at a time.
_PRICED_TOGETHER = 2048
#: For so many stages of a problem kernels are chosen while it is searched.
MOST_STAGES = 300

_Fronts = tuple[tuple[UnitVariant, ...], ...]
#: The variants of a stage's units that are not their fastest, and the price of the stage that runs them.
_Choice = tuple[tuple[tuple[int, str], ...], float]


def chosen_for_company(cost_model: CostModel) -> ForCompany:
    """The cost model with kernels chosen for each stage; OptionError where it knows no variants of units."""
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
    #: By the units of a stage as a problem of their own, and what each may run as.
    _choices: dict[tuple[str, _Fronts, int], _Choice] = field(default_factory=dict, repr=False)
    #: By the key of a problem how many of its stages were chosen for.
    _asked: Counter[str] = field(default_factory=Counter, repr=False)

    @property
    def identity(self) -> CostModelIdentity:
        return replace(self.inner.identity, version=f"{self.inner.identity.version}+company")

    def bounds(self, problem: ScheduleProblem) -> StageBounds | None:
        """Bounds of stages whose units run as any variant."""
        return least_of_variants(self.inner.bounds_of_variants(problem))

    def price_stages(self, batch: StageBatch) -> Prices:
        """Microseconds of each stage, shape ``[len(batch)]``; one that names variants is priced as it says."""
        prices = self.inner.price_stages(batch)
        if batch.variants is None:
            several = ~batch.merged & (count_groups(batch.masks, batch.problem.predecessors) > 1)
            left = max(0, MOST_STAGES - self._asked[batch.problem.key])
            stages = np.flatnonzero(several & np.isfinite(prices)).tolist()[:left]
            self._asked[batch.problem.key] += len(stages)
            for index in stages:
                prices[index] = self._choose(batch.problem, bits(int(batch.masks[index])), float(prices[index]))[1]
        return prices

    def chosen(self, problem: ScheduleProblem, stage: PlannedStage) -> PlannedStage:
        """The stage with the variants that its price is of, or better ones."""
        if stage.variants or stage.strategy is Strategy.MERGE or not stage.is_concurrent(problem):
            return stage
        units = bits(stage.mask)
        variants, _ = self._choose(problem, units, None, MOST_IN_THE_END)
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
        """Variants that may be better than the fastest, by unit; the choice that no change makes cheaper, and its
        price.
        """
        names: list[tuple[str, ...]] = [(FASTEST,)] * len(part)
        for group in groups:
            alone_us = fsum(fronts[unit][0].alone_us for unit in group)
            for unit in group:
                left_us = fastest_us - alone_us + fronts[unit][0].alone_us
                names[unit] = (FASTEST, *(one.name for one in fronts[unit][1:] if one.alone_us < left_us))
        # What changes together: a unit by itself, or all that may run as a variant, of all units or of equal ones.
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
        """The prices of all units of a problem as one stage, run as each row of variants says."""
        masks = np.full(len(variants.chosen), (1 << len(part)) - 1, dtype=np.uint64)
        strategies = np.full(len(masks), Strategy.CONCURRENT.code, dtype=np.uint8)
        return self.inner.price_stages(StageBatch(part, masks, strategies, variants))


def _together(part: ScheduleProblem) -> list[tuple[int, ...]]:
    """Units of which a step changes all to one variant: each alone, equal ones, and all."""
    equal: dict[str, list[int]] = {}
    for unit, signature in enumerate(part.signatures):
        equal.setdefault(signature, []).append(unit)
    units = range(len(part))
    return list(dict.fromkeys([*((unit,) for unit in units), *map(tuple, equal.values()), tuple(units)]))


def _left_by_bounds(
    bounds: Sequence[VariantBounds], groups: Sequence[Sequence[int]], best_us: float, most: int
) -> tuple[NDArray[np.uint16], NDArray[np.float64]]:
    """Choices of variants whose bounds are below the best stage found, least bounds first, and these bounds.

    Shape ``[choices, units]``; none where there are more than ``most``, of which nothing is known then. Of variants
    that are priced alike one is looked at.
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
            # What was counted with the least of all variants is counted with this one's.
            serial_us[:, number] += own.serial_us[variant] - own.serial_us.min()
            work_us = work_us + own.work_us[variant] - own.work_us.min(axis=0)
            chosen[:, unit] = variant
            least_us = np.maximum(serial_us.max(axis=1), work_us.max(axis=1)) * _KEPT
            kept = least_us < best_us
            serial_us, work_us, chosen, least_us = serial_us[kept], work_us[kept], chosen[kept], least_us[kept]
            if len(chosen) > most:
                return chosen[:0], least_us[:0]
    order = np.argsort(least_us, kind="stable")
    return chosen[order], least_us[order]
