"""Chips with data: every recording of the boards with one chip, its operators lowered once for all evaluations.

Long recordings are thinned, evenly over sizes: lowering a row takes longer than pricing it with a thousand parameter
sets. A fit that only judges (the prediction of a chip from others, or beyond its sizes) sees even fewer rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from iossim.base.compiled import Floats
from iossim.calibration.accuracy import Residuals
from iossim.calibration.fit import Fit, fit
from iossim.calibration.nuisances import neutral
from iossim.calibration.recording import Recording, default_weight, thinned
from iossim.hardware.fits import GPU_SPACE, TENSOR_SPACE, ParameterSpace
from iossim.hardware.kind import GPU
from iossim.hardware.profile import DeviceProfile
from iossim.measurements.measurement import MeasurementSet

Mask = NDArray[np.bool_]
#: A measurement set, and the profile of its device.
DeviceSet = tuple[MeasurementSet, DeviceProfile]
#: Function that selects the rows of a recording which a fit may see, ``[rows]``.
Choose = Callable[[Recording], Mask]

_ROUNDS = 25


@dataclass(frozen=True, eq=False)
class Chip:
    """All measurements on boards with one chip; facts are those of the first of ``profiles``."""

    profiles: tuple[DeviceProfile, ...]
    recordings: tuple[Recording, ...]

    @property
    def name(self) -> str:
        return self.profiles[0].name


@dataclass(frozen=True, eq=False)
class RowsFit:
    """A fit to rows of ``recordings``, which are in the order of the fit's overheads."""

    found: Fit
    recordings: tuple[Recording, ...]
    is_slowed: bool

    def overhead(self, recording: Recording) -> Floats | None:
        """Coefficients of a recording's nuisances, None if the fit saw no row of it."""
        pairs = zip(self.recordings, self.found.overheads, strict=True)
        return next((overhead for one, overhead in pairs if one is recording), None)


@dataclass(frozen=True, eq=False)
class PricedRows:
    """Predicted and measured device times of rows of one kind; ``places`` are indices into the recording, ``[rows]``.

    Rows that the host hides are excluded; ``is_hidden`` marks those rows of the recording.
    """

    recording: Recording
    places: NDArray[np.int64]
    residuals: Residuals
    #: Part of the recorded latency beyond the device's time, ``[rows]``.
    nuisance_us: Floats
    is_hidden: Mask


def chips(recordings: Sequence[Recording]) -> list[Chip]:
    """GPUs by chip, the board with most rows first; in the order of names."""
    by_chip: dict[tuple[str, int, int], list[Recording]] = {}
    for one in recordings:
        profile = one.profile
        if profile.kind == GPU and one.keys:  # other devices do not inform about GPUs
            lanes = profile.datasheet.fp32_lanes_per_sm.value
            by_chip.setdefault((profile.compute_capability, profile.sm_count, lanes), []).append(one)
    found = []
    for own in by_chip.values():
        rows: dict[str, int] = {}
        for one in own:
            rows[one.profile.name] = rows.get(one.profile.name, 0) + len(one.keys)
        profiles = {one.profile.name: one.profile for one in own}
        names = sorted(profiles, key=lambda name: (-rows[name], name))
        found.append(Chip(tuple(profiles[name] for name in names), tuple(own)))
    return sorted(found, key=lambda chip: chip.name)


def all_rows(recording: Recording) -> Mask:
    """Every row of a recording, ``[rows]``."""
    return np.ones(len(recording.keys), dtype=np.bool_)


def on_lanes(recording: Recording) -> Mask:
    """Rows whose times are independent of tensor cores' parameters, ``[rows]``."""
    profile = recording.profile
    other = profile.device_kind.fits().tensor_cores
    told = {
        precision: profile.device_kind.fits().told_by(profile.architecture, [precision])
        for precision in {row.operator.precision for row in recording.measured.measurements}
    }
    return np.array(
        [told[row.operator.precision].names != other.names for row in recording.measured.measurements], dtype=np.bool_
    )


def fit_lanes(chip: Chip, choose: Choose) -> RowsFit | None:
    """Fit of the parameters of lanes, from a device-independent starting point, to the rows that ``choose`` selects."""
    return _fit_rows(chip.recordings, lambda one: choose(one) & on_lanes(one), neutral(chip.profiles[0]), GPU_SPACE)


def fit_tensor_cores(
    recordings: Sequence[Recording], choose: Choose, start: DeviceProfile, space: ParameterSpace = TENSOR_SPACE
) -> RowsFit | None:
    """Fit of tensor cores' parameters, one set for all boards, given the other parameters in each recording's
    profile.
    """
    return _fit_rows(recordings, lambda one: choose(one) & ~on_lanes(one), start, space)


def _fit_rows(
    recordings: Sequence[Recording], choose: Choose, start: DeviceProfile, space: ParameterSpace
) -> RowsFit | None:
    """Fit to the chosen rows that are not held out; None if there are none."""
    samples, fitted = [], []
    for one in recordings:
        thin = thinned(one, choose(one) & one.seen)
        if not thin.any():
            continue
        rows = zip(one.measured.measurements, thin.tolist(), strict=True)
        weight = default_weight(one.measured.header, [row.operator.kind for row, is_in in rows if is_in])
        seen = one.where(thin)
        # Rows of a slowed board weigh less already.
        samples.append(replace(seen, weight=seen.weight * weight))
        fitted.append(one)
    if not samples:
        return None
    found = fit(samples, start, _ROUNDS, space=space)
    return RowsFit(found, tuple(fitted), any(one.is_slowed for one in samples))


def priced(
    recording: Recording, chosen: Mask, profile: DeviceProfile, overhead: Floats | None = None
) -> list[PricedRows]:
    """Chosen rows priced by a profile, kind by kind; by default with an ``overhead`` fitted to the predictions of all
    rows.
    """
    predicted_us, _ = recording.samples.predict(profile)
    if overhead is None:
        overhead = recording.samples.fit_nuisances(predicted_us)
    is_hidden = recording.samples.hidden(predicted_us, overhead)
    chosen = chosen & ~is_hidden
    if not chosen.any():
        return []
    samples, predicted_us = recording.where(chosen), predicted_us[chosen]
    measured_us = samples.device_us(predicted_us, overhead)
    host_us, slowed_us = samples.nuisances_us(overhead)
    share = predicted_us / (predicted_us + slowed_us)
    nuisance_us = samples.latency_us - (samples.latency_us - host_us) * share
    places, keys = np.flatnonzero(chosen), np.array(recording.keys)[chosen]
    return [
        PricedRows(
            recording,
            places[own],
            Residuals(recording.name, key, predicted_us[own], measured_us[own]),
            nuisance_us[own],
            is_hidden,
        )
        for key in sorted(set(keys.tolist()))
        for own in [keys == key]
    ]
