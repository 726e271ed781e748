"""``iossim optimize``: one schedule, with its evidence."""

from __future__ import annotations

from typing import Annotated

import typer

from iossim.cli import options
from iossim.cli.loading import load_network, progress_bar
from iossim.cli.outputs import check_outputs, schedule_files

SchedulerName = Annotated[
    str,
    typer.Option("--scheduler", metavar="NAME", help="sequential, greedy, ios-merge, ios-parallel or ios-both."),
]


def register(app: typer.Typer) -> None:
    app.command("optimize", help="Find the best schedule of a model on a device, and write it down.")(optimize)


def optimize(
    model: options.Model,
    device: options.Device = None,
    batch: options.Batch = None,
    dtype: options.DataType = "fp32",
    scheduler: SchedulerName = "ios-both",
    engine: options.Engine = "paper",
    max_group_size: options.MaxGroupSize = None,
    max_groups: options.MaxGroups = None,
    stages: options.Stages = "general",
    cost_model: options.CostModelName = "simulator",
    shape: options.Shape = None,
    graphs: options.Graphs = None,
    units: options.Units = "model",
    max_block: options.MaxBlock = 64,
    out: options.Out = None,
    trace: options.Trace = None,
    plot: options.Plot = None,
    as_json: options.Json = False,
) -> None:
    """Schedule a model, print the stages, and write schedule.json, graph.dot, trace.json and timeline.svg to --out."""
    from iossim import api

    check_outputs(out, trace, plot)
    search = api.search_options(stages, max_group_size, max_groups)
    network = load_network(model, batch, dtype, shape, graphs, units, max_block)
    prices = api.cost_model(cost_model, device, network.precision, engine)
    with progress_bar(scheduler, quiet=as_json) as progress:
        found = api.optimize(
            network, None, scheduler=scheduler, engine=engine, cost_model=prices, options=search, progress=progress
        )
    if as_json:
        typer.echo(found.model_dump_json(indent=1))
    else:
        from rich.console import Console

        from iossim.reporting.console import schedule_table

        console = Console()
        console.print(schedule_table(found))
        console.print(api.summary(found), highlight=False)
    if out is not None:
        from iossim.reporting.output_folder import write_all

        baseline = api.optimize(network, None, scheduler="sequential", engine=engine, cost_model=prices)
        written = write_all(out, schedule_files(network, found, prices, trace, plot, baseline.latency_us))
        typer.echo(f"wrote {', '.join(str(path) for path in written)}", err=True)
