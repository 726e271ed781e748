"""``iossim compare``: the schedulers side by side."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import typer

from iossim.cli import options
from iossim.cli.interrupt import interruptible
from iossim.cli.option_groups import ModelOptions, PricingOptions, TransformOptions, takes_options
from iossim.cli.options import with_flags
from iossim.cli.outputs import (
    ExitCode,
    ScheduleOutputs,
    Writer,
    pictures,
    plain_console,
    print_notes,
    text_file,
    write_files,
)
from iossim.cli.progress import progress_bars

if TYPE_CHECKING:
    from iossim.cost.model import CostModel
    from iossim.tasks.comparison import Comparison


def register(app: typer.Typer) -> None:
    app.command("compare", help="Compare all schedulers on one device, side by side.")(compare)


@takes_options
def compare(
    model: options.Model,
    *,
    device: options.Device = None,
    reading: ModelOptions,
    pricing: PricingOptions,
    transforms: TransformOptions,
    outputs: ScheduleOutputs,
    as_json: options.Json = False,
) -> None:
    """Schedule a model by every scheduler and print them side by side; with --rewrite or --micro-batch the changed model, too."""
    from iossim import api
    from iossim.tasks.other_engine import under_other_engine

    search = pricing.search
    network = reading.network(model)
    prices = pricing.prices(network, device)
    outputs.check(prices)
    with progress_bars(quiet=as_json) as progress, interruptible():
        comparison = api.compare(
            network,
            None,
            engine=pricing.engine,
            cost_model=prices,
            options=search,
            progress=progress,
            **vars(transforms),
        )
        best, its_network = comparison.best, comparison.best_network
        there = under_other_engine(its_network, best, prices, search) if comparison.complete else None
    told = json.dumps({**comparison.to_json(), "other_engine": there and there.to_json()}, indent=1)
    if as_json:
        typer.echo(told)
    else:
        _print(comparison)
        if there is not None:
            typer.echo(with_flags(there.sentence()))
    if outputs.out is not None:
        write_files(outputs.out, _files(comparison, told, prices, outputs))
    if not comparison.complete:
        raise typer.Exit(ExitCode.INCOMPLETE)


def _print(comparison: Comparison) -> None:
    from iossim.report.schedule_words import expectation, optimality
    from iossim.tasks.comparison import TIE, comparison_table

    console = plain_console()
    # Not as the table's own title, which would wrap at the table's width.
    console.print(comparison.title, style="bold")
    console.print(comparison_table("", comparison.rows))
    seen = [found.scheduler for found in comparison.schedules if comparison.is_in_sample(found.scheduler)]
    if seen:
        said = f"error: simulated against published; only the figure of {' and '.join(seen)} was fitted to"
        console.print(said, style="dim")
        if comparison.left_out_us:
            console.print("LOO: the error of a fit without any figure of this network (leave one out)", style="dim")
    notes = (note for found in comparison.schedules for note in (*found.notes, *found.remarks))
    print_notes(console, dict.fromkeys(notes))
    for outcome in comparison.outcomes:
        said = outcome.sentence()
        console.print(f"{said[0].upper()}{said[1:]}")
    best, baseline = comparison.best, comparison.baseline
    if best.ties:
        console.print(f"{TIE} tied with the best: the difference is within the noise")
    if best.latency_us < baseline.latency_us * (1 - 1e-9):
        speedup = f"speed-up {baseline.latency_us / best.latency_us:.2f}x over {baseline.scheduler}"
        tie = ", within the noise" if baseline.scheduler in best.ties else ""
        console.print(f"Best: {comparison.best_label}, {best.latency_us / 1e3:.3f} ms, {speedup}{tie}")
        if expected := expectation(best):
            console.print(expected)
    else:
        console.print(f"Best: no scheduler is faster than {baseline.scheduler}")
    if not comparison.complete:
        console.print("Interrupted: the search is incomplete; the last row is the best schedule so far")
    elif claim := optimality(best):
        console.print(claim if comparison.best_changed is None else f"{claim}, for the changed network")


def _files(comparison: Comparison, told: str, prices: CostModel, outputs: ScheduleOutputs) -> dict[str, Writer]:
    """comparison.json with what was ``told`` as JSON, the best schedule's files, and the picture of all."""
    files = {"comparison.json": text_file(told + "\n")}
    files |= outputs.files(comparison.best_network, comparison.best, prices, comparison.baseline_us)
    if outputs.draws:
        from iossim.report.figures.bars import comparison_figure

        title = f"{comparison.network.name} on {comparison.device}, batch {comparison.batch}"
        files |= pictures(comparison_figure(title, {comparison.network.name: comparison.rows}))
    return files
