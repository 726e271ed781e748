"""What is said about the measurements that a calibration was given: rows left out, rows that count little, doubts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from iossim.calibration.fit import Fit
from iossim.calibration.labels import check_label
from iossim.calibration.recording import Recording
from iossim.calibration.residuals import device_times
from iossim.hardware.profile import DeviceProfile
from iossim.measurements.measurement import MeasurementSet
from iossim.measurements.plausibility import check_plausible

#: A row that is off by more than this counts far less than its square would.
OUTLYING_ERROR = 0.5
#: A set of which more than this part is outlying, or whose median is off by more than that, disagrees with the others.
OUTLYING_PART = 0.1
BIASED_ERROR = 0.15
#: Fewer rows of a kind decide little about the parameters of its algorithms.
FEW_ROWS = 30


def usable(measured: MeasurementSet, profile: DeviceProfile, trusts_labels: bool) -> MeasurementSet:
    """The set without what cannot be fitted, and with notes on it; raises MeasurementError if it cannot be right."""
    notes = list(measured.notes)
    warm = tuple(row for row in measured.measurements if not row.is_cold)
    if len(warm) < len(measured.measurements):
        notes.append(
            f"{measured.name}: {len(measured.measurements) - len(warm):,} rows left out: their operands came from DRAM"
        )
    checked = check_plausible(replace(measured, measurements=warm, notes=tuple(notes)), profile)
    return check_label(checked, profile, trusts_labels)


def few_rows(recordings: Sequence[Recording]) -> list[str]:
    """Notes on kinds with few rows, and on fewer rows than there are parameters."""
    notes: list[str] = []
    for one in recordings:
        for key, rows in sorted(Counter(one.keys_where(one.seen)).items()):
            if rows < FEW_ROWS:
                notes.append(
                    f"{one.measured.name}: only {rows} rows of {key} to fit: too few to determine parameters, or "
                    "their errors"
                )
    total = sum(int(one.seen.sum()) for one in recordings)
    precisions = {row.operator.precision for one in recordings for row in one.measured.measurements}
    profile = recordings[0].profile
    parameters = len(profile.device_kind.told_by(profile.architecture, precisions).parameters)
    if total < 2 * parameters:
        notes.append(f"only {total} rows for {parameters} parameters: most stay near where they started")
    return notes


def poorly_explained(recordings: Sequence[Recording], found: Fit) -> list[str]:
    """Notes on sets that the fitted parameters do not explain, and on the rows that were down-weighted."""
    notes: list[str] = []
    for one, overhead in zip(recordings, found.overheads, strict=False):
        samples = one.where(one.seen)
        predicted_us, measured_us = device_times(samples, found.apply(one.profile), overhead)
        ratio = predicted_us / measured_us
        outlying = int((np.abs(ratio - 1) > OUTLYING_ERROR).sum())
        median = float(np.median(ratio))
        if abs(median - 1) > BIASED_ERROR:
            side = "above" if median < 1 else "below"
            notes.append(
                f"{one.measured.name}: measured times lie {100 * abs(1 / median - 1):.0f}% {side} what the fitted "
                "parameters give: the set disagrees with the others or with the model"
            )
        if outlying:
            doubt = ": look at how it was recorded" if outlying > OUTLYING_PART * len(ratio) else ""
            notes.append(
                f"{one.measured.name}: {outlying:,} of {len(ratio):,} fitted rows are off by more than "
                f"{OUTLYING_ERROR:.0%} and count less (robust loss){doubt}"
            )
    return notes
