"""Kernels chosen for concurrency in a measured search: stages with other than their fastest kernels.

They are separate stages besides those of the same units: measured, corrected and combined like all others. There is
one for each stage that may be on the best path, with the kernels that the estimates prefer for its concurrent units
(:mod:`iossim.search.company`). A stage may be there if its bound with any kernels, plus the best ways to it and from it
at the estimates, is about the length of the best path; if there are too many such stages, the shortest paths count.

A measured library names its kernels differently from the simulator that estimates them. Variants are similar if they
are slower than the fastest by the same factor when alone, and if they have as many blocks that occupy as much of an SM;
equal names are the same variant. One most similar to the fastest is no variant here, and of several with one
counterpart the first counts (:class:`NamedAlike`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from math import log

import numpy as np
from numpy.typing import NDArray

from iossim.base.compiled import Floats, Integers, jit
from iossim.base.errors import OptionError
from iossim.cost.capabilities import MeasuringCostModel, NamesVariants, VariantCostModel
from iossim.cost.facts import VariantBounds
from iossim.cost.model import CostModel, Prices, StageBounds, WrappedCostModel
from iossim.schedule.batch import StageBatch, Strategy, UnitVariant, Variants
from iossim.schedule.masks import count_groups
from iossim.schedule.planned_stage import PlannedStage, batch_of
from iossim.schedule.problem import ScheduleProblem
from iossim.search.company import MOST_CHOICES, MOST_STAGES, ForCompany, chosen_for_company
from iossim.search.measured.planner import Transitions


def with_names_of(truth: MeasuringCostModel, estimate: CostModel) -> CostModel:
    """The estimates of the variants that the measuring model names; raises OptionError if either knows none."""
    if not isinstance(truth, NamesVariants):
        raise OptionError(
            f"`company`: cost model {truth.identity.name!r} knows one kernel of each unit; leave it out, or measure by "
            "cupy_cudnn"
        )
    return NamedAlike(chosen_for_company(estimate).inner, truth)


def adding_company(estimate: CostModel, slack: float) -> Callable[[Transitions], Transitions]:
    """Function that adds stages of chosen kernels after those of the fastest.

    Paths of up to ``1 + slack`` times the best length count as the best, since estimates err. Raises OptionError for a
    cost model that knows no variants, or no bounds of them.
    """
    choosing = chosen_for_company(estimate)
    return lambda space: _with_company(space, choosing, slack)


def _with_company(space: Transitions, choosing: ForCompany, slack: float) -> Transitions:
    prices_us = choosing.inner.price_stages(space.batch())
    several = count_groups(space.masks, space.problem.predecessors) > 1
    stages = np.flatnonzero(several & (space.strategies == Strategy.CONCURRENT.code) & np.isfinite(prices_us))
    path_us = np.full(len(space.masks), np.inf)
    _through(space.begin, space.target, space.stage, prices_us, path_us)
    # Length of the shortest path through each stage, at the stage's least cost.
    hoped_us = path_us[stages] - prices_us[stages] + _least_us(space, stages, choosing)
    order = np.argsort(hoped_us, kind="stable")[:MOST_STAGES]
    order = order[hoped_us[order] <= (1 + slack) * path_us.min(initial=np.inf)]
    tried = [(stage, PlannedStage(int(space.masks[stage]), Strategy.CONCURRENT)) for stage in stages[order].tolist()]
    found = [(stage, choosing.chosen(space.problem, plain, MOST_CHOICES)) for stage, plain in tried]
    found = [(stage, one) for stage, one in found if one.variants]
    if not found:
        return space
    return _beside(space, np.array([stage for stage, _ in found]), [one for _, one in found])


def _least_us(space: Transitions, stages: Integers, choosing: ForCompany) -> Floats:
    """Bounds of stages with any kernels: all work on a resource, and the longest unit, us."""
    bounds = choosing.bounds(space.problem)
    assert bounds is not None, "variants have bounds"
    held = StageBatch.concurrent(space.problem, space.masks[stages]).held
    work_us = (held.astype(np.float64) @ bounds.work_us).max(axis=1, initial=0.0)
    least_us: Floats = np.maximum(work_us, (held * bounds.serial_us).max(axis=1, initial=0.0))
    return least_us


@jit
def _through(
    begin: Integers, target: NDArray[np.int32], stage: NDArray[np.int32], prices_us: Floats, least_us: Floats
) -> None:
    """Fill in the least cost of a path through each stage, us, without boundaries."""
    states = len(begin) // 2
    to_end = np.empty(states, dtype=np.float64)
    to_state = np.empty(states, dtype=np.float64)
    for state in range(states):
        to_end[state] = np.inf
        to_state[state] = np.inf
    to_state[0] = 0.0
    to_end[states - 1] = 0.0
    for state in range(states):
        for index in range(begin[2 * state], begin[2 * state + 2]):
            to_state[target[index]] = min(to_state[target[index]], to_state[state] + prices_us[stage[index]])
    for state in range(states - 1, -1, -1):
        for index in range(begin[2 * state], begin[2 * state + 2]):
            cost = prices_us[stage[index]] + to_end[target[index]]
            to_end[state] = min(to_end[state], cost)
            least_us[stage[index]] = min(least_us[stage[index]], to_state[state] + cost)


def _beside(space: Transitions, stages: Integers, chosen: Sequence[PlannedStage]) -> Transitions:
    """The transitions extended, wherever one of these stages is, by a stage of its units with chosen kernels."""
    number = np.full(len(space.masks), -1, dtype=np.int64)
    number[stages] = len(space.masks) + np.arange(len(stages))
    places = np.repeat(np.arange(len(space.begin) - 1), np.diff(space.begin))
    doubled = np.flatnonzero(number[space.stage] >= 0)
    places = np.concatenate([places, places[doubled]])
    order = np.argsort(places, kind="stable")
    begin = np.concatenate([[0], np.cumsum(np.bincount(places, minlength=len(space.begin) - 1))])
    added = batch_of(space.problem, chosen)
    assert added.variants is not None, "that is what they were chosen for"
    plain = np.zeros((len(space.masks), len(space.problem)), dtype=np.uint16)
    return Transitions(
        space.problem,
        begin.astype(np.int64),
        np.concatenate([space.target, space.target[doubled]])[order],
        np.concatenate([space.stage, number[space.stage[doubled]].astype(np.int32)])[order],
        np.concatenate([space.masks, added.masks]),
        np.concatenate([space.strategies, added.strategies]),
        Variants(added.variants.names, np.concatenate([plain, added.variants.chosen])),
    )


#: Variants with a counterpart, each with its counterpart's index among the variants of the unit.
_Alike = tuple[tuple[UnitVariant, int], ...]


@dataclass(eq=False)
class NamedAlike(WrappedCostModel):
    """``inner``, a :class:`~iossim.cost.capabilities.VariantCostModel` itself, with the names of ``names``."""

    inner: VariantCostModel
    names: NamesVariants
    _alike: dict[tuple[str, tuple[int, ...]], tuple[_Alike, ...]] = field(default_factory=dict, repr=False)

    def variants(self, problem: ScheduleProblem) -> tuple[tuple[UnitVariant, ...], ...]:
        return tuple(tuple(variant for variant, _ in own) for own in self._of(problem))

    def price_stages(self, batch: StageBatch) -> Prices:
        """Microseconds of each stage, shape ``[len(batch)]``; raises PlanError for a variant without a counterpart."""
        if batch.variants is None:
            return self.inner.price_stages(batch)
        known = [
            {variant.name: own[place].name for variant, place in alike}
            for alike, own in zip(self._of(batch.problem), self.inner.variants(batch.problem), strict=True)
        ]
        names = tuple(
            tuple(own.get(name, name) for name in named) for own, named in zip(known, batch.variants.names, strict=True)
        )
        return self.inner.price_stages(replace(batch, variants=Variants(names, batch.variants.chosen)))

    def merged_workspace_bytes(self, problem: ScheduleProblem, mask: int) -> int:
        return self.inner.merged_workspace_bytes(problem, mask)

    def bounds_of_variants(self, problem: ScheduleProblem) -> tuple[VariantBounds, ...]:
        found = []
        for own, alike in zip(self.inner.bounds_of_variants(problem), self._of(problem), strict=True):
            at, bounds = [place for _, place in alike], own.bounds
            issue_us = None if bounds.issue_us is None else bounds.issue_us[at]
            kept = StageBounds(bounds.serial_us[at], bounds.single_us[at], bounds.work_us[at], issue_us)
            found.append(VariantBounds(kept, own.keys[at]))
        return tuple(found)

    def _of(self, problem: ScheduleProblem) -> tuple[_Alike, ...]:
        key = problem.key, problem.units
        if key not in self._alike:
            pairs = zip(self.names.variants(problem), self.inner.variants(problem), strict=True)
            self._alike[key] = tuple(_alike(theirs, own) for theirs, own in pairs)
        return self._alike[key]


def _alike(theirs: Sequence[UnitVariant], own: Sequence[UnitVariant]) -> _Alike:
    """Variants of a unit in their order, each with the index of the most similar one; the fastest first."""
    names = [one.name for one in own]
    found = {0: theirs[0]}
    for variant in theirs[1:]:
        if variant.name in names:
            place = names.index(variant.name)
        elif variant.blocks:
            place = most_alike(variant, theirs[0], own)
        else:
            place = 0
        if own[place][1:] != own[0][1:]:
            found.setdefault(place, variant)
    return tuple((variant, place) for place, variant in found.items())


def most_alike(variant: UnitVariant, fastest: UnitVariant, others: Sequence[UnitVariant]) -> int:
    """Index of the variant among ``others`` (the fastest first) that compares to its fastest as ``variant`` does."""
    return min(range(len(others)), key=lambda at: _distance(variant, fastest, others[at], others[0]))


def _distance(one: UnitVariant, fastest: UnitVariant, other: UnitVariant, other_fastest: UnitVariant) -> float:
    """Distance of two variants: differences of logarithms; times are relative to those of the fastest."""
    ratios = one.alone_us / fastest.alone_us, one.blocks, one.sm_share
    others = other.alone_us / other_fastest.alone_us, other.blocks, other.sm_share
    return sum(abs(log(a / b)) for a, b in zip(ratios, others, strict=True) if min(a, b) > 0)
