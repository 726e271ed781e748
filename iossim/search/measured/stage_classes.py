"""Classes of stages that share one measurement, their estimates, and the features that their errors may depend on.

A *class* holds the stages of all blocks whose groups are the same sequences of equal units; units are equal if they
are equal alone by the measuring model. One stage of a class is priced for all.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from iossim.base.compiled import Floats, Integers, jit
from iossim.cost.capabilities import FREE
from iossim.cost.model import CostModel
from iossim.schedule.batch import StageBatch
from iossim.schedule.masks import stage_hashes, unit_keys
from iossim.schedule.problem import Masks, ScheduleProblem
from iossim.search.measured.planner import Transitions

#: Maximum number of units with an error of their own: fitting more takes longer than it gains.
MOST_UNITS = 150
#: The dense features of every class, in their columns; after them comes one for each resource of the estimating model's
#: bounds. A merged stage counts its units as groups.
DENSE = ("constant", "several groups", "log groups", "log overlap", "sharing", "merged", "log chain")
_CONSTANT, _SEVERAL, _LOG_GROUPS, _LOG_OVERLAP, _SHARING, _MERGED, _LOG_CHAIN, _RESOURCES = range(len(DENSE) + 1)


class Features(NamedTuple):
    """Features in which the logarithm of a class's error is modelled as linear.

    ``dense``: ``[classes, len(DENSE) + resources]``, and one more for stages that name kernels, where there are some.
    Sparse ones, the rows of class ``c`` from ``begin[c]`` to ``begin[c + 1]``: ``unit`` (the number of a unit class),
    ``time`` (the fraction of the price that is proportional to the unit's time) and ``share`` (the fraction that is
    proportional to the unit's use of shared resources).
    """

    dense: Floats
    begin: Integers
    unit: Integers
    time: Floats
    share: Floats
    units: int


@dataclass(frozen=True, eq=False)
class StageClasses:
    """``of_stage[p][s]`` is the class of stage ``s`` of problem ``p``; ``estimate_us`` its price, ``[classes]``."""

    of_stage: list[Integers]
    estimate_us: Floats
    features: Features

    def __len__(self) -> int:
        return len(self.estimate_us)


def number_units(signatures: Sequence[Sequence[Hashable]]) -> tuple[list[Integers], int]:
    """Numbers for the units of all problems, int64 ``[units]`` each, equal for equal signatures; and their count.

    Number 0 is that of units that launch nothing.
    """
    numbers: dict[Hashable, int] = {FREE: 0}
    of_unit = [
        np.array([numbers.setdefault(signature, len(numbers)) for signature in one], dtype=np.int64)
        for one in signatures
    ]
    return of_unit, len(numbers)


def classify(
    transitions: Sequence[Transitions], unit_numbers: Sequence[Integers], units: int, estimate: CostModel
) -> StageClasses:
    """Find the classes of all stages; price and describe one stage of each.

    ``unit_numbers`` and ``units`` are the results of :func:`number_units`, by which stages are compared
    (:mod:`iossim.schedule.masks`).
    """
    keys = unit_keys(range(units))
    keys[0] = 0
    hashes = [
        stage_hashes(space.batch(), keys[numbers]) for space, numbers in zip(transitions, unit_numbers, strict=True)
    ]
    distinct, first, inverse = np.unique(np.concatenate(hashes), return_index=True, return_inverse=True)
    # Classes in the order of their first stages, so that no hash decides which of two equals comes first.
    rank = np.empty(len(first), dtype=np.int64)
    rank[np.argsort(first)] = np.arange(len(first))
    ends = np.cumsum([len(one) for one in hashes])
    of_stage = np.split(rank[inverse.reshape(-1)], ends[:-1])
    first = np.sort(first)
    estimates: list[Floats] = []
    dense: list[Floats] = []
    sparse: list[tuple[Integers, Integers, Floats, Floats]] = []
    is_varied = any(space.variants for space in transitions)
    for index, (space, numbers) in enumerate(zip(transitions, unit_numbers, strict=True)):
        start = ends[index] - len(hashes[index])
        mine = first[(first >= start) & (first < ends[index])] - start
        batch = space.batch(mine)
        prices = estimate.price_stages(batch)
        serial_us, work_us = _unit_times(space.problem, estimate)
        rows = np.bitwise_count(batch.masks).astype(np.int64)
        table = np.zeros((len(batch), len(DENSE) + work_us.shape[1]))
        count = int(rows.sum())
        made = Features(table, np.zeros(0, np.int64), np.empty(count, np.int64), np.empty(count), np.empty(count), 0)
        stages = batch.masks, batch.strategies, prices
        _describe(*stages, space.problem.predecessors, serial_us, work_us, numbers, made)
        if is_varied:
            varied = False if batch.variants is None else (batch.variants.chosen > 0).any(axis=1)
            table = np.column_stack([table, np.broadcast_to(varied, len(table))])
        estimates.append(prices)
        dense.append(table)
        sparse.append((rows, *made[2:5]))
    rows, unit, time, share = (np.concatenate(own) for own in zip(*sparse, strict=True))
    begin = np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(rows)])
    unit, count = _most_frequent(unit, units)
    features = Features(np.concatenate(dense), begin, unit, time, share, count)
    estimate_us = np.concatenate(estimates)
    # Stages of units that launch nothing, whose hash is 0, take no time.
    estimate_us[rank[distinct == 0]] = 0.0
    return StageClasses(of_stage, estimate_us, features)


def _most_frequent(unit: Integers, units: int) -> tuple[Integers, int]:
    """Numbers of units, in which the rarest beyond :data:`MOST_UNITS` share one; and how many numbers there are."""
    if units <= MOST_UNITS:
        return unit, units
    rank = np.empty(units, dtype=np.int64)
    rank[np.argsort(-np.bincount(unit, minlength=units), kind="stable")] = np.arange(units)
    return np.minimum(rank, MOST_UNITS - 1)[unit], MOST_UNITS


def _unit_times(problem: ScheduleProblem, estimate: CostModel) -> tuple[Floats, Floats]:
    """Time of each unit alone, us, and its work on each resource, ``[units, resources]``: none without bounds."""
    serial_us = estimate.price_stages(StageBatch.alone(problem))
    bounds = estimate.bounds(problem)
    work_us = np.zeros((len(problem), 0)) if bounds is None else bounds.work_us
    return np.where(np.isfinite(serial_us), serial_us, 0.0), np.ascontiguousarray(work_us)


@jit
def _describe(
    masks: Masks,
    strategies: NDArray[np.uint8],
    prices: Floats,
    predecessors: Masks,
    serial_us: Floats,
    work_us: Floats,
    numbers: Integers,
    made: Features,
) -> None:
    """Fill the features of stages, the sparse ones with an entry for each unit of each stage."""
    dense, unit_out, time_out, share_out = made.dense, made.unit, made.time, made.share
    one = np.uint64(1)
    units, resources = work_us.shape
    groups = np.zeros(units, dtype=np.uint64)
    group_us = np.zeros(units)
    work = np.zeros(resources)
    place = 0
    for index in range(len(masks)):
        mask = masks[index]
        merged = strategies[index] != 0
        count = 0
        members = 0
        total_us = 0.0
        for resource in range(resources):
            work[resource] = 0.0
        for unit in range(units):
            bit = one << np.uint64(unit)
            if mask & bit == 0:
                continue
            members += 1
            total_us += serial_us[unit]
            for resource in range(resources):
                work[resource] += work_us[unit, resource]
            joined, joined_us, kept = bit, serial_us[unit], 0
            for g in range(count):
                if merged or groups[g] & predecessors[unit]:
                    joined |= groups[g]
                    joined_us += group_us[g]
                else:
                    groups[kept], group_us[kept] = groups[g], group_us[g]
                    kept += 1
            groups[kept], group_us[kept] = joined, joined_us
            count = kept + 1
        longest = 0
        for g in range(count):
            if group_us[g] > group_us[longest]:
                longest = g
        longest_us = group_us[longest]
        price = prices[index]
        several = count > 1
        # The fraction of the price that is due to sharing the device.
        sharing = 0.0
        if several and price > 0.0 and price < np.inf:
            sharing = min(1.0, max(0.0, (price - longest_us) / price))
        dense[index, _CONSTANT] = 1.0
        if several:
            dense[index, _SEVERAL] = 1.0
            dense[index, _LOG_GROUPS] = np.log(float(count))
            if total_us > 0.0 and price > 0.0 and price < np.inf:
                dense[index, _LOG_OVERLAP] = np.log(total_us / price)
            dense[index, _SHARING] = sharing
        elif merged:
            dense[index, _MERGED] = 1.0
            dense[index, _LOG_GROUPS] = np.log(float(members))
        elif members > 1:
            dense[index, _LOG_CHAIN] = np.log(float(members))
        fullest = -1
        for resource in range(resources):
            if several and price > 0.0 and price < np.inf:
                dense[index, _RESOURCES + resource] = work[resource] / price
            if fullest < 0 or work[resource] > work[fullest]:
                fullest = resource
        for unit in range(units):
            if mask >> np.uint64(unit) & one == 0:
                continue
            unit_out[place] = numbers[unit]
            part = serial_us[unit] / total_us if total_us > 0.0 else 1.0 / members
            time_out[place] = part
            share_out[place] = 0.0
            if several:
                in_longest = groups[longest] >> np.uint64(unit) & one
                own = serial_us[unit] / longest_us if in_longest and longest_us > 0.0 else 0.0
                time_out[place] = (1.0 - sharing) * own + sharing * part
                used = work_us[unit, fullest] / work[fullest] if fullest >= 0 and work[fullest] > 0.0 else part
                share_out[place] = sharing * used
            place += 1
