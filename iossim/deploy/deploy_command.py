"""``iossim deploy``: a schedule as a user's runtime runs it, checked and timed beside the runtime's defaults."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from iossim.base.errors import OptionError, did_you_mean
from iossim.cli.option_groups import PricingOptions, ReadingOptions, TimingOptions, make_ready
from iossim.cli.options import command, whole_number
from iossim.cli.outputs import ExitCode, Part, notes, present, wants_plot, wrapped, write_files
from iossim.cli.progress import interruptible, progress_bars
from iossim.cli.schedule_files import schedule_or_network

if TYPE_CHECKING:
    from iossim.deploy.check import DeploymentCheck
    from iossim.deploy.folder import Deployment
    from iossim.execution.backend import Timing
    from iossim.execution.execution import Execution, Span
    from iossim.hardware.profile import DeviceProfile
    from iossim.ir.network import Network
    from iossim.schedule.schedule import AnySchedule, Schedule, StreamSchedule

RUNTIMES = ("onnxruntime", "tensorrt")


@command
def deploy(
    target: str,
    *,
    runtime: str = "onnxruntime",
    device: str | None = None,
    model: str | None = None,
    batch: str | None = None,
    reading: ReadingOptions,
    scheduler: str = "ios-both",
    pricing: PricingOptions,
    streams: int | None = None,
    check: bool | None = None,
    timed: TimingOptions,
    out: Path | None = None,
    as_json: bool = False,
) -> None:
    """Write SCHEDULE, or the one found for MODEL, as a model and the streams of its nodes for ONNX Runtime.

    The model is written as ONNX Runtime optimises it, merged convolutions stacked. Units of a MODEL are what the
    runtime fuses, unless --units says otherwise, and --engine auto is onnxruntime, whose prices judge the result.
    Dimensions that its file leaves open stay open, where the schedule allows it. On a CPU it is run at once: outputs
    are compared, and five ways timed in interleaved rounds. If outputs differ, nothing is written. With --no-check only
    predictions are printed.
    """
    from iossim.execution.engine import AUTO, Engine

    if runtime not in RUNTIMES:
        raise OptionError(f"--runtime {runtime!r} is not known; {did_you_mean(runtime, RUNTIMES)}")
    if runtime == "onnxruntime" and out is None:
        raise OptionError("deploy writes a folder; give --out DIR")
    if streams is not None and streams < 1:
        raise OptionError(f"--streams {streams} is not possible; give 1 or more")
    batches: Sequence[int | None] = (
        [None] if batch is None else list(dict.fromkeys(map(whole_number, batch.split(","))))
    )
    if runtime == "tensorrt":
        from iossim.schedule.schedule import StreamSchedule

        if len(batches) > 1:
            raise OptionError(f"--runtime tensorrt takes one batch, and --batch says {batch}; give one")
        saved, network = schedule_or_network(target, model, reading, batches[0])
        found = saved or _searched(network, device, scheduler, pricing, as_json)
        if isinstance(found, StreamSchedule):
            raise OptionError("--runtime tensorrt needs the stages of a schedule; give one of another --scheduler")
        code = ExitCode.DONE if saved or found.complete else ExitCode.INCOMPLETE
        _tensorrt(network, found, model or (saved.source.model if saved else target), as_json, code)
        return
    assert out is not None
    if pricing.engine == AUTO and pricing.cost_model == "simulator":
        pricing = replace(pricing, engine=Engine.ONNXRUNTIME.value)
    asked = _Asked(device, reading.units, scheduler, pricing, streams, check, timed, as_json)
    made = []
    for each in batches:
        saved, network = schedule_or_network(target, model, reading, each)
        made.append(_onnxruntime(saved, network, asked, out if len(batches) == 1 else out / f"batch{each}"))
    documents = [each.document for each in made]
    present(
        documents[0] if len(documents) == 1 else {"batches": documents},
        chain.from_iterable(each.parts for each in made),
        as_json,
        # A failed check determines the exit code before an interrupted search does.
        code=min((each.code for each in made if each.code), default=ExitCode.DONE),
    )


@dataclass(frozen=True)
class _Asked:
    """The options of a deployment for ONNX Runtime, the same for every batch."""

    device: str | None
    units: str | None
    scheduler: str
    pricing: PricingOptions
    streams: int | None
    check: bool | None
    timed: TimingOptions
    as_json: bool


@dataclass(frozen=True)
class _Made:
    """One deployed folder: its JSON, its printed parts, and the exit code that it alone would give."""

    document: dict[str, Any]
    parts: Sequence[Part]
    code: ExitCode


def _searched(
    network: Network, device: str | None, scheduler: str, pricing: PricingOptions, as_json: bool
) -> AnySchedule:
    from iossim import api

    prices = pricing.prices(network, device)
    with progress_bars(quiet=as_json) as progress, interruptible():
        return api.optimize_any(
            network, None, scheduler=scheduler, cost_model=prices, options=pricing.search, progress=progress
        )


def _profile_of(device: str) -> DeviceProfile:
    """Device of a saved schedule; raises OptionError if its profile is unknown here."""
    from iossim.base.errors import DeviceError
    from iossim.hardware.load import device as load_device

    try:
        return load_device(device)
    except DeviceError:
        raise OptionError(
            f"the schedule is for {device}, which is no known device; give its profile, --device FILE.yaml"
        ) from None


def _onnxruntime(saved: AnySchedule | None, network: Network, asked: _Asked, out: Path) -> _Made:
    from iossim.base.user_files import check_writable, write_atomically
    from iossim.deploy.check import SEQUENTIAL, STREAMS
    from iossim.deploy.deployment_report import check_json, page
    from iossim.deploy.folder import PAGE_FILE, deployed_files, write_deployment
    from iossim.deploy.open_model import OpenDimensions
    from iossim.deploy.runtime import MODEL_FILE, as_optimised, provider_of
    from iossim.hardware.load import device as load_device
    from iossim.hardware.names import HOST_CPU
    from iossim.models.onnx.export import check_exportable
    from iossim.models.passes.unit_fusion import MODEL
    from iossim.report.search_words import INTERRUPTED
    from iossim.schedule.schedule import Schedule
    from iossim.schedule.streams import as_streams

    check_writable(out)
    timing = asked.timed.timing()
    device = asked.device or HOST_CPU
    if saved is None:
        make_ready(device)
    profile = _profile_of(saved.device) if saved and asked.device is None else load_device(device)
    provider = provider_of(profile)
    complete = True
    with tempfile.TemporaryDirectory(prefix="iossim-deploy-") as staging:
        folder = Path(staging)
        check_exportable(network, folder / MODEL_FILE)
        dimensions = OpenDimensions.of(network)
        if saved is None:
            if asked.units in (None, MODEL):
                network = as_optimised(network, provider, dimensions.opened(network, lambda each: each.graph).shapes)
            saved = _searched(network, device, asked.scheduler, asked.pricing, asked.as_json)
            complete = saved.complete
        streams = as_streams(saved, network, _most_streams(asked, profile))
        read = write_deployment(folder, provider, network, streams, dimensions)
        runs = _predictions(network, streams, profile)
        latencies = {name: run.latency_us for name, run in runs.items()}
        predicted = runs.get(STREAMS, runs[SEQUENTIAL]).spans
        found: DeploymentCheck | None = None
        if asked.check or (asked.check is None and profile.kind == "cpu"):
            title = f"{saved.network} on {profile.name} and {provider.name}"
            found = _checked(read, network, timing, latencies, predicted, title, asked.as_json)
        write_atomically(folder / PAGE_FILE, page(saved, read, network, found, latencies))
        document: dict[str, Any] = {
            "model": saved.network,
            "device": profile.name,
            "runtime": "onnxruntime",
            "provider": provider.name,
            "scheduler": saved.scheduler,
            "stages": len(saved.stages) if isinstance(saved, Schedule) else None,
            "units": len(network.units),
            "batch": network.source.batch,
            "shapes": {name: list(shape) for name, shape in read.shapes.items()},
            "streams": [list(names) for names in read.streams],
            "predicted_us": latencies,
            "check": None if found is None else check_json(found),
            "remarks": list(network.remarks),
        }
        parts = [*_told(saved, read, network, found, latencies, predicted)]
        if not complete:
            parts.append(wrapped(INTERRUPTED))
        differs = found is not None and not found.equal
        if not differs:
            _replace(out, deployed_files(folder))
        code = ExitCode.DOES_NOT_HOLD if differs else ExitCode.DONE if complete else ExitCode.INCOMPLETE
        return _Made(document, parts, code)


def _most_streams(asked: _Asked, profile: DeviceProfile) -> int | None:
    """Limit of the number of streams; on a CPU the runtime's calling thread spins on one core, but two get two."""
    from iossim.base.threads import usable_cores

    cores = len(usable_cores())
    return cores - (cores > 2) if asked.streams is None and profile.kind == "cpu" else asked.streams


