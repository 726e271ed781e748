"""One unit after another, in topological order: what frameworks do, and what every speed-up is measured against."""

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


@scheduler("sequential")
def schedule_sequentially(
    network: Network, cost_model: CostModel, options: SearchOptions, progress: Progress, memo: SearchMemo | None
) -> Schedule:
    """Every unit is a stage."""
    return schedule_unsearched(network, cost_model, "sequential", sequential_stages, concurrent=False)


def sequential_stages(problem: ScheduleProblem) -> list[PlannedStage]:
    return [PlannedStage(1 << unit, Strategy.CONCURRENT) for unit in range(len(problem))]
