"""The compiled inner loops of the search: propose stages from states, look their prices up, relax.

A *label* is a state and one bit: did the last stage run several groups? The bit decides what stands before the next
stage. ``cost[i, b]`` is the least cost found of a path to state ``i`` whose last stage has bit ``b``; ``cost_to_go[i, b]`` is a
lower bound of what is still to come. A label lies on no better schedule once ``cost + cost_to_go`` reaches the upper bound.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from iossim.compiled import jit
from iossim.schedule.hash_table import FloatTable, find_slot
from iossim.schedule.masks import count_bits, lowest_bit
from iossim.schedule.problem import Masks

#: About so many stages are looked at before compiled code returns, a tenth of a second: only then an interrupt is heard.
STEPS_AT_A_TIME = 1_000_000

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

#: One proposed transition: from where, by which stage, to where, at which cost before the stage's own price.
PROPOSAL = np.dtype(
    [
        ("cost", np.float64),
        ("stage", np.uint64),
        ("source", np.int32),
        ("target", np.int32),
        ("source_bit", np.int8),
        ("bit", np.int8),
    ]
)


class Labels(NamedTuple):
    """What is known of each label; all arrays have shape ``[states, 2]``.

    ``parent`` and ``parent_bit`` are the label that the best path found comes from, ``stage`` (a mask) and ``strategy`` the
    stage that leads here.
    """

    cost: Floats
    cost_to_go: Floats
    parent: NDArray[np.int32]
    parent_bit: NDArray[np.int8]
    stage: Masks
    strategy: NDArray[np.uint8]


@jit
def propose(
    states: Integers,
    begin: int,
    addable: Masks,
    child: NDArray[np.int32],
    predecessors: Masks,
    serial_us: Floats,
    single_us: Floats,
    work_us: Floats,
    labels: Labels,
    boundary: Floats,
    tolerance: Floats,
    upper_us: float,
    max_group_size: int,
    max_groups: int,
    single_root: bool,
    proposals: NDArray[np.void],
    filled: int,
) -> tuple[int, int, bool]:
    """Fill ``proposals[filled:]`` with the concurrent stages of ``states[begin:]`` that bounds do not rule out.

    Stops before a state whose stages do not all fit, and behind one with which :data:`STEPS_AT_A_TIME` are done. Returns the
    position reached, how many proposals there are, and whether there is no room for more.

    ``states``: numbers of states of the lattice, int64; ``addable`` and ``child`` are the lattice's, ``predecessors`` the
    problem's, ``serial_us``, ``single_us`` and ``work_us`` those of :class:`~iossim.cost.model.StageBounds`. ``boundary[i, j]``, us,
    is what stands between a stage of bit ``i`` and one of bit ``j``. ``tolerance[b]``, us, is the most by which a label of the
    other bit may be dearer and still be as good.

    Stages are grown as by :func:`~iossim.scheduling.stage_walk.find_stages`, written out here with the sums of the bounds: as
    one shared step the two take four times as long.
    """
    cost, cost_to_go = labels.cost, labels.cost_to_go
    count = child.shape[1]
    resources = work_us.shape[1]
    at = np.empty(count + 1, dtype=np.int64)
    stage = np.zeros(count + 1, dtype=np.uint64)
    choices = np.zeros(count + 1, dtype=np.uint64)
    groups = np.zeros((count + 1, count + 1), dtype=np.uint64)
    group_us = np.zeros((count + 1, count + 1), dtype=np.float64)
    group_count = np.zeros(count + 1, dtype=np.int64)
    longest_us = np.zeros(count + 1, dtype=np.float64)
    total_us = np.zeros(count + 1, dtype=np.float64)
    used_us = np.zeros((count + 1, resources), dtype=np.float64)
    before_us = np.empty(2, dtype=np.float64)
    before_bit = np.empty(2, dtype=np.int8)
    steps = 0
    for position in range(begin, len(states)):
        state = states[position]
        if cost[state, 0] + cost_to_go[state, 0] >= upper_us and cost[state, 1] + cost_to_go[state, 1] >= upper_us:
            continue
        for bit in range(2):
            one = cost[state, 0] + boundary[0, bit]
            many = cost[state, 1] + boundary[1, bit]
            before_us[bit] = min(one, many)
            before_bit[bit] = 0 if one <= many else 1
        if steps >= STEPS_AT_A_TIME:
            return position, filled, False
        mark = filled
        depth = 0
        at[0], choices[0] = state, addable[state]
        while depth >= 0:
            rest = choices[depth]
            if rest == 0:
                depth -= 1
                continue
            choices[depth] = rest & (rest - np.uint64(1))
            steps += 1
            unit = lowest_bit(rest)
            unit_bit = np.uint64(1) << np.uint64(unit)
            near = predecessors[unit] & stage[depth]
            joined = unit_bit
            joined_us = serial_us[unit]
            kept = 0
            merged = 0
            for g in range(group_count[depth]):
                group = groups[depth, g]
                if near & group:
                    joined |= group
                    joined_us += group_us[depth, g]
                    merged += 1
                else:
                    groups[depth + 1, kept] = group
                    group_us[depth + 1, kept] = group_us[depth, g]
                    kept += 1
            if single_root and (merged > 1 or kept >= max_groups):
                continue
            if merged and count_bits(joined) > max_group_size:
                continue
            groups[depth + 1, kept] = joined
            group_us[depth + 1, kept] = joined_us
            depth += 1
            target = np.int64(child[at[depth - 1], unit])
            at[depth] = target
            stage[depth] = stage[depth - 1] | unit_bit
            group_count[depth] = kept + 1
            choices[depth] = addable[target] & ~((unit_bit << np.uint64(1)) - np.uint64(1))
            longest_us[depth] = max(longest_us[depth - 1], joined_us)
            total_us[depth] = total_us[depth - 1] + single_us[unit]
            bit = 1 if kept > 0 else 0
            least_us = longest_us[depth] if bit else total_us[depth]
            for resource in range(resources):
                used = used_us[depth - 1, resource] + work_us[unit, resource]
                used_us[depth, resource] = used
                least_us = max(least_us, used)
            if kept + 1 > max_groups:
                continue
            reached_us = before_us[bit] + least_us
            if (
                reached_us >= cost[target, bit]
                or reached_us >= cost[target, 1 - bit] + tolerance[bit]
                or reached_us + cost_to_go[target, bit] >= upper_us
            ):
                continue
            if filled == len(proposals):
                return position, mark, True
            proposal = proposals[filled]
            proposal["cost"] = before_us[bit]
            proposal["stage"] = stage[depth]
            proposal["source"] = state
            proposal["target"] = target
            proposal["source_bit"] = before_bit[bit]
            proposal["bit"] = bit
            filled += 1
    return len(states), filled, False


@jit
def relax(proposals: NDArray[np.void], filled: int, table: FloatTable, labels: Labels) -> None:
    """Lower the costs of the targets where the proposed stage, now priced, gives a better path."""
    keys = table.keys
    for index in range(filled):
        proposal = proposals[index]
        stage = proposal["stage"]
        slot = find_slot(stage, keys)
        reached_us = proposal["cost"] + table.values[slot]
        target, bit = proposal["target"], proposal["bit"]
        if reached_us < labels.cost[target, bit]:
            labels.cost[target, bit] = reached_us
            labels.parent[target, bit] = proposal["source"]
            labels.parent_bit[target, bit] = proposal["source_bit"]
            labels.stage[target, bit] = stage
            labels.strategy[target, bit] = 0


@jit
def relax_merges(
    states: Integers,
    addable: Masks,
    child: NDArray[np.int32],
    merges: Masks,
    merge_prices: Floats,
    boundary: Floats,
    labels: Labels,
) -> None:
    """Relax every merged stage that can follow each state: merged units share an input, so all must be addable.

    ``merges`` and ``merge_prices`` (us) have shape ``[merges]``; the others are those of :func:`propose`.
    """
    cost = labels.cost
    for state in states:
        one = cost[state, 0] + boundary[0, 0]
        many = cost[state, 1] + boundary[1, 0]
        before_us = min(one, many)
        if before_us == np.inf:
            continue
        for index in range(len(merges)):
            stage = merges[index]
            if stage & ~addable[state]:
                continue
            target = np.int64(state)
            rest = stage
            while rest:
                target = np.int64(child[target, lowest_bit(rest)])
                rest &= rest - np.uint64(1)
            reached_us = before_us + merge_prices[index]
            if reached_us < cost[target, 0]:
                cost[target, 0] = reached_us
                labels.parent[target, 0] = state
                labels.parent_bit[target, 0] = 0 if one <= many else 1
                labels.stage[target, 0] = stage
                labels.strategy[target, 0] = 1


@jit
def bound_cost_to_go(
    masks: Masks, full: np.uint64, serial_us: Floats, single_us: Floats, work_us: Floats, successors: Masks
) -> tuple[Floats, Floats]:
    """For each state what the units not yet done cost at least: in any stages, and in stages of one group only.

    In any stages: their critical path, and the least total work of each resource (the two bounds of R. L. Graham, Bounds on
    multiprocessing timing anomalies, SIAM J. Appl. Math. 17, 1969). ``masks``: the units done in each state, ``[states]``;
    ``serial_us``, ``single_us`` and ``work_us`` as :class:`~iossim.cost.model.StageBounds`. Returns us, ``[states]`` each.
    """
    count = len(serial_us)
    tail_us = np.zeros(count, dtype=np.float64)
    for unit in range(count - 1, -1, -1):
        rest = successors[unit]
        while rest:
            tail_us[unit] = max(tail_us[unit], tail_us[lowest_bit(rest)])
            rest &= rest - np.uint64(1)
        tail_us[unit] += serial_us[unit]
    any_us = np.zeros(len(masks), dtype=np.float64)
    one_us = np.zeros(len(masks), dtype=np.float64)
    used = np.empty(work_us.shape[1], dtype=np.float64)
    for state in range(len(masks)):
        rest = full & ~masks[state]
        used[:] = 0.0
        path = 0.0
        single = 0.0
        while rest:
            unit = lowest_bit(rest)
            rest &= rest - np.uint64(1)
            path = max(path, tail_us[unit])
            single += single_us[unit]
            for resource in range(len(used)):
                used[resource] += work_us[unit, resource]
        for resource in range(len(used)):
            path = max(path, used[resource])
        any_us[state] = path
        one_us[state] = max(single, path)
    return any_us, one_us
