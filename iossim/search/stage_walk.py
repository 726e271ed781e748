"""All stages that may follow a state, for compiled code that goes through the states."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from iossim.base.compiled import jit
from iossim.schedule.masks import count_bits, lowest_bit
from iossim.schedule.problem import Masks

#: Stages are handed over so many at a time: one by one, handing over takes longer than growing them.
_AT_A_TIME = 256


class StageWalk(NamedTuple):
    """Where a walk is, by depth, and what it found last: stages, the states that they lead to, their numbers of groups."""

    at: NDArray[np.int64]
    mask: Masks
    choices: Masks
    groups: Masks
    group_count: NDArray[np.int64]
    stages: Masks
    targets: NDArray[np.int64]
    group_counts: NDArray[np.int64]


def stage_walk(units: int) -> StageWalk:
    """Room for walks through the stages of a problem of that many units."""
    depths = units + 1
    return StageWalk(
        np.zeros(depths, dtype=np.int64),
        np.zeros(depths, dtype=np.uint64),
        np.zeros(depths, dtype=np.uint64),
        np.zeros((depths, depths), dtype=np.uint64),
        np.zeros(depths, dtype=np.int64),
        np.empty(_AT_A_TIME, dtype=np.uint64),
        np.empty(_AT_A_TIME, dtype=np.int64),
        np.empty(_AT_A_TIME, dtype=np.int64),
    )


@jit
def find_stages(
    state: int,
    depth: int,
    addable: Masks,
    child: NDArray[np.int32],
    predecessors: Masks,
    max_group_size: int,
    max_groups: int,
    single_root: bool,
    walk: StageWalk,
) -> tuple[int, int]:
    """Find the next stages that a state may continue with; returns how many, and the depth to go on from, -1 at the end.

    ``depth`` is 0 to begin with. A stage is grown unit by unit in ascending order, so that each is met once. Its groups are
    its connected components; a component only grows as units are added, so one that is too large, or that has two roots
    where one is allowed, ends the branch.
    """
    at, mask, choices, groups, group_count, stages, targets, group_counts = walk
    if depth == 0:
        at[0], choices[0] = state, addable[state]
    found = 0
    while depth >= 0:
        rest = choices[depth]
        if rest == 0:
            depth -= 1
            continue
        choices[depth] = rest & (rest - np.uint64(1))
        unit = lowest_bit(rest)
        bit = np.uint64(1) << np.uint64(unit)
        joined, kept, merged = _join_groups(predecessors[unit], bit, groups, group_count, depth)
        if count_bits(joined) > max_group_size or (single_root and (merged > 1 or kept >= max_groups)):
            continue
        depth += 1
        at[depth] = child[at[depth - 1], unit]
        mask[depth] = mask[depth - 1] | bit
        group_count[depth] = kept + 1
        choices[depth] = addable[at[depth]] & ~((bit << np.uint64(1)) - np.uint64(1))
        if kept < max_groups:
            stages[found], targets[found], group_counts[found] = mask[depth], at[depth], kept + 1
            found += 1
            if found == len(stages):
                break
    return found, depth


@jit(inline="always")
def _join_groups(
    predecessors: np.uint64, bit: np.uint64, groups: Masks, group_count: NDArray[np.int64], depth: int
) -> tuple[np.uint64, int, int]:
    """The groups at ``depth + 1`` when a unit is added: those that it reads from become one with it.

    Returns the joined group, how many others there are, and how many were joined.
    """
    joined = bit
    kept = 0
    merged = 0
    for g in range(group_count[depth]):
        group = groups[depth, g]
        if predecessors & group:
            joined |= group
            merged += 1
        else:
            groups[depth + 1, kept] = group
            kept += 1
    groups[depth + 1, kept] = joined
    return joined, kept, merged
