"""Concurrent branches on parts of the units, against every operator on all: a cost model for IOS.

Xenos splits each operator over all units. That shrinks a unit's share, but not the data that every unit rereads: with
concurrent branches, fewer units for each may take less time. Groups of a stage get parts of the units in :data:`LEVELS`
steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from math import isfinite

import numpy as np

from iossim.base.compiled import Floats, Integers, jit
from iossim.base.errors import DeviceError, Progress, ignore
from iossim.cost.model import CostModelIdentity, Prices, StageBounds
from iossim.edge.capacity import check
from iossim.edge.optimize import on_units, plan
from iossim.edge.plan import EdgePlan, Lane, Stages, one_by_one, step_load
from iossim.edge.simulator.events import Timed, simulate
from iossim.schedule.batch import StageBatch
from iossim.schedule.masks import find_groups, lowest_bit
from iossim.schedule.problem import Masks, ScheduleProblem
from iossim.schedule.schedule import BlockSchedule
from iossim.search.scheduler import schedule

#: Parts are multiples of a sixteenth of the units, or of one if there are fewer.
LEVELS = 16
_Table = Floats


@dataclass(frozen=True, eq=False)
class PartsCostModel:
    """Prices stages of a plan's operators: concurrent groups on parts of the units, dealt so as to minimise the
    longest; shared memories take at least the time of what all groups move.

    ``whole`` is the plan on all units; feature maps are priced at their places in it. Boundaries cost nothing: every
    operator is followed by a barrier anyway.
    """

    whole: EdgePlan
    policy: str

    @property
    def identity(self) -> CostModelIdentity:
        return CostModelIdentity("parts", self.whole.device.name, str(self.whole.precision), "", self.policy)

    def price_keys(self, problem: ScheduleProblem) -> Sequence[str]:
        """Units by name: each keeps its place in the plan."""
        return problem.unit_names

    @property
    def levels(self) -> int:
        return min(LEVELS, self.whole.device.units.value)

    @cached_property
    def tables(self) -> tuple[_Table, _Table, _Table]:
        """Time of each unit of the network at each level, and the time for which it fills the shared and the external
        memory, in us; ``[units, levels]``. More units never take longer: some may idle.
        """
        found = np.empty((3, len(self.whole.steps), self.levels))
        known: dict[object, Floats] = {}
        for step in self.whole.steps:
            operator = step.operator
            key = (operator.signature, len(step.slices), self.whole.lies(operator))
            if key not in known:
                known[key] = np.array([self._load(step.operator.index, level) for level in range(self.levels)]).T
            found[:, operator.index] = known[key]
        _, shared_us, external_us = found
        return np.minimum.accumulate(np.maximum.reduce(found), axis=1), shared_us, external_us

    def _load(self, index: int, level: int) -> tuple[float, float, float]:
        units = self.units_of(level + 1)
        try:
            return step_load(self.whole, on_units(self.whole, self.whole.steps[index], units, self.policy))
        except DeviceError:  # so few units cannot hold the parameters
            return np.inf, 0.0, 0.0

    def units_of(self, levels: int) -> int:
        return levels * self.whole.device.units.value // self.levels

    def price_stages(self, batch: StageBatch) -> Prices:
        """Microseconds of each stage, shape ``[len(batch)]``; operators do not merge."""
        own = list(batch.problem.units)
        prices: Prices = np.empty(len(batch))
        time_us, shared_us, external_us = (table[own] for table in self.tables)
        _price(batch.masks, batch.problem.predecessors, time_us, shared_us, external_us, prices)
        prices[batch.merged] = np.inf
        return prices

    def price_boundary(self, left_concurrent: bool, right_concurrent: bool) -> float:
        return 0.0

    def bounds(self, problem: ScheduleProblem) -> StageBounds | None:
        """Minimum over levels of units times time, and of the traffic through each memory."""
        own = list(problem.units)
        time_us, shared_us, external_us = (table[own] for table in self.tables)
        shares = np.arange(1, self.levels + 1) / self.levels
        work_us = np.stack([each.min(axis=1) for each in (time_us * shares, shared_us, external_us)], axis=1)
        return StageBounds(time_us[:, -1], time_us[:, -1], work_us) if isfinite(time_us[:, -1].sum()) else None

    def lanes(self, groups: Sequence[Sequence[int]]) -> tuple[Lane, ...]:
        """Groups of units of the network as concurrent lanes on parts of the device's units."""
        curves = np.array([self.tables[0][list(group)].sum(axis=0) for group in groups])
        ends = np.cumsum(dealt(curves)).tolist()
        bounds = [0, *(self.units_of(end) for end in ends[:-1]), self.whole.device.units.value]
        return tuple(
            Lane(tuple(group), first, end - first)
            for group, first, end in zip(groups, bounds, bounds[1:], strict=False)
        )

    def stages(self, block: BlockSchedule) -> Stages:
        """Stages of a block as lanes; a lone group is one stage per operator, so that its maps are freed when read."""
        index = self.whole.network.unit_index
        found: list[tuple[Lane, ...]] = []
        for stage in block.stages:
            groups = [[index[name] for name in group] for group in stage.groups]
            alone = len(groups) == 1
            found += one_by_one(groups[0], self.whole.device.units.value) if alone else [self.lanes(groups)]
        return tuple(found)


