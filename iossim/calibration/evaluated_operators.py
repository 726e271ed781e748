"""Operators measured alone against their predictions, shape by shape: held-out and seen ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from iossim.calibration.accuracy import Accuracy, buckets, coverage, width, without_nuisances
from iossim.calibration.recording import Recording, lowered
from iossim.calibration.samples import OperatorSamples, fit_nuisances, floor_us, hidden, nuisances_us
from iossim.hardware.lowering.kernel import Issue
from iossim.hardware.parameters import Floats
from iossim.hardware.profile import DeviceProfile
from iossim.ir.types import Precision
from iossim.measurements.measurement import Measurement, MeasurementSet
from iossim.measurements.operator import HELD_OUT_FRACTION
from iossim.prediction.bands import interval

Mask = NDArray[np.bool_]
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
    #: Whether the recording includes a host overhead at all.
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
        known: dict[str, Any] = {field.name: getattr(self, field.name) for field in fields(self)}
        arrays: dict[str, Any] = {name: each[rows] for name, each in known.items() if isinstance(each, np.ndarray)}
        return replace(self, **arrays)

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
    cold_rows = sum(row.is_cold for row in measured.measurements)
    return evaluate_recording(lowered(measured, profile, held_out_fraction(profile)), cold_rows, baseline)


def evaluate_recording(
    recording: Recording, cold_rows: int = 0, baseline: Baseline | None = None
) -> OperatorEvaluation:
    """Evaluate operators that are lowered, beside a ``baseline`` if one is given; ``cold_rows`` were left out."""
    profile, samples, held_out = recording.profile, recording.samples, recording.is_held_out
    chosen = recording.measured.measurements
    predicted_us, recorded_us = samples.predict(profile)
    # If no seen row can determine the overhead, all rows do.
    fitted = ~held_out if np.count_nonzero(~held_out) > samples.basis.shape[1] else np.ones_like(held_out)
    latency_us = samples.latency_us
    overhead = fit_nuisances(samples.where(fitted), predicted_us[fitted])
    measured_us = without_nuisances(samples, predicted_us, overhead)
    overhead_us = latency_us - measured_us if samples.is_slowed else nuisances_us(samples, overhead)[0]
    is_hidden = hidden(samples, predicted_us, overhead)
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
        _objects(chosen),
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
        cold_rows,
        int(is_hidden.sum()),
        floor_us(samples, overhead),
    )
    return evaluation[~is_hidden]


def _objects(chosen: Sequence[Measurement]) -> NDArray[np.object_]:
    array = np.empty(len(chosen), dtype=np.object_)
    array[:] = chosen
    return array
