"""The schedules that need no search: one unit after another, and everything that can run at once.

One after another, in topological order, is what frameworks do, and what every speed-up is measured against. The
greedy schedule's stages hold all units that are ready (IOS thesis, section 4.2), each a group.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from iossim.base.compile_time import working_s
from iossim.base.errors import Progress
from iossim.cost.model import CostModel
from iossim.ir.network import Network
from iossim.schedule.batch import Strategy
from iossim.schedule.planned_stage import PlannedStage
from iossim.schedule.problem import MAX_UNITS, ScheduleProblem, bits
from iossim.schedule.schedule import Schedule
from iossim.search.assemble import block_lower_bounds_us, build_schedule, sum_of_bounds_us
from iossim.search.lattice import no_merges
from iossim.search.memo import SearchMemo
from iossim.search.options import SearchOptions


def sequential_stages(problem: ScheduleProblem) -> list[PlannedStage]:
    """One stage for each unit."""
    return [PlannedStage(1 << unit, Strategy.CONCURRENT) for unit in range(len(problem))]


def greedy_stages(problem: ScheduleProblem, max_groups: int | None = None) -> list[PlannedStage]:
    """Each stage holds all units that are ready, or the first of them that a stage may hold, or ``max_groups``."""
    done, stages = 0, []
    while done != problem.full:
        ready = sum(1 << unit for unit in bits(problem.ready(done))[: min(max_groups or MAX_UNITS, MAX_UNITS)])
        stages.append(PlannedStage(ready, Strategy.CONCURRENT))
        done |= ready
    return stages


def _schedule(
    name: str,
    stages_of: Callable[[ScheduleProblem], Sequence[PlannedStage]],
    network: Network,
    cost_model: CostModel,
    options: SearchOptions,
    progress: Progress,
    memo: SearchMemo | None,
) -> Schedule:
    started = working_s()
    problems = SearchMemo.of(memo, cost_model).problems(network)
    concurrent = name != "sequential"
    bounds_us = block_lower_bounds_us(problems, [no_merges()] * len(problems), cost_model, concurrent)
    relaxed_us = sum_of_bounds_us(bounds_us)
    return build_schedule(
        network,
        problems,
        [stages_of(problem) for problem in problems],
        cost_model,
        name,
        lower_bound_us=relaxed_us,
        relaxed_bound_us=relaxed_us,
        notes=list(network.notes),
        search_s=working_s() - started,
    )


sequential = partial(_schedule, "sequential", sequential_stages)
greedy = partial(_schedule, "greedy", greedy_stages)
