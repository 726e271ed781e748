"""The best schedule of a block whose stages keep clusters of units whole: for blocks with too many stages.

The states are the order ideals that hold each cluster whole or not at all, and a stage leads from one to a larger
one. If there are too many such pairs, a stage takes only clusters that are ready, an antichain. The
recurrence is that of :mod:`~iossim.search.block_search`, forwards; all stages are priced first, in a batch.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial, reduce
from itertools import combinations
from math import inf, isfinite
from operator import or_

import numpy as np

from iossim.cost.model import START, CostModel
from iossim.schedule.batch import StageBatch, Strategy
from iossim.schedule.planned_stage import PlannedStage
from iossim.schedule.problem import ScheduleProblem, bits
from iossim.search.block_search import BlockPath, BlockSolution
from iossim.search.lattice import MergedStages, no_merges, price_merges
from iossim.search.memo import BlockQuestion, SearchMemo
from iossim.search.options import StageSpace

#: With more stages than this, a stage takes only ready clusters; if there are still more, the block is too wide.
MOST_TRANSITIONS = 20_000
#: Up to this many states, pairs are counted exactly.
_FEW_STATES = 2_000


def cluster_states(problem: ScheduleProblem) -> tuple[int, ...] | None:
    """The masks of all states, fewest units first; None if more than :data:`MOST_TRANSITIONS` lead from them."""
    needs = _needs(problem)
    found: list[int] = []
    level, transitions = [0], 0
    while level:
        found += level
        after: set[int] = set()
        for done in level:
            ready = _ready(problem, needs, done)
            transitions += 2 ** len(ready) - 1
            after.update(done | one for one in ready)
        if transitions > MOST_TRANSITIONS:
            return None
        level = sorted(after)
    return tuple(sorted(found, key=lambda mask: (mask.bit_count(), mask)))


def cluster_transitions(states: tuple[int, ...]) -> int:
    """Number of pairs of states of which one contains the other; an upper bound if there are many states."""
    if len(states) > _FEW_STATES:
        return len(states) ** 2
    masks = np.array(states, dtype=np.uint64)
    return sum(int(((masks & mask) == mask).sum()) - 1 for mask in masks)


def solve_in_clusters(
    problem: ScheduleProblem, entries: Iterable[int], cost_model: CostModel, space: StageSpace, memo: SearchMemo
) -> dict[int, BlockSolution]:
    """The solution of a block after a stage of each bit, with clusters kept whole; empty if it has too many states."""
    problem = space.ordered(problem)
    states = cluster_states(problem)
    if states is None:
        return {}
    merges = price_merges(problem, cost_model, space.max_groups or len(problem)) if space.merge else no_merges()
    solve = partial(solve_clusters, problem, states, cost_model, space, merges)
    return {
        entry: memo.found(BlockQuestion.of(problem, entry, space, merges), partial(solve, entry)) for entry in entries
    }


def solve_clusters(
    problem: ScheduleProblem,
    states: tuple[int, ...],
    cost_model: CostModel,
    space: StageSpace,
    merges: MergedStages,
    entry: int,
) -> BlockSolution:
    """The cheapest schedules of a block after a stage of bit ``entry`` (or START), of stages of whole clusters.

    ``states`` are :func:`cluster_states`.
    """
    steps = list(_steps(problem, states))
    stages = sorted({states[after] ^ states[before] for before, after in steps})
    ways = _priced(problem, cost_model, space, merges, stages)
    boundary = [[cost_model.price_boundary(bool(left), bool(right)) for right in range(2)] for left in range(2)]
    costs = [[inf, inf] for _ in states]
    costs[0][entry % START] = 0.0
    # For each state and bit the step that reached it: the state before, its bit, the stage.
    came: list[list[tuple[int, int, PlannedStage] | None]] = [[None, None] for _ in states]
    for before, after in steps:
        for stage, bit, price_us in ways[states[after] ^ states[before]]:
            for left in range(2):
                between_us = 0.0 if before == 0 and entry == START else boundary[left][bit]
                cost_us = costs[before][left] + between_us + price_us
                if cost_us < costs[after][bit]:
                    costs[after][bit] = cost_us
                    came[after][bit] = before, left, stage

    def path(bit: int) -> BlockPath | None:
        cost_us, state, found = costs[-1][bit], len(states) - 1, list[PlannedStage]()
        while (step := came[state][bit]) is not None:
            state, bit, stage = step
            found.append(stage)
        return BlockPath(cost_us, tuple(reversed(found))) if isfinite(cost_us) else None

    return BlockSolution((path(0), path(1)), sum(map(len, ways.values())), len(steps))


def _needs(problem: ScheduleProblem) -> list[int]:
    """Units that must be done before each cluster."""
    order = problem.order.tolist()
    return [reduce(or_, (order[unit] for unit in bits(own)), 0) & ~own for own in problem.clusters]


def _ready(problem: ScheduleProblem, needs: list[int], done: int) -> list[int]:
    return [own for own, need in zip(problem.clusters, needs, strict=True) if not own & done and not need & ~done]


def _steps(problem: ScheduleProblem, states: tuple[int, ...]) -> Iterator[tuple[int, int]]:
    """Pairs of states that a stage connects, by index, ordered by the first of a pair."""
    if cluster_transitions(states) <= MOST_TRANSITIONS:
        masks = np.array(states, dtype=np.uint64)
        for before, mask in enumerate(masks):
            for after in np.flatnonzero((masks & mask) == mask).tolist():
                if after != before:
                    yield before, after
        return
    place, needs = {mask: index for index, mask in enumerate(states)}, _needs(problem)
    for before, done in enumerate(states):
        ready = _ready(problem, needs, done)
        for size in range(1, len(ready) + 1):
            for chosen in combinations(ready, size):
                yield before, place[done | sum(chosen)]


def _priced(
    problem: ScheduleProblem, cost_model: CostModel, space: StageSpace, merges: MergedStages, stages: list[int]
) -> dict[int, list[tuple[PlannedStage, int, float]]]:
    """Possible executions of each stage: the planned stage, its bit (1 for several groups), and its price."""
    ways: dict[int, list[tuple[PlannedStage, int, float]]] = {mask: [] for mask in stages}
    for mask, price_us in zip(merges.masks.tolist(), merges.prices_us.tolist(), strict=True):
        if mask in ways:
            ways[mask].append((PlannedStage(mask, Strategy.MERGE), 0, price_us))
    formed = [mask for mask in stages if (space.concurrent and space.holds(problem, mask)) or mask.bit_count() == 1]
    prices = cost_model.price_stages(StageBatch.concurrent(problem, np.array(formed, dtype=np.uint64)))
    for mask, price_us in zip(formed, prices.tolist(), strict=True):
        if isfinite(price_us):
            several = int(len(problem.groups(mask)) > 1)
            ways[mask].append((PlannedStage(mask, Strategy.CONCURRENT), several, price_us))
    return ways
