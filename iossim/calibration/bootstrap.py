"""Uncertainty of the fitted parameters: the fit repeated on resampled rows, one Gauss-Newton step each.

The bootstrap (Efron 1979) draws rows with replacement and fits again. A resample moves the optimum by little, so one
step of Gauss-Newton from the fit's own optimum, with its loss, prior and bounds, stands in for a whole fit; a step
that goes too far is shortened. Values are written with as many digits as that justifies (:func:`rounded`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import floor, isfinite, log10

import numpy as np
from scipy.linalg import cholesky, solve_triangular

from iossim.base.compiled import Floats, Integers
from iossim.base.solvers import lsq_linear
from iossim.calibration.fit import OUTLIER, Fit, profile_at, relative_errors
from iossim.calibration.samples import Samples
from iossim.hardware.fits import ParameterSpace

DIGITS = 4


def rounded(value: float, digits: int = DIGITS) -> float:
    """The value with so many significant digits; 0 and non-finite values are unchanged."""
    if value == 0 or not isfinite(value):
        return float(value)
    return float(round(value, digits - 1 - floor(log10(abs(value)))))


RESAMPLES = 100
#: A parameter is unidentified if the prior determines more of it than the data, or it spreads over this part of bounds.
LARGEST_PRIOR_PART = 0.5
LARGEST_SPREAD_PART = 0.2

_RIDGE = 1e-10
_SHORTER = (0.5, 0.25, 0.125)


@dataclass(frozen=True, eq=False)
class Bootstrap:
    """Parameter vectors of resampled fits, ``[resamples, parameters]``.

    ``prior_part``, ``[parameters]``, is the fraction of the knowledge of a parameter that comes from the prior, 0 to 1:
    its posterior variance over that under the prior alone.
    """

    space: ParameterSpace
    vectors: Floats
    prior_part: Floats

    def values(self) -> dict[str, Floats]:
        """Values of each parameter over the resamples, ``[resamples]``."""
        rows = [self.space.values(vector) for vector in self.vectors]
        return {name: np.array([row[name] for row in rows]) for name in self.space.names}

    def spread(self) -> dict[str, float]:
        """Standard deviation of each parameter, in its own unit, with two digits."""
        values = self.values().items()
        return {name: rounded(float(np.std(each)), 2) if self.has_moved(name) else 0.0 for name, each in values}

    def has_moved(self, name: str) -> bool:
        """True where the resamples differ in a parameter by more than rounding."""
        if name not in self.space.names:
            return False  # tied to another
        index = self.space.names.index(name)
        return bool(np.ptp(self.vectors[:, index]) > 1e-6 * self.space.scales()[index])

    @property
    def unidentified(self) -> tuple[str, ...]:
        """Parameters that the data does not determine."""
        spread = np.std(self.vectors, axis=0) / self.space.scales()
        is_open = (self.prior_part > LARGEST_PRIOR_PART) | (spread > LARGEST_SPREAD_PART)
        return tuple(name for name, one in zip(self.space.names, is_open.tolist(), strict=True) if one)


def bootstrap(fit: Fit, samples: Sequence[Samples], resamples: int = RESAMPLES, seed: int = 0) -> Bootstrap:
    """Resample the rows of each set that ``fit`` used, ``resamples`` times; equal seeds give equal results."""
    count = len(fit.vector)
    loss = 1.0 + (fit.residuals / OUTLIER) ** 2
    size = np.sqrt(np.sum(fit.jacobian**2, axis=0))
    scale = np.where(size > 0, size, 1.0)
    # The solver's Jacobian includes the square root of the loss's curvature, (1 + z)^-3/4; the residuals are scaled so
    # that their product is the gradient.
    jacobian = fit.jacobian / scale
    residuals = fit.residuals * loss**0.25
    of_prior = fit.jacobian[fit.data_residuals :] * loss[fit.data_residuals :, None] ** 0.75
    low, high = fit.space.bounds()
    origin = np.concatenate([fit.vector, *fit.overheads])
    # The host's overhead is not negative.
    first = np.concatenate([low, np.zeros(len(origin) - count)])
    last = np.concatenate([high, np.full(len(origin) - count, np.inf)])
    lower, upper = np.minimum((first - origin) * scale, 0.0), np.maximum((last - origin) * scale, 1e-12)
    rows = _rows_of_residuals(fit, samples)
    generator = np.random.default_rng(seed)

    def cost(step: Floats, weight: Floats) -> float:
        moved = np.clip(origin + step, first, last)
        found = np.concatenate(
            [_errors(samples, moved, fit.space), fit.residuals[fit.data_residuals :] + of_prior @ step]
        )
        return float(np.sum(weight * np.sqrt(1.0 + (found / OUTLIER) ** 2)))

    vectors = np.empty((resamples, count))
    for index in range(resamples):
        weight = np.ones(len(residuals))
        weight[: fit.data_residuals] = np.concatenate(
            [generator.multinomial(rows_of, np.full(rows_of, 1.0 / rows_of))[row] for rows_of, row in rows]
        )
        step = _step(jacobian, residuals, weight, lower, upper) / scale
        best, least = 1.0, cost(step, weight)
        for length in _SHORTER:
            shorter = cost(length * step, weight)
            if shorter >= least:
                break
            best, least = length, shorter
        vectors[index] = np.clip(fit.vector + best * step[:count], low, high)
    return Bootstrap(fit.space, vectors, _prior_part(jacobian, fit.data_residuals, count))


def _errors(samples: Sequence[Samples], vector: Floats, space: ParameterSpace) -> Floats:
    """Residuals of the data, as in the fit, for parameters followed by the sets' overheads."""
    parts: list[Floats] = []
    begin = count = len(space.names)
    for one in samples:
        end = begin + one.coefficients
        parts += relative_errors(one, profile_at(one, vector[:count], space), vector[begin:end])
        begin = end
    return np.concatenate(parts)


def _rows_of_residuals(fit: Fit, samples: Sequence[Samples]) -> list[tuple[int, Integers]]:
    """Number of rows of each set, and the row of each of its residuals: of predictions, then of recorded times."""
    found = []
    for one in samples:
        _, recorded_us = one.predict(fit.apply(one.profile))
        rows = np.arange(len(recorded_us))
        found.append((len(rows), np.concatenate([rows, rows[np.isfinite(recorded_us)]])))
    assert sum(len(of_set[1]) for of_set in found) == fit.data_residuals, "the samples are those of the fit"
    return found


def _step(jacobian: Floats, residuals: Floats, weight: Floats, lower: Floats, upper: Floats) -> Floats:
    """Minimum, within bounds, of the weighted squares of the linearised residuals."""
    weighted = jacobian * weight[:, None]
    curvature = weighted.T @ jacobian
    curvature[np.diag_indices_from(curvature)] += _RIDGE
    gradient = weighted.T @ residuals
    factor = cholesky(curvature)
    target = -solve_triangular(factor, gradient, trans="T")
    return np.asarray(lsq_linear(factor, target, (lower, upper), method="bvls").x)


def _prior_part(jacobian: Floats, data_residuals: int, count: int) -> Floats:
    curvature = jacobian.T @ jacobian
    curvature[np.diag_indices_from(curvature)] += _RIDGE
    variance = np.diag(np.linalg.inv(curvature))
    of_prior = np.sum(jacobian[data_residuals:] ** 2, axis=0)
    return np.asarray(np.clip(variance * of_prior, 0.0, 1.0)[:count])
