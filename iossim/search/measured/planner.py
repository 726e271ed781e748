"""The best path through the states of all blocks, at any prices of stages, planned repeatedly.

All :class:`Transitions` of a block are enumerated once: each new plan is then one pass over plain arrays. A transition
leads from a state by a stage to a later state (``lattice``). Transitions are sorted by state, and within a state by the
stage's bit: first stages of one group (merged ones last), then stages of several groups.

A path is planned backwards: ``ahead_us[b, state]`` is the least cost of all further stages after a stage of bit ``b``
(1 for several groups), with the boundary to the next stage. Backwards, the stages before a block do not matter: equal
blocks are swept once, and of the stages after them only the difference between the two bits counts.

From plan to plan few prices change, and most of these rise, since stages are priced optimistically before they are
measured. If none fell, a state is updated only if its best stage, or the cost after it, has risen.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from iossim.base.compiled import Floats, Integers, jit
from iossim.schedule.batch import StageBatch, Strategy, Variants
from iossim.schedule.problem import Masks, ScheduleProblem, bits
from iossim.search.counting import StageRules, StageWalk, find_stages, stage_walk
from iossim.search.lattice import Lattice
from iossim.search.options import StageSpace

#: Transitions that compiled code finds at a time: interrupts are handled only in between.
_AT_A_TIME = 1 << 20


@dataclass(frozen=True, eq=False)
class Transitions:
    """The transitions of one problem, and its distinct stages.

    ``begin[2 * state + bit]`` (int64, shape ``[2 * states + 1]``) is where the transitions of a state and a bit
    begin; ``target`` (int32) is the state that one leads to, ``stage`` (int32) its stage. ``masks`` and
    ``strategies`` are those of the distinct stages, in the order in which they are met, and ``variants`` the kernels of
    those that name any.
    """

    problem: ScheduleProblem
    begin: Integers
    target: NDArray[np.int32]
    stage: NDArray[np.int32]
    masks: Masks
    strategies: NDArray[np.uint8]
    variants: Variants | None = None

    @property
    def states(self) -> int:
        return len(self.begin) // 2

    def batch(self, stages: Integers | slice = slice(None)) -> StageBatch:
        """Some of the distinct stages."""
        varied = None
        if self.variants is not None and self.variants.chosen[stages].any():
            varied = Variants(self.variants.names, self.variants.chosen[stages])
        return StageBatch(self.problem, self.masks[stages], self.strategies[stages], varied)


def enumerate_transitions(problem: ScheduleProblem, lattice: Lattice, space: StageSpace, merges: Masks) -> Transitions:
    """All transitions in a space of stages, few enough for numbers of 32 bits; ``merges`` may merge."""
    states, targets, masks, bits_of = _walked(problem, lattice, space)
    distinct, first, numbers = np.unique(masks, return_index=True, return_inverse=True)
    met = np.argsort(first)
    rank = np.empty_like(met)
    rank[met] = np.arange(len(met))
    sources, ends, stages = [2 * states + bits_of], [targets], [rank[numbers.reshape(-1)]]
    for index, merge in enumerate(merges.tolist(), len(met)):
        able = np.flatnonzero(np.uint64(merge) & ~lattice.addable == 0)
        end = able
        for unit in bits(merge):
            end = lattice.child[end, unit].astype(np.int64)
        sources.append(2 * able)
        ends.append(end)
        stages.append(np.full(len(able), index))
    source = np.concatenate(sources)
    order = np.argsort(source, kind="stable")
    begin = np.concatenate([[0], np.cumsum(np.bincount(source, minlength=2 * len(lattice)))])
    target, stage = (np.concatenate(own)[order].astype(np.int32) for own in (ends, stages))
    strategies = np.repeat(np.array([Strategy.CONCURRENT.code, Strategy.MERGE.code], np.uint8), [len(met), len(merges)])
    return Transitions(problem, begin, target, stage, np.concatenate([distinct[met], merges]), strategies)


def _walked(
    problem: ScheduleProblem, lattice: Lattice, space: StageSpace
) -> tuple[Integers, Integers, Masks, Integers]:
    """State, target, stage and bit of each transition but those of merged stages, in the order of the walk."""
    rules, walk = StageRules.of(problem, lattice, space), stage_walk(len(problem))
    state, depth, found = 0, 0, []
    while state < len(lattice):
        numbers, masks = np.empty((3, _AT_A_TIME), dtype=np.int64), np.empty(_AT_A_TIME, dtype=np.uint64)
        state, depth, count = _walk_on(state, depth, rules, walk, numbers, masks)
        found.append((*numbers[:, :count], masks[:count]))
    states, targets, bits_of, masks = (np.concatenate(own) for own in zip(*found, strict=True))
    return states, targets, masks, bits_of


@jit
def _walk_on(
    state: int, depth: int, rules: StageRules, walk: StageWalk, numbers: Integers, masks: Masks
) -> tuple[int, int, int]:
    """Write transitions from a state and the depth that its walk has reached on, while there is room for them; returns
    the state and depth to go on from, and how many were written.
    """
    count = 0
    while state < len(rules.addable):
        while depth >= 0:
            if count + len(walk.stages) > len(masks):
                return state, depth, count
            found, depth = find_stages(state, depth, rules, walk)
            for index in range(found):
                numbers[0, count], numbers[1, count] = state, walk.targets[index]
                numbers[2, count] = 1 if walk.group_counts[index] > 1 else 0
                masks[count] = walk.stages[index]
                count += 1
        state += 1
        depth = 0
    return state, depth, count


@dataclass(frozen=True, slots=True)
class PathStep:
    """A stage on a path: the position of its problem, its number among the problem's distinct stages, and its bit."""

    position: int
    stage: int
    bit: int


