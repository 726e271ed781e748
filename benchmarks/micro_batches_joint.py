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
from iossim.cost.path import price_path
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
    """The undivided schedule with each block's stages divided where that is faster, the block by itself."""
    saved_us = 0.0
    for place, block in enumerate(network.blocks):
        own = found.blocks[place]
        before_us = sum(stage.boundary_us + stage.latency_us for stage in own.stages)
        ways = [before_us]
        for count in TRIED:
            if divisible(network, block, count):
                divided = divide_blocks(network, {block.name: count}, 0)
                name = f"{block.name} in {count}"
                inside = next(each for each in divided.blocks if each.name == name)
                ways.append(stages_divided_us(ScheduleProblem.of_block(divided, inside), prices, own, count))
        saved_us += before_us - min(ways)
    return found.latency_us - saved_us


def stages_divided_us(problem: ScheduleProblem, prices: CostModel, own: BlockSchedule, count: int) -> float:
    """Each stage as so many in a row, or as one of all its micro-batches side by side, whichever is faster in all."""
    place = {name: index for index, name in enumerate(problem.unit_names)}
    totals = []
    for beside in (False, True):
        stages, taken = [], 0
        for stage in own.stages:
            masks = [
                sum(1 << place[part_name(unit, index, count)] for group in stage.groups for unit in group)
                for index in range(count)
            ]
            if beside and stage.strategy is Strategy.CONCURRENT:
                masks = [sum(masks)]
            stages += [PlannedStage(mask, stage.strategy) for mask in masks]
            taken |= sum(masks)
        # Views that belong to no stage take no time; they stand where they are free.
        rest = [index for index in range(len(problem)) if not taken >> index & 1]
        before = [PlannedStage(1 << index, Strategy.CONCURRENT) for index in rest if not problem.predecessors[index]]
        behind = [PlannedStage(1 << index, Strategy.CONCURRENT) for index in rest if problem.predecessors[index]]
        totals.append(price_path(problem, [*before, *stages, *behind], prices, 0).cost_us(0.0))
    return min(totals)


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
