"""A deployment as ``iossim deploy`` makes it: found or read, written, checked, and told: the ways beside each other,
the best of them, and the page in its folder.

TensorRT takes no schedule, only the number of auxiliary streams that it may use: its builder decides which layers run
concurrently. There a schedule becomes a limit for ``trtexec``, and a list of the layers that its profile should show
concurrently if it decides alike.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import typer

from iossim import api
from iossim.backends.simulator.event_costs import tell_unknown
from iossim.backends.simulator.events import run_schedule
from iossim.base.display import counted
from iossim.base.errors import DeviceError, OptionError
from iossim.base.threads import usable_cores
from iossim.base.user_files import check_writable, write_atomically
from iossim.cli.options import PricingOptions, TimingOptions, make_ready
from iossim.cli.outputs import ExitCode, Part, notes, wrapped, write_files
from iossim.cli.progress import interruptible, progress_bars
from iossim.deploy.deployment import (
    PAGE_FILE,
    SEQUENTIAL,
    STREAMS,
    Deployment,
    DeploymentCheck,
    OpenDimensions,
    check_deployment,
    deployed_files,
    shapes_of,
    spelled,
    stale_files,
    write_deployment,
)
from iossim.deploy.runtime import MODEL_FILE, WEIGHTS_FILE, as_optimised, provider_of
from iossim.execution.engine import Engine
from iossim.hardware.load import device as load_device
from iossim.hardware.names import HOST_CPU
from iossim.hardware.profile import DeviceProfile
from iossim.ir.network import Network
from iossim.models.load import source_of
from iossim.models.onnx.export import check_exportable
from iossim.models.passes.unit_fusion import MODEL
from iossim.models.sources.onnx_file import values_of_nodes
from iossim.report.search_words import INTERRUPTED
from iossim.report.time_tables import disturbance, measured_table
from iossim.schedule.fit import with_variants
from iossim.schedule.schedule import AnySchedule, Schedule, StreamSchedule
from iossim.schedule.streams import as_streams


@dataclass(frozen=True)
class Made:
    """One deployment: its JSON, its printed parts, and the exit code that it alone would give."""

    document: dict[str, object]
    parts: Sequence[Part]
    code: ExitCode


@dataclass(frozen=True)
class Deploying:
    """The options of a deployment."""

    device: str | None
    units: str | None
    scheduler: str
    pricing: PricingOptions
    streams: int | None
    check: bool | None
    timed: TimingOptions
    as_json: bool

    def searched(self, network: Network, device: str | None) -> AnySchedule:
        prices, search = self.pricing.prices(network, device), self.pricing.search
        with progress_bars(quiet=self.as_json) as progress, interruptible():
            return api.scheduled(
                network, None, scheduler=self.scheduler, cost_model=prices, options=search, progress=progress
            ).schedule

    def onnxruntime(self, saved: AnySchedule | None, network: Network, out: Path) -> Made:
        """Write a saved schedule, or the one found, for ONNX Runtime to a folder; not where its outputs differ."""
        check_writable(out)
        self.timed.timing()  # refuses what is not possible before the work
        device = self.device or HOST_CPU
        if saved is None:
            make_ready(device)
        profile = _profile_of(saved.device) if saved and self.device is None else load_device(device)
        provider = provider_of(profile)
        complete = True
        with tempfile.TemporaryDirectory(prefix="iossim-deploy-") as staging:
            folder = Path(staging)
            check_exportable(network, folder / MODEL_FILE)
            dimensions = OpenDimensions.of(network)
            if saved is None:
                if self.units in (None, MODEL):
                    opened = dimensions.opened(network, lambda each: each.graph)
                    network = as_optimised(network, provider, opened.shapes)
                saved = self.searched(network, device)
                complete = saved.complete
            # The runtime chooses the kernels.
            streams = as_streams(with_variants(saved), network, self._most_streams(profile))
            read = write_deployment(folder, provider, network, streams, dimensions)
            latencies = _predictions_us(network, streams, profile)
            found: DeploymentCheck | None = None
            if self.check or (self.check is None and profile.kind == "cpu"):
                with progress_bars(quiet=self.as_json, unit="rounds") as start:
                    found = check_deployment(read, network, self.timed.timing(), latencies, start(network.name))
            write_atomically(folder / PAGE_FILE, page(saved, read, network, found, latencies))
            document: dict[str, object] = {
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
            parts = [*_told(saved, read, network, found, latencies)]
            if not complete:
                parts.append(wrapped(INTERRUPTED))
            differs = found is not None and not found.equal
            if not differs:
                _replace(out, deployed_files(folder))
            code = ExitCode.DOES_NOT_HOLD if differs else ExitCode.DONE if complete else ExitCode.INCOMPLETE
            return Made(document, parts, code)

    def _most_streams(self, profile: DeviceProfile) -> int | None:
        """Limit of the number of streams; on a CPU the runtime's calling thread spins on one core, but two get two."""
        cores = len(usable_cores())
        return cores - (cores > 2) if self.streams is None and profile.kind == "cpu" else self.streams

    def tensorrt(self, network: Network, schedule: Schedule, model: str, is_saved: bool) -> Made:
        """The settings of TensorRT for a schedule; nothing is written."""
        advice = tensorrt_advice(network, schedule)
        file = model if model.endswith(".onnx") else "model.onnx"
        document = {
            "model": schedule.network,
            "runtime": "tensorrt",
            "max_aux_streams": advice.aux_streams,
            "command": advice.command(file),
            "side_by_side": [{"stage": stage, "groups": groups} for stage, groups in advice.stages.items()],
        }
        code = ExitCode.DONE if is_saved or schedule.complete else ExitCode.INCOMPLETE
        return Made(document, tensorrt_sentences(advice, file), code)


