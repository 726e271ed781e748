"""``iossim compare`` with several devices: one row each."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from iossim.base.errors import OptionError
from iossim.base.memory import peak_memory_bytes
from iossim.cli.options import PricingOptions
from iossim.cli.outputs import Part, TimelineOutputs, Writer, json_file, notes, pictures, present, text_file, wrapped
from iossim.cli.progress import interruptible, progress_bars

if TYPE_CHECKING:
    from iossim.ir.network import Network
    from iossim.tasks.comparison import Comparison
    from iossim.tasks.device_comparison import DeviceComparison


def compare_devices(
    network: Network,
    devices: Sequence[str | None],
    pricing: PricingOptions,
    outputs: TimelineOutputs,
    as_csv: bool,
    as_json: bool,
    limit_ms: float | None,
    compare: Callable[..., Comparison],
) -> None:
    """Compare schedulers on each device, against a limit in ms; ``compare`` takes a cost model and the progress."""
    from iossim.cost.capabilities import DeviceCostModel
    from iossim.tasks.checks import check_limits
    from iossim.tasks.device_comparison import DeviceComparison

    check_limits(limit_ms)
    if outputs.trace:
        raise OptionError("--trace is of one schedule; give one --device")
    outputs.check_files()
    prices = [pricing.prices(network, device) for device in devices]
    names = _names(devices, [each.identity.device for each in prices])
    found: list[Comparison] = []
    with progress_bars(quiet=as_json or as_csv) as progress, interruptible(), suppress(KeyboardInterrupt):
        for each, name in zip(prices, names, strict=True):
            compared_here = compare(cost_model=each, progress=progress)
            found.append(replace(compared_here, device=name))
            if not found[-1].complete:
                break
    if not found:
        raise KeyboardInterrupt
    profiles = {
        name: each.profile for name, each in zip(names, prices, strict=True) if isinstance(each, DeviceCostModel)
    }
    powers_w = {name: one.board_power_w for name, one in profiles.items() if one.datasheet.board_power_w}
    whole = len(found) == len(prices) and found[-1].complete
    compared = DeviceComparison(tuple(found), whole, powers_w, limit_ms)
    document = {**compared.to_json(), "peak_memory_bytes": peak_memory_bytes()}

    def files() -> dict[str, Writer]:
        made = {"comparison.json": json_file(document), "comparison.csv": text_file(compared.csv())}
        made |= {f"{each.device}.schedule.json": each.best.save for each in compared.comparisons}
        if outputs.draws:
            from iossim.report.figures.bars import comparison_figure, devices_figure

            each_one = comparison_figure(compared.title, {each.device: each.rows for each in found})
            made |= pictures(devices_figure(compared), each_one)
        return made

    if as_csv:
        typer.echo(compared.csv(), nl=False)
    parts = () if as_csv else _parts(compared)
    present(document, parts, as_json, out=outputs.out, files=files, complete=compared.complete)


def _names(given: Sequence[str | None], own: Sequence[str]) -> list[str]:
    """Names of devices, by their files where profiles share one; raises OptionError where these are alike, too."""
    names = [Path(file).stem if file and own.count(name) > 1 else name for file, name in zip(given, own, strict=True)]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise OptionError(f"two devices are called {twice!r}; give profiles in files of different names")
    return names


def _parts(compared: DeviceComparison) -> Iterator[Part]:
    yield wrapped(compared.title, "bold")
    yield compared.table()
    every = [one for each in compared.comparisons for one in (*each.schedules, *each.streams)]
    yield from notes(dict.fromkeys(note for one in every for note in (*one.notes, *one.remarks)))
    yield from map(wrapped, compared.sentences())
    if not compared.complete:
        yield wrapped("Interrupted: devices are missing, or schedulers of the last one")
