"""Branches side by side, each on a part of the units, against every operator on all of them: a cost model for the search of IOS.

Xenos splits each operator over all units. A unit's share shrinks with that, and what every unit reads again does not: where branches
lie side by side, fewer units for each may take less. Groups of a stage get parts of the units in :data:`LEVELS` steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import isfinite

import numpy as np
from numpy.typing import NDArray

from iossim.base.compiled import jit
from iossim.base.errors import DeviceError
from iossim.cost.model import CostModelIdentity, Prices, StageBounds
from iossim.edge.optimize import on_units
from iossim.edge.plan import EdgePlan, Lane, Stages, one_by_one
from iossim.edge.pricing import step_load
from iossim.schedule.batch import StageBatch
from iossim.schedule.masks import find_groups, lowest_bit
from iossim.schedule.problem import Masks, ScheduleProblem
from iossim.schedule.schedule import BlockSchedule

#: Parts are multiples of a sixteenth of the units, or of one where there are fewer.
LEVELS = 16
_Table = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class PartsCostModel:
    """Prices stages of a plan's operators: groups side by side on parts of the units, dealt so that the longest is as short as
    can be; memories that all share take at least what all groups move.

    ``whole`` is the plan on all units; feature maps are priced where they lie in it. Boundaries cost nothing: a barrier is behind
    every operator anyway.
    """

    whole: EdgePlan
    policy: str

    @property
    def identity(self) -> CostModelIdentity:
        return CostModelIdentity("parts", self.whole.device.name, str(self.whole.precision), "", self.policy)

    @property
    def levels(self) -> int:
        return min(LEVELS, self.whole.device.units.value)

    @cached_property
    def tables(self) -> tuple[_Table, _Table, _Table]:
        """Of each unit of the network at each level: its time, and for how long it fills the shared and the external memory, in
        us; ``[units, levels]``. More units never take longer: some may idle."""
        found = np.empty((3, len(self.whole.steps), self.levels))
        known: dict[object, NDArray[np.float64]] = {}
        for step in self.whole.steps:
            operator = step.operator
            places = tuple(
                (self.whole.buffers[name].memory, self.whole.buffers[name].layout)
                for name in (*operator.inputs, *operator.outputs)
            )
            key = (operator.signature, len(step.slices), places)
            if key not in known:
                known[key] = np.array([self._load(step.operator.index, level) for level in range(self.levels)]).T
            found[:, operator.index] = known[key]
        _, shared_us, external_us = found
        return np.minimum.accumulate(np.maximum.reduce(found), axis=1), shared_us, external_us

    def _load(self, index: int, level: int) -> tuple[float, float, float]:
        units = self.units_of(level + 1)
        try:
            return step_load(self.whole, on_units(self.whole, self.whole.steps[index], units, self.policy))
        except DeviceError:  # parameters that no unit holds once there are so few
            return np.inf, 0.0, 0.0

    def units_of(self, levels: int) -> int:
        return levels * self.whole.device.units.value // self.levels

    def price_stages(self, batch: StageBatch) -> Prices:
        """Microseconds of each stage, shape ``[len(batch)]``; operators do not merge."""
        batch.refuse_variants()
        own = list(batch.problem.units)
        prices: Prices = _prices(batch.masks, batch.problem.predecessors, *(table[own] for table in self.tables))
        prices[batch.merged] = np.inf
        return prices

    def price_boundary(self, left_concurrent: bool, right_concurrent: bool) -> float:
        return 0.0

    def bounds(self, problem: ScheduleProblem) -> StageBounds | None:
        """Units times time, and what goes through each memory, at the level at which it is least."""
        own = list(problem.units)
        time_us, shared_us, external_us = (table[own] for table in self.tables)
        shares = np.arange(1, self.levels + 1) / self.levels
        work_us = np.stack([each.min(axis=1) for each in (time_us * shares, shared_us, external_us)], axis=1)
        return StageBounds(time_us[:, -1], time_us[:, -1], work_us) if isfinite(time_us[:, -1].sum()) else None

    def lanes(self, groups: Sequence[Sequence[int]]) -> tuple[Lane, ...]:
        """Groups of units of the network, side by side on parts of the device's units."""
        curves = np.array([self.tables[0][list(group)].sum(axis=0) for group in groups])
        ends = np.cumsum(dealt(curves, len(groups))).tolist()
        bounds = [0, *(self.units_of(end) for end in ends[:-1]), self.whole.device.units.value]
        return tuple(
            Lane(tuple(group), first, end - first)
            for group, first, end in zip(groups, bounds, bounds[1:], strict=False)
        )

    def stages(self, block: BlockSchedule) -> Stages:
        """The stages of a block as lanes; a group by itself is a stage an operator, so that its feature maps go when read."""
        index = self.whole.network.unit_index
        found: list[tuple[Lane, ...]] = []
        for stage in block.stages:
            groups = [[index[name] for name in group] for group in stage.groups]
            alone = len(groups) == 1
            found += one_by_one(groups[0], self.whole.device.units.value) if alone else [self.lanes(groups)]
        return tuple(found)


@jit
def dealt(curves: NDArray[np.float64], count: int) -> NDArray[np.int64]:
    """The levels of each of ``count`` groups, one at least: the longest gets the next until none is left.

    ``curves`` are the groups' times by level, ``[groups, levels]``, none growing. The longest can only be made shorter by more
    levels of its own, so the largest time is as small as can be.
    """
    levels = np.ones(count, dtype=np.int64)
    for _ in range(curves.shape[1] - count):
        longest = 0
        for group in range(1, count):
            if curves[group, levels[group] - 1] > curves[longest, levels[longest] - 1]:
                longest = group
        levels[longest] += 1
    return levels


@jit
def _prices(masks: Masks, predecessors: Masks, time_us: _Table, shared_us: _Table, external_us: _Table) -> _Table:
    units, levels = time_us.shape
    prices = np.empty(len(masks))
    groups = np.zeros(units, dtype=np.uint64)
    curves = np.empty((units, levels))
    owner = np.empty(units, dtype=np.int64)
    for index in range(len(masks)):
        count = find_groups(masks[index], predecessors, groups)
        if count > levels:
            prices[index] = np.inf
            continue
        for g in range(count):
            curves[g] = 0.0
            rest = groups[g]
            while rest:
                unit = lowest_bit(rest)
                rest &= rest - np.uint64(1)
                owner[unit] = g
                curves[g] += time_us[unit]
        shares = dealt(curves, count)
        longest = 0.0
        for g in range(count):
            longest = max(longest, curves[g, shares[g] - 1])
        if count > 1:
            shared = external = 0.0
            rest = masks[index]
            while rest:
                unit = lowest_bit(rest)
                rest &= rest - np.uint64(1)
                level = shares[owner[unit]] - 1
                shared += shared_us[unit, level]
                external += external_us[unit, level]
            longest = max(longest, shared, external)
        prices[index] = longest
    return prices
