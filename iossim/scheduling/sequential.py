"""One unit after another, in topological order: what frameworks do, and what every speed-up is measured against."""

from __future__ import annotations

from time import perf_counter

from iossim.cost.model import CostModel
from iossim.ir.network import Network
from iossim.schedule.planned_stage import PlannedStage
from iossim.schedule.problem import ScheduleProblem
from iossim.schedule.schedule import Schedule
from iossim.schedule.strategy import Strategy
from iossim.scheduling.assemble import build_schedule, network_lower_bound_us
from iossim.scheduling.merges import no_merges
from iossim.scheduling.options import SearchOptions
from iossim.scheduling.scheduler import Progress, scheduler


@scheduler("sequential")
def schedule_sequentially(
    network: Network, cost_model: CostModel, options: SearchOptions, progress: Progress
) -> Schedule:
    """Every unit is a stage."""
    started = perf_counter()
    problems = [ScheduleProblem.of_block(network, block) for block in network.blocks]
    plans = [sequential_stages(problem) for problem in problems]
    return build_schedule(
        network,
        problems,
        plans,
        cost_model,
        "sequential",
        lower_bound_us=network_lower_bound_us(problems, [no_merges()] * len(problems), cost_model, concurrent=False),
        notes=list(network.notes),
        search_s=perf_counter() - started,
    )


def sequential_stages(problem: ScheduleProblem) -> list[PlannedStage]:
    return [PlannedStage(1 << unit, Strategy.CONCURRENT) for unit in range(len(problem))]
