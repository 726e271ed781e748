"""The endings of a state that may be its best last stage: the compiled inner loop of the search.

An *ending* of a state is a set of units of it that nothing else in it reads: what is left is a state again, its
*source*. Endings are grown downwards: each further unit is lower than all before, and nothing that is left reads it.
So each is met once, each group is complete down to the unit added last, and that unit's group is the first that the
host issues. The sums of :class:`~iossim.cost.model.StageBounds` grow along.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from iossim.base.compiled import Floats, jit
from iossim.cost.model import SAFE, StageBounds
from iossim.schedule.masks import FloatTable, count_bits, find_slot, lowest_bit
from iossim.schedule.problem import Masks, ScheduleProblem
from iossim.search.lattice import Downwards, Lattice, without
from iossim.search.options import StageSpace
from iossim.search.relaxation import Endings, Labels, limit_us

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
    bound stay below what makes its label better (:func:`~iossim.search.relaxation.limit_us`); unless ``bounded``, all
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
