"""Errors of predictions on a user's own measurements: operators, stages, and networks measured as a whole.

Stages are groups of operators that ran concurrently. Recordings on GPUs replay CUDA graphs: their stages are priced by
the graph engine, fork and join included. Stages on CPUs are priced by the paper engine, with a synchronisation before
and after those of several groups.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from iossim.calibration.accuracy import Accuracy
from iossim.calibration.evaluated_networks import MeasuredEvaluation, evaluate_all
from iossim.calibration.evaluated_operators import OperatorEvaluation, evaluate_operators
from iossim.hardware.parameters import Floats
from iossim.hardware.profile import DeviceProfile
from iossim.measurements.measurement import MeasurementSet
from iossim.measurements.measurement_set import DataSets, read_data_sets
from iossim.prediction.bands import key_of
from iossim.prediction.predict import can_be_priced, recorded_stages_us
from iossim.search.scheduler import StartProgress, ignore


@dataclass(frozen=True, eq=False)
class StageEvaluation:
    """Measured and predicted times of the stages of a data set, microseconds; every array has one entry per stage.

    ``serial_us`` is the same operators in one stream, nan if that was not measured; its prediction always exists.
    ``left_out`` stages were of several precisions, or of more operators than a problem holds.
    """

    device: str
    data_set: str
    groups: NDArray[np.int64]
    latency_us: Floats
    predicted_us: Floats
    serial_us: Floats
    predicted_serial_us: Floats
    left_out: int = 0

    def __len__(self) -> int:
        return len(self.latency_us)

    def __getitem__(self, rows: NDArray[np.bool_]) -> StageEvaluation:
        """A part of the stages."""
        names = ("groups", "latency_us", "predicted_us", "serial_us", "predicted_serial_us")
        arrays: dict[str, Any] = {name: getattr(self, name)[rows] for name in names}
        return replace(self, **arrays)

    @property
    def concurrent(self) -> StageEvaluation:
        return self[self.groups > 1]

    def latency(self) -> Accuracy:
        return Accuracy.of(self.predicted_us, self.latency_us)

    def gain(self) -> Accuracy:
        """Accuracy of the gain by concurrency: the time in one stream over that of the stage."""
        known = np.isfinite(self.serial_us)
        predicted = self.predicted_serial_us[known] / self.predicted_us[known]
        return Accuracy.of(predicted, self.serial_us[known] / self.latency_us[known])

    def to_json(self) -> dict[str, Any]:
        concurrent = self.concurrent
        return {
            "device": self.device,
            "data_set": self.data_set,
            "stages": len(self),
            "concurrent_stages": len(concurrent),
            "left_out": self.left_out,
            "latency": self.latency().to_json(),
            "concurrent_latency": concurrent.latency().to_json(),
            "concurrent_gain": concurrent.gain().to_json(),
        }


def evaluate_stages(measured: MeasurementSet, profile: DeviceProfile) -> StageEvaluation:
    """Price every stage of a set; fits of operators neither saw any of them nor held any out."""
    chosen = [stage for stage in measured.stages if can_be_priced(stage)]
    in_one_stream = [[[operator for group in stage.groups for operator in group]] for stage in chosen]
    prices_us = recorded_stages_us([*(stage.groups for stage in chosen), *in_one_stream], profile)
    return StageEvaluation(
        profile.name,
        measured.header.data_set,
        np.array([len(stage.groups) for stage in chosen], dtype=np.int64),
        np.array([stage.latency_us for stage in chosen]),
        np.array(prices_us[: len(chosen)]),
        np.array([np.nan if stage.serial_us is None else stage.serial_us for stage in chosen]),
        np.array(prices_us[len(chosen) :]),
        len(measured.stages) - len(chosen),
    )


#: A quoted error is accepted within this many percentage points.
QUOTED_POINTS = 0.5


@dataclass(frozen=True)
class Validation:
    """Result of an evaluation, in the order of the data sets and devices."""

    #: An evaluation for each kind of operator of each data set.
    operators: tuple[OperatorEvaluation, ...] = ()
    #: Evaluations of the data sets that hold stages.
    stages: tuple[StageEvaluation, ...] = ()
    #: Networks that were measured as a whole, one file each.
    measured: tuple[MeasuredEvaluation, ...] = ()
    #: What was left out, and why.
    notes: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """JSON values; errors are fractions, times us."""
        return {
            "operators": [each.to_json() for each in self.operators],
            "stages": [each.to_json() for each in self.stages],
            "measured": [each.to_json() for each in self.measured],
            "notes": list(self.notes),
        }


def validate(
    places: Sequence[Path],
    profiles: Sequence[DeviceProfile] | None = None,
    progress: StartProgress = lambda label: ignore,
) -> Validation:
    """Judge predictions by the measurements in files and folders; raises OptionError or MeasurementError.

    Operators are judged on held-out shapes, which are chosen by their hash. ``profiles`` limits everything to these
    devices; otherwise each file is of the shipped device that it names.
    """
    data = read_data_sets(places, profiles)
    told = progress("operators")
    operators: list[OperatorEvaluation] = []
    for done, (measured, profile) in enumerate(data.sets):
        if measured.measurements:
            whole = evaluate_operators(measured, profile)
            operators += [whole.of_kind(*kind) for kind in whole.kinds]
        told(done + 1, len(data.sets))
    operators.sort(key=lambda each: each.device)
    stages = tuple(evaluate_stages(measured, profile) for measured, profile in data.sets if measured.stages)
    networks, said = evaluate_all(places, profiles, progress("measured networks"))
    notes = (*data.notes, *quoted_otherwise(operators, data), *said)
    return Validation(tuple(operators), stages, networks, notes)


def quoted_otherwise(operators: Sequence[OperatorEvaluation], data: DataSets) -> list[str]:
    """Data sets for which a profile quotes another error than was found now: the data or the model has changed."""
    profiles = {profile.name: profile for _, profile in data.sets}
    notes: list[str] = []
    for each in operators:
        (kind,) = each.kinds
        error = each.unseen.gpu_time().mean_error
        for quoted in profiles[each.device].provenance.held_out:
            if (quoted.data_set, quoted.kind) != (each.data_set, key_of(*kind)) or error is None:
                continue
            if abs(100 * error - quoted.mape_percent) > QUOTED_POINTS:
                notes.append(
                    f"the profile of {each.device} quotes an error of {quoted.mape_percent:.1f}% for {quoted.kind} "
                    f"of {each.data_set}; it is {100 * error:.1f}%"
                )
    return notes
