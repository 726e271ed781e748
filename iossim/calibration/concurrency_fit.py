"""Fit of the parameters of concurrency to measured stages of several groups, after the kernels.

Stages are the user's own recordings. Published figures of concurrent schedules are never fitted: they are a test
(``validation.networks``). ``host_fit`` determines the launch overhead of the host.

The uncertainty of the parameters is bootstrapped over stages: random weights (the Bayesian bootstrap, Rubin 1981).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from iossim.base.compiled import Floats
from iossim.base.display import counted
from iossim.base.solvers import least_squares, lsq_linear
from iossim.calibration.fit import RESAMPLES, Bootstrap, rounded
from iossim.calibration.host_fit import GAP
from iossim.hardware.fits import ParameterSpace
from iossim.hardware.profile import DeviceProfile, with_values
from iossim.hardware.provenance import DataSet, Provenance
from iossim.hardware.transfer import Concurrency
from iossim.measurements.measurement import MeasurementSet, StageMeasurement
from iossim.prediction.predict import can_be_priced, recorded_stages_us

#: Noise of a figure (repeats differ by 2 to 4 percent) over the prior's deviation, a quarter of the bounds.
_PRIOR_WEIGHT = 0.03 / 0.25
_STAGES_COUNT = 10.0
_MOST_EVALUATIONS = 12
#: Relative to the width of the bounds. Prices have kinks, so that a smaller step would see only one side of one.
_STEP = 0.01
_TOLERANCE = 1e-3


def fit_concurrency(
    profile: DeviceProfile, measured: Sequence[MeasurementSet], seed: int = 0, space: ParameterSpace | None = None
) -> DeviceProfile:
    """The profile with the parameters of concurrency fitted to the concurrent stages of ``measured``, if any.

    ``space`` holds those that are fitted, by default all of its kind of device. The fit is least squares of relative
    errors, with a weak prior around the profile's values. The provenance records what was fitted to which data, and how
    well the parameters are determined.
    """
    stages = [stage for one in measured for stage in _concurrent(one)]
    if not stages:
        return profile
    space = profile.device_kind.fits().concurrency if space is None else space
    low, high = space.bounds()
    width = high - low
    # Entries range from 1 to 2: the solver's steps are relative to an entry.
    origin = 1.0 + (space.to_vector(profile.parameter_values) - low) / width

    def residuals(entries: Floats) -> Floats:
        tried = with_values(profile, space.values(low + (entries - 1.0) * width))
        return np.append(_stage_errors(stages, tried), _PRIOR_WEIGHT * (entries - origin))

    result = least_squares(
        residuals,
        np.clip(origin, 1.0 + 1e-6, 2.0 - 1e-6),
        bounds=(1.0, 2.0),
        diff_step=_STEP,
        xtol=_TOLERANCE,
        ftol=_TOLERANCE,
        max_nfev=_MOST_EVALUATIONS,
    )
    vector = low + (result.x - 1.0) * width
    vectors, prior_part = _resampled(result.fun, result.jac, result.x, len(stages), seed)
    bootstrap = Bootstrap(space, low + (vectors - 1.0) * width, prior_part)
    given = {name: rounded(value) for name, value in space.values(vector).items()}
    told = _told(profile.provenance, _data_sets(measured), bootstrap, space.at_bounds(vector))
    return with_values(profile, given, **told)


def lent_by(profile: DeviceProfile) -> Concurrency:
    """Parameters that a GPU with known launches lends to others: the launch overhead belongs to the host and the
    engine, the gap to the device. Hosts differ, so that its uncertainty there is as large as without any network.
    """
    space = profile.device_kind.fits().launches
    names = [name for name in space.determined if name != GAP]
    spread = profile.device_kind.engine_costs(profile.compute_capability).spread
    return Concurrency(
        device=profile.name,
        values={name: profile.parameter_values[name] for name in names},
        spread={name: spread[name] for name in names if name in spread},
    )


def borrowing(profile: DeviceProfile, lent: Concurrency) -> DeviceProfile:
    """The profile with another device's parameters of concurrency, as its provenance records."""
    provenance = lent.lent_to(profile.provenance)
    return with_values(profile, lent.values).model_copy(update={"provenance": provenance})


def _data_sets(measured: Sequence[MeasurementSet]) -> list[DataSet]:
    return [
        DataSet(
            name=f"{one.header.data_set}, stages",
            device=one.device,
            rows=len(_concurrent(one)),
            libraries=dict(one.header.libraries),
        )
        for one in measured
        if _concurrent(one)
    ]


def _concurrent(measured: MeasurementSet) -> list[StageMeasurement]:
    return [stage for stage in measured.stages if len(stage.groups) > 1 and can_be_priced(stage)]


def _stage_errors(stages: Sequence[StageMeasurement], profile: DeviceProfile) -> Floats:
    """Relative errors of measured stages, whose total weight equals that of a few networks."""
    predicted_us = np.array(recorded_stages_us([stage.groups for stage in stages], profile))
    measured_us = np.array([stage.latency_us for stage in stages])
    scale = min(1.0, (_STAGES_COUNT / len(stages)) ** 0.5)
    errors: Floats = (predicted_us / measured_us - 1.0) * scale
    return errors


def _resampled(residuals: Floats, jacobian: Floats, entries: Floats, rows: int, seed: int) -> tuple[Floats, Floats]:
    """Entries under random weights of the stages, one Gauss-Newton step each, ``[resamples, parameters]``; and the
    prior's part in each parameter, ``[parameters]``. The last residuals are the prior's.
    """
    generator = np.random.default_rng(seed)
    vectors = np.empty((RESAMPLES, len(entries)))
    for index in range(RESAMPLES):
        weight = np.ones(len(residuals))
        weight[:rows] = np.sqrt(rows * generator.dirichlet(np.ones(rows)))
        bounds = (np.minimum(1.0 - entries, 0.0), np.maximum(2.0 - entries, 1e-12))
        step = lsq_linear(jacobian * weight[:, None], -residuals * weight, bounds, method="bvls").x
        vectors[index] = np.clip(entries + step, 1.0, 2.0)
    curvature = jacobian.T @ jacobian
    prior_part = np.diag(np.linalg.inv(curvature)) * _PRIOR_WEIGHT**2
    return vectors, np.clip(prior_part, 0.0, 1.0)


def _told(
    own: Provenance, data_sets: Sequence[DataSet], bootstrap: Bootstrap, at_bounds: Sequence[str]
) -> dict[str, object]:
    """The fields of the provenance that change."""
    rows = sum(one.rows for one in data_sets)
    devices = " and ".join(dict.fromkeys(one.device for one in data_sets))
    names = bootstrap.space.names
    tied = ", ".join(f"{name} with {leader}" for name, leader in bootstrap.space.ties.items())
    told = f"{', '.join(names)}{f' (and {tied})' if tied else ''} fitted to {counted(rows, 'stage')} on {devices}"
    spread = bootstrap.spread()
    spread |= {name: spread[leader] for name, leader in bootstrap.space.ties.items() if leader in spread}
    unidentified = [name for name in names if name in at_bounds or name in bootstrap.unidentified]
    return {
        "note": f"{own.note}; {told}",
        "data_sets": [*own.data_sets, *data_sets],
        "spread": own.spread | spread,
        "unidentified": [*(name for name in own.unidentified if name not in names), *unidentified],
        "at_bounds": [*(name for name in own.at_bounds if name not in names), *at_bounds],
        "borrowed": [one for one in own.borrowed if not set(one.parameters) & set(names)],
    }
