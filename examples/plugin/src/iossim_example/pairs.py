"""Stages of two ready units at most, the first that are ready."""

from __future__ import annotations

from itertools import islice
from time import perf_counter

from iossim.base.errors import Progress
from iossim.cost.model import CostModel
from iossim.ir.network import Network
from iossim.schedule.batch import Strategy
from iossim.schedule.planned_stage import PlannedStage
from iossim.schedule.problem import ScheduleProblem, bits
from iossim.schedule.schedule import Schedule
from iossim.search.assemble import build_schedule
from iossim.search.memo import SearchMemo
from iossim.search.options import SearchOptions


def pairs(
    network: Network, cost_model: CostModel, options: SearchOptions, progress: Progress, memo: SearchMemo | None
) -> Schedule:
    started = perf_counter()
    problems = [ScheduleProblem.of_block(network, block) for block in network.blocks]
    stages = [_stages(problem) for problem in problems]
    progress(len(network.units), len(network.units))
    return build_schedule(
        network, problems, stages, cost_model, "pairs", notes=list(network.notes), search_s=perf_counter() - started
    )


def _stages(problem: ScheduleProblem) -> list[PlannedStage]:
    done, stages = 0, []
    while done != problem.full:
        two = sum(1 << unit for unit in islice(bits(problem.ready(done)), 2))
        stages.append(PlannedStage(two, Strategy.CONCURRENT))
        done |= two
    return stages
