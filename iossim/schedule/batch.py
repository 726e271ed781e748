"""Stages to be priced together: a problem and arrays of bitmasks, since a search asks for millions of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from iossim.schedule.problem import Masks, ScheduleProblem
from iossim.schedule.strategy import Strategy


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

    @property
    def merged(self) -> NDArray[np.bool_]:
        """Which of the stages are merged, shape ``[stages]``; the others are concurrent."""
        found: NDArray[np.bool_] = self.strategies == Strategy.MERGE.code
        return found

    def stages(self) -> Iterator[tuple[int, Strategy]]:
        """The mask and the strategy of each stage."""
        for mask, code in zip(self.masks.tolist(), self.strategies.tolist(), strict=True):
            yield mask, Strategy.of_code(code)

    def __len__(self) -> int:
        return len(self.masks)
