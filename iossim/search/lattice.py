"""The lattice of order ideals of a block: the states of the IOS dynamic programming.

A *state* is the set ``D`` of units that are done; since a unit follows what it reads, it is an order ideal (down-set).
A *stage* leads from ``D`` to a larger ideal ``D | T``. Of interchangeable micro-batches
only the ideals are states that begin the first of them first (:attr:`~iossim.schedule.problem.ScheduleProblem.order`). The thesis counts the same pairs from the other end: its state
``S`` is what is still to be scheduled when stages are taken off the end, so ``S = D | T`` and ``T`` is an ending of ``S``.

States are numbered by level (how many units are done), then by mask, so number 0 is the empty set and the last one is
the whole block. ``child[i, u]`` is the state after unit ``u`` is done too: walking it replaces hashing.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from iossim.base.compiled import jit
from iossim.schedule.hash_table import empty_set, grown, insert
from iossim.schedule.problem import Masks, ScheduleProblem


@dataclass(frozen=True, eq=False)
class Lattice:
    """States of a problem with ``n`` units.

    ``masks[i]`` (uint64) is state ``i``; ``addable[i]`` the units that can be done next; ``child[i, u]`` (int32,
    ``[states, n]``) the state that this leads to, -1 where ``u`` cannot be next; ``level_begin[k]`` the first state with
    ``k`` units done, shape ``[n + 2]``.
    """

    masks: Masks
    addable: Masks
    child: NDArray[np.int32]
    level_begin: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.masks)

    @cached_property
    def down(self) -> Downwards:
        return _downwards(self.child)


class Downwards(NamedTuple):
    """The transitions of a lattice from where they lead to.

    ``removable[i]`` (uint64) are the units of state ``i`` that nothing else in it reads. The states without one of them stand, by
    ascending unit, in ``parents[parent_begin[i] : parent_begin[i + 1]]`` (int32).
    """

    removable: Masks
    parent_begin: NDArray[np.int64]
    parents: NDArray[np.int32]


def build_lattice(problem: ScheduleProblem, max_states: int) -> Lattice | None:
    """All states of the problem, or None if there are more than ``max_states``."""
    predecessors = problem.order
    count = len(problem)
    level: Masks = np.zeros(1, dtype=np.uint64)
    levels: list[Masks] = []
    addables: list[Masks] = []
    total = 0
    for _ in range(count + 1):
        total += len(level)
        if total > max_states:
            return None
        levels.append(level)
        addables.append(np.zeros(len(level), dtype=np.uint64))
        level = _successors(level, predecessors, addables[-1], max_states - total)
    masks, addable = np.concatenate(levels), np.concatenate(addables)
    level_begin = np.concatenate([[0], np.cumsum([len(level) for level in levels])]).astype(np.int64)
    child = np.full((total, count), -1, dtype=np.int32)
    for number in range(count):
        # Level by level: of a wide block all take seconds, and an interrupt is not heard within compiled code.
        begin, end, after = level_begin[number : number + 3]
        _enter_children(masks, addable, begin, end, after, child)
    return Lattice(masks, addable, child, level_begin)


def _successors(level: Masks, predecessors: Masks, addable: Masks, most: int) -> Masks:
    """The next level; fills in the units that can be added to each ideal. Stops behind ``most`` ideals."""
    table = empty_set()
    done = found = 0
    while done < len(level) and found <= most:
        while 2 * (found + len(predecessors)) > len(table):
            table = grown(table)
        done, found = _grow(level, done, predecessors, addable, table, found)
    return np.sort(table[table != 0])


@jit
def _grow(level: Masks, begin: int, predecessors: Masks, addable: Masks, table: Masks, found: int) -> tuple[int, int]:
    """Enter the ideals that those from ``begin`` on lead to in the table, which holds ``found``, while it has room.

    Returns where to go on, and how many ideals the table holds.
    """
    count = len(predecessors)
    for i in range(begin, len(level)):
        if 2 * (found + count) > len(table):
            return i, found
        done = level[i]
        for unit in range(count):
            bit = np.uint64(1) << np.uint64(unit)
            if done & bit == 0 and predecessors[unit] & ~done == 0:
                addable[i] |= bit
                if insert(done | bit, table):
                    found += 1
    return len(level), found


@jit
def _enter_children(masks: Masks, addable: Masks, begin: int, end: int, after: int, child: NDArray[np.int32]) -> None:
    """The transitions of the level ``begin`` to ``end``; the next, up to ``after``, is sorted, so bisection finds a child."""
    for i in range(begin, end):
        for unit in range(child.shape[1]):
            bit = np.uint64(1) << np.uint64(unit)
            if addable[i] & bit:
                low, high = end, after
                target = masks[i] | bit
                while high - low > 1:
                    middle = (low + high) // 2
                    if masks[middle] <= target:
                        low = middle
                    else:
                        high = middle
                child[i, unit] = low


@jit
def _downwards(child: NDArray[np.int32]) -> Downwards:
    states, count = child.shape
    removable = np.zeros(states, dtype=np.uint64)
    begin = np.zeros(states + 1, dtype=np.int64)
    for i in range(states):
        for unit in range(count):
            if child[i, unit] >= 0:
                begin[child[i, unit] + 1] += 1
                removable[child[i, unit]] |= np.uint64(1) << np.uint64(unit)
    begin = np.cumsum(begin)
    parents = np.empty(begin[-1], dtype=np.int32)
    entered = np.zeros(states, dtype=np.int64)
    for unit in range(count):
        for i in range(states):
            target = child[i, unit]
            if target >= 0:
                parents[begin[target] + entered[target]] = i
                entered[target] += 1
    return Downwards(removable, begin, parents)