def _checked(
    read: Deployment,
    network: Network,
    timing: Timing,
    latencies: Mapping[str, float],
    predicted: Sequence[Span],
    title: str,
    as_json: bool,
) -> DeploymentCheck:
    """Run a deployment beside the runtime's defaults; a trace and a picture of its streams go into its folder."""
    from iossim.base.user_files import write_atomically
    from iossim.deploy.check import check_deployment
    from iossim.deploy.deployment_report import deployment_trace, overlap_sentence, profiled_spans
    from iossim.deploy.folder import PICTURE_FILE, TRACE_FILE
    from iossim.report.figures.pictures import svg_picture
    from iossim.report.figures.stream_timeline import beside_figure

    with progress_bars(quiet=as_json, unit="rounds") as start:
        found = check_deployment(read, network, timing, latencies, start(network.name))
    if found.profile is not None:
        beside = predicted, profiled_spans(read, found.profile)
        write_atomically(read.folder / TRACE_FILE, deployment_trace(*beside, title, read.provider.name))
        if wants_plot(None):
            runs_drawn = dict(zip(("predicted", "ONNX Runtime"), beside, strict=True))
            figure = beside_figure(network, title, overlap_sentence(found.profile, predicted), runs_drawn)
            write_atomically(read.folder / PICTURE_FILE, svg_picture(figure, {}, titled=True))
    return found


