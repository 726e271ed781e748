"""Stages to be priced together: a problem and arrays of bitmasks, since a search asks for millions of them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from iossim.schedule.problem import Masks, ScheduleProblem


@dataclass(frozen=True, eq=False)
class StageBatch:
    """``masks[i]`` (uint64) are the units of stage ``i``, ``strategies[i]`` (uint8,
    :attr:`~iossim.schedule.strategy.Strategy.code`) how they run; both have shape ``[stages]``.
    """

    problem: ScheduleProblem
    masks: Masks
    strategies: NDArray[np.uint8]

    @staticmethod
    def concurrent(problem: ScheduleProblem, masks: Masks) -> StageBatch:
        return StageBatch(problem, masks, np.zeros(len(masks), dtype=np.uint8))

    def __len__(self) -> int:
        return len(self.masks)
