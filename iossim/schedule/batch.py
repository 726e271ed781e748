"""Stages to be priced together: a problem and arrays of bitmasks, since a search asks for millions of them."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from iossim.schedule.problem import Masks, ScheduleProblem


class Strategy(IntEnum):
    """How the units of a stage run (IOS thesis, section 3.1)."""

    CONCURRENT = 0  #: groups (connected components) side by side, the units of a group one after another
    MERGE = 1  #: all units as one stacked convolution

    @property
    def label(self) -> str:
        return self.name.lower()


@dataclass(frozen=True, eq=False)
class StageBatch:
    """``masks[i]`` (uint64) are the units of stage ``i``, ``strategies[i]`` (uint8, :class:`Strategy`) how they run."""

    problem: ScheduleProblem
    masks: Masks
    strategies: NDArray[np.uint8]

    @staticmethod
    def concurrent(problem: ScheduleProblem, masks: Masks) -> StageBatch:
        return StageBatch(problem, masks, np.zeros(len(masks), dtype=np.uint8))

    def __len__(self) -> int:
        return len(self.masks)
