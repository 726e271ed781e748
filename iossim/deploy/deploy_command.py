"""``iossim deploy``: a schedule as a user's runtime runs it, checked and timed beside the runtime's defaults."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path

from iossim.base.errors import OptionError, did_you_mean
from iossim.cli.options import PricingOptions, ReadingOptions, TimingOptions, command, whole_number
from iossim.cli.outputs import ExitCode, present
from iossim.cli.schedule_files import schedule_or_network

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
    from iossim.deploy.deploying import Deploying
    from iossim.execution.engine import AUTO, Engine
    from iossim.schedule.schedule import StreamSchedule

    if runtime not in RUNTIMES:
        raise OptionError(f"--runtime {runtime!r} is not known; {did_you_mean(runtime, RUNTIMES)}")
    if runtime == "onnxruntime" and out is None:
        raise OptionError("deploy writes a folder; give --out DIR")
    if streams is not None and streams < 1:
        raise OptionError(f"--streams {streams} is not possible; give 1 or more")
    batches: Sequence[int | None] = (
        [None] if batch is None else list(dict.fromkeys(map(whole_number, batch.split(","))))
    )
    if runtime == "onnxruntime" and pricing.engine == AUTO and pricing.cost_model == "simulator":
        pricing = replace(pricing, engine=Engine.ONNXRUNTIME.value)
    asked = Deploying(device, reading.units, scheduler, pricing, streams, check, timed, as_json)
    if out is None or runtime == "tensorrt":
        if len(batches) > 1:
            raise OptionError(f"--runtime tensorrt takes one batch, and --batch says {batch}; give one")
        saved, network = schedule_or_network(target, model, reading, batches[0])
        found = saved or asked.searched(network, device)
        if isinstance(found, StreamSchedule):
            raise OptionError("--runtime tensorrt needs the stages of a schedule; give one of another --scheduler")
        made = [asked.tensorrt(network, found, model or (saved.source.model if saved else target), saved is not None)]
    else:
        made = []
        for each in batches:
            saved, network = schedule_or_network(target, model, reading, each)
            made.append(asked.onnxruntime(saved, network, out if len(batches) == 1 else out / f"batch{each}"))
    documents = [each.document for each in made]
    present(
        documents[0] if len(documents) == 1 else {"batches": documents},
        chain.from_iterable(each.parts for each in made),
        as_json,
        # A failed check determines the exit code before an interrupted search does.
        code=min((each.code for each in made if each.code), default=ExitCode.DONE),
    )
