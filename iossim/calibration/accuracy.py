"""Predicted beside measured times: errors by the usual measures of accuracy, residuals by kind, and their bands."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter

import numpy as np
from numpy.typing import NDArray

from iossim.base.compiled import Floats
from iossim.calibration.samples import OperatorSamples
from iossim.hardware.profile import DeviceProfile
from iossim.hardware.provenance import Band, KindError
from iossim.measurements.measurement import Operator
from iossim.prediction.bands import band_at, key_of, kind_of, measured_over_predicted

Mask = NDArray[np.bool_]

#: Ends of the buckets of predicted time, microseconds: small kernels are predicted less well.
BUCKET_ENDS_US = (50.0, 200.0, 1000.0)
#: Fewer residuals determine no 5th and 95th percentile: with 19, these are the least and the largest.
FEWEST_RESIDUALS = 19
#: Fraction of measurements below a band, and above it.
TAIL = 0.05
#: A band contains the prediction itself, with this margin: the same experiment, repeated, differs by 2 to 4%, and by
#: another tool on another board of the kind by 4 to 8% (copies and additions on a V100, PyTorch and Nsight Compute).
_LEAST_ROOM = 0.08
#: Buckets of measured time: from, and below.
_BUCKETS_US = {"<0.2 ms": (0.0, 200.0), "0.2-1 ms": (200.0, 1000.0), ">1 ms": (1000.0, np.inf)}


@dataclass(frozen=True, slots=True)
class Accuracy:
    """Relative errors of predictions, predicted over measured less 1; all None without rows.

    ``kendall_tau`` is the rank correlation of both times (Kendall 1938, tau-b), None where fewer than two differ.
    """

    rows: int
    #: Mean absolute error: MAPE as a fraction.
    mean_error: float | None = None
    median_error: float | None = None
    #: Mean signed error.
    bias: float | None = None
    kendall_tau: float | None = None

    @staticmethod
    def of(predicted_us: Floats, measured_us: Floats) -> Accuracy:
        """Accuracy of predictions, shape ``[rows]``; rows without a prediction (nan) do not count."""
        known = np.isfinite(predicted_us)
        predicted_us, measured_us = predicted_us[known], measured_us[known]
        if not len(measured_us):
            return Accuracy(0)
        errors = predicted_us / measured_us - 1.0
        size = np.abs(errors)
        return Accuracy(
            len(errors),
            float(np.mean(size)),
            float(np.median(size)),
            float(np.mean(errors)),
            rank_correlation(predicted_us, measured_us),
        )

    def to_json(self) -> dict[str, int | float | None]:
        return {
            "rows": self.rows,
            "mape": self.mean_error,
            "median_error": self.median_error,
            "bias": self.bias,
            "kendall_tau": self.kendall_tau,
        }


def rank_correlation(first: Floats, second: Floats) -> float | None:
    """Kendall's tau-b, or None if either has no two different values."""
    from scipy.stats import kendalltau

    if len(np.unique(first)) < 2 or len(np.unique(second)) < 2:
        return None
    return float(kendalltau(first, second).statistic)


def coverage(low_us: Floats, high_us: Floats, measured_us: Floats) -> float | None:
    """Fraction of measured times within their intervals; None without rows."""
    return float(np.mean((low_us <= measured_us) & (measured_us <= high_us))) if len(measured_us) else None


def width(low_us: Floats, high_us: Floats) -> float | None:
    """Median of high over low; None without rows."""
    return float(np.median(high_us / low_us)) if len(low_us) else None


def buckets(measured_us: Floats) -> dict[str, Mask]:
    """Rows of each bucket of measured time, by a name such as ``<0.2 ms``."""
    return {name: (measured_us >= low) & (measured_us < high) for name, (low, high) in _BUCKETS_US.items()}


@dataclass(frozen=True, eq=False)
class Residuals:
    """Predicted and measured device times of operators of one kind in one data set, ``[rows]`` each.

    ``key`` names the kind, and the precision unless it is fp32.
    """

    data_set: str
    key: str
    predicted_us: Floats
    measured_us: Floats

    @property
    def errors(self) -> Floats:
        """Signed errors relative to the measured time, ``[rows]``."""
        return self.predicted_us / self.measured_us - 1

    @property
    def accuracy(self) -> Accuracy:
        return Accuracy.of(self.predicted_us, self.measured_us)

    def where(self, rows: Mask) -> Residuals:
        """Those of a part of the rows."""
        return replace(self, predicted_us=self.predicted_us[rows], measured_us=self.measured_us[rows])

    def inside(self, bands: Sequence[Band]) -> list[bool]:
        """Whether each measured time is in the band at its predicted time."""
        times_us = zip(self.predicted_us.tolist(), self.measured_us.tolist(), strict=True)
        chosen = ((measured_us / us, band_at(bands, us)) for us, measured_us in times_us)
        return [band.low <= ratio <= band.high for ratio, band in chosen]

    def summary(self) -> KindError:
        """Errors in a few numbers; raises ValueError without rows."""
        found = self.accuracy
        if found.mean_error is None or found.median_error is None:
            raise ValueError(f"{self.data_set}: no rows of {self.key} with a prediction")
        return KindError(
            data_set=self.data_set,
            kind=self.key,
            rows=found.rows,
            mape_percent=round(100 * found.mean_error, 2),
            median_error_percent=round(100 * found.median_error, 2),
            kendall_tau=None if found.kendall_tau is None else round(found.kendall_tau, 4),
        )


