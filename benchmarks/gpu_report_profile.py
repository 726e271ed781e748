"""The section of ``gpu_report.py`` that measures units, pairs and sampled stages of every network, warm and cold."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpu_report_job import ENGINE_PART, ENGINES, Job, load_network
from gpu_report_plan import PLAIN_DTYPE

if TYPE_CHECKING:
    from iossim.cost.measured.cost_model import MeasuredCostModel
    from iossim.cost.measured.record import MeasurementRecord
    from iossim.cost.measured.store import MeasurementStore
    from iossim.execution.backend import Backend, Context


def section_profile(job: Job) -> None:
    """Every network warm by engine, then cold by engine, small networks first; then a measurement set of each.

    The graph engine gets three quarters of the remaining time of both; in other precisions than fp32 it gets all.

    Warm, a stage is repeated back to back, so that its weights stay in the L2 cache; cold, the cache is flushed
    before each run. A network whose weights exceed that cache runs between the two.
    """
    from iossim.cost.measured.store import MeasurementStore

    networks = {model: load_network(job, model) for model in job.models}
    engines = ENGINES if job.dtype == PLAIN_DTYPE else ENGINES[:1]
    passes = [(cold, engine, model) for cold in (False, True) for engine in engines for model in networks]
    with MeasurementStore(job.out / "measurements.sqlite") as store:
        for number, (cold, engine, model) in enumerate(passes):
            item = f"profile of {model}, {engine} engine, {'cold' if cold else 'warm'}"
            share_s = job.left_s * ENGINE_PART[engine] / sum(ENGINE_PART[each] for _, each, _ in passes[number:])
            if share_s <= 0:
                job.leave(item)
                continue
            with job.told(item):
                _profile(job, item, store, networks[model], model, engine, cold, share_s)
        for backend in job.backends.values():
            for cold in (False, True):
                with job.told(f"measurement set of the {backend.context.engine} engine, {'cold' if cold else 'warm'}"):
                    _export(job, store, backend, cold)


def measuring(job: Job, engine: str, store: MeasurementStore, cold: bool = False) -> MeasuredCostModel:
    """Prices measured on the section's backend of an engine."""
    from iossim.cost.measured.cost_model import MeasuredCostModel
    from iossim.execution.backend import Timing

    timing = Timing(job.settings.stage_rounds, 1 if job.dry else 2, cold=cold)
    return MeasuredCostModel(job.backend_of(engine), store, timing, job.settings.target_us)


def _profile(
    job: Job, item: str, store: MeasurementStore, network: Any, model: str, engine: str, cold: bool, seconds: float
) -> None:
    from iossim.cost.measured.profiling import ProfileOptions, profile, profile_parts

    prices = measuring(job, engine, store, cold)
    parts = profile_parts(network, prices, ProfileOptions(job.settings.pairs, job.settings.stages))
    found = profile(network, prices, parts, until(time.monotonic() + seconds))
    if not found.complete:
        job.leave(item)
    facts = {key: value for key, value in found.to_json().items() if key != "noisy"}
    name = prices.context.backend
    job.record("profile", model=model, engine=engine, backend=name, l2="cold" if cold else "warm", **facts)


def _export(job: Job, store: MeasurementStore, backend: Backend, cold: bool) -> None:
    """Export the newest measurement of each stage of a backend, as a measurement set for each layout of images."""
    from iossim.cost.measured.record import measurement_set
    from iossim.cost.measured.store import Filter
    from iossim.measurements.measurement_set import write_measurements

    own = backend.context
    wanted = Filter(backend=own.backend, device=own.device, engine=own.engine)
    records: dict[Context, list[MeasurementRecord]] = {}
    for record in store.records(wanted):
        if replace(record.context, layout=own.layout) == own and record.is_cold == cold:
            records.setdefault(record.context, []).append(record)
    for context, measured in records.items():
        found = measurement_set(measured, cold)
        other = context.layout if own.layout == "auto" and context.layout != "nhwc" else ""
        write_measurements(found, measurement_file(job.out, context.engine, context.precision, cold, other))
        job.record(
            "export",
            engine=context.engine,
            l2="cold" if cold else "warm",
            context=asdict(context),
            operators=len(found.measurements),
            stages=len(found.stages),
            left_out=list(found.notes),
        )


def measurement_file(out: Path, engine: str, dtype: str, cold: bool = False, layout: str = "") -> Path:
    """Measurement set of an engine in a precision: ``operators-graph.jsonl``, ``operators-graph-bf16-cold.jsonl``.

    ``layout`` names one that is not the usual one in that precision.
    """
    parts = ["operators", engine, *([] if dtype == PLAIN_DTYPE else [dtype]), *([layout] if layout else [])]
    parts += ["cold"] if cold else []
    return out / f"{'-'.join(parts)}.jsonl"


def until(end_s: float) -> Callable[[int, int], None]:
    """A progress that interrupts when the time is over, which the profiler takes as its deadline."""

    def tell(done: int, total: int) -> None:
        if time.monotonic() > end_s and done < total:
            raise KeyboardInterrupt

    return tell
