"""Micro-batches of a given schedule: each of its stages run part after part, or with all parts side by side."""

from __future__ import annotations

from collections.abc import Sequence

from iossim.base.errors import GraphError
from iossim.cost.model import START, CostModel, price_path, problem_of
from iossim.ir.network import Block, Network
from iossim.microbatching.divided_blocks import divide_blocks, part_name
from iossim.microbatching.divisible import divisible
from iossim.schedule.batch import Strategy
from iossim.schedule.planned_stage import PlannedStage
from iossim.schedule.problem import ScheduleProblem
from iossim.schedule.schedule import BlockSchedule, Schedule


def scheduled_first(
    network: Network, prices: CostModel, found: Schedule, counts: Sequence[int] = (2, 4)
) -> tuple[dict[str, int], float]:
    """Divide the blocks of a network where that is faster for its schedule's stages, the block by itself; then priced
    as a whole. Returns the number of micro-batches of each divided block, and the latency of these stages, us.

    Stages of one block are all run part after part, or all of them side by side. Undivided where that is faster in
    the end.
    """
    ways: dict[str, tuple[int, bool]] = {}
    for place, block in enumerate(network.blocks):
        own = found.blocks[place]
        found_us: dict[tuple[int, bool], float] = {
            (1, False): sum(stage.boundary_us + stage.latency_us for stage in own.stages)
        }
        for count in counts:
            if (problem := _problem(network, block, count, prices)) is None:
                continue
            for beside in (False, True):
                stages = _divided(problem, own, count, beside)
                found_us[count, beside] = price_path(problem, stages, prices, 0).cost_us(0.0)
        ways[block.name] = min(found_us, key=found_us.__getitem__)
    parts = {name: count for name, (count, _) in ways.items() if count > 1}
    try:
        divided = divide_blocks(network, parts, 0)
    except GraphError:  # views of other blocks take one beyond a problem's size
        return {}, found.latency_us
    total_us, leaving = 0.0, START
    for block, inside, own in zip(network.blocks, divided.blocks, found.blocks, strict=True):
        problem = problem_of(divided, inside, prices)
        path = price_path(problem, _divided(problem, own, *ways[block.name]), prices, leaving)
        total_us, leaving = path.cost_us(total_us), path.leaving
    return (parts, total_us) if total_us < found.latency_us else ({}, found.latency_us)


def _problem(network: Network, block: Block, count: int, prices: CostModel) -> ScheduleProblem | None:
    """A block alone in so many micro-batches; None where it cannot be, or takes too many views."""
    if not divisible(network, block, count):
        return None
    try:
        divided = divide_blocks(network, {block.name: count}, 0)
    except GraphError:
        return None
    inside = next(each for each in divided.blocks if each.name == f"{block.name} in {count}")
    return problem_of(divided, inside, prices)


def _divided(problem: ScheduleProblem, own: BlockSchedule, count: int, beside: bool) -> list[PlannedStage]:
    """Each stage as so many in a row, or all its micro-batches side by side; views where they need no group."""
    place = {name: index for index, name in enumerate(problem.unit_names)}
    stages: list[PlannedStage] = []
    for stage in own.stages:
        masks = [
            sum(
                1 << place[unit if count == 1 else part_name(unit, index, count)]
                for group in stage.groups
                for unit in group
            )
            for index in range(count)
        ]
        if beside and stage.strategy is Strategy.CONCURRENT:
            masks = [sum(masks)]
        stages += [PlannedStage(mask, stage.strategy) for mask in masks]
    for view in range(len(problem)):
        if not any(stage.mask >> view & 1 for stage in stages):
            _put_view(problem, stages, view)
    return stages


def _put_view(problem: ScheduleProblem, stages: list[PlannedStage], view: int) -> None:
    """A view joins a stage where it is part of a group that is there; else it is a stage of its own."""
    bit, before, after = 1 << view, int(problem.predecessors[view]), int(problem.successors[view])
    first = next((at for at, stage in enumerate(stages) if stage.mask & after), len(stages))
    last = max((at for at, stage in enumerate(stages) if stage.mask & before), default=-1)
    for at in (last, first):
        if (
            0 <= at < len(stages)
            and last <= at <= first
            and stages[at].strategy is Strategy.CONCURRENT
            and len(problem.groups(stages[at].mask | bit)) == len(problem.groups(stages[at].mask))
        ):
            stages[at] = PlannedStage(stages[at].mask | bit, Strategy.CONCURRENT)
            return
    stages.insert(last + 1, PlannedStage(bit, Strategy.CONCURRENT))
