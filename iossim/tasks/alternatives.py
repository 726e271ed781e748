"""Alternatives to a stage of a schedule, and the cost of the whole schedule with them.

All other blocks stay as they are. Within the block three schedules are found exactly, by the search itself:

- the *next best* schedule: the cheapest one without this stage (the same units, run the same way);
- the cheapest one in which the units of this stage run otherwise, and all other stages are unchanged;
- the cheapest one in which some unit of a stage of a single group runs concurrently with others, or merged. Units of a
  single group run one after another, so that other cuts between them change little: concurrency was decided against.

A stage is the same where its views run elsewhere: they launch nothing. Equal units in a row run in their order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from iossim.base.errors import ScheduleError
from iossim.cost.model import START, CostModel, Prices, WrappedCostModel, price_keys, price_path, problems_of
from iossim.ir.network import BATCH_VIEW, Network
from iossim.schedule.batch import StageBatch, Strategy
from iossim.schedule.masks import count_groups
from iossim.schedule.planned_stage import PlannedStage, planned
from iossim.schedule.problem import ScheduleProblem, bits
from iossim.schedule.schedule import SavedSchedule, Schedule
from iossim.search.counting import more_transitions_than
from iossim.search.ios import solve
from iossim.search.lattice import build_lattice
from iossim.search.options import SearchOptions, StageSpace

Plan = tuple[PlannedStage, ...]


def space_of(schedule: SavedSchedule) -> StageSpace:
    """The stages of which the alternatives of a schedule may consist: those that its own search could form, or all if
    its scheduler does not search.
    """
    names = ("stages", "max_group_size", "max_groups", "concurrent", "merge")
    return StageSpace(*(schedule.options[name] for name in names)) if "stages" in schedule.options else StageSpace()


@dataclass(frozen=True, eq=False)
class BlockContext:
    """A block of a schedule: its stages, and the two stages around it, on which its boundaries depend.

    ``entry`` is the bit of the stage before (:data:`START` if there is none), ``leaving_us`` the boundary after the
    block for each bit of its last stage.
    """

    problem: ScheduleProblem
    plan: Plan
    entry: int
    leaving_us: tuple[float, float]

    def cost_us(self, plan: Sequence[PlannedStage], cost_model: CostModel) -> float:
        """Cost of a plan of the block, including the boundaries on both sides; inf if a stage cannot run."""
        path = price_path(self.problem, plan, cost_model, self.entry)
        return path.cost_us() + self.leaving_us[path.leaving]

    def launched(self, stage: PlannedStage) -> dict[int, str]:
        """The names of a stage's units, apart from views, if there are others."""
        views = _views(self.problem)
        return {unit: self.problem.unit_names[unit] for unit in bits(stage.mask & ~views or stage.mask)}


def block_contexts(schedule: Schedule, network: Network, cost_model: CostModel) -> list[BlockContext]:
    """The blocks of a schedule that fits the network."""
    contexts, entry, price = [], START, cost_model.price_boundary
    for index, (problem, block) in enumerate(zip(problems_of(network, cost_model), schedule.blocks, strict=True)):
        after = next((stage for later in schedule.blocks[index + 1 :] for stage in later.stages), None)
        leaving_us = (0.0, 0.0) if after is None else (price(False, after.concurrent), price(True, after.concurrent))
        contexts.append(BlockContext(problem, planned(problem, block), entry, leaving_us))
        entry = int(block.stages[-1].concurrent) if block.stages else entry
    return contexts


@dataclass(eq=False)
class _Forbidding(WrappedCostModel):
    """Prices of ``inner``, except that forbidden stages of some ``units`` cannot run; its bounds still hold."""

    units: frozenset[str]
    is_forbidden: Callable[[StageBatch], NDArray[np.bool_]]

    def price_keys(self, problem: ScheduleProblem) -> Sequence[str]:
        """The keys of ``inner``, which tell these units from equal ones."""
        keys = zip(super().price_keys(problem), problem.unit_names, strict=True)
        return [f"{key} {name}" if name in self.units else key for key, name in keys]

    def price_stages(self, batch: StageBatch) -> Prices:
        return np.where(self.is_forbidden(batch), np.inf, super().price_stages(batch))


