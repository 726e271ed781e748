"""``iossim deploy``: a schedule as a user's runtime runs it, checked and timed beside the runtime's defaults."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from iossim.base.errors import OptionError, did_you_mean
from iossim.cli.options import PricingOptions, ReadingOptions, TimingOptions, command
from iossim.cli.outputs import present
from iossim.cli.schedule_files import schedule_or_network

RUNTIMES = ("onnxruntime", "tensorrt")


@command
def deploy(
    target: str,
    *,
    runtime: str = "onnxruntime",
    device: str | None = None,
    model: str | None = None,
    batch: int | None = None,
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
    from iossim.deploy.deploying import Deploying
    from iossim.execution.engine import AUTO, Engine
    from iossim.schedule.schedule import StreamSchedule

    if runtime not in RUNTIMES:
        raise OptionError(f"--runtime {runtime!r} is not known; {did_you_mean(runtime, RUNTIMES)}")
    if runtime == "onnxruntime" and out is None:
        raise OptionError("deploy writes a folder; give --out DIR")
    if streams is not None and streams < 1:
        raise OptionError(f"--streams {streams} is not possible; give 1 or more")
    if runtime == "onnxruntime" and pricing.engine == AUTO and pricing.cost_model == "simulator":
        pricing = replace(pricing, engine=Engine.ONNXRUNTIME.value)
    asked = Deploying(device, reading.units, scheduler, pricing, streams, check, timed, as_json)
    saved, network = schedule_or_network(target, model, reading, batch)
    if out is None or runtime == "tensorrt":
        found = saved or asked.searched(network, device)
        if isinstance(found, StreamSchedule):
            raise OptionError("--runtime tensorrt needs the stages of a schedule; give one of another --scheduler")
        made = asked.tensorrt(network, found, model or (saved.source.model if saved else target), saved is not None)
    else:
        made = asked.onnxruntime(saved, network, out)
    present(made.document, made.parts, as_json, code=made.code)
