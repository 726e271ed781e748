"""``iossim optimize``: one schedule, with its evidence; ``iossim check``: whether it is fast enough, and no slower."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from iossim.base.errors import OptionError
from iossim.cli.bars import measuring_bar
from iossim.cli.options import ModelOptions, PricingOptions, StreamOptions, TransformOptions, command, with_flags
from iossim.cli.outputs import PAGE, ExitCode, TimelineOutputs, notes, present, tell_written, wrapped
from iossim.cli.progress import interruptible, progress_bars
from iossim.cli.schedule_files import show_schedule

if TYPE_CHECKING:
    from iossim.cost.model import CostModel
    from iossim.search.measured import Budget

#: Default of --budget: with a hundredth of a second for each measurement, a quarter of a minute.
DEFAULT_MEASUREMENTS = 1000


@command
def optimize(
    model: str,
    *,
    device: str | None = None,
    reading: ModelOptions,
    scheduler: str = "ios-both",
    pricing: PricingOptions,
    streams: StreamOptions,
    budget: str | None = None,
    transforms: TransformOptions,
    onnx: Path | None = None,
    outputs: TimelineOutputs,
    as_json: bool = False,
) -> None:
    """Schedule a model, print the stages or streams, and write schedule.json, its page, pictures and trace to --out."""
    from iossim import api
    from iossim.cost.create import measures
    from iossim.models.onnx.export import check_exportable, write_onnx

    network = reading.network(model)
    # With a backend, the device only provides estimates.
    prices = pricing.prices(network, None if measures(pricing.cost_model) else device)
    spend = budget or default_budget(prices)
    search = streams.of(pricing.search, [scheduler])
    if spend and search.seconds is not None:
        raise OptionError(f"--seconds ends no search that measures; give --budget {search.seconds:g}s")
    outputs.check(prices)
    if onnx is not None:
        check_exportable(network, onnx)
    # One bar suffices: for finished blocks, or for measured stages.
    bars = progress_bars(quiet=as_json or spend is not None), measuring_bar(quiet=as_json or spend is None)
    with bars[0] as progress, bars[1] as measuring, interruptible():
        done = api.scheduled(
            network,
            device if spend else None,
            scheduler=scheduler,
            cost_model=prices,
            options=search,
            budget=spend,
            choose_joins=reading.units is None,
            progress=progress,
            measuring=measuring,
            **vars(transforms),
        )
    network = done.network
    found = done.schedule.model_copy(update={"remarks": list(map(with_flags, done.schedule.remarks))})
    show_schedule(network, found, prices, outputs, as_json)
    if onnx is not None:
        tell_written(write_onnx(network.graph, onnx, name=network.name, network=network))
    if not as_json and sys.stdout.isatty():
        has_page = outputs.out is not None and (outputs.out / PAGE).is_file()
        typer.echo("\n".join(next_steps(outputs.out, found.engine, has_page)))
    if not found.complete:
        raise typer.Exit(ExitCode.INCOMPLETE)


def next_steps(out: Path | None, engine: str, has_page: bool) -> list[str]:
    """Next steps with a schedule, in three lines: its files, the other engine, and how to run it."""
    from iossim.execution.engine import Engine

    other = Engine.PAPER if engine == Engine.GRAPH else Engine.GRAPH
    if out is None:
        files = "--out DIR writes schedule.json, a page to open in a browser, and pictures"
        runs = "iossim explain, simulate and run take that schedule.json"
    else:
        saved, page = (shlex.quote(str(out / name)) for name in ("schedule.json", PAGE))
        files = f"open {page} in a browser" if has_page else f"iossim explain {saved}"
        runs = f"iossim deploy {saved}"
    return [f"Next: {files}", f"      the same with --engine {other}: {other.facts.description}", f"      {runs}"]


def default_budget(prices: CostModel) -> Budget | None:
    """Budget of a cost model that measures; None for prices that are known already, measured or not."""
    from iossim.cost.capabilities import MeasuredBy, MeasuringCostModel
    from iossim.search.measured import Budget

    if not isinstance(prices, MeasuringCostModel) or prices.measured_by is MeasuredBy.STORE:
        return None
    return Budget(measurements=DEFAULT_MEASUREMENTS)


@command
def check(
    model: str,
    *,
    device: str | None = None,
    reading: ModelOptions,
    max_latency_ms: float | None = None,
    baseline: Path | None = None,
    changed_model: bool = False,
    tolerance: float = 0.0,
    scheduler: str = "ios-both",
    pricing: PricingOptions,
    as_json: bool = False,
) -> None:
    """Schedule a model, and check that the schedule is valid, free of races, and as fast as required."""
    from iossim import api
    from iossim.report.search_words import INTERRUPTED
    from iossim.schedule.schedule import read_schedule
    from iossim.tasks import checks

    if max_latency_ms is None and baseline is None:
        raise OptionError("check needs a limit: give --max-latency-ms X, --baseline SCHEDULE, or both")
    checks.check_limits(max_latency_ms, tolerance)
    search, joins = StreamOptions().of(pricing.search, [scheduler]), reading.units is None
    network = reading.network(model)
    prices = pricing.prices(network, device)
    before = read_schedule(baseline) if baseline is not None else None
    if before is not None:
        checks.check_baseline(before, network, prices, changed_model)
    with progress_bars(quiet=as_json) as progress, interruptible():
        found = api.scheduled(
            network, None, scheduler=scheduler, cost_model=prices, options=search, choose_joins=joins, progress=progress
        ).schedule
    made = [checks.valid(found, network), checks.runs_without_races(found, network)]
    if max_latency_ms is not None:
        made.append(checks.latency_at_most(found, max_latency_ms))
    if before is not None:
        made.append(checks.no_slower_than(found, before, network, prices, tolerance, changed_model))
    holds = all(each.holds for each in made)
    document = {
        "model": network.name,
        "device": found.device,
        "engine": found.engine,
        "latency_us": found.latency_us,
        "complete": found.complete,
        "holds": holds,
        "checks": [each.to_json() for each in made],
        "remarks": list(map(with_flags, found.remarks)),
    }
    code = ExitCode.DONE if holds else ExitCode.DOES_NOT_HOLD
    said = [*map(str, made), *notes(found.remarks), *([] if found.complete else [wrapped(INTERRUPTED)])]
    present(document, said, as_json, complete=found.complete, code=code)
