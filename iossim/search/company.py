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

Two schedules are compared: the stages found at prices of the fastest kernels, and those found at prices of kernels
chosen for them. A choice is kept if its stage is no slower event by event either: it was made at prices of the fluid
model, and the best of hundreds by a model is also the one with the most favourable error. If neither schedule is then
faster in both models, the first is returned unchanged.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from math import fsum

import numpy as np
from numpy.typing import NDArray

from iossim.base.compiled import Floats
from iossim.base.errors import OptionError
from iossim.cost.capabilities import StreamCostModel, VariantChoosing, VariantCostModel
from iossim.cost.facts import VariantBounds
from iossim.cost.model import SAFE, CostModel, CostModelIdentity, Prices, problems_of
from iossim.execution.engine import Engine
from iossim.execution.lower import lower_schedule, lower_stage
from iossim.ir.network import Network
from iossim.schedule.batch import FASTEST, StageBatch, Strategy, UnitVariant, Variants
from iossim.schedule.masks import count_groups
from iossim.schedule.planned_stage import PlannedStage, planned
from iossim.schedule.problem import ScheduleProblem, bits
from iossim.schedule.schedule import Schedule
from iossim.search.anytime import Clock, Steps
from iossim.search.assemble import price_blocks, reprice, total_latency_us
from iossim.search.options import SearchOptions

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

    #: By the units of a stage as a separate problem, and their possible variants.
    _choices: dict[tuple[str, _Fronts, int], _Choice] = field(default_factory=dict, repr=False)
    #: Number of stages chosen for, by the key of the problem.
    _asked: Counter[str] = field(default_factory=Counter, repr=False)

    @property
    def identity(self) -> CostModelIdentity:
        return replace(self.inner.identity, version=f"{self.inner.identity.version}+company")

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


#: Maximum number of kernels that a note names.
MOST_NAMED = 4


def with_company(
    network: Network,
    cost_model: CostModel,
    options: SearchOptions,
    search: Callable[[CostModel, SearchOptions], Schedule],
) -> Schedule:
    """The schedule that is found at prices of the fastest kernels, or a better one whose kernels are chosen for their
    stage.

    ``search`` finds one at given prices; both searches and the event-driven runs share the seconds of the options.
    For chosen kernels only the bounds over all variants are proven. Raises OptionError for a cost model that knows no
    variants.
    """
    steps = Steps(Clock(options.seconds))
    chosen = chosen_for_company(cost_model)
    found = search(cost_model, replace(options, seconds=steps.clock.part_s(1 / 3)))
    first = steps.take(None, lambda: found.model_copy(update={"blocks": reprice(found, network, chosen).blocks}))
    offers = [] if first is None else [first]
    bound_us, search_s = None, found.search_s
    if found.complete and not steps.ended:
        searched = search(chosen, replace(options, seconds=steps.clock.part_s(1 / 2)))
        offers.append(searched)
        bound_us, search_s = searched.relaxed_bound_us, search_s + searched.search_s
    seen = None
    if isinstance(cost_model, StreamCostModel) and cost_model.identity.engine != Engine.PARTITION:
        seen = _EventByEvent(network, cost_model, steps.clock.check)
    problems = problems_of(network, cost_model)

    def with_kept_choices(offer: Schedule) -> Schedule:
        plans = [
            [seen.kept(problem, stage) if seen else stage for stage in planned(problem, block)]
            for problem, block in zip(problems, offer.blocks, strict=True)
        ]
        blocks = price_blocks(problems, plans, cost_model)
        return offer.model_copy(update={"blocks": blocks, "latency_us": total_latency_us(blocks)})

    def seen_us(schedule: Schedule) -> float:
        return seen.schedule_us(schedule) if seen else 0.0

    best, best_seen_us = found, steps.take(None, seen_us, found)
    judged = best_seen_us is not None
    for offer in offers:
        if best_seen_us is None:
            break
        better = steps.take(None, with_kept_choices, offer)
        if better is not None and better.complete and better.latency_us < best.latency_us:
            better_us = steps.take(None, seen_us, better)
            if better_us is None:
                judged = False
            elif better_us <= best_seen_us:
                best, best_seen_us = better, better_us
        judged &= better is not None
    said = {
        "options": {**best.options, "company": True},
        "lower_bound_us": bound_us,
        "relaxed_bound_us": bound_us,
        "proven": False,
        "complete": not steps.interrupted and all(each.complete for each in (found, *offers)),
        "search_s": search_s,
        "notes": [*best.notes, _said(best) if judged else f"not all choices of kernels were judged: {steps.cause}"],
    }
    return best.model_copy(update=said)


def _said(schedule: Schedule) -> str:
    """Sentence on the stages whose kernels were chosen, with the first of these kernels."""
    stages = [stage for block in schedule.blocks for stage in block.stages if len(stage.groups) > 1]
    named = [f"{unit} {variant}" for stage in stages for unit, variant in stage.variants.items()]
    changed = sum(bool(stage.variants) for stage in stages)
    if not changed:
        return "no kernels are faster concurrently than those that are fastest alone, by either simulator"
    more = f" and {len(named) - MOST_NAMED} more" if len(named) > MOST_NAMED else ""
    return (
        f"kernels were chosen for concurrency in {changed} of {len(stages)} stages of several "
        f"groups: {', '.join(named[:MOST_NAMED])}{more}; not all choices were considered"
    )


@dataclass(frozen=True)
class _EventByEvent:
    """Prices of stages and schedules, event by event."""

    network: Network
    cost_model: StreamCostModel
    check: Callable[[], None]

    def schedule_us(self, schedule: Schedule) -> float:
        plan = lower_schedule(schedule, self.network, self.cost_model.identity.engine)
        return self.cost_model.simulated_plan_us(self.network, plan, self.check)

    def kept(self, problem: ScheduleProblem, stage: PlannedStage) -> PlannedStage:
        """The stage with its variants if it is no slower so than with its fastest kernels, else without."""
        plain = replace(stage, variants=())
        if not stage.variants or self._stage_us(problem, stage) <= self._stage_us(problem, plain):
            return stage
        return plain

    def _stage_us(self, problem: ScheduleProblem, stage: PlannedStage) -> float:
        groups = [[problem.units[unit] for unit in bits(group)] for group in stage.groups(problem)]
        variants = {problem.unit_names[unit]: name for unit, name in stage.variants}
        engine = self.cost_model.identity.engine
        plan = lower_stage(self.network, groups, stage.strategy, engine, variants=variants)
        return self.cost_model.simulated_plan_us(self.network, plan, self.check)
