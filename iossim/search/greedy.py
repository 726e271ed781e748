"""Everything that can run, runs: each stage holds all units whose predecessors are done (IOS thesis, section 4.2)."""

from __future__ import annotations

from iossim.cost.model import CostModel
from iossim.ir.network import Network
from iossim.schedule.planned_stage import PlannedStage
from iossim.schedule.problem import ScheduleProblem
from iossim.schedule.schedule import Schedule
from iossim.schedule.strategy import Strategy
from iossim.search.assemble import schedule_unsearched
from iossim.search.memo import SearchMemo
from iossim.search.options import SearchOptions
from iossim.search.scheduler import Progress, scheduler


@scheduler("greedy")
def schedule_greedily(
    network: Network, cost_model: CostModel, options: SearchOptions, progress: Progress, memo: SearchMemo | None
) -> Schedule:
    """Stages of all ready units, each unit a group of its own."""
    return schedule_unsearched(network, cost_model, "greedy", greedy_stages, concurrent=True)


def greedy_stages(problem: ScheduleProblem) -> list[PlannedStage]:
    done, stages = 0, []
    while done != problem.full:
        ready = problem.ready(done)
        stages.append(PlannedStage(ready, Strategy.CONCURRENT))
        done |= ready
    return stages
