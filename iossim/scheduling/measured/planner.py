"""The best path through the states of all blocks, at any prices of stages: one pass over the transitions.

Backwards: ``ahead[state]`` is the least cost of what is still to come, with the boundary to the next stage, one for each bit of
the stage before (did it run several groups?). Backwards, since then what comes before a block does not matter: equal blocks
are swept once, and what follows them counts only by how much dearer it is behind several groups than behind one.

From plan to plan most prices stay, or rise. A block whose best stages cost what they did, and none of whose others became
cheaper, is not swept again: what was found for it still is a lower bound of each path, so that a path that costs no
more than its bound is the best. If one costs more, all blocks are swept.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from iossim.compiled import jit
from iossim.scheduling.block_search import RELATIVE_TOLERANCE
from iossim.scheduling.measured.transitions import Transitions

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Step:
    """A stage on a path: which of the sequence of problems, the number of one of its distinct stages, and its bit."""

    position: int
    stage: int
    bit: int


@dataclass(frozen=True, slots=True)
class Path:
    """The cheapest path and what it costs at the prices that it was found with; ``inf`` and no steps if there is none."""

    cost_us: float
    steps: tuple[Step, ...]


@dataclass(frozen=True, eq=False)
class _Sweep:
    """The best ways through a block at ``prices_us``. For each bit of the first stage: the least cost, ``first_us``, and
    the numbers of the stages with the bits of each, ``ways``, shape ``[stages, 2]``."""

    prices_us: Floats
    first_us: Floats
    ways: tuple[Integers, Integers]

    def still_holds(self, prices_us: Floats) -> bool:
        """Whether no stage became cheaper, and the best ones cost what they did."""
        if prices_us is self.prices_us:
            return True
        best = np.concatenate(self.ways)[:, 0]
        if not np.array_equal(prices_us[best], self.prices_us[best]):
            return False
        return not bool((prices_us < self.prices_us).any())


class Planner:
    """Finds paths through a sequence of problems; ``order[i]`` is the index of the ``i``-th among the distinct ones."""

    def __init__(
        self, transitions: Sequence[Transitions], order: Sequence[int], boundary: Floats, concurrent: bool
    ) -> None:
        self._transitions = transitions
        self._order = order
        self._boundary = boundary
        # Where the last stage has one group in any case, what follows is the same whichever bit it asks for.
        self._ends_single = [not concurrent or one.problem.one_sink for one in transitions]
        self._swept: dict[tuple[int, float], _Sweep] = {}

    def best(self, prices_us: Sequence[Floats]) -> Path:
        """The cheapest path; ``prices_us[p]`` are the prices of the distinct stages of problem ``p``, ``inf`` to bar one."""
        path = self._find(prices_us)
        own_us = [float(prices_us[self._order[step.position]][step.stage]) for step in path.steps]
        if path.steps and self.cost_us(path.steps, own_us) <= path.cost_us * (1 + RELATIVE_TOLERANCE):
            return path
        self._swept.clear()
        return self._find(prices_us)

    def cost_us(self, steps: Sequence[Step], prices_us: Sequence[float]) -> float:
        """What steps of these prices cost together, with the boundaries between them."""
        total_us = sum(prices_us)
        for before, after in pairwise(steps):
            total_us += float(self._boundary[before.bit, after.bit])
        return total_us

    def _find(self, prices_us: Sequence[Floats]) -> Path:
        chosen: list[_Sweep] = []
        used: dict[tuple[int, float], _Sweep] = {}
        behind_us = np.zeros(2)  # the cost of all that follows a block that ends in a stage of each bit
        for index in reversed(self._order):
            if not np.isfinite(behind_us[0]):
                return Path(np.inf, ())
            dearer_us = np.inf if self._ends_single[index] else float(behind_us[1] - behind_us[0])
            key = index, dearer_us
            if key not in used:
                known = self._swept.get(key)
                holds = known is not None and known.still_holds(prices_us[index])
                used[key] = known if known is not None and holds else self._sweep(index, prices_us[index], dearer_us)
            chosen.append(used[key])
            first_us = behind_us[0] + used[key].first_us
            behind_us = (self._boundary + first_us[None, :]).min(axis=1)
        self._swept = used
        cost_us = float(first_us.min())
        if not np.isfinite(cost_us):
            return Path(np.inf, ())
        chosen.reverse()
        return Path(cost_us, tuple(self._walk(chosen)))

    def _sweep(self, index: int, prices_us: Floats, dearer_us: float) -> _Sweep:
        space = self._transitions[index]
        ahead = np.empty((2, space.states))
        ahead[:, -1] = 0.0, dearer_us
        first_us = np.empty(2)
        arrays = (space.begin, space.target, space.stage, prices_us, self._boundary)
        _sweep(*arrays, ahead[0], ahead[1], first_us)
        ways = [np.empty((len(space.problem), 2), dtype=np.int64) for _ in range(2)]
        lengths = [_follow(*arrays, ahead, bit, way) for bit, way in enumerate(ways)]
        return _Sweep(prices_us, first_us, (ways[0][: lengths[0]], ways[1][: lengths[1]]))

    def _walk(self, chosen: Sequence[_Sweep]) -> list[Step]:
        steps: list[Step] = []
        for position, sweep in enumerate(chosen):
            entering_us = sweep.first_us + (self._boundary[steps[-1].bit] if steps else 0.0)
            for stage, bit in sweep.ways[int(np.argmin(entering_us))].tolist():
                steps.append(Step(position, stage, bit))
        return steps


@jit
def _sweep(
    begin: Integers,
    target: NDArray[np.int32],
    stage: NDArray[np.int32],
    prices_us: Floats,
    boundary: Floats,
    ahead_single: Floats,
    ahead_several: Floats,
    first_us: Floats,
) -> None:
    """Fill ``ahead`` from its last entries to its first; ``first_us[bit]``: the least cost if the first stage has that bit."""
    for state in range(len(ahead_single) - 2, -1, -1):
        single = np.inf
        for index in range(begin[2 * state], begin[2 * state + 1]):
            single = min(single, prices_us[stage[index]] + ahead_single[target[index]])
        several = np.inf
        for index in range(begin[2 * state + 1], begin[2 * state + 2]):
            several = min(several, prices_us[stage[index]] + ahead_several[target[index]])
        ahead_single[state] = min(boundary[0, 0] + single, boundary[0, 1] + several)
        ahead_several[state] = min(boundary[1, 0] + single, boundary[1, 1] + several)
        first_us[0], first_us[1] = single, several


@jit
def _follow(
    begin: Integers,
    target: NDArray[np.int32],
    stage: NDArray[np.int32],
    prices_us: Floats,
    boundary: Floats,
    ahead: Floats,
    bit: int,
    way: Integers,
) -> int:
    """The best way whose first stage has ``bit``: its stages and their bits into ``way``; returns how many there are."""
    state = np.int64(0)
    count = 0
    while state < ahead.shape[1] - 1:
        least = np.inf
        at = np.int64(-1)
        for index in range(begin[2 * state + bit], begin[2 * state + bit + 1]):
            cost = prices_us[stage[index]] + ahead[bit, target[index]]
            if cost < least:
                least = cost
                at = index
        if at < 0:
            return 0
        way[count, 0], way[count, 1] = stage[at], bit
        count += 1
        state = np.int64(target[at])
        if state == ahead.shape[1] - 1:
            break
        # The next stage's bit is the cheaper one.
        nexts = np.full(2, np.inf)
        for other in range(2):
            for index in range(begin[2 * state + other], begin[2 * state + other + 1]):
                nexts[other] = min(nexts[other], prices_us[stage[index]] + ahead[other, target[index]])
        bit = 0 if boundary[bit, 0] + nexts[0] <= boundary[bit, 1] + nexts[1] else 1
    return count
