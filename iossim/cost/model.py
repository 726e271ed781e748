"""The contract between a search and what prices its stages.

A cost model never sees the search, and a search never sees what is behind the prices: a simulator, a measured
device, a table. Prices are microseconds as float64; ``inf`` means that the stage cannot run.

What stands between two stages depends on both of them: an engine that gives each group a stream synchronises
between two stages unless both have a single group. So the price of a stage leaves the boundary out, a boundary is
priced from one bit of each neighbour (*concurrent*: does it run several groups?), and the latency of a schedule is

    sum of stage prices + sum over neighbours of price_boundary(left, right)
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import asdict, dataclass
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from iossim.schedule.batch import StageBatch
from iossim.schedule.problem import ScheduleProblem

Prices = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class CostModelIdentity:
    """What a price depends on besides the stage: the key under which prices may be kept."""

    name: str
    device: str = ""
    precision: str = ""
    engine: str = ""
    version: str = ""

    def to_json(self) -> dict[str, str]:
        return asdict(self)


@dataclass(frozen=True, eq=False)
class StageBounds:
    """Numbers from which a search bounds the prices of stages from below, without asking for them.

    For every *concurrent* stage of the problem, with ``U`` its units and groups its connected components:

    - ``price >= max over groups of sum(serial_us[u] for u in group)``, since a group runs one after another;
    - ``price >= sum(work_us[u, r] for u in U)`` for every resource ``r``, since no resource serves faster than it can
      (``work_us[u, r]``: microseconds for which unit ``u`` alone would fill resource ``r``);
    - for a stage of a single group ``price >= sum(single_us[u] for u in U)``, with ``single_us >= serial_us``.

    ``serial_us`` and ``single_us`` have shape ``[n]``, ``work_us`` shape ``[n, resources]``; all are finite and not
    negative. Merged stages are not covered: a search that may merge prices the few merged stages first.
    """

    serial_us: NDArray[np.float64]
    single_us: NDArray[np.float64]
    work_us: NDArray[np.float64]


class CostModel(Protocol):
    """Prices stages in batches."""

    @property
    def identity(self) -> CostModelIdentity: ...

    def price_stages(self, batch: StageBatch) -> Prices:
        """Microseconds of each stage, shape ``[len(batch)]``; a stage's price leaves its boundaries out."""
        ...

    def price_boundary(self, left_concurrent: bool, right_concurrent: bool) -> float:
        """Microseconds between two neighbouring stages; never negative."""
        ...

    def bounds(self, problem: ScheduleProblem) -> StageBounds | None:
        """Lower bounds for a problem's stages, or None where the model knows none."""
        ...


@runtime_checkable
class MeasuringCostModel(CostModel, Protocol):
    """A cost model to which each distinct stage is an expense: it measures them."""

    def signatures(self, batch: StageBatch) -> list[Hashable]:
        """For each stage what its price depends on: stages of equal signature share one measurement."""
        ...
