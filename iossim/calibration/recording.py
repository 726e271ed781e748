"""A measurement set ready for a fit: operators lowered, rows split into seen and held-out ones; and doubts about it, of
rows that are left out, of labels, and of what a fit explains poorly.

Two signs suggest that a set is of another device than its label says. Kernels are named for the architecture that they
were compiled for, and do not run on older ones. And a set that its own device explains badly, before the fit, may be
explained far better by another.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from iossim.base.compiled import Integers
from iossim.base.display import counted
from iossim.calibration.accuracy import FEWEST_RESIDUALS, band_key, device_times
from iossim.calibration.fit import Fit
from iossim.calibration.samples import OperatorSamples
from iossim.hardware.compute_capability import Architecture
from iossim.hardware.kind import GPU
from iossim.hardware.load import device
from iossim.hardware.names import shipped_names
from iossim.hardware.profile import DeviceProfile
from iossim.measurements.measurement import HELD_OUT_FRACTION, Header, Measurement, MeasurementSet, unusable
from iossim.measurements.measurement_set import check_plausible

Mask = NDArray[np.bool_]

#: Weight of a row of a kind. Element-wise rows determine two parameters, and are all alike.
ROW_WEIGHTS = {"conv": 1.0, "linear": 0.25, "gemm": 1.0}
OTHER_ROW_WEIGHT = 0.06
#: A row without the host's overhead shows the device's time itself.
STEADY_FACTOR = 8.0

#: Most rows of a kind of a recording that a fit sees: more, evenly over sizes, would only cost time.
MOST_FITTED_ROWS = 1_000

#: Most rows of a recording that are kept for judging, of those held out, and of the others. Sets of products of stacks
#: have some ten thousand rows; most others keep all held-out rows.
MOST_HELD_OUT_ROWS, MOST_SEEN_ROWS = 1500, 2500

_FOLD_DIGITS = slice(20, 35)  # digits of the shape's hash other than those that decide what is held out


@dataclass(frozen=True, eq=False)
class Recording:
    """``samples`` are all rows of ``measured``; ``is_held_out`` and ``fold`` (``[rows]``) follow from shapes.

    ``keys`` are the rows' kinds (see ``accuracy.band_key``).
    """

    measured: MeasurementSet
    profile: DeviceProfile
    samples: OperatorSamples
    is_held_out: NDArray[np.bool_]
    fold: Integers
    keys: tuple[str, ...]
    #: Rows measured with cold caches, which were left out.
    cold_rows: int = 0

    @staticmethod
    def of(
        measured: MeasurementSet,
        profile: DeviceProfile,
        held_out: float,
        folds: int,
        weight: float | None = None,
        rows: tuple[Measurement, ...] | None = None,
    ) -> Recording:
        """``held_out`` is the fraction of shapes that no fit sees; ``weight`` is by default :func:`default_weight`,
        ``rows`` all of the set's (on a slowing board each depends on those before, kept or not).
        """
        rows = measured.measurements if rows is None else rows
        outside = np.array([row.operator.is_held_out(held_out) for row in rows], dtype=np.bool_)
        seen = [row.operator.kind for row, is_out in zip(rows, outside, strict=True) if not is_out]
        return Recording(
            replace(measured, measurements=rows),
            profile,
            OperatorSamples.of(measured, rows, profile, weight or default_weight(measured.header, seen)),
            outside,
            np.array([int(row.operator.shape_hash[_FOLD_DIGITS], 16) % max(folds, 1) for row in rows]),
            tuple(band_key(row.operator) for row in rows),
        )

    @property
    def name(self) -> str:
        return self.measured.header.data_set

    @property
    def seen(self) -> Mask:
        return ~self.is_held_out

    @cached_property
    def fitted(self) -> Mask:
        """Rows that a fit sees."""
        return thinned(self, self.seen)

    def where(self, chosen: NDArray[np.bool_]) -> OperatorSamples:
        """Samples of some rows, with the weight of all."""
        return self.samples.where(chosen)

    def keys_where(self, chosen: NDArray[np.bool_]) -> list[str]:
        return [key for key, is_chosen in zip(self.keys, chosen.tolist(), strict=True) if is_chosen]


def default_weight(header: Header, kinds: Sequence[str]) -> float:
    """Total weight of rows of these kinds of a set."""
    factor = 1.0 if header.includes_host_overhead else STEADY_FACTOR
    return factor * sum(ROW_WEIGHTS.get(kind, OTHER_ROW_WEIGHT) for kind in kinds)


def weighted(recordings: Sequence[Recording]) -> list[Recording]:
    """Recordings, with weights of at most the number of rows: a few rows do not outweigh the prior."""
    rows = sum(int(one.seen.sum()) for one in recordings)
    total = sum(one.samples.weight for one in recordings)
    factor = min(1.0, rows / total) if total > 0 else 1.0
    return [replace(one, samples=replace(one.samples, weight=one.samples.weight * factor)) for one in recordings]


def thinned(recording: Recording, chosen: Mask) -> Mask:
    """At most :data:`MOST_FITTED_ROWS` of the chosen rows of each kind, ``[rows]``."""
    kept = np.zeros_like(chosen)
    keys = np.array(recording.keys)
    for key in sorted(set(recording.keys)):
        kept |= spread(recording.measured.measurements, chosen & (keys == key), MOST_FITTED_ROWS)
    return kept


def work(row: Measurement) -> tuple[int, int, str]:
    """Sort key of rows: arithmetic, then bytes; rows that are equal in both by their shapes."""
    return row.operator.flops, row.operator.bytes, row.operator.key


def spread(rows: Sequence[Measurement], chosen: Mask, count: int) -> Mask:
    """Mask of ``count`` of the chosen rows, spread evenly over sizes, ``[rows]``; all if there are no more."""
    places = np.flatnonzero(chosen).tolist()
    if len(places) <= count:
        return chosen
    order = np.array(sorted(places, key=lambda place: work(rows[place])), dtype=np.int64)
    kept = np.zeros_like(chosen)
    kept[order[np.linspace(0, len(order) - 1, count).round().astype(np.int64)]] = True
    return kept


def lowered(measured: MeasurementSet, profile: DeviceProfile, held_out: float = HELD_OUT_FRACTION) -> Recording:
    """A recording of as many of the set's rows as are kept, without those with operands in DRAM."""
    warm = [row for row in measured.measurements if not row.is_cold]
    outside = np.array([row.operator.is_held_out(held_out) for row in warm], dtype=np.bool_)
    kept = spread(warm, outside, MOST_HELD_OUT_ROWS) | spread(warm, ~outside, MOST_SEEN_ROWS)
    rows = tuple(row for row, is_kept in zip(warm, kept.tolist(), strict=True) if is_kept)
    found = Recording.of(measured, profile, held_out, 1, 1.0, rows)
    return replace(found, cold_rows=len(measured.measurements) - len(warm))


