"""The labels of the search, and how a priced ending lowers the cost of one.

A *label* is a state and one bit: does its last stage run several groups? The bit decides what stands before the next
stage. ``cost[i, b]`` is the least cost of a path to state ``i`` whose last stage has bit ``b``. Among paths of equal
cost, the one whose last stage begins at the earlier state is kept.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from iossim.base.compiled import Floats, jit
from iossim.schedule.masks import FloatTable, find_slot
from iossim.schedule.problem import Masks
from iossim.search.lattice import Downwards, without


class Labels(NamedTuple):
    """Bounds and best costs of each label; all arrays have shape ``[states, 2]``, costs are in us.

    ``leaving[i, b]`` is the least cost of standing before a stage of bit ``b``, boundary included, and
    ``leaving_bit`` the bit of the label that this is from. ``parent`` is the state that the best path comes from (the
    label is the one that leaves it for the stage's bit), ``stage`` (a mask) and ``strategy`` the last stage.
    ``tolerance[b]``, ``[2]``, is the most by which bit ``1 - b`` may be dearer after a state, whatever follows.
    """

    cost: Floats
    leaving: Floats
    leaving_bit: NDArray[np.int8]
    parent: NDArray[np.int32]
    stage: Masks
    strategy: NDArray[np.uint8]
    tolerance: Floats

    @staticmethod
    def of(states: int, tolerance: Floats) -> Labels:
        shape = states, 2
        cost, leaving = np.full((2, *shape), np.inf)
        stage, parent = np.zeros(shape, dtype=np.uint64), np.full(shape, -1, dtype=np.int32)
        leaving_bit, strategy = np.zeros(shape, dtype=np.int8), np.zeros(shape, dtype=np.uint8)
        return Labels(cost, leaving, leaving_bit, parent, stage, strategy, tolerance)


class Endings(NamedTuple):
    """Endings of states, not priced yet; all arrays have the same length.

    ``least_us`` is what the path costs at least, ``source`` (a state) where the last stage begins, ``label`` where it
    ends: twice the state, and the bit.
    """

    least_us: Floats
    stage: Masks
    source: NDArray[np.int32]
    label: NDArray[np.int32]

    @staticmethod
    def room(size: int) -> Endings:
        source, label = np.empty((2, size), dtype=np.int32)
        return Endings(np.empty(size), np.empty(size, dtype=np.uint64), source, label)


@jit(inline="always")
def limit_us(labels: Labels, state: int, bit: int) -> float:
    """Cost below which a path to a label matters: that of the best, or of the best to the other bit plus tolerance."""
    return float(min(labels.cost[state, bit], labels.cost[state, 1 - bit] + labels.tolerance[bit]))


@jit
def leave(begin: int, end: int, boundary: Floats, labels: Labels) -> None:
    """The costs of leaving the states ``begin`` to ``end``; ``boundary[i, j]`` is between bits ``i`` and ``j``."""
    for state in range(begin, end):
        for bit in range(2):
            one = labels.cost[state, 0] + boundary[0, bit]
            many = labels.cost[state, 1] + boundary[1, bit]
            labels.leaving[state, bit] = min(one, many)
            labels.leaving_bit[state, bit] = 0 if one <= many else 1


@jit
def pick(
    endings: Endings,
    filled: int,
    labels: Labels,
    begin: int,
    end: int,
    fraction: float,
    together: int,
    picked: Endings,
    limits_us: Floats,
) -> tuple[int, int]:
    """Move the endings that are to be priced next to ``picked``; drop those that have no chance any more.
    ``limits_us`` become what the prices of those picked must be less than to matter.

    For each label of the states ``begin`` to ``end`` these are the endings whose bound is the least, or above it by
    no more than ``fraction`` of what it may be; all, where no more than ``together`` are left. Returns how many are
    left and picked.
    """
    least_us = np.full(2 * (end - begin), np.inf)
    left = 0
    for index in range(filled):
        label = endings.label[index]
        if endings.least_us[index] < limit_us(labels, label >> 1, label & 1):
            _move(endings, index, endings, left)
            left += 1
            place = label - 2 * begin
            least_us[place] = min(least_us[place], endings.least_us[index])
    few = left <= together
    filled, left, found = left, 0, 0
    for index in range(filled):
        label = endings.label[index]
        least = least_us[label - 2 * begin]
        most_us = limit_us(labels, label >> 1, label & 1)
        if few or endings.least_us[index] <= least + fraction * (most_us - least):
            limits_us[found] = most_us - labels.leaving[endings.source[index], label & 1]
            _move(endings, index, picked, found)
            found += 1
        else:
            _move(endings, index, endings, left)
            left += 1
    return left, found


@jit(inline="always")
def _move(source: Endings, index: int, target: Endings, place: int) -> None:
    target.least_us[place] = source.least_us[index]
    target.stage[place] = source.stage[index]
    target.source[place] = source.source[index]
    target.label[place] = source.label[index]


@jit
def relax(endings: Endings, filled: int, table: FloatTable, labels: Labels) -> None:
    """Lower the costs of the labels to which an ending, now priced, gives a better path."""
    for index in range(filled):
        source, label = endings.source[index], endings.label[index]
        state, bit = label >> 1, label & 1
        price_us = table.values[find_slot(endings.stage[index], table.keys)]
        if price_us < 0.0:
            continue  # what is known of it is that it takes too long
        _relax(source, endings.stage[index], 0, state, bit, labels.leaving[source, bit] + price_us, labels)


@jit
def relax_known(
    begin: int, end: int, down: Downwards, stages: Masks, prices_us: Floats, strategy: int, labels: Labels
) -> None:
    """Relax every stage of one group, of known price, that the states ``begin`` to ``end`` may end with.

    ``stages`` and ``prices_us`` have shape ``[stages]``.
    """
    for state in range(begin, end):
        for index in range(len(stages)):
            source = _source(state, stages[index], down)
            if source >= 0:
                reached_us = labels.leaving[source, 0] + prices_us[index]
                _relax(source, stages[index], strategy, state, 0, reached_us, labels)


@jit
def relax_neighbours(begin: int, end: int, down: Downwards, table: FloatTable, labels: Labels) -> None:
    """Relax, for the states ``begin`` to ``end``, the best last stages of the states of one unit less, where that unit
    may stand before them: their prices are known, and rule out most other endings.
    """
    for state in range(begin, end):
        for place in range(down.parent_begin[state], down.parent_begin[state + 1]):
            for bit in range(2):
                stage = labels.stage[down.parents[place], bit]
                if stage != 0 and labels.strategy[down.parents[place], bit] == 0:
                    source = _source(state, stage, down)
                    if source >= 0:
                        price_us = table.values[find_slot(stage, table.keys)]
                        _relax(source, stage, 0, state, bit, labels.leaving[source, bit] + price_us, labels)


@jit(inline="always")
def _source(state: int, stage: np.uint64, down: Downwards) -> int:
    """The state that is left of another without the units of a stage; -1 where the stage is no ending of it."""
    source = int(state)
    able = stage & down.removable[source]
    while able:
        unit_bit = able & (~able + np.uint64(1))
        stage ^= unit_bit
        source = without(source, unit_bit, down)
        able = stage & down.removable[source]
    return -1 if stage else source


@jit(inline="always")
def _relax(
    source: int, stage: np.uint64, strategy: int, state: int, bit: int, reached_us: float, labels: Labels
) -> None:
    cost_us = labels.cost[state, bit]
    if reached_us < cost_us or (reached_us == cost_us and source < labels.parent[state, bit]):
        labels.cost[state, bit] = reached_us
        labels.parent[state, bit] = source
        labels.stage[state, bit] = stage
        labels.strategy[state, bit] = strategy
