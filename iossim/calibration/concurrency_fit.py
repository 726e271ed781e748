"""The parameters of concurrency: what kernels cost each other side by side, and what the host takes to start and to wait.

Concurrent schedules and stages tell them, as they were measured, once the parameters of the kernels are fitted. Published
schedules were found by measuring; here the search is in the loop: the schedules are those that the simulator finds best
under the parameters so far. Whole schedules tell few numbers apart, so few are fitted: every launch of the host costs the
same (``parameter_space`` says why).

How far they are determined is bootstrapped over networks, not over figures: the figures of one network err together. Each
network gets a random weight (the Bayesian bootstrap, Rubin 1981), which unlike drawing three networks with replacement
never leaves a single one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import least_squares, lsq_linear

from iossim.backends.simulator.cost_model import SimulatorCostModel
from iossim.calibration.bootstrap import RESAMPLES, Bootstrap
from iossim.calibration.published_networks import SAMPLE, SEQUENTIAL, PublishedNetwork, published_networks
from iossim.calibration.rounding import rounded
from iossim.devices.borrowed import Concurrency
from iossim.devices.kinds.gpu import GPU_CONCURRENCY
from iossim.devices.profile import DeviceProfile, with_values
from iossim.devices.provenance import DataSet, Provenance
from iossim.execution.engine import Engine
from iossim.ir.network import Network
from iossim.ir.types import Precision
from iossim.measurements.measurement import MeasurementSet, StageMeasurement
from iossim.measurements.published_figures import published_stages_us
from iossim.prediction.stage_price import can_be_priced, recorded_engine, stage_us
from iossim.schedule.batch import StageBatch
from iossim.schedule.problem import ScheduleProblem
from iossim.schedule.schedule import Schedule
from iossim.scheduling.assemble import reprice
from iossim.scheduling.scheduler import schedule

Floats = NDArray[np.float64]
Progress = Callable[[str, int, int], None]

#: The noise of a figure over the prior's deviation, a quarter of the bounds' width: repeats differ by 2 to 4 per cent.
_PRIOR_WEIGHT = 0.03 / 0.25
_STAGES_COUNT = 10.0
_ROUNDS = 4
_MOST_EVALUATIONS = 12
#: Of the width of the bounds. Prices have kinks, so that a smaller step would see one side of one.
_STEP = 0.01
_TOLERANCE = 1e-3


def fit_concurrency(
    profile: DeviceProfile,
    measured: Sequence[MeasurementSet] = (),
    published: bool = True,
    without: str = "",
    seed: int = 0,
    progress: Progress = lambda label, done, total: None,
) -> DeviceProfile:
    """The profile with the parameters of concurrency fitted; itself where nothing tells them.

    Fitted are the concurrent stages of ``measured`` sets, as they were recorded, and, if ``published`` figures may be used,
    those of the profile's device, but for the network called ``without``. Least squares of relative errors, on schedules
    that are found anew in each of a few rounds. A weak prior draws to the values that the profile has; published figures
    are fitted from the middle of the bounds, so that none of them is remembered by the profile. The provenance tells what
    was fitted to what, and how far the parameters are determined.
    """
    targets = _Targets(
        tuple(one for one in (published_networks(profile.name) if published else []) if one.model != without),
        tuple(stage for one in measured for stage in _concurrent(one)),
    )
    if not targets.networks and not targets.stages:
        return profile
    space = profile.device_kind.concurrency
    low, high = space.bounds()
    width = high - low
    start = (low + high) / 2 if targets.networks else space.to_vector(profile.parameter_values)
    # Entries from 1 to 2: the solver's steps are a part of an entry.
    origin = found = 1.0 + (start - low) / width
    result = None
    for number in range(_ROUNDS if targets.networks else 1):
        progress("schedules", number, _ROUNDS)
        schedules = targets.schedules(with_values(profile, space.values(low + (found - 1.0) * width)))

        def residuals(entries: Floats, schedules: Sequence[_Target] = schedules) -> Floats:
            tried = with_values(profile, space.values(low + (entries - 1.0) * width))
            return np.append(targets.errors(schedules, tried), _PRIOR_WEIGHT * (entries - origin))

        result = least_squares(
            residuals,
            np.clip(found, 1.0 + 1e-6, 2.0 - 1e-6),
            bounds=(1.0, 2.0),
            diff_step=_STEP,
            xtol=_TOLERANCE,
            ftol=_TOLERANCE,
            max_nfev=_MOST_EVALUATIONS,
        )
        found = result.x
    assert result is not None
    progress("schedules", _ROUNDS, _ROUNDS)
    vector = low + (found - 1.0) * width
    vectors, prior_part = _resampled(result.fun, result.jac, result.x, targets.clusters(schedules), seed)
    bootstrap = Bootstrap(space, low + (vectors - 1.0) * width, prior_part)
    given = {name: rounded(value) for name, value in space.values(vector).items()}
    provenance = _provenance(
        profile.provenance, targets.data_sets(schedules, measured), bootstrap, space.at_bounds(vector)
    )
    return with_values(profile, given).model_copy(update={"provenance": provenance})


def lent_by(profile: DeviceProfile) -> Concurrency:
    """What a GPU whose concurrency was fitted says to those without."""
    names = (*GPU_CONCURRENCY.names, *(name for name, _, _ in GPU_CONCURRENCY.ties))
    known = profile.parameter_values
    return Concurrency.of(profile.name, known, profile.provenance, names)


def borrowing(profile: DeviceProfile, lent: Concurrency) -> DeviceProfile:
    """The profile with another device's parameters of concurrency; its provenance says so."""
    provenance = lent.lent_to(profile.provenance)
    return with_values(profile, lent.values).model_copy(update={"provenance": provenance})


