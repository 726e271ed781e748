"""From the calls that a profiler saw to measurements: one for each operator."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from iossim.measurements.measurement import Extent, Measurement
from iossim.measurements.operator import Operator


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

    Only calls with the most common sequence of kernels count, of equally common ones the last: the first calls may have
    searched for an algorithm, or loaded one.
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