def _told(
    saved: AnySchedule,
    read: Deployment,
    network: Network,
    found: DeploymentCheck | None,
    latencies: Mapping[str, float],
    predicted: Sequence[Span],
) -> Iterator[Part]:
    """Text printed about a deployed folder."""
    from iossim.deploy.deployment_report import (
        outputs_sentence,
        overlap_sentence,
        predicted_sentence,
        sizes_sentences,
        verdict,
    )
    from iossim.deploy.folder import PICTURE_FILE, TRACE_FILE
    from iossim.report.time_tables import disturbance, measured_table

    counts = " and ".join(str(len(names)) for names in read.streams)
    nodes = f"{sum(map(len, read.streams))} nodes, by stream {counts}"
    yield wrapped(f"{saved.network} for {read.provider.name}, batch {network.source.batch}: {nodes}", "bold")
    if found is None:
        yield wrapped(predicted_sentence(latencies))
    else:
        yield measured_table("", found.rows)
        said = (disturbance(found.rows), outputs_sentence(found), verdict(found, len(read.streams)))
        yield from map(wrapped, filter(None, said))
        if found.profile is not None:
            drawn = ", ".join(name for name in (PICTURE_FILE, TRACE_FILE) if (read.folder / name).exists())
            yield wrapped(f"{overlap_sentence(found.profile, predicted)} Drawn in {drawn}.")
    yield from notes((*network.remarks, *sizes_sentences(read, network)))


def _replace(out: Path, files: Mapping[str, Callable[[Path], None]]) -> None:
    """Write a deployment's files, and remove those of a former one that it lacks."""
    from iossim.deploy.folder import stale_files

    stale = stale_files(out, files)
    write_files(out, files)
    for path in stale:
        path.unlink()
    if stale:
        typer.echo(f"removed {', '.join(map(str, stale))} of the deployment that was there", err=True)


def _predictions(network: Network, streams: StreamSchedule, profile: DeviceProfile) -> dict[str, Execution]:
    """Event-driven simulation of one stream and, if there are more, of all, as in a session of the runtime."""
    from iossim.backends.simulator.event_costs import tell_unknown
    from iossim.backends.simulator.events import run_schedule
    from iossim.deploy.check import SEQUENTIAL, STREAMS
    from iossim.execution.engine import Engine
    from iossim.schedule.streams import as_streams

    tell_unknown(Engine.ONNXRUNTIME, profile)
    of = {SEQUENTIAL: as_streams(streams, network, 1)}
    if len(streams.streams) > 1:
        of[STREAMS] = streams
    return {name: run_schedule(network, each, profile, Engine.ONNXRUNTIME) for name, each in of.items()}


def _tensorrt(network: Network, schedule: Schedule, model: str, as_json: bool, code: ExitCode) -> None:
    from iossim.deploy.deployment_report import tensorrt_sentences
    from iossim.deploy.tensorrt import tensorrt_advice

    advice = tensorrt_advice(network, schedule)
    file = model if model.endswith(".onnx") else "model.onnx"
    document = {
        "model": schedule.network,
        "runtime": "tensorrt",
        "max_aux_streams": advice.aux_streams,
        "command": advice.command(file),
        "side_by_side": [
            {"stage": one.stage, "groups": [list(names) for names in one.groups]} for one in advice.stages
        ],
    }
    present(document, tensorrt_sentences(advice, file), as_json, code=code)
