"""The lattice of a block's order ideals, which are the states of the IOS dynamic programming,
and its merged stages, which are the sets of units that may run as one stacked convolution.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import combinations
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from iossim.base.compiled import Integers, jit
from iossim.cost.model import CostModel, Prices, StageBounds
from iossim.schedule.batch import Strategy
from iossim.schedule.masks import count_bits
from iossim.schedule.planned_stage import PlannedStage, batches_of
from iossim.schedule.problem import MAX_UNITS, Masks, ScheduleProblem, bits, masks_of

#: No block of so few states has too many transitions to be enumerated: they are not counted first.
FEW_STATES = 20_000
#: Classes of up to this many units are merged in every combination, larger ones in pairs, runs, and as a whole.
ALL_SUBSETS = 10


@dataclass(frozen=True, eq=False)
class MergedStages:
    """``masks`` of sets of two or more units that merge, and their ``prices_us``; both ``[merges]``."""

    masks: Masks
    prices_us: Prices

    @property
    def key(self) -> tuple[bytes, bytes]:
        return self.masks.tobytes(), self.prices_us.tobytes()


def no_merges() -> MergedStages:
    return MergedStages(np.zeros(0, dtype=np.uint64), np.zeros(0))


def price_merges(problem: ScheduleProblem, cost_model: CostModel, max_groups: int) -> MergedStages:
    """Price all merged stages of at most ``max_groups`` units; those that cannot run are left out. Sets of equal units
    with the same readers and the same gaps between them are priced once.
    """
    found = _subsets(problem, min(max_groups, MAX_UNITS))
    if not found:
        return no_merges()
    works = list(zip(problem.signatures, problem.successors.tolist(), strict=True))
    alike = [(mask // (mask & -mask), *(works[unit] for unit in bits(mask))) for mask in found]
    distinct = dict(zip(reversed(alike), reversed(found), strict=True))
    batches = batches_of(problem, [PlannedStage(mask, Strategy.MERGE) for mask in distinct.values()])
    priced = dict(zip(distinct, np.concatenate([cost_model.price_stages(batch) for batch in batches]), strict=True))
    prices = np.array([priced[own] for own in alike])
    able = np.isfinite(prices)
    return MergedStages(masks_of(found, len(problem))[able], prices[able])


def bounds_with_merges(bounds: StageBounds, problem: ScheduleProblem, merges: MergedStages) -> StageBounds:
    """Bounds that hold for merged stages too.

    The bounds of the units of a merge class are scaled by the least ratio, over its merged stages, of the stage's
    price to what the units' bounds add up to.
    """
    scale = np.ones(len(problem))
    for mask, price in zip(merges.masks.tolist(), merges.prices_us.tolist(), strict=True):
        units = [index for index in range(len(problem)) if mask >> index & 1]
        most = max(
            float(bounds.single_us[units].sum()),
            float(bounds.serial_us[units].max()),
            float(bounds.work_us[units].sum(axis=0).max(initial=0.0)),
        )
        if most > price:
            members = problem.merge_class == problem.merge_class[units[0]]
            scale[members] = np.minimum(scale[members], price / most)
    return StageBounds(bounds.serial_us * scale, bounds.single_us * scale, bounds.work_us * scale[:, None])


def left_out_of_merges(problem: ScheduleProblem) -> int:
    """Size of the largest merge class of which not all sets are merged, up to renumbering; 0 if there is none."""
    classes = [np.flatnonzero(problem.merge_class == number).tolist() for number in set(problem.merge_class.tolist())]
    large = [own for own in classes if len(own) > ALL_SUBSETS and problem.merge_class[own[0]] >= 0]
    return max((len(own) for own in large if sum(not _equal_before(problem, u, own) for u in own) > 1), default=0)


def _equal_before(problem: ScheduleProblem, unit: int, members: list[int]) -> int:
    """The mask of the equal unit of a merge class that starts before one; 0 where there is none."""
    return 0 if problem.not_before is None else int(problem.not_before[unit]) & sum(1 << each for each in members)


def _subsets(problem: ScheduleProblem, max_groups: int) -> list[int]:
    found: list[int] = []
    for merge_class in range(int(problem.merge_class.max(initial=-1)) + 1):
        members = np.flatnonzero(problem.merge_class == merge_class).tolist()
        largest = min(len(members), max_groups)
        before = {unit: _equal_before(problem, unit, members) for unit in members}
        if len(members) <= ALL_SUBSETS:
            chosen = {c for size in range(2, largest + 1) for c in combinations(members, size)}
        else:
            chosen = set(combinations(members, 2)) if largest >= 2 else set()
            runs = range(3, largest + 1)
            chosen |= {tuple(members[b : b + size]) for size in runs for b in range(len(members) - size + 1)}
        masks = {units: sum(1 << unit for unit in units) for units in chosen}
        first = {unit: unit for unit in members}  # the first of the equal units before each
        for unit in members:
            first[unit] = first[before[unit].bit_length() - 1] if before[unit] else unit

        def follows(units: tuple[int, ...]) -> bool:
            """True if no equal unit is left out between two of a set, so that they can start in order."""
            begun = [first[unit] for unit in units if not before[unit] & masks[units]]  # noqa: B023
            return len(set(begun)) == len(begun)

        found += sorted(masks[units] for units in chosen if follows(units))
    return found


@dataclass(frozen=True, eq=False)
class Lattice:
    """States of a problem with ``n`` units.

    ``masks[i]`` (uint64) is state ``i``; ``addable[i]`` the units that can be done next; ``child[i, u]`` (int32,
    ``[states, n]``) the state that this leads to, -1 where ``u`` cannot be next; ``level_begin[k]`` the first state
    with ``k`` units done, shape ``[n + 2]``.
    """

    masks: Masks
    addable: Masks
    child: NDArray[np.int32]
    level_begin: Integers

    def __len__(self) -> int:
        return len(self.masks)

    @cached_property
    def down(self) -> Downwards:
        units, parents = np.nonzero(self.child.T >= 0)
        targets = self.child[parents, units]
        order = np.argsort(targets, kind="stable")
        begin = np.searchsorted(targets[order], np.arange(len(self) + 1))
        removable = np.zeros(len(self), dtype=np.uint64)  # all states but the first have parents
        if len(order):
            removable[1:] = np.bitwise_or.reduceat(np.uint64(1) << units[order].astype(np.uint64), begin[1:-1])
        return Downwards(removable, begin, parents[order].astype(np.int32))


class Downwards(NamedTuple):
    """The transitions of a lattice by their targets.

    ``removable[i]`` (uint64) are the units of state ``i`` that nothing else in it reads. The states without one of
    them are, by ascending unit, ``parents[parent_begin[i] : parent_begin[i + 1]]`` (int32).
    """

    removable: Masks
    parent_begin: Integers
    parents: NDArray[np.int32]


@jit(inline="always")
def without(state: int, unit_bit: np.uint64, down: Downwards) -> int:
    """The state without one of its removable units."""
    place = count_bits(down.removable[state] & (unit_bit - np.uint64(1)))
    return int(down.parents[down.parent_begin[state] + place])


def build_lattice(problem: ScheduleProblem, max_states: int) -> Lattice | None:
    """All states of the problem, or None if there are more than ``max_states``, or it is wide."""
    if problem.is_wide:
        return None
    count, total = len(problem), 0
    bit = np.uint64(1) << np.arange(count, dtype=np.uint64)
    level: Masks = np.zeros(1, dtype=np.uint64)
    levels: list[tuple[Masks, Masks, NDArray[np.int32]]] = []
    for done in range(count + 1):
        total += len(level)
        able = (level[:, None] & bit == 0) & (problem.order & ~level[:, None] == 0)
        # A state of the next level is reached from ``done + 1`` states at most.
        if total + np.count_nonzero(able) / (done + 1) > max_states:
            return None
        child = np.full(able.shape, -1, dtype=np.int32)
        levels.append((level, able @ bit, child))
        states, units = np.nonzero(able)
        level, targets = np.unique(level[states] | bit[units], return_inverse=True)
        child[able] = total + targets.reshape(-1)
    level_begin = np.cumsum([0, *(len(each) for each, _, _ in levels)], dtype=np.int64)
    masks, addable, child = (np.concatenate(own) for own in zip(*levels, strict=True))
    return Lattice(masks, addable, child, level_begin)
