"""Everything that can run, runs: each stage holds all units whose predecessors are done (IOS thesis, section 4.2)."""

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


@scheduler("greedy")
def schedule_greedily(
    network: Network, cost_model: CostModel, options: SearchOptions, progress: Progress
) -> Schedule:
    """Stages of all ready units, each unit a group of its own."""
    started = perf_counter()
    problems = [ScheduleProblem.of_block(network, block) for block in network.blocks]
    plans = [greedy_stages(problem) for problem in problems]
    return build_schedule(
        network,
        problems,
        plans,
        cost_model,
        "greedy",
        lower_bound_us=network_lower_bound_us(problems, [no_merges()] * len(problems), cost_model, concurrent=True),
        notes=list(network.notes),
        search_s=perf_counter() - started,
    )


def greedy_stages(problem: ScheduleProblem) -> list[PlannedStage]:
    predecessors = problem.predecessors.tolist()
    done, stages = 0, []
    while done != problem.full:
        ready = sum(
            1 << unit for unit in range(len(problem)) if not done >> unit & 1 and not predecessors[unit] & ~done
        )
        stages.append(PlannedStage(ready, Strategy.CONCURRENT))
        done |= ready
    return stages
