"""Size of a block's search space: states, transitions, schedules, distinct stages.

A *transition* is a pair (state, stage); a *schedule* is a path of stages from nothing done to all done; concurrent
execution only, as the thesis counts (table 3.1). The number of schedules is summed in four 64-bit limbs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from iossim.base.compiled import Floats, Integers, jit
from iossim.base.errors import OptionError
from iossim.schedule.masks import GrowingTable, count_bits, insert, lowest_bit
from iossim.schedule.problem import Masks, ScheduleProblem
from iossim.search.lattice import FEW_STATES, Lattice, build_lattice
from iossim.search.options import StageSpace

#: Minimum number of states from which the transitions of a larger block are estimated.
SAMPLED_STATES = 1_000
#: Transitions that compiled code counts at a time (0.1 s): interrupts are handled only in between.
_AT_A_TIME = 1_000_000


#: Stages that are handed over at a time: handing over single ones takes longer than growing them.
_HANDED_OVER = 256


class StageRules(NamedTuple):
    """Input to growing stages: the lattice upwards, what each unit reads, and the limits of the space."""

    addable: Masks
    child: NDArray[np.int32]
    predecessors: Masks
    max_group_size: int
    max_groups: int
    single_root: bool

    @staticmethod
    def of(problem: ScheduleProblem, lattice: Lattice, space: StageSpace) -> StageRules:
        return StageRules(lattice.addable, lattice.child, problem.predecessors, *space.walk_limits(len(problem)))


class StageWalk(NamedTuple):
    """State of a walk, by depth, and its last findings: stages, their target states, and their groups."""

    at: Integers
    mask: Masks
    choices: Masks
    groups: Masks
    group_count: Integers
    stages: Masks
    targets: Integers
    group_counts: Integers


def stage_walk(units: int) -> StageWalk:
    """Room for walks through the stages of a problem of that many units."""
    depths = units + 1
    at, group_count = np.zeros((2, depths), dtype=np.int64)
    mask, choices = np.zeros((2, depths), dtype=np.uint64)
    groups = np.zeros((depths, depths), dtype=np.uint64)
    stages, (targets, counts) = np.empty(_HANDED_OVER, dtype=np.uint64), np.empty((2, _HANDED_OVER), dtype=np.int64)
    return StageWalk(at, mask, choices, groups, group_count, stages, targets, counts)


@jit
def find_stages(state: int, depth: int, rules: StageRules, walk: StageWalk) -> tuple[int, int]:
    """Find the next stages that a state may continue with; returns how many, and the depth to go on from (-1: end).

    ``depth`` is 0 to begin with. A stage is grown unit by unit in ascending order, so that each is met once. Its
    groups are its connected components; a component only grows as units are added, so one that is too large, or that
    has two roots where one is allowed, ends the branch.
    """
    addable, child, predecessors, max_group_size, max_groups, single_root = rules
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
    predecessors: np.uint64, bit: np.uint64, groups: Masks, group_count: Integers, depth: int
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


@dataclass(frozen=True, slots=True)
class SearchSpace:
    """Counts of one block. ``states`` leave out the empty set, as the thesis does; ``width``: see :func:`width`."""

    name: str
    units: int
    width: int
    states: int
    transitions: int
    schedules: int
    distinct_stages: int


#: More is not counted: it takes minutes.
MAX_STATES, MAX_TRANSITIONS = 5_000_000, 300_000_000


def count_search_space(problem: ScheduleProblem, space: StageSpace) -> SearchSpace:
    """Count one block; raises OptionError if it has too many states or transitions to be counted."""
    problem = space.ordered(problem)
    lattice = _countable_lattice(problem, space)
    limbs = np.zeros((len(lattice), 4), dtype=np.uint64)
    limbs[-1, 0] = 1
    transitions, stages = _count(problem, lattice, space, 2**62, limbs)
    schedules = sum(int(limb) << (64 * index) for index, limb in enumerate(limbs[0]))
    return SearchSpace(
        problem.name, len(problem), width(problem), len(lattice) - 1, transitions, schedules, len(stages)
    )


def distinct_stages(problem: ScheduleProblem, space: StageSpace) -> Masks:
    """Every set of units that is a stage from some state, uint64 of shape ``[stages]``, ascending.

    Raises OptionError for a block that is too large to be counted.
    """
    problem = space.ordered(problem)
    lattice = _countable_lattice(problem, space)
    _, stages = _count(problem, lattice, space, 2**62, np.zeros((len(lattice), 4), dtype=np.uint64))
    return np.sort(stages)


def _countable_lattice(problem: ScheduleProblem, space: StageSpace) -> Lattice:
    lattice = build_lattice(problem, MAX_STATES)
    if lattice is None:
        raise OptionError(
            f"block {problem.name!r} has more than {MAX_STATES:,} states; split it with a smaller `max_block`"
        )
    if len(lattice) > FEW_STATES and more_transitions_than(MAX_TRANSITIONS, problem, lattice, space):
        raise OptionError(
            f"block {problem.name!r} has more than {MAX_TRANSITIONS:,} transitions; prune with `max_group_size` and "
            "`max_groups`, or split it with a smaller `max_block`"
        )
    return lattice


def width(problem: ScheduleProblem) -> int:
    """Width (maximum antichain) of a problem: by Dilworth's theorem, units minus a maximum matching."""
    from scipy.sparse import csr_matrix
    from scipy.sparse.csgraph import maximum_bipartite_matching

    count = len(problem)
    ancestors = problem.ancestors.tolist()
    before = np.array([[ancestors[v] >> u & 1 for v in range(count)] for u in range(count)], dtype=np.int8)
    return count - int((maximum_bipartite_matching(csr_matrix(before), perm_type="column") >= 0).sum())


