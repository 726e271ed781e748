"""Remaining fit of concurrent kernels after grids, bytes and times alone: at most one number per data set.

Each is found on a grid of values, minimising the mean logarithmic error of slowdowns, which is robust against a few bad
rows. Every case is simulated once at each value, so that leaving out a family of kernels costs nothing: it is the same
search over fewer of the errors.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from evidence.concurrency.corun_cases import CorunCase, simulated
from iossim.base.compiled import Floats
from iossim.hardware.profile import DeviceProfile, with_values

Bools = NDArray[np.bool_]
#: Function that makes the cases of a data set for a profile.
MakeCases = Callable[[DeviceProfile], Sequence[CorunCase]]


@dataclass(frozen=True, slots=True)
class Knob:
    """A parameter that a data set determines, the values tried, and its default without any data set."""

    name: str
    values: tuple[float, ...]
    untold: float


GRAPH_BESIDE = Knob("graph_beside_us", (0.0, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5), 0.0)


@dataclass(frozen=True, eq=False)
class CorunFit:
    """A data set simulated at each value of its knob: ``ratios``, ``[values, figures]``, are those of all cases'
    figures in order.

    Without a knob there is a single row, of the unchanged profile.
    """

    cases: tuple[CorunCase, ...]
    knob: Knob | None
    ratios: Floats
    #: Row of the unchanged profile.
    own: int

    @property
    def measured(self) -> Floats:
        return np.array([figure.measured for case in self.cases for figure in case.figures])

    @property
    def families(self) -> list[frozenset[str]]:
        """Families of each figure's case, ``[figures]``."""
        return [case.families for case in self.cases for _ in case.figures]

    def row(self, among: Bools | None = None) -> int:
        """Row of the best value, judged by the figures ``among``; without any, that of the default."""
        if self.knob is None:
            return 0
        if among is not None and not among.any():
            return self.knob.values.index(self.knob.untold)
        errors = np.abs(np.log(self.ratios / self.measured))
        return int(np.argmin(errors[:, among if among is not None else slice(None)].mean(axis=1)))

    @property
    def value(self) -> float | None:
        """Value of the knob that the whole data set determines."""
        return None if self.knob is None else self.knob.values[self.row()]

    def in_sample(self) -> Floats:
        """Ratios by the profile as it ships, ``[figures]``."""
        return np.asarray(self.ratios[self.own])

    def without_set(self) -> Floats:
        """Ratios by the knob's value without this data set, ``[figures]``."""
        none = np.zeros(self.ratios.shape[1], dtype=np.bool_)
        return np.asarray(self.ratios[self.row(none)])

    def without_families(self) -> Floats:
        """Ratios by a fit that saw no case with a kernel of a family in the figure's own case, ``[figures]``."""
        families = self.families
        found = np.empty(len(families))
        for index, own in enumerate(families):
            others = np.array([not own & other for other in families])
            found[index] = self.ratios[self.row(others), index]
        return found


def tabulate(make: MakeCases, profile: DeviceProfile, knob: Knob | None) -> CorunFit:
    """Simulate every case at every value of the knob, and at the profile's own."""
    if knob is None:
        cases = tuple(make(profile))
        return CorunFit(cases, None, _simulated(cases, profile)[None, :], 0)
    own = profile.parameter_values[knob.name]
    values = tuple(sorted({*knob.values, knob.untold, own}))
    rows = []
    for value in values:
        tried = with_values(profile, {knob.name: value})
        cases = tuple(make(tried))
        rows.append(_simulated(cases, tried))
    return CorunFit(cases, Knob(knob.name, values, knob.untold), np.array(rows), values.index(own))


def _simulated(cases: Sequence[CorunCase], profile: DeviceProfile) -> Floats:
    return np.array([ratio for case in cases for ratio in simulated(case, profile)])