#: A label is doubted from this typical factor (a median over rows) between predicted and measured time, if the
#: logarithm of another device's is at most half of it.
DOUBTFUL_FACTOR = 1.4
BETTER_PART = 0.5
#: Number of rows examined.
_ROWS = 120
#: Fewer rows than this cannot distinguish devices.
_FEWEST = 20

_AGES = {architecture: age for age, architecture in enumerate(Architecture)}


def check_label(measured: MeasurementSet, profile: DeviceProfile, trusts_labels: bool = False) -> MeasurementSet:
    """The set, with a note if its label is in doubt and is a device of the user's own.

    Raises MeasurementError if it cannot be of this device, or if the label is a device that ships and is in doubt; the
    latter unless labels are trusted.
    """
    _check_architecture(measured, profile)
    # A CPU's set is of no GPU; rows do not reveal which CPU.
    if profile.kind != GPU or trusts_labels or len(measured.measurements) < _FEWEST:
        return measured
    chosen = np.unique(np.linspace(0, len(measured.measurements) - 1, _ROWS).astype(int)).tolist()
    part = replace(measured, measurements=tuple(measured.measurements[index] for index in chosen))
    own = _typical_error(part, profile)
    if own < np.log(DOUBTFUL_FACTOR):
        return measured
    names = [name for name in shipped_names() if name != profile.name]
    errors = {name: _typical_error(part, device(name)) for name in names}
    nearest = min(names, key=lambda name: errors[name])
    least = errors[nearest]
    if least > BETTER_PART * own:
        return measured
    off, off_there = np.exp(own), np.exp(least)
    doubt = f"the rows are off by a factor of {off:.2f} for {profile.name}, by {off_there:.2f} for {nearest}"
    if profile.name in shipped_names():
        remedy = f"is the device right? give `device` {nearest}, or `trust_labels` if it is"
        raise unusable(measured.name, f"{doubt}; {remedy}")
    return replace(measured, notes=(*measured.notes, f"{measured.name}: {doubt}: is the device right?"))


def _check_architecture(measured: MeasurementSet, profile: DeviceProfile) -> None:
    counts = _architectures(measured)
    if profile.kind != GPU:
        if counts:
            told = f"{sum(counts.values()):,} rows ran kernels of GPUs, {profile.name} is a {profile.device_kind.noun}"
            raise unusable(measured.name, f"{told}; give the device that was measured with `device`")
        return
    newer = [name for name in _AGES if _AGES[name] > _AGES[Architecture(profile.architecture)] and counts[name]]
    if newer:
        told = f"{counts[newer[-1]]:,} rows ran kernels made for {newer[-1]}"
        where = f"{profile.name} ({profile.architecture})"
        raise unusable(
            measured.name, f"{told}, which do not run on {where}; give the device that was measured with `device`"
        )


