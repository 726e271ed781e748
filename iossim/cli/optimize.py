"""``iossim optimize``: one schedule, with its evidence."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from iossim.cli import options
from iossim.cli.exit_codes import ExitCode
from iossim.cli.flags import with_flags
from iossim.cli.interrupt import interruptible
from iossim.cli.option_groups import ModelOptions, PricingOptions, RewriteOptions, takes_options
from iossim.cli.outputs import ScheduleOutputs, plain_console, print_notes, tell_written, write_files
from iossim.cli.progress import measuring_bar, progress_bars

if TYPE_CHECKING:
    from iossim.cost.model import CostModel
    from iossim.search.measured.budget import Budget
    from iossim.transforms.microbatching.micro_batched import MicroBatched
    from iossim.transforms.rewriting.scheduled import Rewriting


#: What is measured unless --budget says otherwise: with a hundredth of a second each, a quarter of a minute.
DEFAULT_MEASUREMENTS = 1000


def register(app: typer.Typer) -> None:
    app.command("optimize", help="Find the best schedule of a model on a device.")(optimize)


@takes_options
def optimize(
    model: options.Model,
    *,
    device: options.Device = None,
    reading: ModelOptions,
    scheduler: options.SchedulerName = "ios-both",
    pricing: PricingOptions,
    budget: options.Budget = None,
    rewrites: RewriteOptions,
    micro_batch: options.MicroBatch = None,
    onnx: options.OnnxFile = None,
    outputs: ScheduleOutputs,
    as_json: options.Json = False,
) -> None:
    """Schedule a model, print the stages, and write schedule.json, graph.dot, trace.json and timeline.svg to --out.

    With --micro-batch blocks run in micro-batches, each beside the others as far as that is faster; after --rewrite.

    With --onnx the network that is scheduled is written as a model, too: after --rewrite and --micro-batch, for any other runtime.

    A backend as --cost-model measures the stages that decide, at most --budget of them; the simulator proposes them.
    """
    from iossim import api
    from iossim.cost.create import measures
    from iossim.models.onnx.write import check_exportable, write_onnx
    from iossim.search.measured.budget import Budget
    from iossim.tasks.other_engine import under_other_engine

    search = pricing.search
    network = reading.network(model)
    # Of a backend, the device is where estimates come from.
    prices = pricing.prices(network, None if measures(pricing.cost_model) else device)
    spend = Budget.parse(budget) if budget else default_budget(prices)
    outputs.check(prices)
    if onnx is not None:
        check_exportable(network, onnx)
    rewriting: Rewriting | None = None
    if rewrites.rewrite is not None:
        with progress_bars(quiet=as_json, unit="graphs") as graphs, interruptible():
            tell = graphs("rewriting")
            rewriting = api.rewrite_model(
                network,
                None,
                rules=rewrites.rewrite,
                scheduler=scheduler,
                engine=pricing.engine,
                cost_model=prices,
                options=search,
                search=rewrites.rewrite_search,  # type: ignore[arg-type]
                alpha=rewrites.alpha,
                budget=rewrites.rewrite_budget,
                unproved=rewrites.unproved,
                progress=lambda seen, best_us: tell(seen, seen),
            )
        network = rewriting.network
    divided: MicroBatched | None = None
    if micro_batch is not None:
        with progress_bars(quiet=as_json, unit="ways") as ways, interruptible():
            tell_ways = ways("micro-batches")
            divided = api.divide_batch(
                network,
                None,
                micro_batch=micro_batch,
                scheduler=scheduler,
                cost_model=prices,
                options=search,
                progress=lambda seen: tell_ways(seen, seen),
            )
        network = divided.network
    # One bar: blocks that are done, or stages that are measured.
    bars = progress_bars(quiet=as_json or spend is not None), measuring_bar(quiet=as_json or spend is None)
    with bars[0] as progress, bars[1] as measuring, interruptible():
        found = api.optimize(
            network,
            device if spend else None,
            scheduler=scheduler,
            engine=pricing.engine,
            cost_model=prices,
            options=search,
            progress=progress(scheduler),
            budget=spend,
            measuring=measuring,
        )
        there = under_other_engine(network, found, prices, search) if found.complete else None
    if rewriting is not None:
        found = rewriting.told(found)
    if divided is not None:
        found = divided.told(found)
    if there is not None:
        found = found.model_copy(update={"remarks": [*found.remarks, with_flags(there.sentence())]})
    if as_json:
        typer.echo(found.model_dump_json(indent=1))
    else:
        from iossim.report.schedule_words import schedule_table, summary

        console = plain_console()
        console.print(schedule_table(found))
        console.print(summary(found))
        print_notes(console, found.remarks)
    if outputs.out is not None:
        baseline = api.optimize(network, None, scheduler="sequential", engine=pricing.engine, cost_model=prices)
        write_files(outputs.out, outputs.files(network, found, prices, baseline.latency_us))
    if onnx is not None:
        tell_written(write_onnx(network.graph, onnx, name=network.name))
    if not found.complete or (rewriting is not None and rewriting.interrupted):
        raise typer.Exit(ExitCode.INCOMPLETE)


def default_budget(prices: CostModel) -> Budget | None:
    """The budget of a cost model that measures; None for prices that are there already, measured once or not."""
    from iossim.cost.model import MeasuredBy, MeasuringCostModel
    from iossim.search.measured.budget import Budget

    if not isinstance(prices, MeasuringCostModel) or prices.measured_by is MeasuredBy.STORE:
        return None
    return Budget(measurements=DEFAULT_MEASUREMENTS)
