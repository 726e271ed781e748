"""``iossim schedules``: schedules from and to files of other programs; ``iossim diff``: two schedules compared."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from iossim.base.errors import IossimError, OptionError, ScheduleError
from iossim.base.registry import Extension, Group, Plugin
from iossim.cli.options import command
from iossim.cli.outputs import TimelineOutputs, present, schedule_parts, tell_written, wrapped
from iossim.cli.schedule_files import schedule_files

if TYPE_CHECKING:
    from iossim.ir.network import Network
    from iossim.schedule.schedule import Schedule

#: Device of the published schedules, which used the same engine.
_PUBLISHED_DEVICE = "v100-sxm2"


@command
def import_schedule(
    file: Path,
    device: str = _PUBLISHED_DEVICE,
    batch: int | None = None,
    engine: str = "auto",
    cost_model: str = "simulator",
    store: Path | None = None,
    *,
    outputs: TimelineOutputs,
    as_json: bool = False,
) -> None:
    """Price a schedule of the IOS engine; --out gets schedule.json, graph.svg, trace.json and the timeline."""
    from iossim import api
    from iossim.cost.capabilities import DeviceCostModel
    from iossim.models.ios_engine.file import read_ios_file
    from iossim.models.load import load
    from iossim.models.sources.ios_file import schedule_of_file
    from iossim.prediction.published import is_in_sample

    if file.suffix.lower() != ".json":
        raise OptionError(
            f"IOS schedule {file}: the name must end in .json, for the schedule to find its network again"
        )
    prices = api.cost_model(cost_model, device, "fp32", engine, store)
    outputs.check(prices)
    network = load(str(file), batch=batch)
    read = schedule_of_file(read_ios_file(file), file, network)
    priced = api.simulate(read, None, network=network, engine=engine, cost_model=prices)
    priced = priced.model_copy(update={"notes": [*priced.notes, *network.notes]})
    published_us = _published_us(network, priced)

    parts = list(schedule_parts(priced))
    if published_us is not None:
        in_sample = isinstance(prices, DeviceCostModel) and is_in_sample(prices.profile, network.name, priced.scheduler)
        kind = " (in-sample: the device profile was fitted to this figure)" if in_sample else ""
        error = f"error {priced.latency_us / published_us - 1:+.1%}{kind}"
        parts.append(wrapped(f"Published of IOS at batch {network.source.batch}: {published_us / 1e3:.2f} ms; {error}"))
    document, files = priced.model_dump_json(indent=1), lambda: schedule_files(outputs, network, priced, prices)
    present(document, parts, as_json, out=outputs.out, files=files)


#: Makes the text of a file of another program from a network and its stages.
ScheduleFormat: TypeAlias = "Callable[[Network, Schedule], str]"


def ios(network: Network, schedule: Schedule) -> str:
    """A file of the published IOS engine; raises ScheduleError for what its format cannot express."""
    from iossim.models.ios_engine.export import ios_file

    return ios_file(schedule, network).text()


def _of_plugin(added: Plugin, found: ScheduleFormat) -> ScheduleFormat:
    def write(network: Network, schedule: Schedule) -> str:
        text = added.guarded(found)(network, schedule)
        if not isinstance(text, str):
            raise added.error(f"returns {type(text).__name__}, not text")
        return text

    return write


_FORMATS: dict[str, ScheduleFormat] = {"ios": ios}
#: Formats to export to; other packages add theirs.
OUTPUTS: Group[ScheduleFormat] = Group(
    "`format` {!r} is not known",
    lambda: _FORMATS,
    _FORMATS.get,
    Extension("iossim.outputs", "a function that returns text", _of_plugin),
)


@command
def export_schedule(schedule: Path, out: Path, format_name: str = "ios", model: str | None = None) -> None:
    """Export a saved schedule, and its network with it, in the format of another program."""
    from iossim import api
    from iossim.base.user_files import check_file, write_atomically
    from iossim.schedule.schedule import StreamSchedule

    check_file(out, "--out")
    write = OUTPUTS.find(format_name)
    read, network = api.read_any_schedule(schedule, model)
    if isinstance(read, StreamSchedule):
        raise ScheduleError(
            f"`format` {format_name} holds stages, with a barrier after each, and {schedule} has {len(read.streams)} "
            "streams without barriers, which would be lost; export the stages that `scheduler` ios-both finds"
        )
    write_atomically(out, write(network, read))
    tell_written([out])


def _published_us(network: Network, priced: Schedule) -> float | None:
    """Published latency of an imported schedule: only if the file's network is the published one, op by op."""
    from iossim.models.load import load
    from iossim.prediction.published import comparable_published_us

    published_us = comparable_published_us(priced, network.name)
    if published_us is None:
        return None
    try:
        own = load(network.name, batch=network.source.batch)
    except IossimError:
        return None
    return published_us if own.graph.hash == network.graph.hash else None


@command
def diff(a: Path, b: Path, model: str | None = None, all_stages: bool = False, as_json: bool = False) -> None:
    """Compare two saved schedules, of stages or of streams; one of each by the plans that run them."""
    from iossim.ir.shown_names import shown_names
    from iossim.report.diff_words import diff_lines, diff_tables
    from iossim.schedule.schedule import read_schedule
    from iossim.tasks.stream_diff import diff_any
    from iossim.transforms.replay import network_of

    first, second = read_schedule(a), read_schedule(b)
    found = diff_any(first, second, model)
    shown = found
    with suppress(IossimError):  # schedules may be compared without their networks
        sources = {one.source.model_dump_json(): one for one in (first, second)}
        shown = shown_names(*(network_of(one, model) for one in sources.values()))(found)
    present(found.to_json, [*diff_lines(shown), *diff_tables(shown, all_stages)], as_json)
