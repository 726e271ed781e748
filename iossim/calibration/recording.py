"""A measurement set ready for a fit: operators lowered, rows split into seen and held-out ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from iossim.base.compiled import Integers
from iossim.calibration.accuracy import band_key
from iossim.calibration.samples import OperatorSamples
from iossim.hardware.profile import DeviceProfile
from iossim.measurements.measurement import HELD_OUT_FRACTION, Header, Measurement, MeasurementSet

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
