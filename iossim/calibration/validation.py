"""Errors of predictions on a user's own measurements: operators, stages, and networks measured as a whole.

Stages are groups of operators that ran concurrently. Recordings on GPUs replay CUDA graphs: their stages are priced by
the graph engine, fork and join included. Stages on CPUs are priced by the paper engine, with a synchronisation before
and after those of several groups.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from iossim.base.compiled import Floats, Integers
from iossim.base.errors import Progress, StartProgress, silent
from iossim.calibration.accuracy import Accuracy, band_key, buckets, coverage, interval, residuals_by_kind, width
from iossim.calibration.evaluated_networks import MeasuredEvaluation, evaluate_all
from iossim.calibration.recording import Recording, lowered
from iossim.calibration.samples import OperatorSamples
from iossim.hardware.lowering.kernel import Issue
from iossim.hardware.profile import DeviceProfile
from iossim.hardware.provenance import KindError
from iossim.ir.types import Precision
from iossim.measurements.measurement import HELD_OUT_FRACTION, Measurement, MeasurementSet
from iossim.measurements.measurement_set import DataSets, read_data_sets
from iossim.prediction.predict import can_be_priced, recorded_stages_us

Mask = NDArray[np.bool_]
E = TypeVar("E", "OperatorEvaluation", "StageEvaluation")
#: Latencies by another model, ``[rows]`` us, fitted on the chosen rows, given their device times as well.
Baseline = Callable[[OperatorSamples, Sequence[Measurement], Mask, Floats], Floats]


@dataclass(frozen=True, eq=False)
class OperatorEvaluation:
    """Measured and predicted times of the operators of a data set; every array has an entry for each row.

    The host's overhead is fitted on the rows that are not held out, beside the predictions; device times exclude it.
    """

    device: str
    data_set: str
    measurements: NDArray[np.object_]
    #: Rows whose shapes no fit sees.
    held_out: Mask
    #: Recorded latencies, including the host's overhead.
    latency_us: Floats
    overhead_us: Floats
    predicted_us: Floats
    #: Predictions for the recorded algorithm; nan if it is unknown.
    recorded_us: Floats
    #: Interval of the prediction.
    low_us: Floats
    high_us: Floats
    #: Predictions by another model, less the same overhead; nan where there are none.
    baseline_us: Floats
    #: Least device time that the recording resolves.
    least_us: float
    #: True where the recording includes a host overhead at all.
    has_overhead: bool
    #: Rows measured with cold caches, which are left out.
    cold_rows: int = 0
    #: Rows left out because the host hides them: measured and predicted below the recording's floor.
    hidden_rows: int = 0
    #: Device time below which the host hides it.
    floor_us: float = 0.0

    def __len__(self) -> int:
        return len(self.latency_us)

    @cached_property
    def measured_us(self) -> Floats:
        """Device time: latency less overhead, at least ``least_us``."""
        return np.maximum(self.latency_us - self.overhead_us, self.least_us)

    @property
    def clamped(self) -> Mask:
        """Rows whose latency leaves less than ``least_us`` for the GPU."""
        return self.latency_us - self.overhead_us < self.least_us

    @property
    def errors(self) -> Floats:
        """Relative errors of device time, predicted over measured less 1."""
        return self.predicted_us / self.measured_us - 1.0

    @cached_property
    def kinds(self) -> tuple[tuple[str, Precision], ...]:
        return tuple(sorted({(m.operator.kind, m.operator.precision) for m in self.measurements}))

    def of_kind(self, kind: str, precision: Precision | None = None) -> OperatorEvaluation:
        operators = [m.operator for m in self.measurements]
        own = [one.kind == kind and precision in (None, one.precision) for one in operators]
        return self[np.array(own, dtype=np.bool_)]

    def __getitem__(self, rows: Mask) -> OperatorEvaluation:
        return _rows_of(self, rows)

    @property
    def unseen(self) -> OperatorEvaluation:
        return self[self.held_out]

    @property
    def seen(self) -> OperatorEvaluation:
        return self[~self.held_out]

    def gpu_time(self) -> Accuracy:
        """Accuracy of device time, on all rows here: the figure that counts is ``evaluation.unseen.gpu_time()``."""
        return Accuracy.of(self.predicted_us, self.measured_us)

    def total_time(self) -> Accuracy:
        """Accuracy of device time and overhead together against the recorded latency."""
        return Accuracy.of(self.predicted_us + self.overhead_us, self.latency_us)

    def recorded_algorithm(self) -> Accuracy:
        """Accuracy of device time for known algorithms, given the algorithm."""
        return Accuracy.of(self.recorded_us, self.measured_us)

    def baseline(self) -> Accuracy:
        return Accuracy.of(self.baseline_us, self.measured_us)

    def by_bucket(self) -> dict[str, Accuracy]:
        return {name: self[rows].gpu_time() for name, rows in buckets(self.measured_us).items()}

    def coverage(self) -> float | None:
        """Fraction of the measured device times that is in the interval of its prediction; None without rows."""
        return coverage(self.low_us, self.high_us, self.measured_us)

    def width(self) -> float | None:
        """Median of the intervals' high over low ends; None without rows."""
        return width(self.low_us, self.high_us)

    def to_json(self) -> dict[str, Any]:
        """All figures, by default for held-out rows; errors as fractions."""
        unseen = self.unseen
        return {
            "device": self.device,
            "data_set": self.data_set,
            "kinds": [{"op": kind, "precision": str(precision)} for kind, precision in self.kinds],
            "rows": len(self),
            "held_out_rows": len(unseen),
            "clamped_rows": int(self.clamped.sum()),
            "cold_rows_left_out": self.cold_rows,
            "hidden_rows_left_out": self.hidden_rows,
            "host_floor_us": self.floor_us,
            "host_overhead_us": [float(self.overhead_us.min()), float(self.overhead_us.max())]
            if self.has_overhead
            else None,
            "gpu_time": unseen.gpu_time().to_json(),
            "gpu_time_by_bucket": {name: accuracy.to_json() for name, accuracy in unseen.by_bucket().items()},
            "total_time": unseen.total_time().to_json(),
            "recorded_algorithm": unseen.recorded_algorithm().to_json(),
            "baseline": unseen.baseline().to_json() if np.isfinite(self.baseline_us).any() else None,
            "interval_coverage": unseen.coverage(),
            "interval_width": unseen.width(),
            "seen_gpu_time": self.seen.gpu_time().to_json(),
        }