@dataclass
class Alternatives:
    """Searches the alternatives of the stages of one schedule; equal ones are searched once."""

    cost_model: CostModel
    space: StageSpace
    _known: dict[object, Plan | None] = field(default_factory=dict)

    def best(self, context: BlockContext) -> Plan | None:
        """The cheapest stages of the block; None if no schedule has a price."""
        return self._solve(context, self.cost_model, "best")

    def next_best(self, context: BlockContext, index: int) -> Plan | None:
        """The cheapest stages of the block without stage ``index``; None if there are no others."""
        stage = context.plan[index]
        names = frozenset(context.launched(stage).values())

        def is_forbidden(batch: StageBatch) -> NDArray[np.bool_]:
            # A search may split a block: the names of the units say which stage it is.
            own = batch.problem.unit_names
            mask = sum(1 << own.index(name) for name in names) if names <= set(own) else 0
            launching = batch.masks & np.uint64(mask | batch.problem.full & ~_views(batch.problem))
            found: NDArray[np.bool_] = (launching == np.uint64(mask)) & (batch.strategies == stage.strategy.code)
            return found

        return self._solve(context, _Forbidding(self.cost_model, names, is_forbidden), ("without", stage))

    def next_best_beside(self, context: BlockContext, index: int) -> Plan | None:
        """The cheapest stages of the block in which a unit of stage ``index`` runs concurrently or merged, or None."""
        plans: list[Plan] = []
        for unit, name in context.launched(context.plan[index]).items():

            def is_forbidden(batch: StageBatch, name: str = name) -> NDArray[np.bool_]:
                own = batch.problem.unit_names
                if name not in own:
                    return np.zeros(len(batch), dtype=np.bool_)
                holding = batch.masks >> np.uint64(own.index(name)) & np.uint64(1) != 0
                is_one_group = count_groups(batch.masks, batch.problem.predecessors) == 1
                found: NDArray[np.bool_] = ~batch.merged & holding & is_one_group
                return found

            forbidding = _Forbidding(self.cost_model, frozenset([name]), is_forbidden)
            plan = self._solve(context, forbidding, ("beside", unit))
            if plan is not None:
                plans.append(plan)
        return min(plans, key=lambda plan: context.cost_us(plan, self.cost_model), default=None)

    def split(self, context: BlockContext, index: int) -> Plan | None:
        """The cheapest other stages of the units of stage ``index``; None for a single unit."""
        stage = context.plan[index]
        if stage.mask.bit_count() == 1:
            return None
        units = bits(stage.mask)
        before = self._bit(context, index - 1)
        single, several = (
            self.cost_model.price_boundary(bit, self._bit(context, index + 1) == 1) for bit in (False, True)
        )
        leaving = context.leaving_us if index == len(context.plan) - 1 else (single, several)
        part = BlockContext(
            context.problem.restrict(units), (PlannedStage((1 << len(units)) - 1, stage.strategy),), before, leaving
        )
        own = self.next_best(part, 0)
        if own is None:
            return None
        spread = tuple(one.spread(units) for one in own)
        return (*context.plan[:index], *spread, *context.plan[index + 1 :])

    def _bit(self, context: BlockContext, index: int) -> int:
        if index < 0:
            return context.entry
        return int(context.plan[index].is_concurrent(context.problem)) if index < len(context.plan) else 0

    def _solve(self, context: BlockContext, cost_model: CostModel, question: object) -> Plan | None:
        key = context.problem.key, context.entry, context.leaving_us, question
        if key not in self._known:
            problem = context.problem.in_order()
            try:
                own = replace(problem, signatures=tuple(price_keys(cost_model, problem)))
                given = [own], cost_model, SearchOptions(self.space)
                solution = solve(*given, entry=context.entry, leaving_us=context.leaving_us)
                self._known[key] = solution.plans[0]
            except ScheduleError:
                self._known[key] = None
        return self._known[key]


def _views(problem: ScheduleProblem) -> int:
    """Mask of the units of a problem that launch nothing."""
    if (network := problem.network) is None:
        return 0
    return sum(1 << unit for unit, index in enumerate(problem.units) if network.units[index].kind == BATCH_VIEW)


def one_by_one(context: BlockContext, index: int) -> Plan:
    """The plan of the block with the units of stage ``index`` one by one."""
    alone = (PlannedStage(1 << unit, Strategy.CONCURRENT) for unit in bits(context.plan[index].mask))
    return (*context.plan[:index], *alone, *context.plan[index + 1 :])


def is_small(problem: ScheduleProblem, space: StageSpace, most: int) -> bool:
    """True if a block has at most ``most`` transitions, so that solving it repeatedly takes little time."""
    if not space.concurrent:
        return True
    problem = space.ordered(problem)
    lattice = build_lattice(problem, most)
    return lattice is not None and not more_transitions_than(most, problem, lattice, space)
