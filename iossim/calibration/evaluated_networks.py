"""Whole networks as measured on real devices, compared with the simulator's predictions for the same schedules.

A run whose outputs were wrong is named, and its times are not reported.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from iossim.backends.simulator.cost_model import SimulatorCostModel
from iossim.base.errors import IossimError, Progress, ignore
from iossim.calibration.accuracy import Accuracy
from iossim.execution.engine import Engine
from iossim.hardware.profile import DeviceProfile
from iossim.ir.network import ModelSource, Network
from iossim.measurements.measured_networks import MeasuredNetworks, NetworkRun, find_measured_networks
from iossim.measurements.measurement_set import profile_named
from iossim.models.load import load_source
from iossim.prediction.schedule_interval import ScheduleErrors
from iossim.schedule.fit import fit
from iossim.schedule.schedule import StreamSchedule
from iossim.search.assemble import reprice_any

#: Baseline of speed-ups.
BASE = "sequential"


@dataclass(frozen=True, slots=True)
class MeasuredLatency:
    """A run beside its prediction, us; a baseline has none. Speed-ups are over the engine's sequential schedule."""

    run: NetworkRun
    predicted_us: float | None = None
    low_us: float | None = None
    high_us: float | None = None
    speedup: float | None = None
    measured_speedup: float | None = None

    @property
    def error(self) -> float | None:
        return None if self.predicted_us is None else self.predicted_us / self.run.median_us - 1.0

    @property
    def is_covered(self) -> bool | None:
        """True where the measured latency is in the interval of its prediction."""
        if self.low_us is None or self.high_us is None:
            return None
        return self.low_us <= self.run.median_us <= self.high_us


@dataclass(frozen=True)
class MeasuredEvaluation:
    """Runs of one file, in its order, beside predictions for its device."""

    device: str
    source: str
    latencies: tuple[MeasuredLatency, ...]
    notes: tuple[str, ...] = ()

    @property
    def accuracy(self) -> Accuracy:
        """Accuracy over all runs of schedules."""
        known = [each for each in self.latencies if each.predicted_us is not None]
        return Accuracy.of(
            np.array([each.predicted_us for each in known], dtype=np.float64),
            np.array([each.run.median_us for each in known], dtype=np.float64),
        )

    def to_json(self) -> dict[str, object]:
        return {
            "device": self.device,
            "source": self.source,
            **self.accuracy.to_json(),
            "runs": [
                {
                    **each.run.model_dump(mode="json", exclude={"schedule"}),
                    "predicted_us": each.predicted_us,
                    "interval_us": None if each.low_us is None else [each.low_us, each.high_us],
                    "error": each.error,
                    "speedup": each.speedup,
                    "measured_speedup": each.measured_speedup,
                }
                for each in self.latencies
            ],
        }


def evaluate_measured_networks(measured: MeasuredNetworks, profile: DeviceProfile) -> MeasuredEvaluation:
    """Price every measured schedule on the simulator of its device; ``notes`` list those that could not be, and why.

    Runs with wrong outputs are left out, and noted: the time of another computation is irrelevant.
    """
    networks: dict[ModelSource, Network] = {}
    latencies: list[MeasuredLatency] = []
    notes: list[str] = []
    base: dict[tuple[str, int, str, str, str], tuple[float, float]] = {}
    right: list[NetworkRun] = []
    for run in measured.runs:
        if run.wrong_outputs:
            where = f"{run.name} of {run.model}" + (f", {run.engine} engine" if run.engine else "")
            notes.append(f"{measured.path}: {where}: {run.wrong_outputs}: left out")
        else:
            right.append(run)
    for run in sorted(right, key=lambda run: run.name != BASE):
        predicted_us = low_us = high_us = None
        try:
            predicted_us, low_us, high_us = _predict(run, profile, networks)
        except IossimError as error:
            notes.append(f"{measured.path}: {run.name} of {run.model}: {error}")
        if run.name == BASE and predicted_us is not None:
            base[run.key[:-1]] = predicted_us, run.median_us
        base_us, base_measured_us = base.get(run.key[:-1], (None, None))
        speedup = None if base_us is None or predicted_us is None else base_us / predicted_us
        measured_speedup = None if base_measured_us is None else base_measured_us / run.median_us
        latencies.append(MeasuredLatency(run, predicted_us, low_us, high_us, speedup, measured_speedup))
    order = {run.key: number for number, run in enumerate(right)}
    latencies.sort(key=lambda each: order[each.run.key])
    return MeasuredEvaluation(profile.name, measured.header.source, tuple(latencies), tuple(notes))


def evaluate_all(
    places: Sequence[Path], profiles: Sequence[DeviceProfile] | None = None, progress: Progress = ignore
) -> tuple[tuple[MeasuredEvaluation, ...], tuple[str, ...]]:
    """Every file of measured networks of these devices, by default of those that ship; and notes, one line each.

    Raises MeasurementError for a file that cannot be read.
    """
    found: list[MeasuredEvaluation] = []
    notes: list[str] = []
    files = find_measured_networks(places)
    for done, measured in enumerate(files, start=1):
        name = measured.header.device
        if (profile := profile_named(name, profiles)) is not None:
            found.append(evaluate_measured_networks(measured, profile))
            notes += found[-1].notes
        elif profiles is None:
            notes.append(f"{measured.path}: of {name}, which has no profile; give one with `device` FILE.yaml")
        progress(done, len(files))
    return tuple(found), tuple(notes)


def _predict(
    run: NetworkRun, profile: DeviceProfile, networks: dict[ModelSource, Network]
) -> tuple[float | None, float | None, float | None]:
    """Latency and the ends of its interval, us: the latter unknown for streams, all for a run without a schedule.

    Raises IossimError if the schedule does not fit or has no price.
    """
    schedule = run.schedule
    if schedule is None:
        return None, None, None
    source = schedule.source.to_source()
    if source not in networks:
        networks[source] = load_source(source)
    network = networks[source]
    fit(schedule, network)
    simulator = SimulatorCostModel(profile, network.precision, Engine.named(run.engine), of_backend=True)
    priced = reprice_any(schedule, network, simulator)
    if isinstance(priced, StreamSchedule):
        return priced.latency_us, None, None
    interval = ScheduleErrors(network, profile, simulator).interval(priced)
    return priced.latency_us, interval.low_us, interval.high_us