@dataclass(frozen=True, slots=True)
class Path:
    """The cheapest path and its cost at the prices it was found with; ``inf`` and no steps if there is none."""

    cost_us: float
    steps: tuple[PathStep, ...]


@dataclass(eq=False)
class _Sweep:
    """The best ways through a block at ``prices_us``; arrays of shape ``[2, states]``, by bits.

    ``first_us[b]`` is the least cost from each state to the end if the next stage has bit ``b``, ``choice[b]`` the
    transition to take then; ``ahead_us[b]`` is what follows a stage of bit ``b`` that led there.
    """

    space: Transitions
    prices_us: Floats
    ahead_us: Floats
    first_us: Floats
    choice: Integers

    @staticmethod
    def of(space: Transitions, dearer_us: float) -> _Sweep:
        """Ways through a block none of whose stages can run yet.

        ``dearer_us``: the additional cost of all that follows the block if it ends in several groups.
        """
        shape = 2, space.states
        ahead_us, first_us = np.full((2, *shape), np.inf)
        ahead_us[:, -1] = 0.0, dearer_us
        return _Sweep(space, np.full(len(space.masks), np.inf), ahead_us, first_us, np.full(shape, -1, dtype=np.int64))

    def update(self, prices_us: Floats, boundary: Floats) -> None:
        """Update to new prices of stages."""
        space, rose = self.space, prices_us > self.prices_us
        fell = bool((prices_us < self.prices_us).any())
        if fell or rose.any():
            given = space.begin, space.target, space.stage, prices_us, boundary, rose, fell
            changed = np.zeros((2, space.states), dtype=np.bool_)
            _sweep(*given, self.ahead_us, self.first_us, self.choice, changed)
        self.prices_us = prices_us


