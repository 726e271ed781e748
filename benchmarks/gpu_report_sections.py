"""The sections of ``gpu_report.py``: each run in a process of its own, with iossim and the wheels importable.

A section works until its time is over, keeps every result at once, and returns 0, or ``PARTIAL`` where something is left to
do. Failures of single items are records with their error; any other exception ends the section, and only it. Here stand
those that measure, and how far predictions are off; those that tell of the machine are in ``gpu_report_machine.py``.
"""

from __future__ import annotations

import argparse
import os
import time
import traceback
from collections.abc import Callable
from dataclasses import asdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from gpu_report import FAILED, PARTIAL
from gpu_report_job import ENGINES, Job, backend_name, estimate_device, load_network
from gpu_report_machine import section_device, section_tests

if TYPE_CHECKING:
    from iossim.cost.measured.cost_model import MeasuredCostModel
    from iossim.execution.backend import Backend, Context, Samples, Timing
    from iossim.ir.network import Network
    from iossim.schedule.schedule import Schedule

SOURCE = "benchmarks/gpu_report.py"
#: Of the time of a network's section: what the searches of both engines may take.
SEARCH_PART = 0.5
#: Of a section's time: what is kept for its end.
RESERVE_S = 3.0


def run(args: argparse.Namespace) -> int:
    """Run the section that the arguments name; its exit code."""
    end_s = time.monotonic() + args.seconds - RESERVE_S
    kind, _, model = args.section.partition("/")
    models = tuple(args.models) if isinstance(args.models, tuple) else (args.models,)
    job = Job(args.out, end_s, models, args.backend, args.device, args.dry_run)
    sections: dict[str, Callable[[], int]] = {
        "device": lambda: section_device(job),
        "tests": lambda: section_tests(job),
        "profile": lambda: section_profile(job),
        "networks": lambda: section_network(job, model),
        "compile": lambda: section_compile(job, model),
        "prediction": lambda: section_prediction(job),
    }
    before = _clocks()
    try:
        return sections[kind]()
    except Exception as error:  # whatever a section dies of, its report says so
        traceback.print_exc()
        print(f"{type(error).__name__}: {' '.join(str(error).split())}"[:500], flush=True)
        return FAILED
    finally:
        if clocks := [*before, *_clocks()]:
            job.record("clocks", section=args.section, before_and_after=clocks)


def section_profile(job: Job) -> int:
    """Units, pairs and sampled stages of every network, by engine; then a measurement set of each engine."""
    from iossim.cost.measured.profile_parts import ProfileOptions, profile_parts
    from iossim.cost.measured.profiling import profile
    from iossim.cost.measured.store import MeasurementStore

    name = backend_name(job)
    options = ProfileOptions(job.settings.pairs, job.settings.stages)
    networks = {model: load_network(job, model) for model in job.models}
    complete = True
    with MeasurementStore(job.out / "measurements.sqlite") as store:
        for engine in ENGINES:
            contexts: list[Context] = []
            for model, network in networks.items():
                with job.told(f"profile of {model}, {engine} engine"):
                    prices = _measuring(job, name, engine, store)
                    contexts.append(prices.context)
                    parts = profile_parts(network, prices, options)
                    found = profile(network, prices, parts, _until(job))
                    complete &= found.complete
                    facts = {key: value for key, value in found.to_json().items() if key != "noisy"}
                    job.record("profile", model=model, engine=engine, backend=name, **facts)
            for context in contexts[:1]:
                with job.told(f"measurement set of the {engine} engine"):
                    _export(job, store, context)
    return 0 if complete else PARTIAL


def section_network(job: Job, model: str) -> int:
    """Sequential, greedy and IOS schedules of a network on both engines, beside PyTorch's eager mode and CUDA graph."""
    from iossim.cost.measured.store import MeasurementStore
    from iossim.execution.measured_run import measure_schedules
    from iossim.study.measured import plain_schedule

    name, network, timing = backend_name(job), load_network(job, model), _timing(job)
    search_s = SEARCH_PART * job.left_s / len(ENGINES)
    plain = {scheduler: plain_schedule(network, scheduler) for scheduler in ("sequential", "greedy")}
    for engine in ENGINES:
        with job.told(f"{model}, {engine} engine"), MeasurementStore(job.out / "measurements.sqlite") as store:
            prices = _measuring(job, name, engine, store)
            schedules = {**plain}
            facts: dict[str, Any] = {}
            with job.told(f"search of {model}, {engine} engine"):
                schedules["ios-both"], facts = _search(job, network, prices, search_s)
            taken = measure_schedules(network, list(schedules.values()), prices.backend, timing)
            for (scheduler, found), samples in zip(schedules.items(), taken, strict=True):
                error = None
                with job.told(f"outputs of {model}, {scheduler}, {engine} engine"):
                    error = _output_error(network, found, prices.backend)
                own = facts if scheduler == "ios-both" else {}
                _keep(job, prices.context, model, network, scheduler, samples, found, output_error=error, **own)
    for baseline in ("torch-eager", "torch-cuda-graph"):
        _measure_baseline(job, model, network, baseline, timing)
    return 0


def section_compile(job: Job, model: str) -> int:
    """PyTorch's compiled baselines, which take longest to prepare; a dry run leaves them out."""
    if job.dry:
        job.record("skipped", section=f"compile/{model}", reason="compiling for a CPU takes a minute")
        return 0
    network = load_network(job, model)
    for baseline in ("torch-compile", "torch-compile-cuda-graph"):
        _measure_baseline(job, model, network, baseline, _timing(job))
    return 0


