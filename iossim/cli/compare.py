"""``iossim compare``: the schedulers side by side."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from iossim.base.peak_memory import peak_memory_bytes
from iossim.cli import options
from iossim.cli.options import (
    ModelOptions,
    PricingOptions,
    StreamOptions,
    TransformOptions,
    option,
    takes_options,
    with_flags,
)
from iossim.cli.outputs import ExitCode, Part, ScheduleOutputs, Writer, json_file, notes, pictures, present, wrapped
from iossim.cli.progress import interruptible, progress_bars

if TYPE_CHECKING:
    from iossim.tasks.comparison import Comparison
    from iossim.tasks.task import OtherEngine


Schedulers = Annotated[
    str | None,
    option("--schedulers", "NAMES", "These schedulers, separated by commas; by default all but ios-streams."),
]


def register(app: typer.Typer) -> None:
    app.command("compare", help="Compare all schedulers on one device, side by side.")(compare)


@takes_options
def compare(
    model: options.Model,
    *,
    device: options.Device = None,
    reading: ModelOptions,
    schedulers: Schedulers = None,
    pricing: PricingOptions,
    streams: StreamOptions,
    transforms: TransformOptions,
    outputs: ScheduleOutputs,
    as_json: options.Json = False,
) -> None:
    """Schedule a model by every scheduler, side by side; with --rewrite or --micro-batch the changed model, too."""
    from iossim import api
    from iossim.search.scheduler import scheduler_names
    from iossim.tasks.task import under_other_engine

    asked = None if schedulers is None else options.known_schedulers(schedulers, with_streams=True)
    search = streams.of(pricing.search, asked or scheduler_names())
    network = reading.network(model)
    prices = pricing.prices(network, device)
    outputs.check(prices)
    with progress_bars(quiet=as_json) as progress, interruptible():
        comparison = api.compare(
            network,
            None,
            schedulers=asked,
            engine=pricing.engine,
            cost_model=prices,
            options=search,
            progress=progress,
            **vars(transforms),
        )
        best, its_network = comparison.best, comparison.best_network
        there = under_other_engine(its_network, best, prices, search) if comparison.complete else None
    document = {
        **comparison.to_json(),
        "other_engine": there and asdict(there),
        "peak_memory_bytes": peak_memory_bytes(),
    }

    def files() -> dict[str, Writer]:
        """comparison.json with what JSON tells, the best schedule's files (index.html is its page), what schedulers of
        streams found, and the bars.
        """
        made = {"comparison.json": json_file(document)}
        made |= {f"{one.scheduler}.json": one.save for one in comparison.streams}
        made |= outputs.files(
            its_network, best, prices, comparison.baseline_us, is_explained=True, comparison=comparison
        )
        if outputs.draws:
            from iossim.report.figures.bars import comparison_figure

            title = f"{comparison.network.name} on {comparison.device}, batch {comparison.batch}"
            made |= pictures(comparison_figure(title, {comparison.network.name: comparison.rows}))
        return made

    code = ExitCode.DONE if comparison.complete else ExitCode.INCOMPLETE
    present(document, _parts(comparison, there), as_json, out=outputs.out, files=files, code=code)


def _parts(comparison: Comparison, there: OtherEngine | None) -> Iterator[Part]:
    from iossim.report.schedule_words import expectation, optimality
    from iossim.tasks.comparison import comparison_table

    yield wrapped(comparison.title, "bold")
    yield comparison_table("", comparison.rows)
    seen = [found.scheduler for found in comparison.schedules if comparison.is_in_sample(found.scheduler)]
    if seen:
        said = f"error: simulated against published; only the figure of {' and '.join(seen)} was fitted to"
        yield wrapped(said, "dim")
        if any(row.left_out_us for row in comparison.rows):
            yield wrapped("LOO: the error of a fit without any figure of this network (leave one out)", "dim")
    every = (*comparison.schedules, *comparison.streams)
    yield from notes(dict.fromkeys(note for found in every for note in (*found.notes, *found.remarks)))
    for outcome in comparison.outcomes:
        said = outcome.sentence()
        yield wrapped(f"{said[0].upper()}{said[1:]}")
    best, baseline = comparison.best, comparison.baseline
    yield from map(wrapped, comparison.remarks)
    # What is expected and proven is so of sums of stages.
    by_sums = not comparison.plans_us and comparison.best_streams is None
    if comparison.best_us < comparison.baseline_us * (1 - 1e-9):
        speedup = f"speed-up {comparison.baseline_us / comparison.best_us:.2f}x over {baseline.scheduler}"
        tie = ", within the noise" if by_sums and baseline.scheduler in best.ties else ""
        yield wrapped(f"Best: {comparison.best_label}, {comparison.best_us / 1e3:.3f} ms, {speedup}{tie}")
        if by_sums and (expected := expectation(best)):
            yield wrapped(expected)
    else:
        yield wrapped(f"Best: no scheduler is faster than {baseline.scheduler}")
    if not comparison.complete:
        yield wrapped("Interrupted: the search is incomplete; the last row is the best schedule so far")
    elif by_sums and (claim := optimality(best)):
        yield wrapped(claim if comparison.best_changed is None else f"{claim}, for the changed network")
    if there is not None:
        yield with_flags(there.sentence())
