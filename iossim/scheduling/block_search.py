"""The best schedule of one block: dynamic programming over its states, with branch and bound where bounds are known.

Forward over the lattice of states: from each state every stage leads to a later state; the cheapest path from nothing
done to all done is the optimal schedule (IOS thesis, figure 3.3, read from the other end). Stages are priced in batches,
each distinct one once. With lower bounds from the cost model the search stays exact and leaves most of it out:

1. a narrow beam search gives a schedule, hence an upper bound;
2. a state is dropped when its cost and the least cost of what is left reach that bound;
3. a stage is priced only if its own lower bound leaves the path a chance, both to improve the state that it leads to and
   to end below the upper bound.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from iossim.cost.model import CostModel, Prices, StageBounds
from iossim.cost.path import START
from iossim.schedule.batch import StageBatch
from iossim.schedule.hash_table import GrowingTable
from iossim.schedule.planned_stage import PlannedStage
from iossim.schedule.problem import ScheduleProblem
from iossim.schedule.strategy import Strategy
from iossim.scheduling.lattice import Lattice
from iossim.scheduling.merges import MergedStages, bounds_with_merges
from iossim.scheduling.options import StageSpace
from iossim.scheduling.relaxation import (
    PROPOSAL,
    Floats,
    Integers,
    Labels,
    bound_cost_to_go,
    propose,
    relax,
    relax_merges,
)

#: Paths that differ by less than this fraction count as equal: rounding, not scheduling.
RELATIVE_TOLERANCE = 1e-9
#: How many states of a level the beam keeps, pass by pass; each pass starts from the bound of the one before.
BEAM_WIDTHS = (1, 4)
#: What compiled code does at one go takes a tenth of a second or so: only in between an interrupt is heard.
_PRICED_AT_A_TIME = 1 << 16
_MERGES_AT_A_TIME = 20_000_000


@dataclass(frozen=True, slots=True)
class BlockPath:
    """A schedule of one block and the sum of its stage prices and of the boundaries before its stages."""

    cost_us: float
    stages: tuple[PlannedStage, ...]


@dataclass(frozen=True, slots=True)
class BlockSolution:
    """The best path for each bit of the last stage (a single group, several groups); None where there is none.

    A path that cannot be part of an optimal schedule of the network, whatever follows the block, may be missing.
    """

    single: BlockPath | None
    concurrent: BlockPath | None
    priced_stages: int
    complete: bool = True


def solve_block(
    problem: ScheduleProblem,
    lattice: Lattice,
    cost_model: CostModel,
    space: StageSpace,
    merges: MergedStages,
    *,
    concurrent: bool,
    entry: int,
    bounds: StageBounds | None,
    progress: Callable[[int], None] = lambda units: None,
) -> BlockSolution:
    """Find the cheapest schedules of a block after a stage of bit ``entry`` (or :data:`START`).

    ``concurrent``: may a stage run several groups? ``bounds``: of the concurrent stages, None to search without.
    ``progress`` is told how many units are done in the states that are looked at. A KeyboardInterrupt ends the search with the
    best path found so far, marked as not complete; it goes on where there is none yet.
    """
    search = _Search(problem, lattice, cost_model, space, merges, concurrent, entry, bounds)
    try:
        for beam in BEAM_WIDTHS if bounds is not None else ():
            search.run(beam)
        search.run(None, progress)
    except KeyboardInterrupt:
        if not np.isfinite(search.labels.cost[-1]).any():
            raise
        return search.solution(complete=False)
    return search.solution(complete=True)


class _Search:
    """The arrays of one block's search; ``run`` sweeps the levels, narrow or whole."""

    def __init__(
        self,
        problem: ScheduleProblem,
        lattice: Lattice,
        cost_model: CostModel,
        space: StageSpace,
        merges: MergedStages,
        concurrent: bool,
        entry: int,
        bounds: StageBounds | None,
    ) -> None:
        states, count = len(lattice), len(problem)
        self.problem, self.lattice, self.cost_model, self.space = problem, lattice, cost_model, space
        self.merges, self.concurrent = merges, concurrent
        self.boundary = np.array([[cost_model.price_boundary(bool(i), bool(j)) for j in range(2)] for i in range(2)])
        self.bounds = bounds or StageBounds(np.zeros(count), np.zeros(count), np.zeros((count, 1)))
        # By how much the other bit may be dearer behind a state, whatever follows: a label that costs that much more
        # than the other bit's is of no use.
        dearer = self.boundary[::-1] - self.boundary
        self.tolerance = np.maximum(0.0, dearer.max(axis=1))
        self.entry = entry
        self.labels = Labels(
            cost=np.full((states, 2), np.inf),
            cost_to_go=self._cost_to_go(),
            parent=np.full((states, 2), -1, dtype=np.int32),
            parent_bit=np.zeros((states, 2), dtype=np.int8),
            stage=np.zeros((states, 2), dtype=np.uint64),
            strategy=np.zeros((states, 2), dtype=np.uint8),
        )
        self.labels.cost[0, 1 if entry == 1 else 0] = 0.0
        self.known = GrowingTable()
        self.proposals = np.empty(1 << 15, dtype=PROPOSAL)

    def run(self, beam: int | None, progress: Callable[[int], None] = lambda units: None) -> None:
        """Sweep the levels once, keeping the ``beam`` most promising states of each (None: all that may matter)."""
        for level, states in self._levels(beam):
            progress(level)
            if len(self.merges.masks):
                self._relax_merges(states)
            self._relax_concurrent(states)

    def solution(self, complete: bool) -> BlockSolution:
        paths = [self._path(bit) if np.isfinite(self.labels.cost[-1, bit]) else None for bit in range(2)]
        return BlockSolution(paths[0], paths[1], self.known.used + len(self.merges.masks), complete)

    @property
    def upper_us(self) -> float:
        """What a path must cost less than to matter: the best so far, or more by what the bit that it ends in is worth."""
        best = float(self.labels.cost[-1].min())
        spread = 0.0 if self.problem.one_sink or not self.concurrent else float(self.tolerance.max())
        return best * (1 - RELATIVE_TOLERANCE) + spread

    def _levels(self, beam: int | None) -> Iterator[tuple[int, Integers]]:
        begins = self.lattice.level_begin
        for level in range(len(self.problem)):
            states = np.arange(begins[level], begins[level + 1])
            promise = (self.labels.cost[states] + self.labels.cost_to_go[states]).min(axis=1)
            states = states[promise < self.upper_us]
            if beam is not None and len(states) > beam:
                promise = promise[promise < self.upper_us]
                states = np.sort(states[np.argsort(promise, kind="stable")[:beam]])
            if len(states):
                yield level, states

    def _relax_concurrent(self, states: Integers) -> None:
        position = filled = 0
        boundary = self._boundary_behind(states)
        while position < len(states):
            position, filled, full = propose(
                states,
                position,
                self.lattice.addable,
                self.lattice.child,
                self.problem.predecessors,
                self.bounds.serial_us,
                self.bounds.single_us,
                self.bounds.work_us,
                self.labels,
                boundary,
                self.tolerance,
                self.upper_us,
                *self.space.walk_limits(len(self.problem), self.concurrent),
                self.proposals,
                filled,
            )
            if full and not filled:
                self.proposals = np.empty(2 * len(self.proposals), dtype=PROPOSAL)
            elif full or position == len(states):
                self._price(filled)
                relax(self.proposals, filled, self.known.table, self.labels)
                filled = 0

    def _boundary_behind(self, states: Integers) -> Floats:
        """Boundaries behind the states of a level; nothing stands before the first stage of a network."""
        return np.zeros((2, 2)) if states[0] == 0 and self.entry == START else self.boundary

    def _price(self, filled: int) -> None:
        stages = self.proposals["stage"][:filled]
        unpriced = stages[self.known.unknown(stages)]
        for begin in range(0, len(unpriced), _PRICED_AT_A_TIME):
            masks = unpriced[begin : begin + _PRICED_AT_A_TIME]
            prices: Prices = self.cost_model.price_stages(StageBatch.concurrent(self.problem, masks))
            self.known.enter(masks, prices)

    def _relax_merges(self, states: Integers) -> None:
        boundary = self._boundary_behind(states)
        at_a_time = max(1, _MERGES_AT_A_TIME // len(self.merges.masks))
        for begin in range(0, len(states), at_a_time):
            relax_merges(
                states[begin : begin + at_a_time],
                self.lattice.addable,
                self.lattice.child,
                self.merges.masks,
                self.merges.prices_us,
                boundary,
                self.labels,
            )

    def _cost_to_go(self) -> Floats:
        """Lower bounds of what follows each label, ``[states, 2]``.

        Either all that follows runs in stages of one group, or some stage runs several: then at least one boundary of
        that kind comes on top.
        """
        bounds = bounds_with_merges(self.bounds, self.problem, self.merges)
        any_us, one_us = bound_cost_to_go(
            self.lattice.masks,
            np.uint64(self.problem.full),
            bounds.serial_us,
            bounds.single_us,
            bounds.work_us,
            self.problem.successors,
        )
        leaving_us = float(self.boundary[1].min())
        entering_us = float(self.boundary[0, 1]) + (leaving_us if self.problem.one_sink else 0.0)
        if not self.concurrent:
            cost_to_go = np.stack([one_us, one_us], axis=1)
        else:
            cost_to_go = np.stack([np.minimum(one_us, any_us + entering_us), any_us + leaving_us], axis=1)
        cost_to_go[0] = 0.0  # what stands before the first stage depends on the entry; this label is never dropped
        cost_to_go[-1] = 0.0
        return cost_to_go

    def _path(self, bit: int) -> BlockPath:
        stages: list[PlannedStage] = []
        cost_us = float(self.labels.cost[-1, bit])
        state = len(self.lattice) - 1
        while state > 0:
            stages.append(
                PlannedStage(
                    int(self.labels.stage[state, bit]), Strategy.of_code(int(self.labels.strategy[state, bit]))
                )
            )
            state, bit = int(self.labels.parent[state, bit]), int(self.labels.parent_bit[state, bit])
        return BlockPath(cost_us, tuple(reversed(stages)))
