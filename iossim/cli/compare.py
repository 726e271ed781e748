"""``iossim compare``: schedulers side by side."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache, partial
from typing import TYPE_CHECKING

from iossim.base.errors import OptionError
from iossim.cli import options
from iossim.cli.options import ModelOptions, PricingOptions, StreamOptions, TransformOptions, command, with_flags
from iossim.cli.outputs import Part, TimelineOutputs, Writer, json_file, kept_schedule, pictures, present, wrapped
from iossim.cli.progress import interruptible, progress_bars

if TYPE_CHECKING:
    from iossim.cost.model import CostModel
    from iossim.tasks.comparison import Comparison


@command
def compare(
    model: str,
    *,
    device: list[str] | None = None,
    reading: ModelOptions,
    schedulers: str | None = None,
    pricing: PricingOptions,
    streams: StreamOptions,
    transforms: TransformOptions,
    outputs: TimelineOutputs,
    max_latency_ms: float | None = None,
    as_csv: bool = False,
    as_json: bool = False,
) -> None:
    """Schedule a model by every scheduler, side by side; on several devices, show the best schedule on each."""
    from iossim.report.search_words import comparison_lines
    from iossim.search.scheduler import scheduler_names
    from iossim.tasks import requests
    from iossim.tasks.task import under_other_engine

    asked = None if schedulers is None else options.known_schedulers(schedulers)
    if as_csv and as_json:
        raise OptionError("a table is CSV or JSON; give --csv or --json, not both")
    search = streams.of(pricing.search, asked or scheduler_names())
    network = reading.network(model)
    devices, joins = options.several_devices(device), reading.units is None
    run = partial(
        requests.compare, network, None, schedulers=asked, options=search, choose_joins=joins, **vars(transforms)
    )
    if len(devices) > 1 or as_csv:
        from iossim.cli.compare_devices import compare_devices

        compare_devices(network, [*devices] or [None], pricing, outputs, as_csv, as_json, max_latency_ms, run)
        return
    if max_latency_ms is not None:
        raise OptionError("--max-latency-ms compares several devices; give them as --device A,B, or use iossim check")
    prices = pricing.prices(network, devices[0] if devices else None)
    outputs.check(prices)
    with progress_bars(quiet=as_json) as progress, interruptible():
        comparison = run(cost_model=prices, progress=progress)
        best, its_network = comparison.best, comparison.best_of_stages.network
        if comparison.complete:
            comparison = replace(comparison, other_engine=under_other_engine(its_network, best, prices, search))
    said = list(map(with_flags, comparison_lines(comparison)))
    if not as_json and reading.dtype is None and pricing.workspace_limit is None:
        said += _in_bf16(comparison, prices, pricing, devices[0] if devices else None)

    @cache
    def document() -> dict[str, object]:
        from iossim.base.memory import peak_memory_bytes

        return {**comparison.to_json(), "peak_memory_bytes": peak_memory_bytes()}

    def files() -> dict[str, Writer]:
        """comparison.json with the same content as --json, the best schedule's files (index.html is its page), the
        results of schedulers of streams, and the bars.
        """
        from iossim.cli.schedule_files import schedule_files

        made = {"comparison.json": json_file(document())}
        made |= {f"{one.scheduler}.json": one.save for one in comparison.streams}
        made |= schedule_files(outputs, its_network, best, prices, said=said, comparison=comparison)
        if outputs.draws:
            from iossim.report.figures.bars import comparison_figure

            made |= pictures(comparison_figure(comparison.title, {comparison.network.name: comparison.rows}))
        return made

    parts, complete = _parts(comparison, said), comparison.complete
    kept = kept_schedule(best) if complete else None
    present(document, parts, as_json, out=outputs.out, files=files, kept=kept, complete=complete)


def _in_bf16(found: Comparison, prices: CostModel, pricing: PricingOptions, device: str | None) -> Iterator[str]:
    """What fp32, which nobody chose, costs where tensor cores have bf16: its units one by one in both."""
    from iossim.cost.capabilities import DeviceCostModel
    from iossim.hardware.compute_capability import TENSOR_CORES
    from iossim.ir.types import Precision

    network, bf16 = found.network, Precision.BF16
    if network.precision is not Precision.FP32 or found.plans_us or found.baseline.scheduler != "sequential":
        return
    if isinstance(prices, DeviceCostModel) and prices.profile.architecture in TENSOR_CORES[bf16]:
        from iossim.models.partition import retype
        from iossim.search.scheduler import schedule

        typed = replace(network, graph=retype(network.graph, bf16.storage), precision=bf16)
        there_us = schedule(typed, pricing.prices(typed, device), "sequential").latency_us
        if there_us < found.baseline_us:
            took = f"{there_us / 1e3:.3f} ms, in fp32 (the default) {found.baseline_us / 1e3:.3f} ms"
            yield f"With --dtype bf16 sequential takes {took}"


def _parts(comparison: Comparison, said: Sequence[str]) -> Iterator[Part]:
    from iossim.report.search_words import comparison_notes
    from iossim.tasks.comparison import comparison_table

    yield wrapped(comparison.title, "bold")
    yield comparison_table(comparison.rows)
    yield from (wrapped(with_flags(note), "dim") for note in comparison_notes(comparison))
    yield from map(wrapped, said)