def _rows_of(each: E, rows: Mask) -> E:
    """Evaluation of a part of the rows."""
    known = ((field.name, getattr(each, field.name)) for field in fields(each))
    parts: dict[str, Any] = {name: array[rows] for name, array in known if isinstance(array, np.ndarray)}
    return replace(each, **parts)


def held_out_fraction(profile: DeviceProfile) -> float:
    """Fraction of the shapes that no fit saw: what the profile's own fit held out, if that is less than usual."""
    own = profile.provenance.held_out_fraction
    return HELD_OUT_FRACTION if own is None else min(own, HELD_OUT_FRACTION)


def evaluate_operators(
    measured: MeasurementSet, profile: DeviceProfile, baseline: Baseline | None = None
) -> OperatorEvaluation:
    """Predict the operators of a set that were measured alone; of very many those that ``lowered`` keeps.

    Rows measured with cold caches are left out; so are rows that the host hides.
    """
    return evaluate_recording(lowered(measured, profile, held_out_fraction(profile)), baseline)


def evaluate_recording(recording: Recording, baseline: Baseline | None = None) -> OperatorEvaluation:
    """Evaluate operators that are lowered, beside a ``baseline`` if one is given."""
    profile, samples, held_out = recording.profile, recording.samples, recording.is_held_out
    chosen = recording.measured.measurements
    predicted_us, recorded_us = samples.predict(profile)
    # If no seen row can determine the overhead, all rows do.
    fitted = ~held_out if np.count_nonzero(~held_out) > samples.basis.shape[1] else np.ones_like(held_out)
    latency_us = samples.latency_us
    overhead = samples.where(fitted).fit_nuisances(predicted_us[fitted])
    measured_us = samples.device_us(predicted_us, overhead)
    overhead_us = latency_us - measured_us if samples.is_slowed else samples.nuisances_us(overhead)[0]
    is_hidden = samples.hidden(predicted_us, overhead)
    least_us = samples.least_us
    if samples.issue is Issue.PROFILER:
        # The device starts and ends each kernel itself, so that this is a part of the kernel's time.
        predicted_us, recorded_us = predicted_us + overhead_us, recorded_us + overhead_us
        overhead_us, least_us = np.zeros_like(overhead_us), recording.measured.header.resolution_us
    bounds = [interval(m.operator, us, profile) for m, us in zip(chosen, predicted_us.tolist(), strict=True)]
    nothing = np.full(len(chosen), np.nan)
    low_us, high_us = np.array(bounds, dtype=np.float64).reshape(-1, 2).T
    evaluation = OperatorEvaluation(
        profile.name,
        recording.name,
        np.array(chosen, dtype=np.object_),
        held_out,
        latency_us,
        overhead_us,
        predicted_us,
        recorded_us,
        low_us,
        high_us,
        (nothing if baseline is None else baseline(samples, chosen, fitted & ~is_hidden, measured_us)) - overhead_us,
        least_us,
        samples.basis.shape[1] > 0,
        recording.cold_rows,
        int(is_hidden.sum()),
        samples.floor_us(overhead),
    )
    return evaluation[~is_hidden]


