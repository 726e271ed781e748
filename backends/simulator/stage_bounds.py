"""Lower bounds of stages, by the rules of the fluid model (:mod:`iossim.backends.simulator.stage_model`).

Resources are host issue, issue capacity, DRAM, power, and slots of each kind. No SM gives its resident blocks more
than it has, so neither do all SMs; operands that L2 loses to others only make stages longer. A kernel that finds slots
for a part of its blocks runs that part as fast, so it holds slots for as long as alone at least, over all its blocks.
While two or more kernels are active, what they ask for counts ``1 + interference`` times, so that a kernel of demand
``d`` takes ``(1 + interference) * d`` of the device's time beside others for each of its own, and all of it by itself:
at least the smaller of the two.
"""

from __future__ import annotations

import numpy as np

from iossim.backends.simulator.device_sharing import (
    AGAIN_US,
    ALONE,
    DRAM_DEMAND,
    HOST,
    ISSUE_DEMAND,
    LAST_SPREAD,
    LAST_US,
    POWER_DEMAND,
    SLOT_KINDS,
    SLOTS,
    SPREAD,
)
from iossim.backends.simulator.preparation import PreparedProblem
from iossim.base.compiled import Floats
from iossim.cost.model import SAFE, StageBounds

#: Slots are lowered by this part: what fits but for rounding runs.
_FITTING = 1.0 - 1e-6


def stage_bounds(prepared: PreparedProblem, interference: float) -> StageBounds:
    """Bounds of stages whose units run as those of ``prepared``; or, where each of these is a variant of one unit, the
    bounds of these variants.
    """
    work_us = kernel_work_us(prepared, interference) * SAFE
    return StageBounds(work_us[:, 0], prepared.kernels.single_us * SAFE, work_us[:, 1:], work_us[:, 1])


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
