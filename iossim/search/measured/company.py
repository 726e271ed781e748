"""Kernels chosen for concurrency in a measured search: stages with other than their fastest kernels.

They are separate stages besides those of the same units: measured, corrected and combined like all others. There is
one for each stage that may be on the best path, with the kernels that the estimates prefer for its concurrent units
(:mod:`iossim.cost.company`). A stage may be there if its bound with any kernels, plus the best ways to it and from it
at the estimates, is about the length of the best path; if there are too many such stages, the shortest paths count.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from iossim.base.compiled import Floats, Integers, jit
from iossim.base.errors import OptionError
from iossim.cost.capabilities import MeasuringCostModel, NamesVariants
from iossim.cost.company import MOST_CHOICES, MOST_STAGES, ForCompany, chosen_for_company
from iossim.cost.model import CostModel
from iossim.cost.named_alike import NamedAlike
from iossim.schedule.batch import StageBatch, Strategy, Variants
from iossim.schedule.masks import count_groups
from iossim.schedule.planned_stage import PlannedStage, batch_of
from iossim.search.measured.transitions import Transitions


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