def _profile_of(device: str) -> DeviceProfile:
    """Device of a saved schedule; raises OptionError if its profile is unknown here."""
    try:
        return load_device(device)
    except DeviceError:
        raise OptionError(
            f"the schedule is for {device}, which is no known device; give its profile, `device` FILE.yaml"
        ) from None


def _told(
    saved: AnySchedule,
    read: Deployment,
    network: Network,
    found: DeploymentCheck | None,
    latencies: Mapping[str, float],
) -> Iterator[Part]:
    """Text printed about a deployed folder."""
    counts = " and ".join(str(len(names)) for names in read.streams)
    nodes = f"{counted(sum(map(len, read.streams)), 'node')}, by stream {counts}"
    yield wrapped(f"{saved.network} for {read.provider.name}, batch {network.source.batch}: {nodes}", "bold")
    if found is None:
        yield wrapped(predicted_sentence(latencies))
    else:
        yield measured_table(found.rows)
        said = (disturbance(found.rows), outputs_sentence(found), verdict(found, len(read.streams)))
        yield from map(wrapped, filter(None, said))
    yield from notes((*network.remarks, *sizes_sentences(read, network)))


def _replace(out: Path, files: Mapping[str, Callable[[Path], None]]) -> None:
    """Write a deployment's files, and remove those of a former one that it lacks."""
    stale = stale_files(out, files)
    write_files(out, files)
    for path in stale:
        path.unlink()
    if stale:
        typer.echo(f"removed {', '.join(map(str, stale))} of the deployment that was there", err=True)


def _predictions_us(network: Network, streams: StreamSchedule, profile: DeviceProfile) -> dict[str, float]:
    """Event-driven time of one stream and, if there are more, of all, as in a session of the runtime."""
    tell_unknown(Engine.ONNXRUNTIME, profile)
    of = {SEQUENTIAL: as_streams(streams, network, 1)}
    if len(streams.streams) > 1:
        of[STREAMS] = streams
    return {name: run_schedule(network, each, profile, Engine.ONNXRUNTIME).latency_us for name, each in of.items()}


def outputs_sentence(check: DeploymentCheck) -> str:
    """Largest deviation of the outputs of all ways from the model's own."""
    name, error = max(check.errors.items(), key=lambda item: item[1])
    if error == 0:
        return "All outputs equal the model's bit for bit."
    verdict = "equal" if check.equal else "DIFFER"
    return (
        f"Outputs {verdict}: those of {name!r} are off by {error:.1e} of the largest value (up to "
        f"{check.tolerance:.0e} is rounding)."
    )


def verdict(check: DeploymentCheck, width: int) -> str:
    """The fastest way, and whether ``width`` streams win."""
    best = check.best
    tie = f", a tie with {', '.join(map(repr, check.ties))}" if check.ties else ""
    fastest = f"Fastest: {best.name!r}, {best.samples.median_us / 1e3:.3f} ms{tie}."
    streams = next((row for row in check.rows if row.name == STREAMS), None)
    if streams is None:
        return f"{fastest} The schedule has a single stream."
    if streams is best or STREAMS in check.ties:
        return fastest
    factor = streams.samples.median_us / best.samples.median_us
    # ONNX Runtime's caller spins until all streams are done.
    lacking = f" (they need {width + 1} cores, one of them for the spinning caller; {check.cores} are available)"
    why = lacking if check.cores <= width else ""
    lose = f"{fastest} Streams take {factor:.2f} times as long{why}; do not use them on this machine."
    return " ".join(filter(None, (lose, _predicted_loss(check))))


def _predicted_loss(check: DeploymentCheck) -> str:
    """Sentence on whether the prediction said that streams lose to one thread; empty without a prediction."""
    predicted = {row.name: row.predicted_us for row in check.rows}
    streams_us, one_us = predicted.get(STREAMS), predicted.get(SEQUENTIAL)
    if streams_us is None or one_us is None:
        return ""
    took = {row.name: row.samples.median_us for row in check.rows}
    said = f"{streams_us / one_us:.2f} times as long as one thread, and measured {took[STREAMS] / took[SEQUENTIAL]:.2f}"
    return f"That was predicted: {said}." if streams_us >= one_us else f"The prediction was wrong: {said}."


