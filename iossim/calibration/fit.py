"""The fit of a parameter set to measured kernels: robust least squares of relative errors.

All samples of all sets are fitted at once, on profiles that share their parameters (two boards of one chip, say), each
with its own host overhead. Each sample has two residuals: the error of the prediction, by the candidate that the model
considers fastest, and, with half its weight, the error of the algorithm that was recorded, which constrains the
parameters of every algorithm. Residuals beyond ten percent count linearly (soft L1). A weak prior toward the starting
point determines what the data does not.

The dispatch cost of a call stays at the starting point if every recording includes the host's overhead, from which it
is indistinguishable; so do parameters that recordings of slowed boards do not determine
(:mod:`iossim.calibration.nuisances`).

The uncertainty of the parameters is that of the fit repeated on resampled rows (:func:`bootstrap`, Efron 1979). A
resample moves the optimum by little, so one step of Gauss-Newton from the fit's own optimum, with its loss, prior and
bounds, stands in for a whole fit; a step that goes too far is shortened. Values are written with as many digits as that
justifies (:func:`rounded`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import floor, isfinite, log10

import numpy as np
from scipy.linalg import cholesky, solve_triangular

from iossim.base.compiled import Floats, Integers
from iossim.base.errors import Progress, ignore
from iossim.base.solvers import least_squares, lsq_linear
from iossim.calibration.nuisances import NOT_TOLD, unslowed
from iossim.calibration.samples import Samples
from iossim.hardware.fits import ParameterSpace
from iossim.hardware.parameters import CALL
from iossim.hardware.profile import DeviceProfile, with_values

OUTLIER = 0.1
_RECORDED_WEIGHT = 0.5
_PRIOR_WEIGHT = 0.5
#: Prior weight of a parameter that is kept constant.
_HELD_WEIGHT = 1e4
_STEP = 1e-4
#: Distance from the bounds at which a fit begins, relative to their width.
_INSIDE = 1e-3
#: Steps that change the cost by a smaller part move no parameter significantly.
_TOLERANCE = 1e-5
_MOST_OVERHEAD_US = 5_000.0


@dataclass(frozen=True, eq=False)
class Fit:
    """Fitted ``values`` by name, of the parameters in ``space``, and the inputs of a bootstrap: the Jacobian and
    residuals of each sample at the optimum.
    """

    space: ParameterSpace
    values: dict[str, float]
    vector: Floats
    #: Coefficients of the host's overhead, by set.
    overheads: tuple[Floats, ...]
    cost: float
    residuals: Floats
    jacobian: Floats
    #: Residuals from this index on are the prior's.
    data_residuals: int

    def apply(self, profile: DeviceProfile) -> DeviceProfile:
        return with_values(profile, self.values)

    @property
    def at_bounds(self) -> tuple[str, ...]:
        """Parameters that ended at a bound: the data demands an implausible value, or does not determine it."""
        return self.space.at_bounds(self.vector)


def fit(
    samples: Sequence[Samples],
    start: DeviceProfile,
    rounds: int = 60,
    progress: Progress = ignore,
    near: Fit | None = None,
    space: ParameterSpace | None = None,
) -> Fit:
    """Fit the parameters, weakly drawn to those of ``start``, in ``rounds`` at most.

    The search begins at ``start``, or at another fit that is ``near``, of nearly the same samples: a few steps then
    suffice. ``space`` has the parameters to fit, by default all that calls of the device's kind determine.
    """
    progress(0, rounds)
    are_slowed = any(one.basis.shape[1] > one.host_terms for one in samples)
    if are_slowed:
        start = unslowed(start)
    space = space or start.device_kind.fits().kernels
    origin = space.to_vector(start.parameter_values)
    begin = origin if near is None else near.vector
    low, high = space.bounds()
    width = space.scales()
    count = len(origin)
    held = {*(() if tell_calls(samples) else CALL), *(NOT_TOLD if are_slowed else ())}
    prior = np.array([_HELD_WEIGHT if name in held else _PRIOR_WEIGHT for name in space.names]) / width
    starts: list[Floats] = []
    for one in samples:
        device_us, _ = one.predict(profile_at(one, begin, space))
        starts.append(np.minimum(one.fit_nuisances(device_us), _MOST_OVERHEAD_US))
    offsets = np.cumsum([count, *map(len, starts)])
    evaluations = 0
    # Predictions do not depend on overheads: those at the current point serve all differences.
    known: dict[bytes, list[tuple[Floats, Floats]]] = {}

    def residuals(vector: Floats) -> Floats:
        nonlocal evaluations
        parts: list[Floats] = []
        key = vector[:count].tobytes()
        if key not in known:
            if len(known) > count:
                known.clear()
            # All sets of a device share one profile, whose rates are then made once.
            profiles = {id(one.profile): profile_at(one, vector[:count], space) for one in samples}
            known[key] = [one.predict(profiles[id(one.profile)]) for one in samples]
        for index, one in enumerate(samples):
            parts += errors_of(one, *known[key][index], vector[offsets[index] : offsets[index + 1]])
        parts.append(prior * (vector[:count] - origin))
        evaluations += 1
        done, place = divmod(evaluations, len(vector) + 1)
        if place == 1:
            progress(min(done + 1, rounds), rounds)
        return np.concatenate(parts)

    lower = np.concatenate([low, *(np.zeros(len(s)) for s in starts)])
    upper = np.concatenate([high, *(np.full(len(s), _MOST_OVERHEAD_US) for s in starts)])
    # From a start at a bound, the solver's first steps, which are scaled by the distance to it, would go nowhere.
    inside = _INSIDE * np.concatenate([high - low, *(np.full(len(s), 100.0) for s in starts)])
    first = np.clip(np.concatenate([begin, *starts]), lower + inside, upper - inside)
    typical = np.concatenate([width, *(np.full(len(s), 100.0) for s in starts)])
    found = least_squares(
        residuals,
        first,
        bounds=(lower, upper),
        loss="soft_l1",
        f_scale=OUTLIER,
        x_scale=typical,
        diff_step=_STEP,
        ftol=_TOLERANCE,
        max_nfev=rounds,
    )
    progress(rounds, rounds)
    return Fit(
        space,
        space.values(found.x[:count]),
        found.x[:count],
        tuple(found.x[offsets[i] : offsets[i + 1]] for i in range(len(samples))),
        float(found.cost),
        found.fun,
        found.jac,
        len(found.fun) - count,
    )


def tell_calls(samples: Sequence[Samples]) -> bool:
    """True where any of these measured times exclude the host's overhead, so that they determine the cost of a call."""
    return any(one.basis.shape[1] == 0 for one in samples)


