"""All transitions of a block, enumerated once: each new plan is then one pass over plain arrays.

A transition leads from a state by a stage to a later state (``lattice``). Transitions are sorted by state, and within
a state by the stage's bit: first stages of one group (merged ones last), then stages of several groups.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from iossim.base.compiled import jit
from iossim.schedule.batch import StageBatch, Strategy, Variants
from iossim.schedule.masks import find_slot, lowest_bit
from iossim.schedule.problem import Masks, ScheduleProblem
from iossim.search.counting import StageRules, StageWalk, find_stages, stage_walk
from iossim.search.lattice import Lattice
from iossim.search.options import StageSpace


@dataclass(frozen=True, eq=False)
class Transitions:
    """The transitions of one problem, and its distinct stages.

    ``begin[2 * state + bit]`` (int64, shape ``[2 * states + 1]``) is where the transitions of a state and a bit
    begin; ``target`` (int32) is the state that one leads to, ``stage`` (int32) its stage. ``masks`` and
    ``strategies`` are those of the distinct stages, in the order in which they are met, and ``variants`` the kernels of
    those that name any.
    """

    problem: ScheduleProblem
    begin: NDArray[np.int64]
    target: NDArray[np.int32]
    stage: NDArray[np.int32]
    masks: Masks
    strategies: NDArray[np.uint8]
    variants: Variants | None = None

    @property
    def states(self) -> int:
        return len(self.begin) // 2

    def batch(self, stages: NDArray[np.int64] | slice = slice(None)) -> StageBatch:
        """Some of the distinct stages."""
        varied = None
        if self.variants is not None and self.variants.chosen[stages].any():
            varied = Variants(self.variants.names, self.variants.chosen[stages])
        return StageBatch(self.problem, self.masks[stages], self.strategies[stages], varied)


def enumerate_transitions(problem: ScheduleProblem, lattice: Lattice, space: StageSpace, merges: Masks) -> Transitions:
    """All transitions in a space of stages, few enough to be numbered by 32 bits; ``merges`` may merge."""
    arguments = StageRules.of(problem, lattice, space), stage_walk(len(problem)), merges
    begin = np.zeros(2 * len(lattice) + 1, dtype=np.int64)
    nothing = np.empty(0, dtype=np.int32)
    total: int = _enumerate(*arguments, begin, nothing, nothing, np.empty(0, dtype=np.uint64), nothing)
    target, stage = np.empty(total, dtype=np.int32), np.empty(total, dtype=np.int32)
    size = 1 << 12
    while True:
        keys, numbers = np.zeros(size, dtype=np.uint64), np.empty(size, dtype=np.int32)
        found = _enumerate(*arguments, begin, target, stage, keys, numbers)
        if found >= 0:
            break
        size *= 4
    masks = np.empty(found + len(merges), dtype=np.uint64)
    used = keys != 0
    masks[numbers[used]] = keys[used]
    masks[found:] = merges
    strategies = np.full(len(masks), Strategy.CONCURRENT.code, dtype=np.uint8)
    strategies[found:] = Strategy.MERGE.code
    # Merged stages were numbered from the end, since the number of others was not known.
    stage[stage < 0] += np.int32(len(masks))
    return Transitions(problem, begin, target, stage, masks, strategies)


@jit
def _enumerate(
    rules: StageRules,
    walk: StageWalk,
    merges: Masks,
    begin: NDArray[np.int64],
    target: NDArray[np.int32],
    stage_number: NDArray[np.int32],
    keys: Masks,
    numbers: NDArray[np.int32],
) -> int:
    """Count the transitions into ``begin`` (without ``keys``), or write them.

    Counting returns their number. Writing returns the number of distinct stages other than merged ones; -1 if their
    table (``keys`` and ``numbers``) is more than half full.
    """
    addable, child = rules.addable, rules.child
    counting = len(keys) == 0
    place = np.zeros(2, dtype=np.int64)
    distinct = 0
    transitions = 0
    for state in range(len(addable)):
        if counting:
            place[0] = place[1] = 0
        else:
            place[0], place[1] = begin[2 * state], begin[2 * state + 1]
        depth = 0
        while depth >= 0:
            found, depth = find_stages(state, depth, rules, walk)
            for index in range(found):
                bit = 1 if walk.group_counts[index] > 1 else 0
                if not counting:
                    mask = walk.stages[index]
                    slot = find_slot(mask, keys)
                    if keys[slot] == 0:
                        if 2 * distinct >= len(keys):
                            return -1
                        keys[slot] = mask
                        numbers[slot] = distinct
                        distinct += 1
                    target[place[bit]] = walk.targets[index]
                    stage_number[place[bit]] = numbers[slot]
                place[bit] += 1
        for index in range(len(merges)):
            if merges[index] & ~addable[state]:
                continue
            if not counting:
                end = np.int64(state)
                rest = merges[index]
                while rest:
                    end = np.int64(child[end, lowest_bit(rest)])
                    rest &= rest - np.uint64(1)
                target[place[0]] = end
                stage_number[place[0]] = index - len(merges)
            place[0] += 1
        if counting:
            begin[2 * state + 1] = transitions + place[0]
            transitions += int(place[0] + place[1])
            begin[2 * state + 2] = transitions
    return transitions if counting else distinct
