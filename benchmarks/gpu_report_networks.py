"""Sections of ``gpu_report.py`` that run whole networks by schedules of iossim, two on the graph engine first.

Schedules are timed side by side and stored; then their outputs are checked, and the runs stored again with the result.
The reference outputs were computed by PyTorch on the CPU in an earlier section, or else are NumPy's.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from gpu_report_job import ENGINE_PART, ENGINES, FALLBACK_DEVICE, Job, estimate_device, load_network
from gpu_report_profile import measuring, until
from gpu_report_runs import keep_run, kept_reference, timing_of_networks

if TYPE_CHECKING:
    from iossim.cost.measured.cost_model import MeasuredCostModel
    from iossim.cost.measured.store import MeasurementStore
    from iossim.execution.backend import Backend, Samples
    from iossim.ir.network import Network
    from iossim.ir.op import Array
    from iossim.schedule.schedule import Schedule

#: Fraction of a network's section for the searches of both engines. With less time left than the second no search
#: begins; the third is reserved for timing their results.
SEARCH_PART = 0.5
LEAST_SEARCH_S = 2.0
AFTER_SEARCH_S = 4.0
PLAIN = ("sequential", "greedy")


def section_graph(job: Job, model: str) -> None:
    """A network on the graph engine by schedules that need no search: the quickest test of the engine."""
    from iossim.tasks.measured_schedules import plain_schedule

    network = load_network(job, model)
    schedules = {name: plain_schedule(network, name) for name in PLAIN}
    checked_runs(job, model, network, job.backend_of("graph"), schedules)


def checked_runs(
    job: Job, model: str, network: Network, backend: Backend, schedules: Mapping[str, Schedule]
) -> dict[str, Samples]:
    """Times of the schedules that run, which are stored, and their outputs checked."""
    taken = _timed(job, model, network, backend, schedules)
    _checked(job, model, network, backend, schedules, taken, {})
    return taken


def section_warm_up(job: Job) -> None:
    """Compile iossim's code, once for all sections: bounds, pricing, a search at invented prices."""
    from iossim.api import cost_model, optimize, search_options
    from iossim.cost.perturbed import PerturbedCostModel
    from iossim.tasks.measured_schedules import plain_schedule

    begin_s = time.perf_counter()
    network = load_network(job, "squeezenet")
    plain_schedule(network, "sequential")
    device = estimate_device(job, FALLBACK_DEVICE)
    for engine in ENGINES:
        truth = PerturbedCostModel(cost_model("simulator:in-place", device, network.precision, engine), 0.1)
        options = search_options("general", 3, 8)
        optimize(network, device, engine=engine, cost_model=truth, options=options, budget="60")
    job.record("warm-up", s=round(time.perf_counter() - begin_s, 2))


def section_network(job: Job, model: str) -> None:
    """Sequential, greedy and IOS schedules of a network on both engines: their times, outputs, and times of stages.

    Schedules without a search are measured and stored before a search begins.
    """
    from iossim.cost.measured.store import MeasurementStore
    from iossim.tasks.measured_schedules import plain_schedule

    network = load_network(job, model)
    plain = {name: plain_schedule(network, name) for name in PLAIN}
    search_s = SEARCH_PART * job.left_s
    with MeasurementStore(job.out / "measurements.sqlite") as store:
        for engine in ENGINES:
            with job.told(f"{model}, {engine} engine"):
                prices = measuring(job, engine, store)
                seen = _run_schedules(job, model, network, prices, plain)
                seconds = min(search_s * ENGINE_PART[engine], job.left_s - AFTER_SEARCH_S)
                item = f"search of {model}, {engine} engine"
                if seconds < LEAST_SEARCH_S:
                    job.leave(item)
                    continue
                schedules = dict(plain)
                with job.told(item):
                    schedules["ios-both"] = _search(job, network, prices, seconds)
                seen = _run_schedules(job, model, network, prices, schedules, seen)
                _stages_apart(job, model, network, prices, schedules, seen, store)


#: Times of schedules by name, and further facts of each run.
Seen = tuple["dict[str, Samples]", dict[str, dict[str, Any]]]


def _run_schedules(
    job: Job,
    model: str,
    network: Network,
    prices: MeasuredCostModel,
    schedules: Mapping[str, Schedule],
    seen: Seen = ({}, {}),
) -> Seen:
    """Time the schedules side by side, and check the outputs of those not checked before."""
    facts = {
        name: {"measurements": found.options["measurements"], "search_s": found.search_s}
        for name, found in schedules.items()
        if "measurements" in found.options
    }
    taken = _timed(job, model, network, prices.backend, schedules)
    return taken, _checked(job, model, network, prices.backend, schedules, taken, {**seen[1], **facts})


