"""``iossim compare``: the schedulers side by side."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import typer

from iossim.cli import options
from iossim.cli.loading import load_network, progress_bar
from iossim.cli.outputs import Writer, check_outputs, schedule_files, wants_plot

if TYPE_CHECKING:
    from iossim.api import Comparison
    from iossim.cost.model import CostModel


def register(app: typer.Typer) -> None:
    app.command("compare", help="Compare sequential, greedy and the three IOS schedulers on one device.")(compare)


def compare(
    model: options.Model,
    device: options.Device = None,
    batch: options.Batch = None,
    dtype: options.DataType = "fp32",
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
    """Schedule a model by every scheduler and print them side by side."""
    from iossim import api
    from iossim.scheduling.scheduler import scheduler_names

    check_outputs(out, trace, plot)
    search = api.search_options(stages, max_group_size, max_groups)
    network = load_network(model, batch, dtype, shape, graphs, units, max_block)
    prices = api.cost_model(cost_model, device, network.precision, engine)
    found: list[api.Comparison] = []
    for name in scheduler_names():
        with progress_bar(name, quiet=as_json) as progress:
            found.append(
                api.compare(
                    network,
                    None,
                    schedulers=[name],
                    engine=engine,
                    cost_model=prices,
                    options=search,
                    progress=lambda scheduler, progress=progress: progress,  # type: ignore[misc]
                )
            )
        if not found[-1].schedules[0].complete:
            break
    comparison = api.Comparison(
        network, found[0].device, engine, found[0].cost_model, tuple(one.schedules[0] for one in found)
    )
    if as_json:
        typer.echo(json.dumps(comparison.to_json(), indent=1))
    else:
        _print(comparison)
    if out is not None:
        from iossim.reporting.output_folder import write_all

        written = write_all(out, _files(comparison, prices, trace, plot))
        typer.echo(f"wrote {', '.join(str(path) for path in written)}", err=True)


def _print(comparison: Comparison) -> None:
    from rich.console import Console

    from iossim.reporting.comparison import ComparisonRow
    from iossim.reporting.console import comparison_table

    network = comparison.network
    title = (
        f"{network.name} on {comparison.device}, batch {comparison.batch}, {network.precision}, "
        f"{comparison.engine} engine, priced by {comparison.cost_model['name']}"
    )
    rows = [
        ComparisonRow.of_schedule(found, comparison.baseline_us, comparison.published_us(found.scheduler))
        for found in comparison.schedules
    ]
    console = Console()
    console.print(comparison_table(title, rows))
    for note in dict.fromkeys(note for found in comparison.schedules for note in found.notes):
        console.print(f"note: {note}", style="dim", highlight=False)
    if not comparison.schedules[-1].complete:
        console.print("interrupted: the last schedule is the best found so far", highlight=False)


def _files(comparison: Comparison, prices: CostModel, trace: bool | None, plot: bool | None) -> dict[str, Writer]:
    """comparison.json, the best schedule's files, and the picture of all."""
    from iossim.reporting.comparison import ComparisonRow
    from iossim.schedule.schedule import write_atomically

    best = min(comparison.schedules, key=lambda found: found.latency_us)
    text = json.dumps(comparison.to_json(), indent=1) + "\n"
    files: dict[str, Writer] = {"comparison.json": lambda path: write_atomically(path, text)}
    files |= schedule_files(comparison.network, best, prices, trace, plot, comparison.baseline_us)
    if wants_plot(plot):
        from iossim.reporting.comparison_plot import comparison_figure
        from iossim.reporting.figures import save_figure

        rows = [
            ComparisonRow.of_schedule(found, comparison.baseline_us, comparison.published_us(found.scheduler))
            for found in comparison.schedules
        ]
        title = f"{comparison.network.name} on {comparison.device}, batch {comparison.batch}"
        figure = comparison_figure(title, {comparison.network.name: rows})
        files["comparison.svg"] = lambda path: save_figure(figure, path)
        files["comparison.png"] = lambda path: save_figure(figure, path)
    return files
