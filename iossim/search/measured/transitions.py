"""All transitions of a block, enumerated once: each new plan is then one pass over plain arrays.

A transition leads from a state by a stage to a later state (``lattice``). Transitions are sorted by state, and within
a state by the stage's bit: first stages of one group (merged ones last), then stages of several groups.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from iossim.base.compiled import Integers, jit
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
