"""Candidates of operators in flat arrays, priced repeatedly with other parameters.

Lowering is independent of parameters, so it is done once. ``kernels`` has one row per kernel of each candidate of each
operator; ``candidate_begin`` and ``operator_begin`` are the starts of each.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from iossim.backends.simulator.device_rates import DeviceRates
from iossim.backends.simulator.kernel_rows import kernel_table
from iossim.backends.simulator.kernel_times import ALONE, time_kernels
from iossim.base.compiled import Floats, Integers
from iossim.hardware.lowering.kernel import Candidate, Libraries
from iossim.hardware.profile import DeviceProfile


@dataclass(frozen=True, eq=False)
class CandidateTable:
    """``operators`` operators, each with its candidates; the module describes the arrays.

    ``kernel_count`` is the number of kernels of each candidate, ``passed_over_us`` that of
    :class:`~iossim.hardware.lowering.kernel.Candidate`.
    """

    kernels: NDArray[np.void]
    candidate_begin: Integers
    operator_begin: Integers
    kernel_count: Integers
    passed_over_us: Floats

    @staticmethod
    def of(
        profile: DeviceProfile, alternatives: Iterable[Sequence[Candidate]], libraries: Libraries = Libraries.CURRENT
    ) -> CandidateTable:
        """Candidates of each operator on ``profile`` in ``libraries``."""
        known = [[one for one in candidates if one.is_in(libraries)] for candidates in alternatives]
        every = [one for several in known for one in several]
        counts = np.array([len(one.kernels) for one in every], dtype=np.int64)
        return CandidateTable(
            kernel_table(profile.limits, [kernel for one in every for kernel in one.kernels]),
            begins(counts),
            begins(list(map(len, known))),
            counts,
            np.array([one.passed_over_us for one in every], dtype=np.float64),
        )

    @property
    def operators(self) -> int:
        return len(self.operator_begin) - 1

    def candidate_us(self, rates: DeviceRates) -> Floats:
        """Device time of each candidate, its kernels in sequence with their gaps, shape ``[candidates]``."""
        alone_us = time_kernels(self.kernels, rates)[:, ALONE]
        return np.add.reduceat(alone_us, self.candidate_begin[:-1])

    def fastest(self, candidate_us: Floats) -> Integers:
        """Candidate of each operator with the least sum of ``candidate_us`` and ``passed_over_us``, the first of
        equals, shape ``[operators]``.
        """
        candidate_us = candidate_us + self.passed_over_us
        least = np.minimum.reduceat(candidate_us, self.operator_begin[:-1])
        is_least = candidate_us == np.repeat(least, np.diff(self.operator_begin))
        places = np.flatnonzero(is_least)
        first = np.searchsorted(places, self.operator_begin[:-1])
        return places[first]


def begins(counts: Sequence[int] | Integers) -> Integers:
    found = np.zeros(len(counts) + 1, dtype=np.int64)
    np.cumsum(counts, out=found[1:])
    return found