class Planner:
    """Finds paths through a sequence of problems; ``order[i]`` is the index of the ``i``-th among the distinct ones."""

    def __init__(
        self, transitions: Sequence[Transitions], order: Sequence[int], boundary: Floats, concurrent: bool
    ) -> None:
        self._transitions = transitions
        self._order = order
        self._boundary = boundary
        # If the last stage always has one group, the cost after the block does not depend on the bit.
        self._ends_single = [not concurrent or one.problem.one_sink for one in transitions]
        self._swept: dict[tuple[int, float], _Sweep] = {}

    def anew(self) -> Planner:
        """The same planner without the results of earlier plans."""
        fresh = copy(self)
        fresh._swept = {}
        return fresh

    def best(self, prices_us: Sequence[Floats]) -> Path:
        """The cheapest path; ``prices_us[p]`` are the prices of the stages of problem ``p``, ``inf`` to bar one.

        The arrays are kept until the next call, and must not change until then.
        """
        chosen: list[_Sweep] = []
        used: dict[tuple[int, float], _Sweep] = {}
        after_us = np.zeros(2)  # cost after a block, by the bit of its last stage
        for index in reversed(self._order):
            if not np.isfinite(after_us[0]):
                return Path(np.inf, ())
            dearer_us = np.inf if self._ends_single[index] else float(after_us[1] - after_us[0])
            key = index, dearer_us
            if key not in used:
                known = self._swept.pop(key, None)
                used[key] = known or _Sweep.of(self._transitions[index], dearer_us)
                used[key].update(prices_us[index], self._boundary)
            chosen.append(used[key])
            first_us = after_us[0] + used[key].first_us[:, 0]
            after_us = (self._boundary + first_us[None, :]).min(axis=1)
        self._swept = used
        cost_us = float(first_us.min())
        if not np.isfinite(cost_us):
            return Path(np.inf, ())
        chosen.reverse()
        return Path(cost_us, tuple(self._walk(chosen)))

    def cost_us(self, steps: Sequence[PathStep], prices_us: Sequence[float]) -> float:
        """Total cost of steps of these prices, including the boundaries between them."""
        total_us = sum(prices_us)
        for before, after in pairwise(steps):
            total_us += float(self._boundary[before.bit, after.bit])
        return total_us

    def _walk(self, chosen: Sequence[_Sweep]) -> list[PathStep]:
        steps: list[PathStep] = []
        for position, sweep in enumerate(chosen):
            state = 0
            while state < sweep.space.states - 1:
                entering_us = sweep.first_us[:, state] + (self._boundary[steps[-1].bit] if steps else 0.0)
                bit = int(np.argmin(entering_us))
                transition = int(sweep.choice[bit, state])
                steps.append(PathStep(position, int(sweep.space.stage[transition]), bit))
                state = int(sweep.space.target[transition])
        return steps


@jit
def _sweep(
    begin: Integers,
    target: NDArray[np.int32],
    stage: NDArray[np.int32],
    prices_us: Floats,
    boundary: Floats,
    rose: NDArray[np.bool_],
    fell: bool,
    ahead_us: Floats,
    first_us: Floats,
    choice: Integers,
    changed: NDArray[np.bool_],
) -> None:
    """Fill or correct the arrays of :class:`_Sweep` from the last state to the first.

    ``fell``: some price fell; ``rose`` marks those that rose. ``changed`` is scratch, all False.
    """
    for state in range(ahead_us.shape[1] - 2, -1, -1):
        looked = False
        for bit in range(2):
            at = choice[bit, state]
            # Prices only rose: a state whose best path costs the same is unchanged, and so is one without a path.
            if not fell and (at < 0 or not (rose[stage[at]] or changed[bit, target[at]])):
                continue
            looked = True
            least = np.inf
            at = -1
            for index in range(begin[2 * state + bit], begin[2 * state + bit + 1]):
                cost = prices_us[stage[index]] + ahead_us[bit, target[index]]
                if cost < least:
                    least = cost
                    at = index
            first_us[bit, state] = least
            choice[bit, state] = at
        if looked:
            for before in range(2):
                best = min(boundary[before, 0] + first_us[0, state], boundary[before, 1] + first_us[1, state])
                changed[before, state] = best != ahead_us[before, state]
                ahead_us[before, state] = best