@dataclass(frozen=True)
class _Target:
    """A schedule that the search found, and what its scheduler's was measured to take."""

    network: Network
    schedule: Schedule
    latency_us: float
    cluster: str


@dataclass(frozen=True)
class _Targets:
    """All that tells the parameters: published networks, and measured stages of several groups."""

    networks: tuple[PublishedNetwork, ...]
    stages: tuple[StageMeasurement, ...]

    def schedules(self, profile: DeviceProfile) -> list[_Target]:
        """What the search finds for each scheduler that runs anything side by side, or merges."""
        model = SimulatorCostModel(profile, Precision.FP32, Engine.PAPER)
        return [
            _Target(one.network, schedule(one.network, model, name), latency_us, one.model)
            for one in self.networks
            for name, latency_us in one.latency_us.items()
            if name != SEQUENTIAL
        ]

    def errors(self, schedules: Sequence[_Target], profile: DeviceProfile) -> Floats:
        """Relative errors of schedules, of the published stages and of the measured ones, in this order."""
        model = SimulatorCostModel(profile, Precision.FP32, Engine.PAPER)
        errors = [reprice(one.schedule, one.network, model).latency_us / one.latency_us - 1.0 for one in schedules]
        sample = self._sample()
        if sample is not None:
            problem = ScheduleProblem.of_block(sample.network, sample.network.blocks[0])
            position = {name: index for index, name in enumerate(problem.unit_names)}
            stages = _published_stages(sample)
            masks = [sum(1 << position[name] for name in stage.split(",")) for stage in stages]
            prices = model.price_stages(StageBatch.concurrent(problem, np.array(masks, dtype=np.uint64)))
            errors += (prices / np.array(list(stages.values())) - 1.0).tolist()
        return np.append(np.array(errors), _stage_errors(self.stages, profile))

    def clusters(self, schedules: Sequence[_Target]) -> NDArray[np.int64]:
        """What errs together, ``[errors]``: the figures of a network; each measured stage by itself."""
        names = [one.cluster for one in schedules]
        sample = self._sample()
        names += [] if sample is None else [sample.model] * len(_published_stages(sample))
        numbers = {name: number for number, name in enumerate(dict.fromkeys(names))}
        return np.array([numbers[name] for name in names] + [len(numbers) + i for i in range(len(self.stages))])

    def data_sets(self, schedules: Sequence[_Target], measured: Sequence[MeasurementSet]) -> list[DataSet]:
        """What was fitted, a row a figure."""
        found = []
        if self.networks:
            sample = self._sample()
            rows = len(schedules) + (0 if sample is None else len(_published_stages(sample)))
            found.append(DataSet(name=PUBLISHED_SCHEDULES, device=self.networks[0].device, rows=rows))
        for one in measured:
            rows = len(_concurrent(one))
            if rows:
                name = f"{one.header.data_set}, stages"
                found.append(DataSet(name=name, device=one.device, rows=rows, libraries=dict(one.header.libraries)))
        return found

    def _sample(self) -> PublishedNetwork | None:
        return next((one for one in self.networks if one.model == SAMPLE), None)


