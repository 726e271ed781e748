"""Splits of operators other than by hash: the largest operators or a device is held out.

*Size*: of each kind of a data set the smaller 80% by work is fitted, and the largest 20% judged; the error inside is
that of small shapes held out by their hash. *Device*: each chip is predicted from the others, from datasheet facts
alone and with samples of the kind. All fits start from device-independent parameters. Each is compared with the stated
interval, and the first with a calibrated roofline that saw the same rows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evidence.profiles.chips import Chip, PricedRows, RowsFit, fit_lanes, fit_tensor_cores, on_lanes, priced
from evidence.profiles.leave_one_out import LeaveOneOut
from evidence.validation.roofline import CalibratedRoofline, Roofs
from iossim.base.compiled import Floats
from iossim.base.errors import Progress, ignore
from iossim.calibration.accuracy import Accuracy, bands_by_kind, coverage, width
from iossim.calibration.recording import Recording, work
from iossim.hardware.profile import with_values
from iossim.hardware.provenance import Provenance
from iossim.prediction.bands import kind_of, measured_over_predicted

Mask = NDArray[np.bool_]

#: Fraction of the rows of a kind that counts as largest.
LARGEST_PART = 0.2
#: Kinds of a data set with fewer rows are not split by size.
FEWEST_ROWS = 50


@dataclass(frozen=True, eq=False)
class SplitRows:
    """Predictions of rows of one kind of a data set that a fit did not see, ``[rows]`` each.

    ``part`` is ``inside`` or ``largest`` of a split by size, ``zero-shot`` or ``sampled`` of one by device. The
    roofline's times are nan if it had too few rows.
    """

    split: str
    part: str
    device: str
    data_set: str
    #: Kind with its precision, as a key of bands.
    key: str
    predicted_us: Floats
    measured_us: Floats
    low_us: Floats
    high_us: Floats
    baseline_us: Floats

    def __len__(self) -> int:
        return len(self.measured_us)

    @property
    def accuracy(self) -> Accuracy:
        return Accuracy.of(self.predicted_us, self.measured_us)

    @property
    def roofline(self) -> Accuracy:
        return Accuracy.of(self.baseline_us, self.measured_us)

    @property
    def far_off(self) -> int:
        """Number of rows whose prediction is over twice or under half the measured time."""
        ratio = self.predicted_us / self.measured_us
        return int(((ratio > 2.0) | (ratio < 0.5)).sum())

    @property
    def coverage(self) -> float | None:
        """Fraction of the measured times within the interval of their prediction."""
        return coverage(self.low_us, self.high_us, self.measured_us)

    @property
    def width(self) -> float | None:
        """Median of the intervals' high over low ends."""
        return width(self.low_us, self.high_us)

    def to_json(self) -> dict[str, Any]:
        return {
            "split": self.split,
            "part": self.part,
            "device": self.device,
            "data_set": self.data_set,
            "kind": self.key,
            "gpu_time": self.accuracy.to_json(),
            "rows_over_2x": self.far_off,
            "calibrated_roofline": self.roofline.to_json(),
            "interval_coverage": self.coverage,
            "interval_width": self.width,
        }


def split_by_size(found: Sequence[Chip], progress: Progress = ignore) -> tuple[SplitRows, ...]:
    """Inside and largest rows of each kind with enough rows, by a fit without the largest."""
    rows: list[SplitRows] = []
    for done, chip in enumerate(found):
        progress(done, len(found))
        largest = {id(one): _largest(one) for one in chip.recordings}

        def small(one: Recording, largest: Mapping[int, Mask] = largest) -> Mask:
            return np.asarray(~largest[id(one)])

        for by_lanes, made in ((True, fit_lanes(chip, small)), (False, _tensor_fit(chip, small))):
            if made is None:
                continue
            for one in chip.recordings:
                own = on_lanes(one) if by_lanes else ~on_lanes(one)
                parts = {"inside": own & ~largest[id(one)] & one.is_held_out, "largest": own & largest[id(one)]}
                profile = with_values(one.profile, made.found.values)
                # Small rows do not determine by how much a slowed board lengthens large ones.
                overhead = None if one.samples.is_slowed else made.overhead(one)
                for part, chosen in parts.items():
                    for each in priced(one, chosen, profile, overhead):
                        is_kind = np.array(one.keys) == each.residuals.key
                        if (largest[id(one)] & is_kind).any():
                            roofline_us = _own_roofline(each, small(one) & one.seen & is_kind)
                            rows.append(_judged("size", part, each, roofline_us, one.profile.provenance))
    progress(len(found), len(found))
    return tuple(sorted(rows, key=lambda row: (row.device, row.data_set, row.key)))


