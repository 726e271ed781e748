"""The host's overhead in a recording: what a measured latency has beside the device's time, and nobody asks for.

A recording of single calls that wait for the host adds the host's time to each, whatever the shape; over a long
recording that time may drift. It is a constant, or a cubic spline of the position in the recording that is nowhere
negative, fitted together with, or beside, a prediction of the device's time.

A part of the host's work runs beside the kernel: a call takes ``host + max(device, floor)``, and a device time below the
floor cannot be seen. On a V100 an addition takes 32.4 us up to 3 MB and 34 us at 13 MB, where DRAM
alone needs 15, and from there on what DRAM needs and 18 us. A fit without the floor takes such rows for data that stays in
L2: the floor times the bandwidth of DRAM is the part of L2 that it finds on each of five GPUs.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.interpolate import BSpline

from iossim.base.least_squares import least_squares
from iossim.measurements.measurement import Header, Measurement, MeasurementSet

Floats = NDArray[np.float64]

#: Rows of a drifting recording between two knots of the spline.
_ROWS_BETWEEN_KNOTS = 1000
_DEGREE = 3
#: The least device time that an error is taken relative to: beside the host's overhead, less cannot be told.
LEAST_US = 5.0
#: Relative residuals beyond this count linearly.
_OUTLIER = 0.1
#: Floors that are tried, microseconds: host work of a framework's call, in steps that change few rows.
_FLOORS_US = np.arange(0.0, 61.0, 2.0)
#: A row is hidden where measurement and prediction stay below the floor, but for this noise.
_FLOOR_NOISE = 1.1


def overhead_basis(measured: MeasurementSet, chosen: Sequence[Measurement]) -> Floats:
    """The functions that the overhead of ``chosen`` measurements of a set is a sum of, shape ``[chosen, terms]``.

    No terms where there is no overhead, a constant where it does not drift, else the B-splines over the whole recording.
    Coefficients that are not negative make an overhead that is not.
    """
    if not measured.header.includes_host_overhead:
        return np.zeros((len(chosen), 0))
    position = {id(m): index for index, m in enumerate(measured.measurements)}
    if not measured.header.host_overhead_drifts or not chosen:
        return np.ones((len(chosen), 1))
    rows = np.array([float(position[id(m)] if m.row is None else m.row) for m in chosen])
    last = max(float(index if m.row is None else m.row) for index, m in enumerate(measured.measurements))
    pieces = max(1, round(last / _ROWS_BETWEEN_KNOTS))
    inner = np.linspace(0.0, last + 1.0, pieces + 1)
    knots = np.concatenate([[inner[0]] * _DEGREE, inner, [inner[-1]] * _DEGREE])
    return np.asarray(BSpline.design_matrix(rows, knots, _DEGREE).toarray(), dtype=np.float64)


def least_device_us(header: Header) -> float:
    """The least device time of a set to which an error is relative."""
    return max(header.resolution_us, LEAST_US if header.includes_host_overhead else 0.5)


def has_floor(header: Header) -> bool:
    """Whether a part of the host's work runs beside the kernels of a recording, so that short ones do not show."""
    return header.includes_host_overhead


def fit_overhead(
    basis: Floats, latency_us: Floats, device_us: Floats, least_us: float, with_floor: bool = False
) -> Floats:
    """The overhead's coefficients that best explain latencies beside predicted device times: ``[terms]``, and the floor
    behind them ``with_floor``.

    Robust, relative to the device's time; no coefficient is negative.
    """
    if not with_floor:
        return _fit_terms(basis, latency_us, device_us, least_us)[0]
    found = [(*_fit_terms(basis, latency_us, np.maximum(device_us, floor), least_us), floor) for floor in _FLOORS_US]
    terms, _, floor = min(found, key=lambda each: each[1])
    return np.append(terms, floor)


def is_hidden(measured_us: Floats, expected_us: Floats, floor_us: float) -> NDArray[np.bool_]:
    """Which rows lie below the floor and are expected there, ``[rows]``: they tell nothing more."""
    return np.asarray((measured_us <= _FLOOR_NOISE * floor_us) & (expected_us <= floor_us))


def _fit_terms(basis: Floats, latency_us: Floats, device_us: Floats, least_us: float) -> tuple[Floats, float]:
    """Coefficients of ``basis``, and the cost that they leave."""
    terms = basis.shape[1]
    if terms == 0:
        return np.zeros(0), 0.0
    rest_us = latency_us - device_us
    weight = 1.0 / np.maximum(device_us, least_us)
    start = np.full(terms, max(1.0, float(np.median(rest_us))))
    found = least_squares(
        lambda c: (basis @ c - rest_us) * weight,
        start,
        jac=lambda c: basis * weight[:, None],
        bounds=(0.0, np.inf),
        loss="soft_l1",
        f_scale=_OUTLIER,
    )
    return np.asarray(found.x, dtype=np.float64), float(found.cost)
