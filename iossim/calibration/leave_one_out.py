"""How wrong predictions of unseen devices are: each calibrated chip in turn is left out, and predicted from the others.

A chip's donors are fitted here, from a starting point that knows no device, so that nothing of the chip left out is in
them; profiles that ship are not looked at, but for their datasheet facts. Boards with the same chip (by compute
capability and SMs) are one donor, and left out together.

``python -m iossim.calibration.leave_one_out [FOLDER]...`` makes ``iossim/devices/transfer.yaml`` anew: the donors from the
calibrated profiles that ship, the errors and bands from here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from iossim.calibration.accuracy import Residuals, bands_by_kind, gpu_times, residuals_by_kind
from iossim.calibration.bands import band_key
from iossim.calibration.fit import fit
from iossim.calibration.host_overhead import fit_overhead
from iossim.calibration.measurement import Measurement, MeasurementSet
from iossim.calibration.parameter_space import with_values
from iossim.calibration.recording import default_weight
from iossim.calibration.samples import OperatorSamples
from iossim.calibration.subset import samples_where
from iossim.calibration.transfer import donor, neutral, refined_values, transferred
from iossim.devices.profile import DeviceProfile
from iossim.devices.provenance import KindError
from iossim.devices.transfer import Donor, TransferTable

Floats = NDArray[np.float64]
#: A measurement set, and the profile of its device.
DeviceSet = tuple[MeasurementSet, DeviceProfile]
Progress = Callable[[str, int, int], None]

#: The kind whose samples refine a transfer here.
SAMPLED_KIND = "conv"
#: Chips with fewer rows than this are no donors, and not judged.
FEWEST_ROWS = 100
_ROUNDS = 25
#: Donors are fitted to every third row: more changes nothing that another device would notice.
_ROW_STEP = 3


@dataclass(frozen=True, eq=False)
class LeftOut:
    """Predictions of one kind of operators in a data set of a device that was left out.

    ``refined`` leaves out the rows that refined it; None without samples, and for other kinds than the sampled one.
    """

    device: str
    zero_shot: Residuals
    refined: Residuals | None = None

    @property
    def kind(self) -> str:
        return self.zero_shot.key


@dataclass(frozen=True, eq=False)
class LeaveOneOut:
    """All devices left out in turn; ``samples`` are those that refined each, drawn by ``seed``."""

    rows: tuple[LeftOut, ...]
    samples: int
    seed: int

    def errors(self, kind: str, refined: bool = False) -> dict[str, float]:
        """Mean absolute relative error of the GPU time by device, as a fraction."""
        chosen = [(row.device, row.refined if refined else row.zero_shot) for row in self.rows if row.kind == kind]
        return {device: float(np.abs(one.errors).mean()) for device, one in chosen if one is not None}


@dataclass(frozen=True, eq=False)
class _Chip:
    """All that was measured on boards with one chip; the first of ``profiles`` is the one that facts are of."""

    profiles: tuple[DeviceProfile, ...]
    sets: tuple[DeviceSet, ...]

    @property
    def name(self) -> str:
        return self.profiles[0].name


def leave_one_out(
    sets: Sequence[DeviceSet],
    samples: int = 0,
    seed: int = 0,
    progress: Progress = lambda label, done, total: None,
) -> LeaveOneOut:
    """Predict each chip from all others: from datasheet facts, and with ``samples`` of its convolutions.

    Takes about half a minute a chip. Raises ValueError if fewer than two chips have rows enough.
    """
    chips = _chips(sets)
    if len(chips) < 2:
        raise ValueError(
            f"{len(chips)} chips with {FEWEST_ROWS} rows and more: at least 2 are needed to leave one out"
        )
    donors: dict[str, Donor] = {}
    for index, chip in enumerate(chips):
        progress("fit of donors", index, len(chips))
        donors[chip.name] = _fitted_donor(chip)
    progress("fit of donors", len(chips), len(chips))
    rows: list[LeftOut] = []
    for chip in chips:
        others = [donors[other.name] for other in chips if other is not chip]
        rows += _left_out(chip, others, samples, seed)
    return LeaveOneOut(tuple(rows), samples, seed)


def draw(measurements: Sequence[Measurement], count: int, seed: int) -> NDArray[np.bool_]:
    """Which ``count`` of the measurements are drawn, spread evenly over sizes: one at random from each of as many
    equally long runs of the measurements sorted by arithmetic. Shape ``[measurements]``."""
    order = sorted(
        range(len(measurements)), key=lambda i: (measurements[i].operator.flops, measurements[i].operator.key)
    )
    generator = np.random.default_rng(seed)
    chosen = np.zeros(len(measurements), dtype=np.bool_)
    for run in np.array_split(np.array(order, dtype=np.int64), min(count, len(order))):
        chosen[generator.choice(run)] = True
    return chosen


def _chips(sets: Sequence[DeviceSet]) -> list[_Chip]:
    """Sets by chip, the board with most rows first; in the order of names."""
    by_chip: dict[tuple[str, int, int], list[DeviceSet]] = {}
    for measured, profile in sets:
        sheet = profile.datasheet
        key = (sheet.compute_capability.value, profile.sm_count, sheet.fp32_lanes_per_sm.value)
        by_chip.setdefault(key, []).append((_warm(measured), profile))
    chips = []
    for own in by_chip.values():
        rows: dict[str, int] = {}
        for measured, profile in own:
            rows[profile.name] = rows.get(profile.name, 0) + len(measured.measurements)
        if sum(rows.values()) < FEWEST_ROWS:
            continue
        profiles = {profile.name: profile for _, profile in own}
        names = sorted(profiles, key=lambda name: (-rows[name], name))
        chips.append(_Chip(tuple(profiles[name] for name in names), tuple(own)))
    return sorted(chips, key=lambda chip: chip.name)


def _warm(measured: MeasurementSet) -> MeasurementSet:
    return replace(measured, measurements=tuple(row for row in measured.measurements if not row.is_cold))


def _fitted_donor(chip: _Chip) -> Donor:
    samples = []
    for measured, profile in chip.sets:
        # Of short recordings every row.
        step = _ROW_STEP if len(measured.measurements) > 300 else 1
        chosen = measured.measurements[::step]
        if chosen:
            weight = default_weight([row.operator.kind for row in chosen])
            samples.append(OperatorSamples.of(measured, chosen, profile, weight))
    found = fit(samples, neutral(chip.profiles[0]), _ROUNDS)
    return donor(chip.profiles[0], [profile.name for profile in chip.profiles], found.values)


def _left_out(chip: _Chip, donors: Sequence[Donor], count: int, seed: int) -> list[LeftOut]:
    rows: list[LeftOut] = []
    for measured, profile in chip.sets:
        if not measured.measurements:
            continue
        guess = transferred(neutral(profile), donors)
        samples = OperatorSamples.of(measured, measured.measurements, profile, 1.0)
        keys = np.array([band_key(row.operator) for row in measured.measurements])
        zero_shot = _residuals(measured, samples, keys, guess)
        refined: dict[str, Residuals] = {}
        is_sampled = keys == SAMPLED_KIND
        if count and int(is_sampled.sum()) >= FEWEST_ROWS:
            places = np.flatnonzero(is_sampled)
            drawn = np.zeros(len(keys), dtype=np.bool_)
            drawn[places] = draw([measured.measurements[place] for place in places.tolist()], count, seed)
            few = replace(samples_where(samples, drawn), weight=float(drawn.sum()))
            better = with_values(guess, refined_values(guess, few, donors))
            rest = is_sampled & ~drawn
            refined = {one.key: one for one in _residuals(measured, samples_where(samples, rest), keys[rest], better)}
        rows += [LeftOut(profile.name, one, refined.get(one.key)) for one in zero_shot]
    return rows


def _residuals(
    measured: MeasurementSet, samples: OperatorSamples, keys: NDArray[np.str_], profile: DeviceProfile
) -> list[Residuals]:
    """GPU times beside the host's overhead, which is fitted to the fixed predictions."""
    predicted_us, _ = samples.predict(profile)
    overhead = fit_overhead(samples.basis, samples.latency_us, predicted_us, samples.least_us)
    predicted_us, measured_us = gpu_times(samples, profile, overhead)
    return residuals_by_kind(measured.header.data_set, keys.tolist(), predicted_us, measured_us)


def table(donors: Sequence[Donor], result: LeaveOneOut, date: str | None = None) -> TransferTable:
    """The donors with the errors and bands of a leave-one-out."""
    zero_shot = [row.zero_shot for row in result.rows]
    refined = [row.refined for row in result.rows if row.refined is not None]

    def errors(residuals: Sequence[Residuals]) -> list[KindError]:
        return [one.summary() for one in residuals]

    return TransferTable(
        donors=list(donors),
        date=date,
        zero_shot=errors(zero_shot),
        refined=errors(refined),
        bands=bands_by_kind(zero_shot),
        refined_bands=bands_by_kind(refined),
    )
