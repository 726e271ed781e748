"""``iossim check``: does a model keep to its latency, and is it no slower than before? For continuous integration."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from iossim.base.errors import OptionError
from iossim.cli import options
from iossim.cli.interrupt import interruptible
from iossim.cli.option_groups import ModelOptions, PricingOptions, takes_options
from iossim.cli.outputs import ExitCode, present
from iossim.cli.progress import progress_bars

MaxLatency = Annotated[
    float | None, options.option("--max-latency-ms", "X", "What the best schedule may take at most.")
]
Baseline = Annotated[
    Path | None, options.option("--baseline", "SCHEDULE", "A saved schedule.json that it may not be slower than.")
]
Tolerance = Annotated[
    float, options.option("--tolerance", "PART", "How much slower than the baseline it may be: 0.02 for 2%.")
]


def register(app: typer.Typer) -> None:
    app.command("check", help="Fail (exit code 1) where a model's schedule is too slow.")(check)


@takes_options
def check(
    model: options.Model,
    *,
    device: options.Device = None,
    reading: ModelOptions,
    max_latency_ms: MaxLatency = None,
    baseline: Baseline = None,
    tolerance: Tolerance = 0.0,
    scheduler: options.SchedulerName = "ios-both",
    pricing: PricingOptions,
    as_json: options.Json = False,
) -> None:
    """Schedule a model, and check that the schedule is valid, free of races, and as fast as is asked."""
    from iossim import api
    from iossim.schedule.schedule import Schedule
    from iossim.tasks import checks

    if max_latency_ms is None and baseline is None:
        raise OptionError("check needs something to check by: give --max-latency-ms X, --baseline SCHEDULE, or both")
    checks.check_limits(max_latency_ms, tolerance)
    search = pricing.search
    network = reading.network(model)
    prices = pricing.prices(network, device)
    before = Schedule.read(baseline) if baseline is not None else None
    with progress_bars(quiet=as_json) as progress, interruptible():
        found = api.optimize(
            network,
            None,
            scheduler=scheduler,
            engine=pricing.engine,
            cost_model=prices,
            options=search,
            progress=progress,
        )
    made = [checks.valid(found, network), checks.runs_without_races(found, network, pricing.engine)]
    if max_latency_ms is not None:
        made.append(checks.latency_at_most(found, max_latency_ms))
    if before is not None:
        made.append(checks.no_slower_than(found, before, network, prices, tolerance))
    holds = all(each.holds for each in made)
    document = {
        "model": network.name,
        "device": found.device,
        "latency_us": found.latency_us,
        "holds": holds,
        "checks": [{"check": each.name, "holds": each.holds, "found": each.found} for each in made],
    }
    code = ExitCode.DONE if holds else ExitCode.DOES_NOT_HOLD
    present(document, map(str, made), as_json, code=code if found.complete else ExitCode.INCOMPLETE)