def device_times(
    samples: OperatorSamples, profile: DeviceProfile, overhead: Floats | None = None
) -> tuple[Floats, Floats, Mask]:
    """Predicted and measured device times, and the rows that the host does not hide, ``[samples]`` each.

    The coefficients of the recording's nuisances are ``overhead``, by default fitted to the predictions.
    """
    predicted_us, _ = samples.predict(profile)
    overhead = samples.fit_nuisances(predicted_us) if overhead is None else overhead
    return predicted_us, samples.device_us(predicted_us, overhead), ~samples.hidden(predicted_us, overhead)


def residuals_by_kind(data_set: str, keys: Sequence[str], predicted_us: Floats, measured_us: Floats) -> list[Residuals]:
    """Residuals of the rows of each key, in alphabetical order of keys."""
    names = np.array(keys)
    return [
        Residuals(data_set, key, predicted_us[names == key], measured_us[names == key]) for key in sorted(set(keys))
    ]


def joined(residuals: Iterable[Residuals], key: Callable[[Residuals], Hashable]) -> list[Residuals]:
    """Residuals of equal ``key`` together, each named as the first of its key."""
    groups: dict[Hashable, list[Residuals]] = {}
    for one in residuals:
        groups.setdefault(key(one), []).append(one)
    return [
        replace(
            own[0],
            predicted_us=np.concatenate([one.predicted_us for one in own]),
            measured_us=np.concatenate([one.measured_us for one in own]),
        )
        for own in groups.values()
    ]


def bands_by_kind(residuals: Iterable[Residuals]) -> dict[str, list[Band]]:
    """Bands of each kind over all data sets; a kind with too few rows has none."""
    by_key = sorted(joined(residuals, attrgetter("key")), key=attrgetter("key"))
    bands = {one.key: residual_bands(one.predicted_us, one.measured_us) for one in by_key}
    return {key: found for key, found in bands.items() if found}


def band_key(operator: Operator) -> str:
    """Key of an operator's bands: its kind (depthwise and grouped convolutions have their own), with the precision
    unless it is fp32.
    """
    return key_of(kind_of(operator.op, operator.kind), operator.precision)


def residual_bands(predicted_us: Floats, measured_us: Floats) -> list[Band]:
    """Bands from predictions and measurements, both ``[rows]``; none if there are too few.

    Buckets with too few rows join the next one, the last ones the one before. Quantiles are valid for the next
    measurement (rank ``p (n + 1)``, as in conformal prediction), a little wider than those of the sample.
    """
    if len(predicted_us) < FEWEST_RESIDUALS:
        return []
    bucket = np.searchsorted(BUCKET_ENDS_US, predicted_us, side="left")
    ratio = measured_us / predicted_us
    pending: list[Floats] = []
    bands: list[tuple[float | None, Floats]] = []
    for index, end_us in enumerate((*BUCKET_ENDS_US, None)):
        pending.append(ratio[bucket == index])
        if sum(map(len, pending)) >= FEWEST_RESIDUALS:
            bands.append((end_us, np.concatenate(pending)))
            pending = []
    rest = np.concatenate(pending) if pending else np.zeros(0)
    _, last = bands.pop()
    bands.append((None, np.concatenate([last, rest])))
    return [_band(end_us, ratios) for end_us, ratios in bands]


def _band(end_us: float | None, ratios: Floats) -> Band:
    low, high = np.quantile(ratios, [TAIL, 1 - TAIL], method="weibull").tolist()
    return Band(
        up_to_us=end_us,
        rows=len(ratios),
        low=round(max(min(low, 1 - _LEAST_ROOM), 0.01), 3),
        high=round(max(high, 1 + _LEAST_ROOM), 3),
    )


def interval(operator: Operator, gpu_time_us: float, profile: DeviceProfile) -> tuple[float, float]:
    """Interval of nine in ten measurements of an operator, for a predicted time in microseconds."""
    kind = kind_of(operator.op, operator.kind)
    band = measured_over_predicted(kind, operator.precision, gpu_time_us, profile)
    return gpu_time_us * band.low, gpu_time_us * band.high