def dealt(curves: Floats) -> Integers:
    """Levels of each group, at least one: the longest gets the next until none is left.

    ``curves`` are the groups' times by level, ``[groups, levels]``, none increasing. Only more levels of its own
    shorten the longest, so that the greedy choice minimises the largest time.
    """
    levels = np.empty(len(curves), dtype=np.int64)
    _deal(np.ascontiguousarray(curves), len(curves), levels)
    return levels


@jit
def _deal(curves: Floats, count: int, levels: Integers) -> None:
    for group in range(count):
        levels[group] = 1
    for _ in range(curves.shape[1] - count):
        longest = 0
        for group in range(1, count):
            if curves[group, levels[group] - 1] > curves[longest, levels[longest] - 1]:
                longest = group
        levels[longest] += 1


@jit
def _price(
    masks: Masks, predecessors: Masks, time_us: _Table, shared_us: _Table, external_us: _Table, prices: _Table
) -> None:
    units, levels = time_us.shape
    shares = np.empty(units, dtype=np.int64)
    groups = np.zeros(units, dtype=np.uint64)
    curves = np.empty((units, levels))
    owner = np.empty(units, dtype=np.int64)
    for index in range(len(masks)):
        count = find_groups(masks[index], predecessors, groups)
        if count > levels:
            prices[index] = np.inf
            continue
        for g in range(count):
            for level in range(levels):
                curves[g, level] = 0.0
            rest = groups[g]
            while rest:
                unit = lowest_bit(rest)
                rest &= rest - np.uint64(1)
                owner[unit] = g
                for level in range(levels):
                    curves[g, level] += time_us[unit, level]
        _deal(curves, count, shares)
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


@dataclass(frozen=True, slots=True)
class StageRow:
    """A stage of several lanes: the operators of each, its units, and the stage's time against these operators
    sequentially on all units, both event by event.
    """

    operators: list[list[str]]
    units: list[int]
    parts_us: float
    whole_us: float


@dataclass(frozen=True)
class Parts:
    """A plan with lanes in the blocks where they save time. ``proposed`` is the number of stages with several lanes
    that the search found, and ``rows`` are those in the plan.
    """

    plan: EdgePlan
    timed: Timed
    whole_us: float
    proposed: int
    rows: tuple[StageRow, ...]

    @property
    def total_us(self) -> float:
        return self.timed.total_us

    def to_json(self) -> dict[str, object]:
        return {
            "parts_us": self.total_us,
            "stages": len(self.plan.stages),
            "stages_proposed": self.proposed,
            "stages_in_parts": [asdict(row) for row in self.rows],
        }


def in_parts(whole: EdgePlan, timed: Timed, policy: str, progress: Progress = ignore) -> Parts:
    """Stages that the search of IOS finds at closed-form prices, kept where they take less event by event. ``whole``
    and ``timed`` are the plan on all units and its times; the result is never slower. ``progress`` counts blocks.
    """
    network, device = whole.network, whole.device
    model = PartsCostModel(whole, policy)
    progress(0, len(network.blocks))
    found = schedule(network, model, "ios-parallel")
    if not found.complete:
        raise KeyboardInterrupt
    by_block = [model.stages(block) for block in found.blocks]

    ordered = [sorted(step for stage in block for lane in stage for step in lane.steps) for block in by_block]
    alone = [one_by_one(steps, device.units.value) for steps in ordered]

    def planned(blocks: Sequence[Stages]) -> tuple[EdgePlan, Timed]:
        made = plan(network, device, whole.variant, policy, stages=tuple(stage for block in blocks for stage in block))
        check(made)
        return made, simulate(made)

    # Places of feature maps depend on all stages: the gain of a block is only known for the whole plan.
    chosen, best = alone, (whole, timed)
    if (tried := planned(by_block))[1].total_us < timed.total_us:
        chosen, best = by_block, tried
    for place, (stages, others) in enumerate(zip(by_block, alone, strict=True)):
        progress(place + 1, len(by_block))
        if stages != others:
            flipped = [*chosen[:place], others if chosen[place] == stages else stages, *chosen[place + 1 :]]
            if (tried := planned(flipped))[1].total_us < best[1].total_us:
                chosen, best = flipped, tried
    made, taken = best
    names = [step.operator.name for step in whole.steps]
    rows, whole_steps_us = [], timed.steps_us
    for stage in (stage for stage in made.stages if len(stage) > 1):
        steps = [step for lane in stage for step in lane.steps]
        parts_us = max(taken.steps[step][1] for step in steps) - min(taken.steps[step][0] for step in steps)
        whole_us = sum(whole_steps_us[step] for step in steps)
        operators = [[names[step] for step in lane.steps] for lane in stage]
        rows.append(StageRow(operators, [lane.units for lane in stage], parts_us, whole_us))
    proposed = sum(len(stage) > 1 for block in by_block for stage in block)
    return Parts(made, taken, timed.total_us, proposed, tuple(rows))
