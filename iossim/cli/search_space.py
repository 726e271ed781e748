"""``iossim search-space``: how many schedules there are."""

from __future__ import annotations

from dataclasses import asdict
from math import prod
from typing import Annotated

import typer

from iossim.cli import options
from iossim.cli.option_groups import ModelOptions, takes_options
from iossim.cli.outputs import present, table
from iossim.cli.progress import progress_bars

CountedStages = Annotated[str, options.option("--stages", "DEFINITION", "Stages that are counted: general or paper.")]


def register(app: typer.Typer) -> None:
    app.command("search-space", help="Count states, stages and schedules, block by block.")(search_space)


@takes_options
def search_space(
    model: options.Model,
    reading: ModelOptions,
    stages: CountedStages = "general",
    max_group_size: options.MaxGroupSize = None,
    max_groups: options.MaxGroups = None,
    as_json: options.Json = False,
) -> None:
    """Count the search space of concurrent execution, by default unpruned."""
    from iossim.api import search_options
    from iossim.report.schedule_words import describe
    from iossim.schedule.problem import ScheduleProblem
    from iossim.search.counting import SearchSpace, count_search_space

    space = search_options(stages, max_group_size, max_groups).space
    network = reading.network(model)
    counted: dict[bytes, SearchSpace] = {}
    blocks: list[dict[str, str | int]] = []
    with progress_bars(quiet=as_json, unit="blocks") as bars:
        progress = bars("counting")
        for done, block in enumerate(network.blocks, 1):
            problem = ScheduleProblem.of_block(network, block)
            edges = problem.predecessors.tobytes()
            if edges not in counted:
                counted[edges] = count_search_space(problem, space)
            blocks.append(asdict(counted[edges]) | {"name": block.name})
            progress(done, len(network.blocks))
    summed = ("units", "states", "transitions", "distinct_stages")
    totals: dict[str, str | int] = {key: sum(int(block[key]) for block in blocks) for key in summed}
    # Blocks are scheduled one after another, each in any of its ways.
    totals["schedules"] = prod(int(block["schedules"]) for block in blocks)
    unpruned = space.max_group_size is None and space.max_groups is None
    title = f"{network.name}, {describe(space)}{', unpruned' if unpruned else ''}"
    document = {"model": network.name, **space.to_json(), "blocks": blocks, "totals": totals}
    present(document, table(title, [*blocks, {"name": "total", **totals}]), as_json)
