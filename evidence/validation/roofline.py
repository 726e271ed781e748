"""A calibrated roofline, the minimum that a model must beat: three parameters per kind of operator.

A call takes a floor, and the longer of its arithmetic at a part of the peak and its bytes at a part of DRAM's bandwidth
(Williams et al. 2009); floor and parts are fitted. If the recording has a host overhead, this model has its own, which
includes the floor: the two are indistinguishable.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from iossim.base.compiled import Floats
from iossim.base.solvers import least_squares
from iossim.calibration.samples import OperatorSamples
from iossim.hardware.profile import DeviceProfile
from iossim.measurements.measurement import Measurement, Operator

Mask = NDArray[np.bool_]

#: Larger relative residuals count linearly, as in the fit of the simulator.
_OUTLIER = 0.1
#: The fit has several local optima: the rows bound by arithmetic depend on where it starts.
_STARTS = ((0.3, 0.4), (0.3, 0.9), (0.8, 0.4), (0.8, 0.9))
FEWEST_ROWS = 6


@dataclass(frozen=True, eq=False)
class CalibratedRoofline:
    """Fitted parts of the peaks, and ``offset``: the floor or, in its place, the coefficients of the overhead's
    basis.
    """

    arithmetic_efficiency: float
    memory_efficiency: float
    offset: Floats

    @staticmethod
    def fit(roofs: Roofs, basis: Floats, latency_us: Floats, scale_us: Floats) -> CalibratedRoofline | None:
        """Robust fit of latencies ``[rows]``, residuals relative to ``scale_us``; None for fewer than
        ``FEWEST_ROWS``.
        """
        if len(latency_us) < FEWEST_ROWS:
            return None
        basis = _with_floor(basis)
        terms = basis.shape[1]

        def residuals(vector: Floats) -> Floats:
            device_us = roofs.device_us(*np.exp(vector[:2]).tolist())
            error: Floats = (device_us + basis @ vector[2:] - latency_us) / scale_us
            return error

        lower = np.concatenate([np.log([1e-3, 1e-3]), np.zeros(terms)])
        upper = np.concatenate([np.log([20.0, 20.0]), np.full(terms, np.inf)])
        best = None
        for start in _STARTS:
            floor_us = max(1e-3, float(np.median(latency_us - roofs.device_us(*start))))
            first = np.concatenate([np.log(start), np.full(terms, floor_us)])
            widths = np.concatenate([[0.5, 0.5], np.full(terms, max(1.0, floor_us))])
            found = least_squares(
                residuals,
                first,
                bounds=(lower, upper),
                loss="soft_l1",
                f_scale=_OUTLIER,
                x_scale=widths,
                tr_solver="lsmr",
            )
            if best is None or found.cost < best.cost:
                best = found
        assert best is not None
        arithmetic, memory = np.exp(best.x[:2]).tolist()
        return CalibratedRoofline(arithmetic, memory, best.x[2:])

    def latency_us(self, roofs: Roofs, basis: Floats) -> Floats:
        """Whole latencies, including the host's overhead if there is one, shape ``[rows]``."""
        device_us = roofs.device_us(self.arithmetic_efficiency, self.memory_efficiency)
        return device_us + np.asarray(_with_floor(basis) @ self.offset)


@dataclass(frozen=True, eq=False)
class Roofs:
    """Least times of operators at the peaks of arithmetic and of DRAM, shape ``[operators]`` each."""

    arithmetic_us: Floats
    memory_us: Floats

    @staticmethod
    def of(operators: Sequence[Operator], profile: DeviceProfile) -> Roofs:
        peaks = [profile.reduced_precision_tflops(operator.precision) or profile.fp32_tflops for operator in operators]
        flops = np.array([operator.flops for operator in operators], dtype=np.float64)
        moved = np.array([operator.bytes for operator in operators], dtype=np.float64)
        # A teraflop per second is a megaflop per microsecond, a gigabyte per second a kilobyte per microsecond.
        return Roofs(flops / (1e6 * np.array(peaks)), moved / (1e3 * profile.dram_bandwidth_gbps))

    def device_us(self, arithmetic_efficiency: float, memory_efficiency: float) -> Floats:
        return np.maximum(self.arithmetic_us / arithmetic_efficiency, self.memory_us / memory_efficiency)

    def __getitem__(self, rows: NDArray[np.bool_]) -> Roofs:
        return Roofs(self.arithmetic_us[rows], self.memory_us[rows])


def _with_floor(basis: Floats) -> Floats:
    return basis if basis.shape[1] else np.ones((len(basis), 1))


def roofline_us(samples: OperatorSamples, chosen: Sequence[Measurement], fitted: Mask, measured_us: Floats) -> Floats:
    """Latencies by a roofline for each kind and precision, fitted on ``fitted`` rows; nan if they are too few.

    It is a ``baseline`` of :func:`iossim.calibration.validation.evaluate_recording`.
    """
    operators = [m.operator for m in chosen]
    roofs = Roofs.of(operators, samples.profile)
    latency_us = np.full(len(chosen), np.nan)
    groups = [(operator.kind, operator.precision) for operator in operators]
    for group in sorted(set(groups)):
        own = np.array([each == group for each in groups], dtype=np.bool_)
        seen = own & fitted
        model = CalibratedRoofline.fit(roofs[seen], samples.basis[seen], samples.latency_us[seen], measured_us[seen])
        if model is not None:
            latency_us[own] = model.latency_us(roofs[own], samples.basis[own])
    return latency_us
