"""Micro-batches and the schedule chosen together, beside one after the other.

    python benchmarks/micro_batches_joint.py a100-sxm-40gb 8 vgg16 resnet18 --limit 1MiB --limit 64MiB

A row of Markdown for each network and limit, in milliseconds: undivided; *divided first* (each block in the number of micro-batches that is the
fastest unit by unit, then scheduled); *scheduled first* (the stages of the undivided schedule, each block's kept or run as so many
rows or side by side, what is faster); *together*, with what it divides. ``none`` is no limit.
"""

from __future__ import annotations

from dataclasses import replace
from time import process_time
from typing import Annotated

import typer

import iossim
from iossim import api
from iossim.analysis.micro_batched import JOINED_LIMITED, TRIED, micro_batched
from iossim.cost.model import CostModel
from iossim.cost.path import START, price_path
from iossim.cost.workspace_limit import workspace_limited
from iossim.ir.network import Network
from iossim.microbatching.divided_blocks import JOINED, divide_blocks, divisible, part_name
from iossim.schedule.planned_stage import PlannedStage
from iossim.schedule.problem import ScheduleProblem
from iossim.schedule.schedule import BlockSchedule, Schedule
from iossim.schedule.strategy import Strategy
from iossim.scheduling.scheduler import schedule

app = typer.Typer(add_completion=False)


def scheduled_first_us(network: Network, prices: CostModel, found: Schedule) -> float:
    """The undivided schedule with each block's stages divided where that is faster, the block by itself; then priced as a whole."""
    ways: dict[str, tuple[int, bool]] = {}
    for place, block in enumerate(network.blocks):
        own = found.blocks[place]
        before_us = sum(stage.boundary_us + stage.latency_us for stage in own.stages)
        found_us: dict[tuple[int, bool], float] = {(1, False): before_us}
        for count in TRIED:
            if divisible(network, block, count):
                divided = divide_blocks(network, {block.name: count}, 0)
                name = f"{block.name} in {count}"
                inside = next(each for each in divided.blocks if each.name == name)
                problem = ScheduleProblem.of_block(divided, inside)
                for beside in (False, True):
                    stages = stages_divided(problem, own, count, beside)
                    found_us[count, beside] = price_path(problem, stages, prices, 0).cost_us(0.0)
        ways[block.name] = min(found_us, key=found_us.__getitem__)
    divided = divide_blocks(network, {name: count for name, (count, _) in ways.items() if count > 1}, 0)
    total_us, leaving = 0.0, START
    for block, inside, own in zip(network.blocks, divided.blocks, found.blocks, strict=True):
        problem = ScheduleProblem.of_block(divided, inside)
        path = price_path(problem, stages_divided(problem, own, *ways[block.name]), prices, leaving)
        total_us, leaving = path.cost_us(total_us), path.leaving
    return min(found.latency_us, total_us)


def stages_divided(problem: ScheduleProblem, own: BlockSchedule, count: int, beside: bool) -> list[PlannedStage]:
    """Each stage as so many in a row, or as one of all its micro-batches side by side; views where they ask for no group."""
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
        if any(stage.mask >> view & 1 for stage in stages):
            continue
        bit, before, after = 1 << view, int(problem.predecessors[view]), int(problem.successors[view])
        first = next((at for at, stage in enumerate(stages) if stage.mask & after), len(stages))
        last = max((at for at, stage in enumerate(stages) if stage.mask & before), default=-1)
        fits = [
            at
            for at in (last, first)
            if 0 <= at < len(stages)
            and last <= at <= first
            and stages[at].strategy is Strategy.CONCURRENT
            and len(problem.groups(stages[at].mask | bit)) == len(problem.groups(stages[at].mask))
        ]
        if fits:
            stages[fits[0]] = PlannedStage(stages[fits[0]].mask | bit, Strategy.CONCURRENT)
        else:
            stages.insert(last + 1, PlannedStage(bit, Strategy.CONCURRENT))
    return stages


@app.command()
def joint(
    device: str,
    batch: int,
    models: list[str],
    limit: Annotated[list[str], typer.Option()] = ["none"],  # noqa: B006
    engine: str = "paper",
) -> None:
    """Print the table, a row as it is ready."""
    print("| network | batch | limit | undivided | divided first | scheduled first | together | divides | CPU s |")
    print("|---|---|---|---|---|---|---|---|---|", flush=True)
    for model in models:
        network = iossim.load(model, batch=batch)
        given = api.cost_model("simulator", device, engine=engine)
        for size in limit:
            options = api.search_options(workspace_limit=None if size == "none" else size)
            started = process_time()
            together = micro_batched(network, given, "auto", options=options)
            seconds = process_time() - started
            limited = options.workspace_limit_bytes
            prices = given if limited is None else workspace_limited(given, network, limited)
            options = replace(options, workspace_limit_bytes=None)
            found = schedule(network, prices, "ios-both", options)
            first = micro_batched(network, prices, "auto", scheduler="sequential", options=options)
            divided = divide_blocks(network, first.parts, JOINED if limited is None else JOINED_LIMITED)
            divided_us = schedule(divided, prices, "ios-both", options).latency_us
            scheduled_us = scheduled_first_us(network, prices, found)
            assert together.after_us is not None
            times = [found.latency_us, divided_us, scheduled_us, together.after_us]
            told = " | ".join(f"{us / 1e3:.3f}" for us in times)
            parts = ", ".join(f"{name} {count}" for name, count in together.parts.items()) or "nothing"
            wide = f" ({len(together.too_wide)} blocks too wide)" if together.too_wide else ""
            print(f"| {model} | {batch} | {size} | {told} | {parts}{wide} | {seconds:.0f} |", flush=True)


if __name__ == "__main__":
    app()