PUBLISHED_SCHEDULES = "published schedules and stages"


def _published_stages(sample: PublishedNetwork) -> dict[str, float]:
    """The stages of several groups: the others tell nothing that the kernels' fit has not seen."""
    return {stage: us for stage, us in published_stages_us(sample.device).items() if "," in stage}


def _concurrent(measured: MeasurementSet) -> list[StageMeasurement]:
    return [stage for stage in measured.stages if len(stage.groups) > 1 and can_be_priced(stage)]


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


def _resampled(
    residuals: Floats, jacobian: Floats, entries: Floats, clusters: NDArray[np.int64], seed: int
) -> tuple[Floats, Floats]:
    """Entries under random weights of the clusters, a step of Gauss and Newton each, ``[resamples, parameters]``; and how
    much of each parameter the prior holds, ``[parameters]``. The last residuals are the prior's, one a parameter."""
    count, rows = len(entries), len(clusters)
    generator = np.random.default_rng(seed)
    several = int(clusters.max()) + 1
    vectors = np.empty((RESAMPLES, count))
    for index in range(RESAMPLES):
        weight = np.ones(len(residuals))
        weight[:rows] = np.sqrt(several * generator.dirichlet(np.ones(several)))[clusters]
        bounds = (np.minimum(1.0 - entries, 0.0), np.maximum(2.0 - entries, 1e-12))
        step = lsq_linear(jacobian * weight[:, None], -residuals * weight, bounds, method="bvls").x
        vectors[index] = np.clip(entries + step, 1.0, 2.0)
    curvature = jacobian.T @ jacobian
    prior_part = np.diag(np.linalg.inv(curvature)) * _PRIOR_WEIGHT**2
    return vectors, np.clip(prior_part, 0.0, 1.0)


def _provenance(
    own: Provenance, data_sets: Sequence[DataSet], bootstrap: Bootstrap, at_bounds: Sequence[str]
) -> Provenance:
    rows = sum(one.rows for one in data_sets)
    devices = " and ".join(dict.fromkeys(one.device for one in data_sets))
    names = bootstrap.space.names
    tied = ", ".join(f"{name} with {leader}" for name, leader, _ in bootstrap.space.ties)
    told = f"{', '.join(names)}{f' (and {tied})' if tied else ''} fitted to {rows} schedules and stages on {devices}"
    kept = bootstrap.kept()
    unidentified = [name for name in names if name in at_bounds or name in bootstrap.unidentified]
    return own.model_copy(
        update={
            "note": f"{own.note}; {told}",
            "data_sets": [*own.data_sets, *data_sets],
            "spread": own.spread | bootstrap.shown_spread(),
            "unidentified": [*(name for name in own.unidentified if name not in names), *unidentified],
            "at_bounds": [*(name for name in own.at_bounds if name not in names), *at_bounds],
            "resamples": {name: values for name, values in own.resamples.items() if name not in names} | kept,
            "borrowed": [],
        }
    )
