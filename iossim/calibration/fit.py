"""The fit of a parameter set to measured kernels: robust least squares of relative errors.

All samples of all sets are fitted at once, on profiles that share their parameters (two boards of one chip, say), each
with its own host overhead. Each sample has two residuals: the error of the prediction, by the candidate that the model
considers fastest, and, with half its weight, the error of the algorithm that was recorded, which constrains the
parameters of every algorithm. Residuals beyond ten percent count linearly (soft L1). A weak prior toward the starting
point determines what the data does not.

The dispatch cost of a call stays at the starting point if every recording includes the host's overhead, from which it
is indistinguishable; so do parameters that recordings of slowed boards do not determine
(:mod:`iossim.calibration.nuisances`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from iossim.base.compiled import Floats
from iossim.base.errors import Progress, ignore
from iossim.base.solvers import least_squares
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
