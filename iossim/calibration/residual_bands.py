"""Bands of measured over predicted times of operators, taken from residuals."""

from __future__ import annotations

import numpy as np

from iossim.hardware.parameters import Floats
from iossim.hardware.profile import DeviceProfile
from iossim.hardware.provenance import Band
from iossim.measurements.operator import Operator
from iossim.prediction.bands import key_of, kind_of, measured_over_predicted

#: Ends of the buckets of predicted time, microseconds: small kernels are predicted less well.
BUCKET_ENDS_US = (50.0, 200.0, 1000.0)
#: Fewer residuals determine no 5th and 95th percentile: with 19, these are the least and the largest.
FEWEST_RESIDUALS = 19
#: Fraction of measurements below a band, and above it.
TAIL = 0.05
#: A band contains the prediction itself, with this margin: the same experiment, repeated, differs by 2 to 4%, and by
#: another tool on another board of the kind by 4 to 8% (copies and additions on a V100, PyTorch and Nsight Compute).
_LEAST_ROOM = 0.08


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
    band = measured_over_predicted(kind, operator.precision, gpu_time_us, profile.provenance)
    return gpu_time_us * band.low, gpu_time_us * band.high
