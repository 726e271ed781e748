"""Lower bounds of stages, by the rules of the fluid model (:mod:`iossim.backends.simulator.stage_model`).

Resources are host issue, issue capacity, DRAM, power, and slots of each kind. No SM gives its resident blocks more
than it has, so neither do all SMs; operands that L2 loses to others only make stages longer. A kernel that finds slots
for a part of its blocks runs that part as fast, so it holds slots for as long as alone at least, over all its blocks.
While two or more kernels are active, what they ask for counts ``1 + interference`` times, so that a kernel of demand
``d`` takes ``(1 + interference) * d`` of the device's time beside others for each of its own, and all of it by itself:
at least the smaller of the two.

Work is late where a unit begins with kernels that hardly ask for anything, and that the host issues before those that
do. Two resources have late work, if only *heavy* kernels count:

- issue capacity, once more;
- an SM that all wide kernels share. A kernel of spread ``x`` leaves ``1 - x`` of the SMs out; so ``m`` kernels, each
  of which leaves out less than an ``m``-th, all have a block on some SM. There each asks for the load of its block,
  which is more than its demand of all SMs, and kernels that lie on all SMs ask for their demand in their last wave.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np

from iossim.backends.simulator.device_sharing import (
    AGAIN_US,
    ALONE,
    BLOCK_LOAD,
    DRAM_DEMAND,
    EVEN_SPREAD,
    HOST,
    ISSUE_DEMAND,
    LAST_SPREAD,
    LAST_US,
    MAX_GROUPS,
    POWER_DEMAND,
    SLOT_KINDS,
    SLOTS,
    SPREAD,
)
from iossim.backends.simulator.preparation import PreparedProblem
from iossim.base.compiled import Floats
from iossim.cost.model import SAFE, LateWork, StageBounds

#: A heavy kernel asks for at least this part of the issue capacity that any kernel of the problem asks for.
_HEAVY = 0.5
#: Fewest kernels of a set of wide ones that share an SM.
_FEWEST_WIDE = 3
#: Slots are lowered by this part: what fits but for rounding runs.
_FITTING = 1.0 - 1e-6
#: SMs that segments may be off by.
_ROUNDING = 1e-6


def stage_bounds(prepared: PreparedProblem, interference: float) -> StageBounds:
    """Bounds of stages whose units run as those of ``prepared``."""
    return replace(variant_bounds(prepared, interference), late=_late_work(prepared, interference))


def variant_bounds(ways: PreparedProblem, interference: float) -> StageBounds:
    """Bounds of the variants of a unit, each of them a unit of ``ways``.

    A variant may ask less of a resource than what is fastest alone, or even take less time (a library's benchmark
    counts dispatches too). Work is late by what stands beside it, and so none is here.
    """
    work_us = kernel_work_us(ways, interference) * SAFE
    return StageBounds(work_us[:, 0], ways.kernels.single_us * SAFE, work_us[:, 1:], work_us[:, 1])


def kernel_work_us(prepared: PreparedProblem, interference: float) -> Floats:
    """Time of units alone and their work on each resource, shape ``[units, 5 + kinds]``: host issue, issue capacity,
    DRAM, power, and each kind of slots.
    """
    columns = prepared.kernels.columns
    alone_us, last_us, again_us = columns[:, ALONE], columns[:, LAST_US], columns[:, AGAIN_US]
    demands = (part_of(columns[:, demand], interference) for demand in (ISSUE_DEMAND, DRAM_DEMAND, POWER_DEMAND))
    resident_us = (alone_us - last_us) * columns[:, SPREAD] + last_us * columns[:, LAST_SPREAD]
    resident_us = np.where(again_us > 0.0, again_us * columns[:, SPREAD], resident_us)
    running_us = np.where(again_us > 0.0, again_us, alone_us)
    slots = (resident_us * columns[:, SLOTS + kind] * _FITTING for kind in range(SLOT_KINDS))
    numbers = alone_us, columns[:, HOST], *(running_us * part for part in demands), *slots
    return np.stack([prepared.per_unit(each) for each in numbers], axis=1)


def part_of(demand: Floats, interference: float) -> Floats:
    """The part of a resource that a kernel takes of it at least while it runs as fast as alone."""
    return np.minimum(1.0, (1.0 + interference) * demand)


def _late_work(prepared: PreparedProblem, interference: float) -> LateWork | None:
    begin, columns, *_ = prepared.kernels
    alone_us, issue, spread = columns[:, ALONE], columns[:, ISSUE_DEMAND], columns[:, SPREAD]
    is_heavy = issue >= _HEAVY * issue.max(initial=0.0)
    if not is_heavy.any():
        return None
    running_us = np.where(columns[:, AGAIN_US] > 0.0, columns[:, AGAIN_US], alone_us)
    loads, times_us, most_groups = [np.where(is_heavy, issue, 0.0)], [running_us], [MAX_GROUPS]
    sparse = is_heavy & (spread < EVEN_SPREAD)
    sharing = np.where(sparse, np.ceil(1.0 / np.maximum(1.0 - spread + _ROUNDING, _ROUNDING)) - 1, 0)
    if (sharing >= _FEWEST_WIDE).any():
        most = min(MAX_GROUPS, int(sharing[sharing >= _FEWEST_WIDE].min()))
        shared = np.where(sparse, np.where(sharing >= most, columns[:, BLOCK_LOAD], 0.0), issue)
        loads.append(np.where(is_heavy, shared, 0.0))
        times_us.append(np.where(sparse, running_us, columns[:, LAST_US]))
        most_groups.append(most)
    parts = [part_of(load, interference) for load in loads]
    share = [[part[a:b].max(initial=0.0) for a, b in pairwise(begin)] for part in parts]
    return LateWork(
        _leads_us(prepared, is_heavy) * SAFE,
        np.array(share).T,
        np.stack([prepared.per_unit(us * part) for us, part in zip(times_us, parts, strict=True)], axis=1) * SAFE,
        np.array(most_groups, dtype=np.int64),
    )


def _leads_us(prepared: PreparedProblem, is_heavy: np.ndarray) -> Floats:
    """When the first heavy kernel of a unit begins at the earliest after its issue, or when all have ended."""
    begin, columns, *_ = prepared.kernels
    leads = np.zeros(len(prepared.units))
    for unit in range(len(leads)):
        issued_us = 0.0
        for kernel in range(begin[unit], begin[unit + 1]):
            issued_us += columns[kernel, HOST]
            leads[unit] = max(leads[unit], issued_us)
            if is_heavy[kernel]:
                break
            leads[unit] += columns[kernel, ALONE]
    return leads