def split_by_device(found: LeaveOneOut) -> tuple[SplitRows, ...]:
    """Each chip predicted from the others; intervals are as wide as leaving out the others justifies."""
    rows: list[SplitRows] = []
    for chip in sorted({row.chip for row in found.rows}):
        others = [row for row in found.rows if row.chip != chip]
        bands = {
            "zero-shot": bands_by_kind(row.zero_shot for row in others),
            "sampled": bands_by_kind(row.refined for row in others if row.refined is not None),
        }
        for row in found.rows:
            if row.chip != chip or row.priced is None:
                continue
            for part, each in (("zero-shot", row.priced), ("sampled", row.refined_rows)):
                if each is not None:
                    said = Provenance(kind="transferred", note="", bands=bands[part])
                    rows.append(_judged("device", part, each, np.full(len(each.places), np.nan), said))
    return tuple(rows)


def _tensor_fit(chip: Chip, choose: Callable[[Recording], Mask]) -> RowsFit | None:
    return fit_tensor_cores(chip.recordings, choose, chip.profiles[0])


def _largest(recording: Recording) -> Mask:
    found = np.zeros(len(recording.keys), dtype=np.bool_)
    keys, rows = np.array(recording.keys), recording.measured.measurements
    for key in sorted(set(recording.keys)):
        places = np.flatnonzero(keys == key)
        if len(places) >= FEWEST_ROWS:
            order = sorted(places.tolist(), key=lambda place: work(rows[place]))
            found[order[len(order) - int(LARGEST_PART * len(order)) :]] = True
    return found


def _judged(split: str, part: str, each: PricedRows, roofline_us: Floats, provenance: Provenance) -> SplitRows:
    """Rows with the intervals of a provenance's bands; ``roofline_us`` are its device times."""
    recording, residuals = each.recording, each.residuals
    operator = recording.measured.measurements[each.places[0]].operator
    kind = kind_of(operator.op, operator.kind)
    profile = recording.profile.model_copy(update={"provenance": provenance})
    bands = [measured_over_predicted(kind, operator.precision, us, profile) for us in residuals.predicted_us.tolist()]
    ends = np.array([(band.low, band.high) for band in bands])
    return SplitRows(
        split,
        part,
        recording.profile.name,
        residuals.data_set,
        residuals.key,
        residuals.predicted_us,
        residuals.measured_us,
        residuals.predicted_us * ends[:, 0],
        residuals.predicted_us * ends[:, 1],
        roofline_us,
    )


def _own_roofline(each: PricedRows, seen: Mask) -> Floats:
    """Device times by a roofline fitted to the rows that are ``seen``, with its own nuisance; nan if too few."""
    samples, rows, seen = each.recording.samples, each.recording.measured.measurements, seen & ~each.is_hidden

    def roofs(places: NDArray[np.int64]) -> Roofs:
        return Roofs.of([rows[place].operator for place in places.tolist()], each.recording.profile)

    basis, latency_us = samples.basis[seen], samples.latency_us[seen]
    # The shortest rows tell the overhead of the host.
    floor_us = float(np.quantile(latency_us, 0.02)) if basis.shape[1] and len(latency_us) else 0.0
    scale_us = np.maximum(latency_us - floor_us, samples.least_us)
    model = CalibratedRoofline.fit(roofs(np.flatnonzero(seen)), basis, latency_us, scale_us)
    if model is None:
        return np.full(len(each.places), np.nan)
    return model.latency_us(roofs(each.places), samples.basis[each.places]) - each.nuisance_us
