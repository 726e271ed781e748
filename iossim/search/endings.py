"""The endings of a state that may be its best last stage, and the labels whose costs they lower: the inner loops.

An *ending* of a state is a set of units of it that nothing else in it reads: what is left is a state again, its
*source*. Endings are grown downwards: each further unit is lower than all before, and nothing that is left reads it.
So each is met once, each group is complete down to the unit added last, and that unit's group is the first that the
host issues. The sums of :class:`~iossim.cost.model.StageBounds` grow along.

A *label* is a state and one bit: does its last stage run several groups? The bit decides what stands before the next
stage. ``cost[i, b]`` is the least cost of a path to state ``i`` whose last stage has bit ``b``. Among paths of equal
cost, the one whose last stage begins at the earlier state is kept.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from iossim.base.compiled import Floats, jit
from iossim.cost.model import SAFE, StageBounds
from iossim.schedule.masks import FloatTable, count_bits, find_slot, lowest_bit
from iossim.schedule.problem import Masks, ScheduleProblem
from iossim.search.lattice import Downwards, Lattice, without
from iossim.search.options import StageSpace


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


#: Endings after which compiled code returns (0.1 s): only then an interrupt is heard.
STEPS_AT_A_TIME = 2_000_000


class StateGraph(NamedTuple):
    """Input to growing endings: the lattice downwards, the successors of each unit, and the limits of the space.

    ``masks`` are by state; ``successors``, ``descendants`` and ``ancestors``, by unit, are masks of the problem.
    ``single_root``: a group is one unit of the state and all that follows it there.
    """

    masks: Masks
    down: Downwards
    successors: Masks
    descendants: Masks
    ancestors: Masks
    max_group_size: int
    max_groups: int
    single_root: bool

    @staticmethod
    def of(problem: ScheduleProblem, lattice: Lattice, space: StageSpace) -> StateGraph:
        of_units = problem.successors, problem.descendants, problem.ancestors
        return StateGraph(lattice.masks, lattice.down, *of_units, *space.walk_limits(len(problem)))


def summed_bounds(bounds: StageBounds) -> Floats:
    """The bounds as compiled code adds them up, ``[units, columns]``: work on each resource, then the columns below."""
    issue_us = np.zeros(len(bounds.serial_us)) if bounds.issue_us is None else bounds.issue_us
    rows = _undominated(bounds.work_us), bounds.single_us, bounds.serial_us, issue_us
    return np.ascontiguousarray(np.column_stack(rows))


def _undominated(work_us: Floats) -> Floats:
    """The columns that are not everywhere at most as large as another: no sum of those left out is the largest."""
    kept: list[Floats] = []
    for column in sorted(work_us.T, key=lambda each: -each.sum()):
        if not any((column <= other).all() for other in kept):
            kept.append(column)
    return np.stack(kept, axis=1) if kept else work_us


#: The last columns of :func:`summed_bounds`.
_SINGLE, _SERIAL, _ISSUE = -3, -2, -1


@jit
def find_endings(
    begin: int,
    end: int,
    graph: StateGraph,
    of_unit: Floats,
    labels: Labels,
    bounded: bool,
    known: FloatTable,
    endings: Endings,
    filled: int,
) -> tuple[int, int, bool]:
    """Fill ``endings[filled:]`` with those of the states ``begin`` to ``end`` that bounds do not rule out, nor what is
    ``known`` of their prices (:meth:`~iossim.schedule.masks.GrowingTable.unknown`).

    ``of_unit`` are :func:`summed_bounds`. An ending has one if its source's cost, the boundary between, and its lower
    bound stay below what makes its label better (:func:`~iossim.search.endings.limit_us`); unless ``bounded``, all
    have. Stops before a state whose endings do not all fit, and after one with which :data:`STEPS_AT_A_TIME` are done.
    Returns the state reached, how many endings there are, and whether there is no room for more.
    """
    masks, down, successors, descendants, ancestors, max_group_size, max_groups, single_root = graph
    removable = down.removable
    leaving = labels.leaving
    least, stages, sources, reached = endings
    count, columns = of_unit.shape
    single, serial, issue = columns + _SINGLE, columns + _SERIAL, columns + _ISSUE
    one = np.uint64(1)
    # By depth of growth: the state left, the stage, what may be added, units that may not (single_root), and sums.
    at = np.empty(count + 1, dtype=np.int64)
    stage = np.zeros(count + 1, dtype=np.uint64)
    choices = np.zeros(count + 1, dtype=np.uint64)
    barred = np.zeros(count + 1, dtype=np.uint64)
    sums = np.zeros((count + 1, columns), dtype=np.float64)
    # The groups at each depth, the last that is issued first, each named after the depth at which it was formed.
    group_count = np.zeros(count + 1, dtype=np.int64)
    groups = np.zeros((count + 1, count + 1), dtype=np.int64)
    members = np.zeros(count + 1, dtype=np.uint64)
    group_us = np.zeros(count + 1, dtype=np.float64)
    group_issue_us = np.zeros(count + 1, dtype=np.float64)
    steps = 0
    for target in range(begin, end):
        if steps >= STEPS_AT_A_TIME:
            return target, filled, False
        mark = seen = filled
        single_limit_us = limit_us(labels, target, 0) if bounded else np.inf
        several_limit_us = limit_us(labels, target, 1) if bounded else np.inf
        most_us = max(single_limit_us, several_limit_us)
        depth = 0
        at[0] = target
        choices[0] = masks[target] if single_root else removable[target]
        while depth >= 0:
            rest = choices[depth]
            if rest == 0:
                depth -= 1
                continue
            choices[depth] = rest & (rest - one)
            steps += 1
            here = depth + 1
            unit = lowest_bit(rest)
            bit = one << np.uint64(unit)
            added = bit
            state = at[depth]
            for column in range(columns):
                sums[here, column] = sums[depth, column] + of_unit[unit, column]
            if single_root:
                # All that follows the unit in the state goes first.
                added |= descendants[unit] & masks[target]
                if count_bits(added) > max_group_size or group_count[depth] >= max_groups:
                    continue
                barred[here] = barred[depth] | added | ancestors[unit]
                followers = added ^ bit
                while followers:
                    other = lowest_bit(followers & removable[state])
                    followers ^= one << np.uint64(other)
                    state = without(state, one << np.uint64(other), down)
                    barred[here] |= ancestors[other]
                    for column in range(columns):
                        sums[here, column] += of_unit[other, column]
            state = without(state, bit, down)
            choices[here] = (masks[target] & ~barred[here] if single_root else removable[state]) & (bit - one)
            work_least_us = 0.0
            for resource in range(single):
                work_least_us = max(work_least_us, sums[here, resource])
            if choices[here] == 0 and min(leaving[state, 0], leaving[state, 1]) + work_least_us >= most_us:
                continue  # as often as not: nothing grows from here, and its groups do not matter
            # Groups that the new unit feeds join its group; the others stay, after it. ``ends_us`` is when the last
            # of the others may end, since they are issued.
            near = successors[unit] & stage[depth]
            joined = added
            joined_us = sums[here, serial] - sums[depth, serial]
            joined_issue_us = sums[here, issue] - sums[depth, issue]
            kept = 0
            ends_us = -np.inf
            for place in range(group_count[depth]):
                group = groups[depth, place]
                if near & members[group]:
                    joined |= members[group]
                    joined_us += group_us[group]
                    joined_issue_us += group_issue_us[group]
                else:
                    groups[here, kept] = group
                    kept += 1
                    ends_us = max(group_us[group], group_issue_us[group] + ends_us)
            if joined != added and count_bits(joined) > max_group_size:
                continue
            groups[here, kept] = here
            group_count[here] = kept + 1
            members[here] = joined
            group_us[here] = joined_us
            group_issue_us[here] = joined_issue_us
            at[here] = state
            stage[here] = stage[depth] | added
            depth = here
            if kept >= max_groups:
                continue
            least_us = max(joined_us, joined_issue_us + ends_us, work_least_us)
            if kept == 0:
                reached_us = leaving[state, 0] + max(least_us, sums[here, single])
                if reached_us >= single_limit_us:
                    continue
            else:
                reached_us = leaving[state, 1] + least_us
                if reached_us >= several_limit_us:
                    continue
            if filled == len(stages):
                filled = _unless_known(seen, filled, single_limit_us, several_limit_us, leaving, known, endings)
                seen = filled
            if filled == len(stages):
                return target, mark, True
            least[filled] = reached_us
            stages[filled] = stage[here]
            sources[filled] = state
            reached[filled] = 2 * target + (1 if kept else 0)
            filled += 1
        filled = _unless_known(seen, filled, single_limit_us, several_limit_us, leaving, known, endings)
    return end, filled, False


@jit
def _unless_known(
    begin: int,
    filled: int,
    single_limit_us: float,
    several_limit_us: float,
    leaving: Floats,
    known: FloatTable,
    endings: Endings,
) -> int:
    """Drop those of ``endings[begin:filled]``, of one state, that a known price rules out; returns how many are left.

    The table is larger than caches. In a loop without further branches the processor waits for several of its places
    at a time; the value at an empty place is 0, and changes nothing.
    """
    least, stages, sources, reached = endings
    known_keys, prices_us = known
    left = begin
    for index in range(begin, filled):
        price_us = prices_us[find_slot(stages[index], known_keys)]
        bit = reached[index] & 1
        known_us = leaving[sources[index], bit] + max(price_us, -price_us)
        least[left] = max(least[index], known_us * SAFE)
        stages[left] = stages[index]
        sources[left] = sources[index]
        reached[left] = reached[index]
        if not known_us > (several_limit_us if bit else single_limit_us):
            left += 1
    return left