def more_transitions_than(
    limit: int, problem: ScheduleProblem, lattice: Lattice, space: StageSpace, sampled: bool = False
) -> bool:
    """True if the block has more than ``limit`` transitions; stops counting there.

    ``sampled``: an estimate from a part of the states, since counting all takes longer than searching the block.
    """
    if not space.single_root and space.limits(len(problem)) == (len(problem), len(problem)):
        return unpruned_transitions(lattice) > limit
    stride = max(1, len(lattice) // SAMPLED_STATES) if sampled else 1
    transitions, _ = _count(problem, lattice, space, limit // stride, np.zeros((0, 4), dtype=np.uint64), stride)
    return transitions > limit // stride


def unpruned_transitions(lattice: Lattice) -> float:
    """All transitions of an unpruned space, in time linear in the lattice's edges.

    The stages of a state that are grown in ascending order from unit ``u`` on, with ``c`` the state that it leads to,
    are the set of ``u`` alone and those of ``c`` that begin after ``u``; level by level, from the last.
    """
    total = 0.0
    later = np.zeros((1, lattice.child.shape[1]))
    for level in range(len(lattice.level_begin) - 3, -1, -1):
        begin, end = lattice.level_begin[level : level + 2]
        next_later, later = later, np.zeros((end - begin, lattice.child.shape[1]))
        total += _count_level(lattice.addable, lattice.child, begin, end, next_later, later)
    return total


@jit
def _count_level(
    addable: Masks, child: NDArray[np.int32], begin: int, end: int, next_later: Floats, later: Floats
) -> float:
    """Number of stages of a level; fills in, for each of its states and each unit, how many begin after the unit."""
    total = 0.0
    for state in range(begin, end):
        stages = 0.0
        for unit in range(child.shape[1] - 1, -1, -1):
            later[state - begin, unit] = stages
            if addable[state] >> np.uint64(unit) & np.uint64(1):
                stages += 1.0 + next_later[child[state, unit] - end, unit]
        total += stages
    return total


def _count(
    problem: ScheduleProblem,
    lattice: Lattice,
    space: StageSpace,
    limit: int,
    limbs: NDArray[np.uint64],
    stride: int = 1,
) -> tuple[int, Masks]:
    """Transitions, and distinct stages in any order; ``limbs[i]`` becomes the schedules from state ``i`` to the last.

    Without limbs only transitions are counted, of every ``stride``-th state, until there are more than ``limit``.
    """
    seen = GrowingTable()
    rules, walk = StageRules.of(problem, lattice, space), stage_walk(len(problem))
    state, depth, transitions = len(lattice) - 2, 0, 0
    while state >= 0 and transitions <= limit:
        seen.reserve(len(walk.stages))
        most, table = min(_AT_A_TIME, limit - transitions), seen.table.keys
        state, depth, found, new = _count_some(state, depth, rules, walk, most, limbs, table, seen.used, stride)
        transitions, seen.used = transitions + found, seen.used + new
    return transitions, seen.table.keys[seen.table.keys != 0]


@jit
def _count_some(
    state: int,
    depth: int,
    rules: StageRules,
    walk: StageWalk,
    most: int,
    limbs: NDArray[np.uint64],
    table: Masks,
    known: int,
    stride: int,
) -> tuple[int, int, int, int]:
    """Continue from a state and the depth that its walk has reached until more than ``most`` transitions are found.

    The state after a state is the one ``stride`` before it.

    ``table`` holds the ``known`` distinct stages; ends too where it has no room for those of one more walk. Returns
    state and depth to go on from (state -1 at the end), and the transitions and the new stages that were found.
    """
    transitions = 0
    distinct = known
    enough = False
    while state >= 0:
        while depth >= 0:
            found, depth = find_stages(state, depth, rules, walk)
            transitions += found
            for index in range(found if len(limbs) else 0):
                _add(limbs[state], limbs[walk.targets[index]])
                if insert(walk.stages[index], table):
                    distinct += 1
            enough = transitions > most or 2 * (distinct + len(walk.stages)) > len(table)
            if enough and depth > 0:
                return state, depth, transitions, distinct - known
        state -= stride
        depth = 0
        if enough:
            break
    return state, depth, transitions, distinct - known


@jit
def _add(total: NDArray[np.uint64], term: NDArray[np.uint64]) -> None:
    """``total += term``, numbers of several 64-bit limbs, lowest first."""
    carry = np.uint64(0)
    for limb in range(len(total)):
        partial = total[limb] + term[limb]
        wrapped = partial < term[limb]
        total[limb] = partial + carry
        carry = np.uint64(1) if wrapped or total[limb] < partial else np.uint64(0)