def predicted_sentence(predicted_us: Mapping[str, float]) -> str:
    """Predicted times of one thread and, if there are any, of streams, for what was not run."""
    one_us, streams_us = predicted_us[SEQUENTIAL], predicted_us.get(STREAMS)
    said = f"Not run. Predicted: {one_us / 1e3:.3f} ms on one thread"
    return f"{said}." if streams_us is None else f"{said}, {streams_us / 1e3:.3f} ms with streams."


def check_json(check: DeploymentCheck) -> dict[str, object]:
    return {
        "rows": [row.to_json() for row in check.rows],
        "output_errors": dict(check.errors),
        "tolerance": check.tolerance,
        "equal": check.equal,
        "best": check.best.name,
        "ties": list(check.ties),
    }


def sizes_sentences(deployed: Deployment, network: Network) -> list[str]:
    """A sentence on the open dimensions of the deployed model; empty if the model's file leaves none open."""
    taken, reason = spelled(deployed.shapes), deployed.opened.reason
    if deployed.opened.shapes is not None:
        return [f"The deployed model takes {taken}; it is scheduled for {spelled(shapes_of(network.graph))}."]
    said = f"The deployed model takes {taken} alone: {reason}. Deploy it again for others (--batch 4)."
    return [said] if reason else []


def page(
    schedule: AnySchedule,
    deployed: Deployment,
    network: Network,
    check: DeploymentCheck | None,
    predicted_us: Mapping[str, float],
) -> str:
    """README.md of a deployed folder."""
    width = len(deployed.streams)
    counts = " and ".join(str(len(names)) for names in deployed.streams)
    stages = f", {counted(len(schedule.stages), 'stage')}" if isinstance(schedule, Schedule) else ""
    weights = f" Its weights are in `{WEIGHTS_FILE}`." if (deployed.folder / WEIGHTS_FILE).exists() else ""
    others = "" if deployed.opened.shapes is None else ", `python run.py NAME=4x3x224x224` at other sizes"
    lines = [
        f"# {schedule.network} on ONNX Runtime, {counted(width, 'stream')}",
        "",
        f"`python run.py` runs it{others}; copy `session()` from there.",
        f"`model.onnx` is the model as ONNX Runtime optimised it for {deployed.provider.name}: load it with",
        f"optimisation off, on a machine like the one that wrote it.{weights}",
        f"`partition.json` has the names of its nodes by stream ({counts} {'node' if counts == '1' else 'nodes'}).",
        f"Schedule: {schedule.scheduler}, for {schedule.device}, batch {network.source.batch}{stages}.",
        *sizes_sentences(deployed, network),
        "",
    ]
    if check is None:
        lines.append(predicted_sentence(predicted_us))
    else:
        busy = disturbance(check.rows)
        lines += [outputs_sentence(check), verdict(check, width), *([f"Note: {busy}."] if busy else [])]
    return "\n".join(lines) + "\n"


@dataclass(frozen=True, slots=True)
class TensorRtAdvice:
    """Streams beside the main one for which a schedule has work, and the nodes that a stage, by its number, runs
    concurrently: the names of each group, in order.
    """

    aux_streams: int
    stages: Mapping[int, list[list[str]]]

    def command(self, model: str) -> str:
        """Command that builds an engine of ``model``, and writes the profile of its layers."""
        return (
            f"trtexec --onnx={model} --maxAuxStreams={self.aux_streams} --profilingVerbosity=detailed "
            "--exportLayerInfo=layers.json --exportProfile=profile.json"
        )


def tensorrt_advice(network: Network, schedule: Schedule) -> TensorRtAdvice:
    """The advice for a schedule that fits ``network``; an engine names layers after nodes of the model's file."""
    file = network.source.model if network.source else ""
    values_of = values_of_nodes(file) if source_of(file) == "onnx_file" else {}
    in_file = {value: name for name, made in values_of.items() for value in made}
    stages = {
        number: [_names(network, group, in_file) for group in stage.groups]
        for number, stage in enumerate(schedule.stages)
        if stage.concurrent
    }
    return TensorRtAdvice(max(0, schedule.streams - 1), stages)


def _names(network: Network, group: Sequence[str], in_file: Mapping[str, str]) -> list[str]:
    units = (network.unit(name) for name in group)
    return [in_file.get(node.outputs[0], node.name) for unit in units for node in network.unit_nodes(unit)]


def tensorrt_sentences(advice: TensorRtAdvice, model: str) -> list[str]:
    """Settings that TensorRT accepts, and what to look for in its profile."""
    said = [
        "TensorRT takes no schedule: its builder decides which layers run concurrently, up to a number of "
        "auxiliary streams. For the width of this schedule:",
        f"  {advice.command(model)}",
    ]
    if not advice.stages:
        return [*said, "The schedule has no concurrent groups, so no layers should overlap."]
    said.append("Layers of these nodes should overlap in its profile, a group a line:")
    for stage, groups in advice.stages.items():
        said += [f"  stage {stage}", *(f"    {' > '.join(names)}" for names in groups)]
    return said