@dataclass(frozen=True, eq=False)
class StageEvaluation:
    """Measured and predicted times of the stages of a data set, microseconds; every array has one entry per stage.

    ``serial_us`` is the same operators in one stream, nan if that was not measured; its prediction always exists.
    ``left_out`` stages were of several precisions, or of more operators than a problem holds.
    """

    device: str
    data_set: str
    groups: Integers
    latency_us: Floats
    predicted_us: Floats
    serial_us: Floats
    predicted_serial_us: Floats
    left_out: int = 0

    def __len__(self) -> int:
        return len(self.latency_us)

    def __getitem__(self, rows: NDArray[np.bool_]) -> StageEvaluation:
        """A part of the stages."""
        return _rows_of(self, rows)

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

    def to_json(self) -> dict[str, object]:
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
    #: Remarks on data that was left out, each with its reason.
    notes: tuple[str, ...] = ()

    def to_json(self) -> dict[str, object]:
        """JSON values; errors are fractions, times us."""
        return {
            "operators": [each.to_json() for each in self.operators],
            "stages": [each.to_json() for each in self.stages],
            "measured": [each.to_json() for each in self.measured],
            "notes": list(self.notes),
        }


def validate(
    places: Sequence[Path], profiles: Sequence[DeviceProfile] | None = None, progress: StartProgress = silent
) -> Validation:
    """Judge predictions by the measurements in files and folders; raises OptionError or MeasurementError.

    Operators are judged on held-out shapes, which are chosen by their hash. ``profiles`` limits everything to these
    devices; otherwise each file is of the shipped device that it names.
    """
    data = read_data_sets(places, profiles)
    operators = evaluate_by_kind(lowered_sets(data, progress("operators")))
    stages = tuple(evaluate_stages(measured, profile) for measured, profile in data.sets if measured.stages)
    networks, said = evaluate_all(places, profiles, progress("measured networks"))
    notes = (*data.notes, *quoted_otherwise(operators, data), *said)
    return Validation(tuple(operators), stages, networks, notes)


def lowered_sets(data: DataSets, progress: Progress) -> list[Recording]:
    """Recordings of the sets that hold operators, with what the profiles' own fits held out."""
    found = []
    for done, (measured, profile) in enumerate(data.sets):
        found += [lowered(measured, profile, held_out_fraction(profile))] if measured.measurements else []
        progress(done + 1, len(data.sets))
    return found


def evaluate_by_kind(recordings: Sequence[Recording], baseline: Baseline | None = None) -> list[OperatorEvaluation]:
    """An evaluation for each kind of operator of each recording, by device."""
    whole = (evaluate_recording(one, baseline) for one in recordings)
    return sorted((each.of_kind(*kind) for each in whole for kind in each.kinds), key=lambda each: each.device)


def held_out_errors(each: OperatorEvaluation) -> list[KindError]:
    """Errors on the held-out shapes of a data set, as a profile quotes them: by key of bands."""
    unseen = each.unseen
    keys = [band_key(row.operator) for row in unseen.measurements]
    return [one.summary() for one in residuals_by_kind(each.data_set, keys, unseen.predicted_us, unseen.measured_us)]


def quoted_otherwise(operators: Sequence[OperatorEvaluation], data: DataSets) -> list[str]:
    """Data sets for which a profile quotes another error than was found now: the data or the model has changed."""
    profiles = {profile.name: profile for _, profile in data.sets}
    notes: list[str] = []
    for each in operators:
        quoted = {(one.data_set, one.kind): one.mape_percent for one in profiles[each.device].provenance.held_out}
        for found in held_out_errors(each):
            before = quoted.get((found.data_set, found.kind), found.mape_percent)
            if abs(found.mape_percent - before) > QUOTED_POINTS:
                notes.append(
                    f"the profile of {each.device} quotes an error of {before:.1f}% for {found.kind} "
                    f"of {each.data_set}; it is {found.mape_percent:.1f}%"
                )
    return notes