def profile_at(one: Samples, vector: Floats, space: ParameterSpace) -> DeviceProfile:
    return with_values(one.profile, space.values(vector))


def relative_errors(one: Samples, profile: DeviceProfile, overhead: Floats) -> list[Floats]:
    """Weighted relative errors of predictions and of recorded algorithms, with these nuisances."""
    return errors_of(one, *one.predict(profile), overhead)


def errors_of(one: Samples, predicted_us: Floats, recorded_us: Floats, overhead: Floats) -> list[Floats]:
    """Errors as above for given predictions, ``[samples]`` each; relative to the time on the board as it was."""
    weight = np.sqrt(one.weight / len(predicted_us))
    host_us, slowed_us = one.nuisances_us(overhead)
    measured_us = one.latency_us - host_us
    floor = one.floor_us(overhead)
    errors = weight * _relative(measured_us, np.maximum(predicted_us + slowed_us, floor), one.least_us)
    known = np.isfinite(recorded_us)
    if not known.any():
        return [errors]
    recorded_us = np.maximum((recorded_us + slowed_us)[known], floor)
    recorded = _relative(measured_us[known], recorded_us, one.least_us)
    return [errors, weight * _RECORDED_WEIGHT * recorded]


def _relative(measured_us: Floats, expected_us: Floats, least_us: float) -> Floats:
    return np.asarray((expected_us - measured_us) / np.maximum(np.maximum(measured_us, 0.5 * expected_us), least_us))


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
