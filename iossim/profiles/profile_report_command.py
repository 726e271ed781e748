"""``iossim profile-report``: predicted times, unit by unit, beside those of a profiler."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from iossim.base.errors import OptionError
from iossim.cli.options import ModelOptions, PricingOptions, command
from iossim.cli.outputs import Part, Writer, notes, present, table, tell_written, wrapped
from iossim.cli.progress import interruptible, progress_bars
from iossim.cli.schedule_files import schedule_or_network

if TYPE_CHECKING:
    from iossim.measurements.profilers.layer_times import LayerTimes

#: Number of rows without --all.
_ROWS_SHOWN = 20


@command
def profile_report(
    model: str,
    profile: Path,
    *,
    device: str | None = None,
    reading: ModelOptions,
    pricing: PricingOptions,
    runs: int | None = None,
    whole: bool = False,
    measurements: Path | None = None,
    out: Path | None = None,
    as_json: bool = False,
) -> None:
    """Match the layers, nodes or kernels of PROFILE to the units of a model, by name or by order, and show the errors.

    Predictions are for the kernels of a unit alone on --device. The largest errors come first. --out draws the recorded
    run below the simulated one: that of the schedule.json that ran, or one unit after another.
    """
    from iossim import api
    from iossim.cost.capabilities import DeviceCostModel
    from iossim.measurements.measurement_set import write_measurements
    from iossim.profiles import profile_report as reports

    times = _recorded(profile, runs)
    saved, network = schedule_or_network(model, None, reading, reading.batch)
    taken_as: tuple[str, ...] = ()
    is_open = saved is None and reading.batch is None and not reading.shape and not reading.dim
    if is_open and (batch := reports.recorded_batch(network, times)):
        network = replace(reading, batch=batch).network(model)
        taken_as = (f"the batch is {batch}, at which {profile} was recorded",)
    try:
        reports.check_recorded(network, times)
    except OptionError as error:
        raise OptionError(f"profile {profile}: {error}") from None
    device = device or reports.recorded_device(times) or (None if saved is None else saved.device)
    if saved is not None and pricing.engine == "auto":
        pricing = replace(pricing, engine=saved.engine or "auto")
    prices = pricing.prices(network, device)
    if not isinstance(prices, DeviceCostModel):
        raise OptionError("profile-report needs prices of kernels; leave out --cost-model")
    with progress_bars(quiet=as_json) as progress, interruptible():
        search = partial(api.optimize, network, None, cost_model=prices, options=pricing.search, progress=progress)
        sequential = best = search(scheduler="sequential")
        if sequential.complete:
            best = search(scheduler="ios-both")
    report = reports.profile_report(network, times, prices, best.speedup(sequential.latency_us))
    remarks = [*network.remarks, *taken_as, *report.remarks(profile, network, device)]
    if measurements is not None:
        taken = reports.measured_units(report, network, prices.profile)
        write_measurements(taken, measurements)
        remarks += taken.notes
        tell_written([measurements])
    document = {
        "model": network.name,
        "device": sequential.device,
        "source": times.source,
        "runs": times.runs,
        "measured_us": times.total_us,
        "wall_us": times.wall_us,
        "matched_share": report.matched_share,
        "predicted_us": report.predicted_us,
        "overlap": times.overlap,
        "possible_speedup": report.possible,
        "units": report.units(),
        "unmatched": list(report.unmatched),
        "remarks": remarks,
    }
    sentences = list(report.sentences(best.complete))

    def parts() -> Iterator[Part]:
        ran = f"{times.source}, {times.runs} run{'s' * (times.runs > 1)}"
        yield wrapped(f"{network.name}, profiled by {ran}, next to predictions for {sequential.device}", "bold")
        units = report.units()[: None if whole else _ROWS_SHOWN]
        shown = [{name: cell for name, cell in unit.items() if name != "layers"} for unit in units]
        yield from table("", shown, titles={"limit": "limited by"}, digits=1, shortens=("unit",))
        if len(shown) < len(report.rows):
            yield wrapped(f"{len(report.rows) - len(shown)} more with smaller errors: --all")
        yield from map(wrapped, sentences)
        yield from notes(remarks)

    def files() -> dict[str, Writer]:
        ran = sequential if saved is None else api.simulate(saved, None, network=network, cost_model=prices)
        return reports.recorded_files(network, prices, ran, report, sentences)

    present(document, parts(), as_json, out=out, files=files, complete=best.complete)


def _recorded(profile: Path, runs: int | None) -> LayerTimes:
    from iossim.base.user_files import read_text
    from iossim.measurements.profilers.layer_times import layer_times
    from iossim.measurements.text_files import CsvError, binary_export

    text = read_text(profile, "profile", "give a file that a profiler wrote", OptionError, binary_export)
    try:
        return layer_times(text, runs)
    except CsvError as error:
        raise OptionError(f"profile {profile}: {error.reason}; {error.remedy}") from None
