"""File formats of measurements, and the conversion of profiled calls to measurements."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from iossim.measurements.measurement import Extent, Measurement, MeasurementSet
from iossim.measurements.operator import Operator


@dataclass(frozen=True, slots=True)
class Format:
    """A readable format, defined by a ``FORMAT`` in a module of ``iossim.measurements.formats``."""

    #: Title in error messages.
    title: str
    #: Whether a file of this name that begins with this text has the format; no file matches two formats.
    recognises: Callable[[Path, str], bool]
    #: The measurements of a file. The second argument is the user's device, or None. Raises MeasurementError.
    read: Callable[[Path, str | None], MeasurementSet]
    #: The sets of a file of several devices; None for formats with one device per file.
    read_sets: Callable[[Path], tuple[MeasurementSet, ...]] | None = None


@dataclass(frozen=True, slots=True)
class Call:
    """One call of an operator: the sum of its kernels' durations, their names, and the extents of the longest."""

    operator: Operator
    duration_us: float
    kernels: tuple[str, ...]
    grid: Extent | None = None
    block: Extent | None = None


def measurements_of_calls(calls: Iterable[Call]) -> tuple[Measurement, ...]:
    """The median of each operator's calls, in the order of the first ones.

    Only calls with the most common sequence of kernels count (the last of equally common ones): the first calls may
    have searched for an algorithm, or loaded one.
    """
    of_operator: dict[Operator, list[Call]] = defaultdict(list)
    for call in calls:
        of_operator[call.operator].append(call)
    return tuple(_measurement(own, row) for row, own in enumerate(of_operator.values()))


def _measurement(calls: list[Call], row: int) -> Measurement:
    counts = Counter(call.kernels for call in reversed(calls))
    kernels = counts.most_common(1)[0][0]
    usual = [call for call in calls if call.kernels == kernels]
    low, middle, high = np.percentile([call.duration_us for call in usual], (10, 50, 90)).tolist()
    return Measurement(
        usual[-1].operator,
        middle,
        row,
        high - low,
        len(usual),
        kernels=kernels,
        grid=usual[-1].grid,
        block=usual[-1].block,
    )
