"""Whole networks as they were measured on real devices, against what the simulator says of the same schedules.

``benchmarks/gpu_report.py`` writes the files: JSON lines, a header and then a run a line. A run of a schedule holds the whole
schedule, so that its prediction is computed anew with today's model; a run of a baseline has none. Of equal runs the last
counts: that of the newest measurement. A run whose outputs were wrong is kept and named, and nothing is told of its times.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from pydantic import Field, ValidationError

from iossim.backends.simulator.cost_model import SimulatorCostModel
from iossim.calibration.accuracy import Accuracy
from iossim.calibration.measurement import MeasurementError
from iossim.calibration.schedule_interval import ScheduleErrors
from iossim.calibration.text_files import read_file
from iossim.devices.load import device, device_names
from iossim.devices.profile import DeviceProfile
from iossim.errors import IossimError
from iossim.execution.backend import Samples
from iossim.execution.engine import Engine
from iossim.ir.network import ModelSource, Network
from iossim.ir.types import Precision
from iossim.models.load import load_source
from iossim.schedule.fit import fit
from iossim.schedule.schedule import Schedule
from iossim.scheduling.assemble import reprice
from iossim.validation import Value, first_problem

Progress = Callable[[int, int], None]

SCHEMA = "iossim-measured-networks"
VERSION = 1
#: What an output may differ from the reference's, over its largest value: in fp32, and where products have fewer bits.
MOST_OUTPUT_ERROR, MOST_ROUGH_OUTPUT_ERROR = 1e-3, 5e-2
#: What speed-ups are over.
BASE = "sequential"


class NetworkHeader(Value):
    """The first line of a file: where and when its runs were measured."""

    format: Literal["iossim-measured-networks"] = "iossim-measured-networks"
    version: int = VERSION
    #: A device that ships, or the name that its driver gives it.
    device: str = Field(min_length=1)
    driver: str = ""
    #: Day of the recording, ``2026-11-21``.
    date: str = ""
    source: str = ""


class NetworkRun(Value):
    """A network measured as a whole. ``name`` is the scheduler, or the baseline, which has no ``schedule``.

    ``median_us``, ``p10_us`` and ``p90_us`` are over ``rounds``; ``conditions`` are those of the backend's samples.
    """

    model: str
    batch: int = Field(ge=1)
    dtype: str
    engine: str
    backend: str
    name: str
    median_us: float = Field(gt=0)
    p10_us: float = Field(gt=0)
    p90_us: float = Field(gt=0)
    rounds: int = Field(ge=1)
    rejected: int = Field(default=0, ge=0)
    conditions: dict[str, float | str] = Field(default_factory=dict)
    #: Of the backend, by name; and what else its times depend on.
    libraries: dict[str, str] = Field(default_factory=dict)
    options: dict[str, str] = Field(default_factory=dict)
    #: The largest difference of an output from the reference's, over the largest value of that output; none where it was
    #: not looked at, or is not finite.
    output_error: float | None = Field(default=None, ge=0)
    #: Whether the outputs are what they should be, as far as was looked at.
    outputs_right: bool = True
    #: What the search measured, and how long it took.
    measurements: int | None = None
    search_s: float | None = None
    #: What its stages take by themselves, added up: repeated back to back, and each with a flushed L2 cache.
    stages_warm_us: float | None = Field(default=None, ge=0)
    stages_cold_us: float | None = Field(default=None, ge=0)
    schedule: Schedule | None = None

    @property
    def key(self) -> tuple[str, int, str, str, str, str]:
        """Runs of equal key are of the same thing."""
        return self.model, self.batch, self.dtype, self.engine, self.backend, self.name

    @property
    def wrong_outputs(self) -> str:
        """How the outputs are wrong, in words; empty where they are right, or nobody looked."""
        if self.outputs_right:
            return ""
        if self.output_error is None:
            return "outputs are not finite"
        return f"outputs are wrong by {self.output_error:.1e} of the largest value"

    @staticmethod
    def of(samples: Samples, *, dtype: str, output_error: float | None = None, **fields: Any) -> NetworkRun:
        """A run of these samples; ``fields`` are the others. An ``output_error`` may be infinite: outputs are not finite."""
        low, high = np.percentile(samples.times_us, (10, 90)).tolist()
        most = MOST_OUTPUT_ERROR if dtype == Precision.FP32 else MOST_ROUGH_OUTPUT_ERROR
        return NetworkRun(
            median_us=samples.median_us,
            p10_us=low,
            p90_us=high,
            rounds=len(samples.times_us),
            rejected=samples.rejected,
            conditions=dict(samples.conditions),
            dtype=dtype,
            output_error=None if output_error == math.inf else output_error,
            outputs_right=output_error is None or output_error <= most,
            **fields,
        )


@dataclass(frozen=True)
class MeasuredNetworks:
    """What one file holds."""

    path: Path
    header: NetworkHeader
    runs: tuple[NetworkRun, ...]


@dataclass(frozen=True, slots=True)
class MeasuredLatency:
    """A run beside its prediction, us; a baseline has none. Speed-ups are over the sequential schedule of its engine."""

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
        """Whether the measured latency lies in the interval of its prediction."""
        if self.low_us is None or self.high_us is None:
            return None
        return self.low_us <= self.run.median_us <= self.high_us


@dataclass(frozen=True)
class MeasuredEvaluation:
    """The runs of one file, in its order, beside predictions for its device."""

    device: str
    source: str
    latencies: tuple[MeasuredLatency, ...]
    notes: tuple[str, ...] = ()

    @property
    def accuracy(self) -> Accuracy:
        """Over all runs of schedules."""
        known = [each for each in self.latencies if each.predicted_us is not None]
        return Accuracy.of(
            np.array([each.predicted_us for each in known], dtype=np.float64),
            np.array([each.run.median_us for each in known], dtype=np.float64),
        )

    def to_json(self) -> dict[str, Any]:
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


def run_line(run: NetworkRun) -> str:
    """A run as a line of a file; what is as by default is left out."""
    return json.dumps(run.model_dump(mode="json", exclude_defaults=True), separators=(",", ":")) + "\n"


def header_line(header: NetworkHeader) -> str:
    """The first line of a file."""
    return json.dumps(header.model_dump(mode="json"), separators=(",", ":")) + "\n"


def find_measured_networks(places: Sequence[Path]) -> list[MeasuredNetworks]:
    """What files and folders (subfolders included) hold of it, by path; raises MeasurementError for a file of it that cannot
    be read."""
    return [read_measured_networks(path) for path in measured_network_files(places)]


def measured_network_files(places: Sequence[Path]) -> list[Path]:
    """Those among files and folders, subfolders included, that are of measured networks."""
    paths: list[Path] = []
    for place in places:
        paths += sorted(place.rglob("*.jsonl")) if place.is_dir() else [place]
    return [path for path in paths if path.is_file() and _is_measured_networks(path)]


def read_measured_networks(path: Path) -> MeasuredNetworks:
    """A file; raises MeasurementError naming the line and the field at fault."""
    first, *lines = [line for line in read_file(path).splitlines() if line.strip()]
    try:
        header = NetworkHeader.model_validate_json(first)
    except ValidationError as error:
        raise MeasurementError(f"measurements {path}: header: {first_problem(error)}; correct the header") from None
    if header.version > VERSION:
        raise MeasurementError(
            f"measurements {path}: version {header.version} of the format, this iossim reads {VERSION}; update iossim"
        )
    runs: dict[tuple[Any, ...], NetworkRun] = {}
    for number, line in enumerate(lines, start=2):
        try:
            run = NetworkRun.model_validate_json(line)
        except ValidationError as error:
            reason = first_problem(error)
            raise MeasurementError(f"measurements {path}: line {number}: {reason}; correct the line") from None
        runs[run.key] = run
    return MeasuredNetworks(path, header, tuple(runs.values()))


def evaluate_measured_networks(measured: MeasuredNetworks, profile: DeviceProfile) -> MeasuredEvaluation:
    """Price every measured schedule on the simulator of its device; ``notes`` tell which could not be, and why.

    Runs with wrong outputs are left out, and noted: how long it takes to compute something else is of no use.
    """
    networks: dict[ModelSource, Network] = {}
    latencies: list[MeasuredLatency] = []
    notes: list[str] = []
    base: dict[tuple[str, int, str, str, str], tuple[float, float]] = {}
    right = [run for run in measured.runs if not run.wrong_outputs]
    for run in measured.runs:
        if run.wrong_outputs:
            where = f"{run.name} of {run.model}" + (f", {run.engine} engine" if run.engine else "")
            notes.append(f"{measured.path}: {where}: {run.wrong_outputs}: left out")
    for run in sorted(right, key=lambda run: run.name != BASE):
        predicted = _Predicted()
        if run.schedule is not None:
            try:
                predicted = _predict(run, run.schedule, profile, networks)
            except IossimError as error:
                notes.append(f"{measured.path}: {run.name} of {run.model}: {error}")
        if run.name == BASE and predicted.us is not None:
            base[run.key[:-1]] = predicted.us, run.median_us
        base_us, base_measured_us = base.get(run.key[:-1], (None, None))
        latencies.append(
            MeasuredLatency(
                run,
                predicted.us,
                predicted.low_us,
                predicted.high_us,
                None if base_us is None or predicted.us is None else base_us / predicted.us,
                None if base_measured_us is None else base_measured_us / run.median_us,
            )
        )
    order = {run.key: number for number, run in enumerate(right)}
    latencies.sort(key=lambda each: order[each.run.key])
    return MeasuredEvaluation(profile.name, measured.header.source, tuple(latencies), tuple(notes))


def evaluate_all(
    places: Sequence[Path],
    profiles: Sequence[DeviceProfile] | None = None,
    progress: Progress = lambda done, total: None,
) -> tuple[tuple[MeasuredEvaluation, ...], tuple[str, ...]]:
    """Every file of measured networks of these devices, by default of those that ship; and notes, a line each.

    Raises MeasurementError for a file that cannot be read.
    """
    chosen = None if profiles is None else {profile.name: profile for profile in profiles}
    found: list[MeasuredEvaluation] = []
    notes: list[str] = []
    files = find_measured_networks(places)
    for done, measured in enumerate(files, start=1):
        name = measured.header.device
        if chosen is None and name not in device_names():
            notes.append(f"{measured.path}: of {name}, which has no profile; give one with --device FILE.yaml")
        elif chosen is None or name in chosen:
            found.append(evaluate_measured_networks(measured, device(name) if chosen is None else chosen[name]))
            notes += found[-1].notes
        progress(done, len(files))
    return tuple(found), tuple(notes)


@dataclass(frozen=True, slots=True)
class _Predicted:
    us: float | None = None
    low_us: float | None = None
    high_us: float | None = None


def _predict(
    run: NetworkRun, schedule: Schedule, profile: DeviceProfile, networks: dict[ModelSource, Network]
) -> _Predicted:
    """Raises IossimError for a schedule that fits its network no more, or that the simulator cannot price."""
    source = ModelSource(schedule.source.model, schedule.source.batch, tuple(schedule.source.options.items()))
    if source not in networks:
        networks[source] = load_source(source)
    network = networks[source]
    fit(schedule, network)
    simulator = SimulatorCostModel(profile, network.precision, Engine.named(run.engine), in_place=True)
    priced = reprice(schedule, network, simulator)
    interval = ScheduleErrors(network, profile).interval(priced)
    return _Predicted(priced.latency_us, interval.low_us, interval.high_us)


def _is_measured_networks(path: Path) -> bool:
    try:
        with path.open(encoding="utf-8") as stream:
            return f'"{SCHEMA}"' in stream.readline(4096)
    except (OSError, UnicodeDecodeError):
        return False
