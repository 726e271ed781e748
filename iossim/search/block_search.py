"""The best schedule of one block: dynamic programming over its states that prices few stages.

The recurrence of Algorithm 1: a state's best schedule is one of its *endings* as last stage, after the best schedule
of the units before,

    cost(S) = min over endings T of S: cost(S - T) + boundary + price(T).

States are settled level by level (units done), so that everything before is known. Endings are priced in batches,
each distinct stage once. With lower bounds from the cost model most need no price: an ending matters only if its
source's cost and its lower bound stay below the best that is known of the state. That begins as the best with a
single unit as last stage, and falls as the endings of the least bounds are priced.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np

from iossim.base.errors import ignore
from iossim.cost.capabilities import LimitedCostModel
from iossim.cost.model import START, CostModel, Prices, StageBounds
from iossim.schedule.batch import StageBatch, Strategy
from iossim.schedule.masks import GrowingTable
from iossim.schedule.planned_stage import PlannedStage
from iossim.schedule.problem import Masks
from iossim.search.block_parts import Part
from iossim.search.endings import (
    Endings,
    Labels,
    StateGraph,
    find_endings,
    leave,
    pick,
    relax,
    relax_known,
    relax_neighbours,
    summed_bounds,
)
from iossim.search.lattice import MergedStages

#: The endings with the least bounds are priced next: up to this fraction of the way to the best known cost.
PRICED_FRACTION = 0.75
#: Up to this many endings are priced at once, since several requests take longer.
PRICED_TOGETHER = 2048
#: A call of compiled code takes about a tenth of a second, since interrupts are handled only between two calls.
_PRICED_AT_A_TIME = 1 << 16
_RELAXED_AT_A_TIME = 20_000_000

#: Told how many units of a block are done, in the states that are settled now.
UnitProgress = Callable[[int], None]


@dataclass(frozen=True, slots=True)
class BlockPath:
    """A schedule of one block and the sum of its stage prices and of the boundaries before its stages."""

    cost_us: float
    stages: tuple[PlannedStage, ...]


@dataclass(frozen=True, slots=True)
class BlockSolution:
    """The best path by the bit of the last stage (0 for a single group, 1 for several); None where there is none.

    A path that cannot be part of an optimal schedule of the network, whatever follows the block, may be missing.
    ``endings`` counts the pairs of states that bounds did not rule out.
    """

    paths: tuple[BlockPath | None, BlockPath | None]
    priced_stages: int
    endings: int


def solve_block(part: Part, cost_model: CostModel, *, entry: int, progress: UnitProgress = ignore) -> BlockSolution:
    """Find the cheapest schedules of a block after a stage of bit ``entry`` (or :data:`START`).

    Without bounds of the cost model every stage is priced. A KeyboardInterrupt ends the search: paths are whole only
    when all states are settled.
    """
    search = _Search(part, cost_model, entry)
    search.run(progress)
    priced_stages = search.known.used + len(part.merges.masks)
    return BlockSolution((search.path(0), search.path(1)), priced_stages, search.looked_at)


class _Search:
    """The arrays of one block's search; ``run`` settles all states, level by level."""

    def __init__(self, part: Part, cost_model: CostModel, entry: int) -> None:
        problem, lattice, bounds = part.problem, part.lattice, cost_model.bounds(part.problem)
        count = len(problem)
        self.problem, self.lattice, self.cost_model = problem, lattice, cost_model
        self.merges, self.entry = part.merges, entry
        self.limited = cost_model if isinstance(cost_model, LimitedCostModel) else None
        self.bounded = bounds is not None
        self.bounds = summed_bounds(bounds or StageBounds(np.zeros(count), np.zeros(count), np.zeros((count, 0))))
        self.graph = StateGraph.of(problem, lattice, part.space)
        self.boundary = np.array([[cost_model.price_boundary(bool(i), bool(j)) for j in range(2)] for i in range(2)])
        # A label may cost this much more than the state's other one, and be part of the best schedule for its boundary.
        self.labels = Labels.of(len(lattice), np.maximum(0.0, (self.boundary[::-1] - self.boundary).max(axis=1)))
        self.known = GrowingTable()
        self.endings = Endings.room(1 << 17)
        self.looked_at = 0

    def run(self, progress: UnitProgress) -> None:
        self.labels.cost[0, self.entry % START] = 0.0
        # Nothing stands before the first stage of a network.
        leave(0, 1, np.zeros((2, 2)) if self.entry == START else self.boundary, self.labels)
        units = StageBatch.alone(self.problem)
        alone = MergedStages(units.masks, self.cost_model.price_stages(units))
        self.known.unknown(alone.masks, alone.prices_us.copy())
        self.known.enter(alone.masks, alone.prices_us)
        for level in range(1, len(self.problem) + 1):
            progress(level - 1)
            begin, end = self.lattice.level_begin[level : level + 2].tolist()
            self._relax_known(begin, end, self.merges, Strategy.MERGE)
            self._relax_known(begin, end, alone, Strategy.CONCURRENT)
            if (self.graph.max_group_size, self.graph.max_groups) != (1, 1):  # else there are no stages but those
                if self.bounded:
                    relax_neighbours(begin, end, self.lattice.down, self.known.table, self.labels)
                self._settle(begin, end, partial(progress, level - 1))
            leave(begin, end, self.boundary, self.labels)

    def _settle(self, begin: int, end: int, still_here: Callable[[], None]) -> None:
        """Find the best endings of the states of a level; ``still_here`` is called a few times a second."""
        position, filled = begin, 0
        while position < end:
            still_here()
            given = self.graph, self.bounds, self.labels, self.bounded, self.known.table, self.endings
            position, filled, full = find_endings(position, end, *given, filled)
            if full and not filled:
                self.endings = Endings.room(2 * len(self.endings.stage))
            elif full or position == end:
                self._relax(filled, begin, end)
                filled = 0

    def _relax(self, filled: int, begin: int, end: int) -> None:
        """Price endings of the states of a level as far as they may matter."""
        self.looked_at += filled
        if not self.bounded:
            self._price(self.endings.stage[:filled], np.full(filled, np.inf))
            relax(self.endings, filled, self.known.table, self.labels)
            return
        picked = Endings.room(filled)
        limits_us = np.empty(filled)
        while filled:
            state = self.endings, filled, self.labels, begin, end
            filled, found = pick(*state, PRICED_FRACTION, PRICED_TOGETHER, picked, limits_us)
            self._price(picked.stage[:found], limits_us[:found])
            relax(picked, found, self.known.table, self.labels)

    def _price(self, stages: Masks, limits_us: Prices) -> None:
        unknown = self.known.unknown(stages, limits_us)
        for begin in range(0, len(unknown), _PRICED_AT_A_TIME):
            places = unknown[begin : begin + _PRICED_AT_A_TIME]
            batch = StageBatch.concurrent(self.problem, stages[places])
            limited = self.limited
            below = limited.price_below(batch, limits_us[places]) if limited else self.cost_model.price_stages(batch)
            self.known.enter(batch.masks, below)

    def _relax_known(self, begin: int, end: int, stages: MergedStages, strategy: Strategy) -> None:
        at_a_time = max(1, _RELAXED_AT_A_TIME // max(1, len(stages.masks)))
        given = self.lattice.down, stages.masks, stages.prices_us, strategy.code, self.labels
        for first in range(begin, end, at_a_time):
            relax_known(first, min(end, first + at_a_time), *given)

    def path(self, bit: int) -> BlockPath | None:
        """Best path whose last stage has this bit."""
        stages: list[PlannedStage] = []
        labels, state = self.labels, len(self.lattice) - 1
        cost_us = float(labels.cost[state, bit])
        if cost_us == np.inf:
            return None
        while state > 0:
            strategy = Strategy.of_code(int(labels.strategy[state, bit]))
            stages.append(PlannedStage(int(labels.stage[state, bit]), strategy))
            before = int(labels.parent[state, bit])
            state, bit = before, int(labels.leaving_bit[before, bit])
        return BlockPath(cost_us, tuple(reversed(stages)))
