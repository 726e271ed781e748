"""``iossim run``: a saved schedule on real hardware, checked and timed beside others."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from math import isinf
from pathlib import Path
from typing import TYPE_CHECKING, Any

from iossim.base.errors import OptionError
from iossim.cli.options import TimingOptions, command
from iossim.cli.outputs import Part, notes, present, tell_written, wrapped
from iossim.cli.progress import progress_bars

if TYPE_CHECKING:
    from iossim.execution.backend import Backend, Timing
    from iossim.execution.measured_run import Difference, MeasuredRow
    from iossim.ir.network import Network
    from iossim.report.time_tables import StageRow
    from iossim.schedule.schedule import AnySchedule, Schedule


@command
def run(
    schedule: Path,
    backend: str,
    compare: str = "sequential",
    device: str | None = None,
    model: str | None = None,
    engine: str | None = None,
    *,
    timed: TimingOptions,
    strict: bool = False,
    check: bool = True,
    stages: bool = False,
    store: Path | None = None,
    plan: Path | None = None,
    as_json: bool = False,
) -> None:
    """Run SCHEDULE on a backend, check its outputs against NumPy's, and time it beside others in interleaved rounds."""
    from iossim import api
    from iossim.base.user_files import check_file, write_atomically
    from iossim.execution.backend import backend_from, context_of
    from iossim.execution.measured_run import SWAPPED, plan_for, ranked, tolerance
    from iossim.execution.memory import memory_lower_bound_bytes
    from iossim.execution.plan import plan_to_json
    from iossim.ir.types import Precision
    from iossim.models.partition import refuse_foreign
    from iossim.report.time_tables import median_stage_error_percent
    from iossim.schedule.schedule import StreamSchedule
    from iossim.tasks.measured_schedules import for_backend, measure_beside, plain_schedule, predictions, split_names

    check_file(plan, "--plan")
    plain, baselines = split_names(compare)
    saved, network = api.read_any_schedule(schedule, model)
    if stages and isinstance(saved, StreamSchedule):
        raise OptionError(f"{schedule} is of streams, and has no stages to be measured; leave --stages out")
    if strict:
        refuse_foreign(network, model or saved.source.model)
    timing = timed.timing()
    chosen = engine or saved.engine or "auto"
    runner = backend_from(backend, Precision.named(saved.precision), chosen, device)
    saved, foreign = for_backend(saved, network, runner)
    remarks = [*network.remarks, *([foreign] if foreign else [])]
    schedules: dict[str, AnySchedule] = {name: plain_schedule(network, name) for name in plain}
    schedules[saved.scheduler if saved.scheduler not in schedules else f"{saved.scheduler} (saved)"] = saved
    with progress_bars(quiet=as_json, unit="units planned") as start:  # a backend that has several kernels times them
        found = plan_for(saved, network, runner, progress=start(runner.context.backend))
    off = _checked(network, saved, runner, timing.seed, as_json) if check else None
    with progress_bars(quiet=as_json, unit="rounds") as start:
        if device is not None:
            predicted = predictions(network, schedules, device, runner.context.engine)
        else:
            own = runner.context.device
            predicted = {name: one.latency_us for name, one in schedules.items() if one.device == own}
        rows = measure_beside(network, schedules, baselines, runner, timing, predicted, start)
        by_stage = None
        if stages and not isinstance(saved, StreamSchedule):
            by_stage = _stages(network, saved, runner, timing, store, device)
    if plan is not None:
        write_atomically(plan, plan_to_json(found) + "\n")
        tell_written([plan])
    most = tolerance(network, Precision.named(saved.precision))
    is_finite = None if off is None else not isinf(off.relative)
    if off is not None and off.relative > most and off.output in ranked(network.graph):
        remarks.append(f"Outputs differ: {SWAPPED}.")
    document = {
        "model": saved.network,
        "batch": saved.source.batch,
        "context": asdict(context_of(runner, network)),
        "output_error": off.relative if off is not None and is_finite else None,
        "output_tolerance": most,
        "outputs_differ_most": str(off) if off is not None and off.relative > most else None,
        "outputs_finite": is_finite,
        "memory": {
            "arena_bytes": found.arena_bytes,
            "lower_bound_bytes": memory_lower_bound_bytes(found),
            "unshared_bytes": found.storage_bytes,
        },
        "runs": [row.to_json() for row in rows],
        "stages": None if by_stage is None else [asdict(row) for row in by_stage],
        "median_stage_error_percent": None if by_stage is None else median_stage_error_percent(by_stage),
        "remarks": remarks,
    }
    present(document, _parts(document, rows, by_stage, off), as_json)


def _checked(network: Network, saved: AnySchedule, runner: Backend, seed: int, quiet: bool) -> Difference:
    """The difference of the outputs from NumPy's, which a bar awaits op by op."""
    from iossim.backends.numpy_reference.backend import numpy_outputs
    from iossim.execution.measured_run import output_difference

    with progress_bars(quiet, unit="ops by NumPy") as start:
        return output_difference(network, saved, runner, partial(numpy_outputs, progress=start("check")), seed)


def _parts(
    document: Mapping[str, Any],
    rows: Sequence[MeasuredRow],
    by_stage: Sequence[StageRow] | None,
    off: Difference | None,
) -> Iterator[Part]:
    """Times beside others', the difference of the outputs from NumPy's, and the memory of the activations."""
    from iossim.base.memory import size_text
    from iossim.report.time_tables import disturbance, measured_table, stage_table

    context = document["context"]
    ran = f"{context['backend']}, batch {document['batch']}, {context['precision']}, {context['engine']} engine"
    yield wrapped(f"{document['model']} by {ran}", "bold")
    yield measured_table(rows)
    if said := disturbance(rows):
        yield wrapped(said)
    if by_stage is not None:
        yield from ("", stage_table(by_stage))
        if (median := document["median_stage_error_percent"]) is not None:
            yield wrapped(f"Median error of the predicted stage times: {median:.1f}%")
    if off is not None:
        differ = f"differ from NumPy's by {off.relative:.1e} of the largest value"
        yield wrapped("Outputs " + (differ if document["outputs_finite"] else "are not finite, and NumPy's are"))
    if (most := document["outputs_differ_most"]) is not None:
        yield wrapped(f"That is more than the {document['output_tolerance']:.1e} that rounding explains: {most}")
    arena, least, unshared = map(size_text, document["memory"].values())
    yield wrapped(f"Activations take {arena} (lower bound {least}; without sharing memory {unshared})")
    yield from notes(document["remarks"])


def _stages(
    network: Network, saved: Schedule, runner: Backend, timing: Timing, store: Path | None, device: str | None
) -> list[StageRow]:
    """Each stage measured alone, through the store, beside its own price or the simulator's for a device."""
    from iossim import api
    from iossim.cost.measured.cost_model import MeasuredCostModel
    from iossim.cost.measured.store import MeasurementStore
    from iossim.report.time_tables import stage_rows
    from iossim.search.assemble import reprice, reprice_as_known

    with MeasurementStore(store) as kept:
        measured = reprice(saved, network, MeasuredCostModel(runner, kept, timing))
    if device is None:
        return stage_rows(saved, measured)
    prices = api.cost_model("simulator:backend", device, network.precision, runner.context.engine)
    priced = reprice_as_known(saved, network, prices)
    assert isinstance(priced, type(saved)), "stages stay stages"
    return stage_rows(priced, measured)