def _architectures(measured: MeasurementSet) -> Counter[Architecture]:
    known = {str(architecture): architecture for architecture in _AGES}
    names = ({re.split("[^a-z]", kernel)[0] for kernel in row.kernels} for row in measured.measurements)
    return Counter(known[name] for of_row in names for name in of_row & known.keys())


def _typical_error(measured: MeasurementSet, profile: DeviceProfile) -> float:
    """Median of |log(predicted / measured device time)|, with the best fitting overhead.

    Only rows that the host does not hide count; 0 if it hides all.
    """
    samples = OperatorSamples.of(measured, measured.measurements, profile, 1.0)
    predicted_us, measured_us, is_shown = device_times(samples, profile)
    return float(np.median(np.abs(np.log(predicted_us / measured_us)[is_shown]))) if is_shown.any() else 0.0


#: A row with a larger error counts far less than its square would.
OUTLYING_ERROR = 0.5
#: A set disagrees with the others if more than this fraction is outlying, or its median is off by more than that.
OUTLYING_PART = 0.1
BIASED_ERROR = 0.15
#: Fewer rows of a kind hardly determine the parameters of its algorithms.
FEW_ROWS = 30


def usable(measured: MeasurementSet, profile: DeviceProfile, trusts_labels: bool) -> MeasurementSet:
    """The set without rows that cannot be fitted, and with notes on it.

    Raises MeasurementError if it is impossible, or names another device and labels are not trusted.
    """
    if not trusts_labels and measured.device != profile.name.partition("+")[0]:
        remedy = f"give `device` {measured.device}, or `trust_labels` to fit them all the same"
        raise unusable(measured.name, f"recorded on {measured.device}, not on {profile.name}; {remedy}")
    notes = list(measured.notes)
    warm = tuple(row for row in measured.measurements if not row.is_cold)
    if len(warm) < len(measured.measurements):
        cold = len(measured.measurements) - len(warm)
        notes.append(f"{measured.name}: {cold:,} rows left out: their operands came from DRAM")
    checked = check_plausible(replace(measured, measurements=warm, notes=tuple(notes)), profile)
    return check_label(checked, profile, trusts_labels)


def few_rows(recordings: Sequence[Recording]) -> list[str]:
    """Notes on kinds with few rows, and on sets with fewer rows than parameters."""
    notes: list[str] = []
    for one in recordings:
        rows_of = sorted(Counter(one.keys_where(one.seen)).items())
        if few := ", ".join(f"{rows} of {key}" for key, rows in rows_of if rows < FEW_ROWS):
            notes.append(f"{one.measured.name}: too few rows to determine parameters, or their errors: {few}")
    total = sum(int(one.seen.sum()) for one in recordings)
    precisions = {row.operator.precision for one in recordings for row in one.measured.measurements}
    profile = recordings[0].profile
    parameters = len(profile.device_kind.fits().told_by(profile.architecture, precisions).parameters)
    if total < 2 * parameters:
        notes.append(f"only {counted(total, 'row')} for {parameters} parameters: most stay near where they started")
    return notes


def borrowed_intervals(recordings: Sequence[Recording], bands: Collection[str], folds: int) -> list[str]:
    """A note on kinds of operators without a band of their own residuals."""
    kinds = sorted({key for one in recordings for key in one.keys_where(one.seen)} - set(bands))
    told = (
        f"intervals of {', '.join(kinds)} are not from these rows: of each kind, {FEWEST_RESIDUALS} must be predicted"
    )
    remedy = "measure more" if folds > 1 else "cross-validate (`folds` 5), or measure more"
    return [f"{told} by a fit that did not see them; {remedy}"] * bool(kinds)


def poorly_explained(recordings: Sequence[Recording], found: Fit) -> list[str]:
    """Notes on sets that the fitted parameters do not explain, and on down-weighted rows."""
    notes: list[str] = []
    for one, overhead in zip(recordings, found.overheads, strict=False):
        samples = one.where(one.seen)
        predicted_us, measured_us, _ = device_times(samples, found.apply(one.profile), overhead)
        ratio = predicted_us / measured_us
        outlying = int((np.abs(ratio - 1) > OUTLYING_ERROR).sum())
        median = float(np.median(ratio))
        if abs(median - 1) > BIASED_ERROR:
            side = "above" if median < 1 else "below"
            notes.append(
                f"{one.measured.name}: measured times are {100 * abs(1 / median - 1):.0f}% {side} what the fitted "
                "parameters give: the set disagrees with the others or with the model"
            )
        if outlying:
            doubt = ": look at how it was recorded" if outlying > OUTLYING_PART * len(ratio) else ""
            notes.append(
                f"{one.measured.name}: {outlying:,} of {len(ratio):,} fitted rows are off by more than "
                f"{OUTLYING_ERROR:.0%} and count less (robust loss){doubt}"
            )
    return notes