def section_prediction(job: Job) -> int:
    """How far the simulator is off, over all that was measured."""
    from iossim.calibration.measurement_set import read_measurements
    from iossim.calibration.validation.measured_networks import evaluate_measured_networks, read_measured_networks
    from iossim.calibration.validation.operators import evaluate_operators
    from iossim.devices.load import device

    path = job.out / "networks.jsonl"
    if path.is_file():
        with job.told("prediction of networks"):
            measured = read_measured_networks(path)
            name = estimate_device(job, measured.header.device)
            found = evaluate_measured_networks(measured, device(name))
            gains = [
                {"model": each.run.model, "engine": each.run.engine, "name": each.run.name}
                | {"error": each.error, "speedup": each.speedup, "measured_speedup": each.measured_speedup}
                for each in found.latencies
                if each.predicted_us is not None
            ]
            job.record("prediction", of="networks", device=name, **found.accuracy.to_json(), runs=gains)
    for engine in ENGINES:
        path = job.out / f"operators-{engine}.jsonl"
        if path.is_file():
            with job.told(f"prediction of operators, {engine} engine"):
                operators = read_measurements(path)
                name = estimate_device(job, operators.device)
                whole = evaluate_operators(operators, device(name))
                accuracy = whole.gpu_time().to_json()
                job.record("prediction", of=f"operators, {engine} engine", device=name, **accuracy)
    return 0


def _measuring(job: Job, name: str, engine: str, store: Any) -> MeasuredCostModel:
    from iossim.cost.measured.cost_model import MeasuredCostModel
    from iossim.execution.backend import Timing, create_backend
    from iossim.execution.engine import Engine
    from iossim.ir.types import Precision

    backend = create_backend(name, Precision.FP32, Engine.named(engine))
    timing = Timing(job.settings.stage_rounds, 1 if job.dry else 2)
    return MeasuredCostModel(backend, store, timing, job.settings.target_us)


def _search(job: Job, network: Network, prices: MeasuredCostModel, seconds: float) -> tuple[Schedule, dict[str, Any]]:
    """The schedule that a measured search finds in its time, and what the search did."""
    from iossim.api import cost_model, search_options
    from iossim.schedule.problem import ScheduleProblem
    from iossim.scheduling.assemble import build_schedule
    from iossim.scheduling.measured.budget import Budget
    from iossim.scheduling.measured.search import measured_search

    context = prices.context
    estimate = cost_model("simulator", estimate_device(job, context.device), network.precision, context.engine)
    problems = [ScheduleProblem.of_block(network, block) for block in network.blocks]
    most = job.settings.search_measurements
    budget = Budget(measurements=most) if most else Budget(seconds=seconds)
    begin_s = time.perf_counter()
    found = measured_search(
        problems, estimate, prices, search_options("general", 3, 8), budget, concurrent=True, merge=True
    )
    search_s = time.perf_counter() - begin_s
    schedule = build_schedule(
        network, problems, found.plans, prices, "ios-both", notes=list(found.notes), complete=found.complete
    )
    return schedule, {"measurements": found.measurements, "search_s": search_s}


def _measure_baseline(job: Job, model: str, network: Network, name: str, timing: Timing) -> None:
    """One of PyTorch's baselines; a dry run takes those that the CPU has."""
    from iossim.backends.torch_cuda.backend import create
    from iossim.backends.torch_cuda.baselines import baseline_names, measure_baselines
    from iossim.execution.engine import Engine

    with job.told(f"{name} of {model}"):
        place = "cpu" if job.dry else "cuda"
        if name not in baseline_names(place):
            return
        samples = measure_baselines(network, [name], timing, place)[name]
        context = create(network.precision, Engine.PAPER, {"device": place}).context
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
) -> None:
    """Add a run to ``networks.jsonl``, which begins with a header."""
    from iossim.calibration.validation.measured_networks import NetworkHeader, NetworkRun, header_line, run_line

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


def _output_error(network: Network, schedule: Schedule, backend: Backend) -> float:
    """Against PyTorch, which is fast, where it is installed; else against NumPy."""
    from iossim.execution.made_inputs import made_inputs
    from iossim.execution.measured_run import largest_error, output_error, plan_for

    try:
        import torch  # noqa: F401
    except ImportError:
        return output_error(network, schedule, backend)
    from iossim.backends.torch_cuda.baselines import outputs

    plan = plan_for(schedule, network, backend)
    inputs = made_inputs(plan, network)
    return largest_error(backend.execute(network, plan, inputs), outputs(network, inputs))


def _export(job: Job, store: Any, context: Context) -> None:
    """The newest measurement of each stage of one context, as a measurement set."""
    from iossim.calibration.measurement_set import write_measurements
    from iossim.calibration.stored_measurements import measurement_set
    from iossim.cost.measured.store import Filter

    wanted = Filter(backend=context.backend, device=context.device, engine=context.engine)
    records = [record for record in store.records(wanted) if record.context == context]
    found = measurement_set(records, False)
    write_measurements(found, job.out / f"operators-{context.engine}.jsonl")
    job.record(
        "export",
        engine=context.engine,
        context=asdict(context),
        operators=len(found.measurements),
        stages=len(found.stages),
        left_out=list(found.notes),
    )


def _timing(job: Job) -> Timing:
    from iossim.execution.backend import Timing

    return Timing(job.settings.rounds, 1 if job.dry else 5)


def _until(job: Job) -> Callable[[int, int], None]:
    """A progress that interrupts when the time is over: what profiles takes that for the end of its patience."""

    def tell(done: int, total: int) -> None:
        if job.left_s < 0 and done < total:
            raise KeyboardInterrupt

    return tell


def _clocks() -> list[dict[str, Any]]:
    from iossim.devices.nvidia_smi import gpus

    return [asdict(gpu) for gpu in gpus()]
