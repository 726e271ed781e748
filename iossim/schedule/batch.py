"""Batches of stages to be priced: a problem and arrays of bitmasks, since a search requests millions of them.

A unit runs as one of its *variants*: by default the one that is fastest alone. A variant's name joins the kernel
candidates of its unit's steps by ``+``; the default has no name.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from iossim.base.errors import PlanError
from iossim.schedule.problem import Masks, ScheduleProblem


class Strategy(StrEnum):
    """The two strategies of a stage (IOS thesis, section 3.1)."""

    CONCURRENT = "concurrent"  #: groups (connected components) run concurrently, units of a group sequentially
    MERGE = "merge"  #: all units as one stacked convolution

    @property
    def code(self) -> int:
        """The strategy as a number, for arrays of many stages (:class:`iossim.schedule.batch.StageBatch`)."""
        return _CODES[self]

    @staticmethod
    def of_code(code: int) -> Strategy:
        return _STRATEGIES[code]


_STRATEGIES = tuple(Strategy)
_CODES = {strategy: code for code, strategy in enumerate(_STRATEGIES)}


#: The variant that is fastest alone.
FASTEST = ""


class UnitVariant(NamedTuple):
    """One way to run a unit: its name, its time alone, and the workspace of its kernels.

    ``blocks`` and ``sm_share`` are of the kernel whose thread blocks fill most of an SM: their number, and the share
    that one holds; 0 if unknown.
    """

    name: str
    alone_us: float
    workspace_bytes: int
    blocks: int = 0
    sm_share: float = 0.0


def steps_of(variant: str) -> list[str]:
    """The candidate of each step of a named variant."""
    return variant.split("+")


@dataclass(frozen=True, eq=False)
class Variants:
    """Variants of the units of many stages.

    ``names[u]`` are the variants of unit ``u`` that occur, the first of them :data:`FASTEST`. ``chosen[i, u]``
    (uint16, shape ``[stages, units]``) is the index among those of unit ``u``'s variant in stage ``i``; it is
    meaningless if the stage does not contain the unit.
    """

    names: tuple[tuple[str, ...], ...]
    chosen: NDArray[np.uint16]

    @staticmethod
    def of(named: Sequence[Sequence[str]], units: int) -> Variants:
        """The variants of stages in order, given the names of all ``units`` for each."""
        names = tuple(tuple(sorted({FASTEST, *(stage[unit] for stage in named)})) for unit in range(units))
        numbers = [[names[unit].index(name) for unit, name in enumerate(stage)] for stage in named]
        return Variants(names, np.array(numbers, dtype=np.uint16).reshape(len(named), units))


@dataclass(frozen=True, eq=False)
class StageBatch:
    """Stages of one problem, as arrays: ``masks[i]`` (uint64) are the units of stage ``i``, ``strategies[i]`` (uint8,
    :attr:`~iossim.schedule.batch.Strategy.code`) is its strategy; both have shape ``[stages]``.

    ``variants`` has each unit's variant; without it, each unit runs as fastest alone. A merged stage is one separate
    convolution, and has no variants.
    """

    problem: ScheduleProblem
    masks: Masks
    strategies: NDArray[np.uint8]
    variants: Variants | None = None

    def __post_init__(self) -> None:
        if self.problem.is_wide:
            raise ValueError(f"block {self.problem.name!r} is wide: restrict it to the units of the stages first")

    @staticmethod
    def concurrent(problem: ScheduleProblem, masks: Masks) -> StageBatch:
        return StageBatch(problem, masks, np.zeros(len(masks), dtype=np.uint8))

    @staticmethod
    def alone(problem: ScheduleProblem) -> StageBatch:
        """Each unit of the problem as a stage of its own, in their order."""
        return StageBatch.concurrent(problem, np.uint64(1) << np.arange(len(problem), dtype=np.uint64))

    @property
    def held(self) -> NDArray[np.bool_]:
        """True for the units that a stage holds, shape ``[stages, units]``."""
        return (self.masks[:, None] >> np.arange(len(self.problem), dtype=np.uint64) & np.uint64(1)).astype(np.bool_)

    @property
    def merged(self) -> NDArray[np.bool_]:
        """Mask of the merged stages, shape ``[stages]``; the others are concurrent."""
        return np.asarray(self.strategies == Strategy.MERGE.code)

    def take(self, stages: NDArray[np.intp]) -> StageBatch:
        """The stages at these indices, or those selected by a boolean array of shape ``[stages]``."""
        chosen = None if self.variants is None else Variants(self.variants.names, self.variants.chosen[stages])
        return StageBatch(self.problem, self.masks[stages], self.strategies[stages], chosen)

    def by_variants(self) -> Iterator[tuple[tuple[str, ...], NDArray[np.intp]]]:
        """Combinations of variants, one name per unit of the problem, each with the indices of its stages."""
        fastest = (FASTEST,) * len(self.problem)
        if self.variants is None:
            yield fastest, np.arange(len(self))
            return
        rows, of_stage = np.unique(self.variants.chosen * self.held, axis=0, return_inverse=True)
        for number, row in enumerate(rows.tolist()):
            names = tuple(own[chosen] for own, chosen in zip(self.variants.names, row, strict=True))
            yield names, np.flatnonzero(of_stage.reshape(-1) == number)

    def refuse_variants(self) -> None:
        """Raise PlanError if a unit has a variant other than the fastest: for callers that support no other."""
        if self.variants is not None and any(any(names) for names, _ in self.by_variants()):
            raise PlanError(
                f"stages of {self.problem.name!r} name variants of their units, which are not known here; "
                "price them with the simulator, or leave the variants out of the schedule"
            )

    def stages(self) -> Iterator[tuple[int, Strategy]]:
        """The mask and the strategy of each stage: complete without variants; raises PlanError if there are any."""
        self.refuse_variants()
        for mask, code in zip(self.masks.tolist(), self.strategies.tolist(), strict=True):
            yield mask, Strategy.of_code(code)

    def __len__(self) -> int:
        return len(self.masks)
