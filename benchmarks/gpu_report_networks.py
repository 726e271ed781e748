"""The sections of ``gpu_report.py`` that run whole networks: schedules of iossim, and PyTorch's baselines beside them.

Baselines are in processes of their own, before the schedules: PyTorch brings a cuDNN that need not be the backend's. They
leave the outputs that every schedule is held to, computed by PyTorch on the CPU; without PyTorch NumPy does it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from gpu_report_job import ENGINES, Job, estimate_device, load_network, probe_torch
from gpu_report_profile import measuring, until

if TYPE_CHECKING:
    from iossim.cost.measured.cost_model import MeasuredCostModel
    from iossim.cost.measured.store import MeasurementStore
    from iossim.execution.backend import Backend, Context, Samples, Timing
    from iossim.execution.reference_outputs import Reference
    from iossim.ir.network import Network
    from iossim.ir.op import Array
    from iossim.schedule.schedule import Schedule

SOURCE = "benchmarks/gpu_report.py"
#: Of the time of a network's section: what the searches of both engines may take.
SEARCH_PART = 0.5


def section_baselines(job: Job) -> None:
    """PyTorch's eager mode and CUDA graph of every network, and the outputs that its schedules are held to."""
    from iossim.backends.torch_cuda.backend import missing
    from iossim.backends.torch_cuda.baselines import baseline_names, outputs
    from iossim.execution.made_inputs import made_arrays

    if "not installed" in (reason := missing()):
        job.skip("baselines of PyTorch", reason)
        return
    if not job.dry:
        job.probes.append(probe_torch)

    def torch_outputs(network: Network, inputs: Mapping[str, Array]) -> Mapping[str, Array]:
        return outputs(network, inputs, "cpu")

    for model in job.models:
        if job.left_s <= 0:
            job.leave(f"baselines of {model}")
            continue
        network = load_network(job, model)
        with job.told(f"reference outputs of {model}"):
            _kept(job, torch_outputs)(network, made_arrays(network.graph.inputs, network.graph.types))
        for name in ("torch-eager", "torch-cuda-graph"):
            with job.told(f"{name} of {model}"):
                if name in baseline_names(_place(job)):
                    _measure_baseline(job, model, network, name)


def section_compile(job: Job, model: str) -> None:
    """PyTorch's compiled baselines, which take longest to prepare; a dry run leaves them out."""
    from iossim.backends.torch_cuda.backend import missing

    if job.dry:
        job.skip(f"compiled baselines of {model}", "compiling for a CPU takes a minute")
    elif "not installed" in (reason := missing()):
        job.skip(f"compiled baselines of {model}", reason)
    else:
        job.probes.append(probe_torch)
        network = load_network(job, model)
        for name in ("torch-compile", "torch-compile-cuda-graph"):
            with job.told(f"{name} of {model}"):
                _measure_baseline(job, model, network, name)


def section_network(job: Job, model: str) -> None:
    """Sequential, greedy and IOS schedules of a network on both engines: outputs, times, and what their stages take."""
    from iossim.backends.numpy_reference.evaluate import numpy_outputs
    from iossim.cost.measured.store import MeasurementStore
    from iossim.execution.made_inputs import made_arrays
    from iossim.tasks.measured_schedules import plain_schedule

    network = load_network(job, model)
    plain = {name: plain_schedule(network, name) for name in ("sequential", "greedy")}
    expected: Mapping[str, Array] | None = None
    with job.told(f"reference outputs of {model}"):
        inputs = made_arrays(network.graph.inputs, network.graph.types)
        expected = _kept(job, numpy_outputs)(network, inputs)
    search_s = SEARCH_PART * job.left_s / len(ENGINES)
    with MeasurementStore(job.out / "measurements.sqlite") as store:
        for engine in ENGINES:
            with job.told(f"{model}, {engine} engine"):
                prices = measuring(job, engine, store)
                schedules = dict(plain)
                with job.told(f"search of {model}, {engine} engine"):
                    schedules["ios-both"] = _search(job, network, prices, search_s)
                _run_schedules(job, model, network, prices, schedules, expected, store)


