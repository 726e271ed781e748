"""``iossim bench``: networks measured under several schedulers and baselines (figure 4.1 of the IOS thesis)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from datetime import date
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from iossim.cli import options
from iossim.cli.options import ModelOptions, TimingOptions, command
from iossim.cli.outputs import Part, Writer, notes, pictures, present, text_file, wants_plot, wrapped
from iossim.cli.progress import interruptible, progress_bars

if TYPE_CHECKING:
    from iossim.execution.backend import Context
    from iossim.tasks.measured_schedules import MeasuredNetwork


@command
def bench(
    models: list[str],
    backend: str,
    reading: ModelOptions,
    schedulers: str = "sequential,greedy,ios-both",
    compare: str = "",
    budget: str | None = "300",
    device: str | None = None,
    engine: str = "auto",
    max_group_size: int | None = None,
    max_groups: int | None = None,
    *,
    timed: TimingOptions,
    store: Path | None = None,
    out: Path | None = None,
    plot: bool | None = None,
    as_json: bool = False,
) -> None:
    """Find each network's schedules by measured search, then time them and the baselines in interleaved rounds."""
    from iossim import api
    from iossim.base.user_files import check_writable
    from iossim.execution.backend import backend_from, context_of
    from iossim.search.measured import Budget
    from iossim.tasks.measured_schedules import measure_network, split_names

    _, baselines = split_names(compare, plain=())
    chosen = options.known_schedulers(schedulers)
    timing = timed.timing()
    search = api.search_options("general", max_group_size, max_groups)
    spend = Budget.parse(budget or "all")
    if out is not None:
        check_writable(out)
    networks = [reading.network(model) for model in models]
    runner = backend_from(backend, networks[0].precision, engine, device)
    searched = partial(measure_network, budget=spend, device=device, options=search, store=store)
    found: list[MeasuredNetwork] = []
    with progress_bars(quiet=as_json, unit="done") as start, interruptible():
        for network in networks:
            try:
                found.append(searched(network, chosen, baselines, runner, timing, progress=start))
            except KeyboardInterrupt:
                if not found:
                    raise
                break
            if not found[-1].complete:
                break
    document = [
        {
            "model": one.network.name,
            "batch": one.network.source.batch,
            "context": asdict(context_of(runner, one.network)),
            "remarks": one.network.remarks,
            "runs": [row.to_json() for row in one.rows],
        }
        for one in found
    ]
    present(
        document,
        _parts(found, runner.context),
        as_json,
        out=out,
        files=lambda: _files(found, runner.context, plot),
        complete=len(found) == len(networks) and found[-1].complete,
    )


def _parts(found: list[MeasuredNetwork], context: Context) -> Iterator[Part]:
    from iossim.report.time_tables import disturbance, measured_table

    for number, measured in enumerate(found):
        if number:
            yield ""
        network = measured.network
        title = (
            f"{network.name} by {context.backend} on {context.device}, batch {network.source.batch}, "
            f"{context.precision}, {context.engine} engine"
        )
        yield wrapped(title, "bold")
        yield measured_table(measured.rows)
        yield from notes(
            f"{name}: {note.removeprefix(f'{name}: ')}"
            for name, schedule in measured.schedules.items()
            for note in schedule.notes
        )
        yield from notes(network.remarks)
        if said := disturbance(measured.rows):
            yield wrapped(said)


def _files(found: list[MeasuredNetwork], context: Context, plot: bool | None) -> dict[str, Writer]:
    from iossim.measurements.measured_networks import NetworkHeader, NetworkRun, header_line, run_line

    header = NetworkHeader(
        device=context.device, driver=context.driver, date=date.today().isoformat(), source="iossim bench"
    )
    lines = [header_line(header)]
    for measured in found:
        for row in measured.rows:
            schedule = measured.schedules.get(row.name)
            run = NetworkRun.of(
                row.samples,
                model=measured.network.name,
                batch=measured.network.source.batch,
                dtype=context.precision,
                engine=context.engine if schedule else "",
                backend=context.backend if schedule else row.name.partition("-")[0],
                name=row.name,
                schedule=schedule,
                libraries=dict(context.libraries) if schedule else {},
                options=dict(context.options) if schedule else {},
            )
            lines.append(run_line(run))
    files: dict[str, Writer] = {"networks.jsonl": text_file("".join(lines))}
    if wants_plot(plot):
        from iossim.report.figures.bars import comparison_figure
        from iossim.tasks.measured_schedules import comparison_rows

        title = f"Measured by {context.backend} on {context.device}, {context.precision}, {context.engine} engine"
        panels = {one.network.name: comparison_rows(one) for one in found}
        files |= pictures(comparison_figure(title, panels, "10th to 90th percentile of the rounds", "bench"))
    return files
