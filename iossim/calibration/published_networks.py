"""Published figures of whole networks as something to fit: sequences for kernels, schedules for concurrency.

What a network takes unit after unit tells the same parameters as kernels measured alone, and the gap between kernels,
which no isolated kernel tells. What its concurrent schedules take tells how kernels share the device, and what a
synchronisation costs. The second is fitted after the first, with the search itself in the loop: the schedules are those
that the simulator finds best under the parameters so far, since the published ones were found by measuring.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize

from iossim.backends.simulator.cost_model import SimulatorCostModel
from iossim.calibration.measurement import MeasurementSet, StageMeasurement
from iossim.calibration.parameter_space import FittedParameter, ParameterSpace, with_values
from iossim.calibration.samples import SequenceSamples
from iossim.calibration.stage_price import can_be_priced, recorded_engine, stage_us
from iossim.devices.profile import DeviceProfile
from iossim.devices.provenance import DataSet, Provenance
from iossim.execution.engine import Engine
from iossim.ir.network import Network
from iossim.ir.types import Precision
from iossim.models.load import load
from iossim.schedule.batch import StageBatch
from iossim.schedule.problem import ScheduleProblem
from iossim.schedule.schedule import Schedule
from iossim.scheduling.assemble import reprice
from iossim.scheduling.scheduler import schedule
from iossim.study.published import published_figures, published_stages_us

Floats = NDArray[np.float64]

#: What a network, and a stage of the sample network, counts beside a measured kernel, which counts 1.
NETWORK_WEIGHT = 300.0
STAGE_WEIGHT = 80.0
SEQUENTIAL = "sequential"
_SAMPLE = "ios_sample"

#: What only concurrent schedules tell, with plausible bounds (a driver's costs are a few microseconds).
_GPU_SPACE = ParameterSpace(
    (
        FittedParameter("crowding", 0.0, 0.6),
        FittedParameter("synchronise_us", 3.0, 20.0),
        FittedParameter("library_call_us", 2.0, 12.0),
        FittedParameter("library_kernel_us", 1.0, 8.0),
        FittedParameter("bare_launch_us", 3.0, 8.0),
    )
)
#: Threads call the library themselves; what is left is handing work over. Cores may share less than they have.
_PROCESSOR_SPACE = ParameterSpace(
    (FittedParameter("crowding", 0.0, 1.0), FittedParameter("synchronise_us", 0.5, 200.0))
)
_PRIOR_WEIGHT = 0.02
_STAGES_COUNT = 10.0
_ROUNDS = 4
_STEPS = 150


def concurrency_space(profile: DeviceProfile) -> ParameterSpace:
    """The parameters that :func:`fit_concurrency` fits for a device."""
    return _PROCESSOR_SPACE if profile.is_processor else _GPU_SPACE


@dataclass(frozen=True, slots=True)
class PublishedNetwork:
    """A network and its published latencies by scheduler on a device, microseconds."""

    network: Network
    device: str
    latency_us: dict[str, float]


def published_networks(device: str) -> list[PublishedNetwork]:
    """The networks with published latencies on a device."""
    found = []
    for row in published_figures()["networks"]:
        if row["device"] == device:
            latency_us = {name: 1e3 * float(ms) for name, ms in row["latency_ms"].items()}
            found.append(PublishedNetwork(load(row["model"], batch=row["batch"]), device, latency_us))
    return found


def sequences(profile: DeviceProfile) -> list[SequenceSamples]:
    """Samples of the published networks unit after unit, and of single units; none for a device without."""
    networks = published_networks(profile.name)
    whole = [
        (one.network, range(len(one.network.units)), one.latency_us[SEQUENTIAL])
        for one in networks
        if SEQUENTIAL in one.latency_us and one.network.name != _SAMPLE
    ]
    found = []
    if whole:
        found.append(SequenceSamples.of("published networks", profile, whole, NETWORK_WEIGHT * len(whole)))
    sample = next((one.network for one in networks if one.network.name == _SAMPLE), None)
    if sample is not None:
        stages = published_stages_us(profile.name)
        single = [(sample, (unit,), stages[name]) for name, unit in sample.unit_index.items() if name in stages]
        found.append(SequenceSamples.of("published stages", profile, single, STAGE_WEIGHT * len(single)))
    return found


def fit_concurrency(
    profile: DeviceProfile,
    measured: Sequence[MeasurementSet] = (),
    published: bool = True,
    progress: Callable[[str, int, int], None] = lambda label, done, total: None,
) -> DeviceProfile:
    """The profile with the parameters of concurrency fitted; itself where nothing tells them.

    Fitted are the concurrent stages of ``measured`` sets, as they were recorded, and, if ``published`` figures may be used,
    those of the profile's device. Least squares of relative errors, by Nelder and Mead's method on schedules that are found
    anew in each of a few rounds; a weak prior toward the values that the profile has. The provenance tells what they were
    fitted to.
    """
    networks = published_networks(profile.name) if published else []
    stages = [stage for one in measured for stage in _concurrent(one)]
    if not networks and not stages:
        return profile
    space = concurrency_space(profile)
    start = space.to_vector(profile)
    low, high = space.bounds()
    found = start
    for number in range(_ROUNDS):
        progress("schedules", number, _ROUNDS)
        schedules = _schedules(networks, with_values(profile, space.values(found)))

        def cost(vector: Floats, schedules: Sequence[tuple[Network, Schedule, float]] = schedules) -> float:
            inside = np.clip(vector, low, high)
            tried = with_values(profile, space.values(inside))
            errors = np.append(_errors(schedules, tried), _stage_errors(stages, tried))
            prior = _PRIOR_WEIGHT * (inside - start) / (high - low)
            outside = (vector - inside) / (high - low)
            return float(np.sum(errors**2) + np.sum(prior**2) + np.sum(outside**2))

        simplex = np.array([found, *(found + step for step in np.diag(0.15 * (high - low)))])
        result = minimize(
            cost,
            found,
            method="Nelder-Mead",
            options={"maxfev": _STEPS, "initial_simplex": np.clip(simplex, low, high)},
        )
        found = np.clip(result.x, low, high)
    progress("schedules", _ROUNDS, _ROUNDS)
    fitted = with_values(profile, space.values(np.round(found, 4)))
    provenance = _provenance(profile, _counts(networks, measured), found)
    return fitted.model_copy(update={"provenance": provenance})


def _counts(networks: Sequence[PublishedNetwork], measured: Sequence[MeasurementSet]) -> list[DataSet]:
    """What the parameters of concurrency are fitted to: published latencies, and the concurrent stages of each set."""
    found = []
    if networks:
        device = networks[0].device
        rows = sum(len(one.latency_us) for one in networks)
        if any(one.network.name == _SAMPLE for one in networks):
            rows += len(published_stages_us(device))
        found.append(DataSet(name="published schedules and stages", device=device, rows=rows))
    for one in measured:
        rows = len(_concurrent(one))
        if rows:
            name = f"{one.header.data_set}, stages"
            found.append(DataSet(name=name, device=one.device, rows=rows, libraries=dict(one.header.libraries)))
    return found


def _concurrent(measured: MeasurementSet) -> list[StageMeasurement]:
    return [stage for stage in measured.stages if len(stage.groups) > 1 and can_be_priced(stage)]


def _provenance(profile: DeviceProfile, data_sets: Sequence[DataSet], found: Floats) -> Provenance:
    own = profile.provenance
    rows = sum(one.rows for one in data_sets)
    devices = " and ".join(dict.fromkeys(one.device for one in data_sets))
    at_bounds = [
        parameter.name
        for parameter, value in zip(concurrency_space(profile).parameters, found.tolist(), strict=True)
        if min(value - parameter.lower, parameter.upper - value) < 1e-3 * (parameter.upper - parameter.lower)
    ]
    return own.model_copy(
        update={
            "note": f"{own.note}; crowding and the costs of the host fitted to {rows} schedules and stages on {devices}",
            "data_sets": [*own.data_sets, *data_sets],
            "at_bounds": [*own.at_bounds, *at_bounds],
        }
    )


def _stage_errors(stages: Sequence[StageMeasurement], profile: DeviceProfile) -> Floats:
    """Relative errors of measured stages, all together weighing as much as a few networks."""
    models: dict[Precision, SimulatorCostModel] = {}
    errors = []
    for stage in stages:
        precision = stage.groups[0][0].precision
        if precision not in models:
            models[precision] = SimulatorCostModel(profile, precision, recorded_engine(profile))
        errors.append(stage_us(stage.groups, models[precision]) / stage.latency_us - 1.0)
    scale = min(1.0, (_STAGES_COUNT / max(1, len(errors))) ** 0.5)
    scaled: Floats = np.array(errors, dtype=np.float64) * scale
    return scaled


def _model(profile: DeviceProfile) -> SimulatorCostModel:
    return SimulatorCostModel(profile, Precision.FP32, Engine.PAPER)


def _schedules(networks: Sequence[PublishedNetwork], profile: DeviceProfile) -> list[tuple[Network, Schedule, float]]:
    model = _model(profile)
    return [
        (one.network, schedule(one.network, model, name), latency_us)
        for one in networks
        for name, latency_us in one.latency_us.items()
    ]


def _errors(schedules: Sequence[tuple[Network, Schedule, float]], profile: DeviceProfile) -> Floats:
    """Relative errors of whole schedules and of the stages of the sample network."""
    model = _model(profile)
    errors = [
        reprice(found, network, model).latency_us / latency_us - 1.0 for network, found, latency_us in schedules
    ]
    sample = next((network for network, _, _ in schedules if network.name == _SAMPLE), None)
    if sample is not None:
        problem = ScheduleProblem.of_block(sample, sample.blocks[0])
        position = {name: index for index, name in enumerate(problem.unit_names)}
        stages = {
            sum(1 << position[name] for name in stage.split(",")): latency_us
            for stage, latency_us in published_stages_us(profile.name).items()
        }
        prices = model.price_stages(StageBatch.concurrent(problem, np.array(list(stages), dtype=np.uint64)))
        errors += (prices / np.array(list(stages.values())) - 1.0).tolist()
    return np.array(errors)
