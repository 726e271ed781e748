"""A deployment as ``iossim deploy`` makes it: found or read, written, checked, and told."""

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
from iossim.cli.option_groups import PricingOptions, TimingOptions, make_ready
from iossim.cli.outputs import ExitCode, Part, notes, wrapped, write_files
from iossim.cli.progress import interruptible, progress_bars
from iossim.deploy import deployment_report as told
from iossim.deploy.check import SEQUENTIAL, STREAMS, DeploymentCheck, check_deployment
from iossim.deploy.folder import PAGE_FILE, Deployment, deployed_files, stale_files, write_deployment
from iossim.deploy.open_model import OpenDimensions
from iossim.deploy.runtime import MODEL_FILE, as_optimised, provider_of
from iossim.deploy.tensorrt import tensorrt_advice
from iossim.execution.engine import Engine
from iossim.hardware.load import device as load_device
from iossim.hardware.names import HOST_CPU
from iossim.hardware.profile import DeviceProfile
from iossim.ir.network import Network
from iossim.models.onnx.export import check_exportable
from iossim.models.passes.unit_fusion import MODEL
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
            write_atomically(folder / PAGE_FILE, told.page(saved, read, network, found, latencies))
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
                "check": None if found is None else told.check_json(found),
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
        return Made(document, told.tensorrt_sentences(advice, file), code)


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
        yield wrapped(told.predicted_sentence(latencies))
    else:
        yield measured_table(found.rows)
        said = (disturbance(found.rows), told.outputs_sentence(found), told.verdict(found, len(read.streams)))
        yield from map(wrapped, filter(None, said))
    yield from notes((*network.remarks, *told.sizes_sentences(read, network)))


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