def _run_schedules(
    job: Job,
    model: str,
    network: Network,
    prices: MeasuredCostModel,
    schedules: Mapping[str, Schedule],
    expected: Mapping[str, Array] | None,
    store: MeasurementStore,
) -> None:
    """Run each schedule once and look at its outputs, then time beside each other those that ran."""
    from iossim.execution.measured_run import measure_schedules

    backend, engine = prices.backend, prices.context.engine
    errors: dict[str, float | None] = {}
    for name, found in schedules.items():
        with job.told(f"outputs of {model}, {name}, {engine} engine"):
            errors[name] = _output_error(network, found, backend, expected)
    ran = {name: schedules[name] for name in errors}
    if not ran:
        return
    taken = measure_schedules(network, list(ran.values()), backend, _timing(job))
    fields: dict[str, dict[str, Any]] = {}
    for (name, found), samples in zip(ran.items(), taken, strict=True):
        fields[name] = {"output_error": errors[name]}
        if "measurements" in found.options:
            fields[name] |= {"measurements": found.options["measurements"], "search_s": found.search_s}
        run = _keep(job, prices.context, model, network, name, samples, found, **fields[name])
        if run.wrong_outputs:
            job.fail(f"{model}, {name}, {engine} engine", run.wrong_outputs)
    for (name, found), samples in zip(ran.items(), taken, strict=True):
        item = f"stages of {model}, {name}, {engine} engine"
        if job.left_s <= 0:
            job.leave(item)
            continue
        try:
            with job.told(item):
                fields[name] |= _stage_sums(job, network, found, engine, store)
                _keep(job, prices.context, model, network, name, samples, found, **fields[name])
        except KeyboardInterrupt:
            job.leave(item)


def _stage_sums(
    job: Job, network: Network, schedule: Schedule, engine: str, store: MeasurementStore
) -> dict[str, float]:
    """What the stages of a schedule take by themselves, added up: repeated with a warm cache, and each with a cold one.

    Raises KeyboardInterrupt when the section's time is over; what is measured is in the store.
    """
    from iossim.search.assemble import reprice

    sums: dict[str, float] = {}
    for cold in (False, True):
        prices = measuring(job, engine, store, cold)
        prices.progress = until(job.end_s)
        sums[f"stages_{'cold' if cold else 'warm'}_us"] = reprice(schedule, network, prices).latency_us
    return sums


def _search(job: Job, network: Network, prices: MeasuredCostModel, seconds: float) -> Schedule:
    """The schedule that a measured search finds in its time, as ``iossim optimize`` does it."""
    from iossim.api import optimize, search_options
    from iossim.search.measured.budget import Budget

    most = job.settings.search_measurements
    return optimize(
        network,
        estimate_device(job, prices.context.device),
        engine=prices.context.engine,
        cost_model=prices,
        options=search_options("general", 3, 8),
        budget=Budget(measurements=most) if most else Budget(seconds=seconds),
    )


def _output_error(
    network: Network, schedule: Schedule, backend: Backend, expected: Mapping[str, Array] | None
) -> float | None:
    """Run a schedule once; None where nothing says what its outputs should be."""
    from iossim.execution.measured_run import output_error

    checked = output_error(network, schedule, backend, reference=lambda network, inputs: expected or {})
    return None if expected is None else checked


def _measure_baseline(job: Job, model: str, network: Network, name: str) -> None:
    from iossim.backends.torch_cuda.backend import create
    from iossim.backends.torch_cuda.baselines import measure_baselines
    from iossim.execution.engine import Engine

    samples = measure_baselines(network, [name], _timing(job), _place(job))[name]
    context = create(network.precision, Engine.PAPER, {"device": _place(job)}).context
    _keep(job, context, model, network, name, samples, None)


def _keep(
    job: Job,
    context: Context,
    model: str,
    network: Network,
    name: str,
    samples: Samples,
    schedule: Schedule | None,
    **facts: Any,
) -> Any:
    """Add a run to ``networks.jsonl``, which begins with a header; returns it."""
    from iossim.measurements.measured_networks import NetworkHeader, NetworkRun, header_line, run_line

    path = job.out / "networks.jsonl"
    run = NetworkRun.of(
        samples,
        model=model,
        batch=network.source.batch,
        dtype=str(network.precision),
        engine=context.engine if schedule is not None else "",
        backend=context.backend,
        name=name,
        schedule=schedule,
        libraries=dict(context.libraries),
        options=dict(context.options),
        **facts,
    )
    header = NetworkHeader(
        device=context.device,
        driver=context.driver,
        date=datetime.now(UTC).date().isoformat(),
        source=SOURCE,
    )
    with path.open("a", encoding="utf-8") as stream:
        if stream.tell() == 0:
            stream.write(header_line(header))
        stream.write(run_line(run))
        stream.flush()
        os.fsync(stream.fileno())
    print(f"{model} {context.engine} {name}: {samples.median_us / 1e3:.3f} ms", flush=True)
    return run


def _kept(job: Job, reference: Reference) -> Reference:
    from iossim.execution.reference_outputs import kept_outputs

    return kept_outputs(reference, job.out / "references")


def _place(job: Job) -> str:
    return "cpu" if job.dry else "cuda"


def _timing(job: Job) -> Timing:
    from iossim.execution.backend import Timing

    return Timing(job.settings.rounds, 1 if job.dry else 5)
