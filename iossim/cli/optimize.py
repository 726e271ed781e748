"""``iossim optimize``: one schedule, with its evidence."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import typer

from iossim.cli import options
from iossim.cli.interrupt import interruptible
from iossim.cli.option_groups import ModelOptions, PricingOptions, TransformOptions, takes_options
from iossim.cli.options import with_flags
from iossim.cli.outputs import ExitCode, ScheduleOutputs, Writer, present, schedule_parts, tell_written
from iossim.cli.progress import measuring_bar, progress_bars

if TYPE_CHECKING:
    from iossim.cost.model import CostModel
    from iossim.search.options import Budget


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
    transforms: TransformOptions,
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
    from iossim.models.onnx.export import check_exportable, write_onnx

    network = reading.network(model)
    # The device of a backend is where estimates come from.
    prices = pricing.prices(network, None if measures(pricing.cost_model) else device)
    spend = budget or default_budget(prices)
    outputs.check(prices)
    if onnx is not None:
        check_exportable(network, onnx)
    task = api.task(
        network,
        device if spend else None,
        scheduler=scheduler,
        cost_model=prices,
        options=pricing.search,
        budget=spend,
        **vars(transforms),
    )
    # One bar: blocks that are done, or stages that are measured.
    bars = progress_bars(quiet=as_json or spend is not None), measuring_bar(quiet=as_json or spend is None)
    with bars[0] as progress, bars[1] as measuring, interruptible():
        done = task.run(progress, measuring)
    network = done.network
    found = done.schedule.model_copy(update={"remarks": list(map(with_flags, done.schedule.remarks))})

    def files() -> Mapping[str, Writer]:
        baseline = api.task(network, None, scheduler="sequential", cost_model=prices).search()
        return outputs.files(network, found, prices, baseline.latency_us)

    present(lambda: found.model_dump_json(indent=1), schedule_parts(found), as_json, out=outputs.out, files=files)
    if onnx is not None:
        tell_written(write_onnx(network.graph, onnx, name=network.name))
    if not done.complete:
        raise typer.Exit(ExitCode.INCOMPLETE)


def default_budget(prices: CostModel) -> Budget | None:
    """The budget of a cost model that measures; None for prices that are there already, measured once or not."""
    from iossim.cost.capabilities import MeasuredBy, MeasuringCostModel
    from iossim.search.options import Budget

    if not isinstance(prices, MeasuringCostModel) or prices.measured_by is MeasuredBy.STORE:
        return None
    return Budget(measurements=DEFAULT_MEASUREMENTS)