def _stages_apart(
    job: Job,
    model: str,
    network: Network,
    prices: MeasuredCostModel,
    schedules: Mapping[str, Schedule],
    seen: Seen,
    store: MeasurementStore,
) -> None:
    """Report the times of the stages alone, for timed schedules."""
    from iossim.execution.backend import context_of

    backend, engine = prices.backend, prices.context.engine
    taken, fields = seen
    for name, samples in taken.items():
        item = f"stages of {model}, {name}, {engine} engine"
        if job.left_s <= 0:
            job.leave(item)
            continue
        try:
            with job.told(item):
                fields[name] |= _stage_sums(job, network, schedules[name], engine, store)
                context = context_of(backend, network)
                keep_run(job, context, model, network, name, samples, schedules[name], **fields[name])
        except KeyboardInterrupt:
            job.leave(item)


def _timed(
    job: Job, model: str, network: Network, backend: Backend, schedules: Mapping[str, Schedule]
) -> dict[str, Samples]:
    """Times of the schedules that run: side by side, or each alone if one of them prevents that.

    The backend compares the outputs of timed schedules with those of the same calls in sequence, and reports no times
    if they differ.
    """
    from iossim.execution.measured_run import plan_for

    engine = backend.context.engine
    timing = timing_of_networks(job)
    whole: list[Samples] = []
    if len(schedules) > 1:
        with job.told(f"{model}, {', '.join(schedules)}, {engine} engine") as together:
            whole = backend.measure(network, [plan_for(one, network, backend) for one in schedules.values()], timing)
        if not together.error:
            return dict(zip(schedules, whole, strict=True))
    taken: dict[str, Samples] = {}
    for name, found in schedules.items():
        with job.told(f"{model}, {name}, {engine} engine"):
            (taken[name],) = backend.measure(network, [plan_for(found, network, backend)], timing)
    return taken


def _checked(
    job: Job,
    model: str,
    network: Network,
    backend: Backend,
    schedules: Mapping[str, Schedule],
    taken: Mapping[str, Samples],
    facts: Mapping[str, Mapping[str, Any]],
) -> dict[str, dict[str, Any]]:
    """Store the timed runs, check the outputs of each, and store it again with the error; returns the runs' fields."""
    from iossim.execution.backend import context_of

    context = context_of(backend, network)
    fields: dict[str, dict[str, Any]] = {name: dict(facts.get(name, {})) for name in taken}
    for name, samples in taken.items():
        keep_run(job, context, model, network, name, samples, schedules[name], **fields[name])
    expected: Mapping[str, Array] = {}
    if all("output_error" in known for known in fields.values()):
        return fields
    with job.told(f"reference outputs of {model}"):
        expected = _reference_outputs(job, network)
    if not expected:
        return fields
    for name, samples in taken.items():
        if "output_error" in fields[name]:
            continue
        item = f"outputs of {model}, {name}, {context.engine} engine"
        with job.told(item):
            fields[name]["output_error"] = _output_error(network, schedules[name], backend, expected)
            run = keep_run(job, context, model, network, name, samples, schedules[name], **fields[name])
            if run.wrong_outputs:
                job.fail(item, run.wrong_outputs)
    return fields


def _reference_outputs(job: Job, network: Network) -> Mapping[str, Array]:
    from iossim.backends.numpy_reference.backend import numpy_outputs
    from iossim.execution.made_inputs import made_arrays

    inputs = made_arrays(network.graph.inputs, network.graph.types)
    return kept_reference(job, numpy_outputs)(network, inputs)


def _output_error(network: Network, schedule: Schedule, backend: Backend, expected: Mapping[str, Array]) -> float:
    from iossim.execution.measured_run import output_difference

    return output_difference(network, schedule, backend, reference=lambda network, inputs: expected).relative


def _stage_sums(
    job: Job, network: Network, schedule: Schedule, engine: str, store: MeasurementStore
) -> dict[str, float]:
    """Sum of the times of a schedule's stages alone: repeated with a warm cache, and each with a cold one.

    Raises KeyboardInterrupt when the section's time is over; measurements so far are in the store.
    """
    from iossim.search.assemble import reprice

    sums: dict[str, float] = {}
    for cold in (False, True):
        prices = measuring(job, engine, store, cold)
        prices.progress = until(job.end_s)
        sums[f"stages_{'cold' if cold else 'warm'}_us"] = reprice(schedule, network, prices).latency_us
    return sums


def _search(job: Job, network: Network, prices: MeasuredCostModel, seconds: float) -> Schedule:
    """Schedule by a measured search within its time, as in ``iossim optimize``.

    Compilation counts, other than in a search's own budget: the section ends at its limit.
    """
    from iossim.api import optimize, search_options
    from iossim.search.measured import Budget

    most = job.settings.search_measurements
    end = until(time.monotonic() + seconds)

    def tell(done: int, total: int) -> None:
        try:
            end(done, total)
        except KeyboardInterrupt:  # once: the first schedule is measured completely
            prices.progress = lambda done, total: None
            raise

    if not most:
        prices.progress = tell
    return optimize(
        network,
        estimate_device(job, prices.context.device),
        engine=prices.context.engine,
        cost_model=prices,
        options=search_options("general", 3, 8),
        budget=Budget(measurements=most) if most else Budget(seconds=seconds),
    )
