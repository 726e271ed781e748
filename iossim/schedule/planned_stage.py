"""A stage as planned by a search, a mask over the units of a problem, and its conversion to a schedule's stage."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from iossim.base.errors import PlanError
from iossim.schedule.batch import FASTEST, StageBatch, Strategy, Variants
from iossim.schedule.problem import MAX_UNITS, ScheduleProblem, bits
from iossim.schedule.schedule import BlockSchedule, Stage


@dataclass(frozen=True, slots=True)
class PlannedStage:
    """Units (a mask of the problem) and their execution.

    ``variants`` are pairs of a unit and the name of its variant, by unit; others run as fastest alone.
    """

    mask: int
    strategy: Strategy
    variants: tuple[tuple[int, str], ...] = ()

    @staticmethod
    def of(problem: ScheduleProblem, stage: Stage) -> PlannedStage:
        """The planned form of a stage of a schedule that fits the problem's block."""
        position = {name: index for index, name in enumerate(problem.unit_names)}
        variants = sorted((position[unit], variant) for unit, variant in stage.variants.items())
        return PlannedStage(sum(1 << position[unit] for unit in stage.units), stage.strategy, tuple(variants))

    def groups(self, problem: ScheduleProblem) -> list[int]:
        """The masks of concurrent groups: connected components, lowest unit first; merged units are one."""
        return [self.mask] if self.strategy is Strategy.MERGE else problem.groups(self.mask)

    def is_concurrent(self, problem: ScheduleProblem) -> bool:
        """True if several groups run concurrently: the only property that boundaries depend on."""
        return len(self.groups(problem)) > 1

    def spread(self, units: Sequence[int] | Mapping[int, int]) -> PlannedStage:
        """A stage of another problem, for example of a part of it: ``units`` has the unit there of each unit here."""
        variants = tuple((units[unit], variant) for unit, variant in self.variants)
        return PlannedStage(sum(1 << units[unit] for unit in bits(self.mask)), self.strategy, variants)

    def named(self, problem: ScheduleProblem, latency_us: float = 0.0, boundary_us: float = 0.0) -> Stage:
        """The stage by the names of its units, with its price and its preceding boundary, in us."""
        groups = [[problem.unit_names[unit] for unit in bits(group)] for group in self.groups(problem)]
        return Stage(
            strategy=self.strategy,
            groups=groups,
            variants={problem.unit_names[unit]: variant for unit, variant in self.variants},
            latency_us=latency_us,
            boundary_us=boundary_us,
        )


def planned(problem: ScheduleProblem, block: BlockSchedule) -> tuple[PlannedStage, ...]:
    """The stages of a block's schedule that fits the problem."""
    return tuple(PlannedStage.of(problem, stage) for stage in block.stages)


def batches_of(problem: ScheduleProblem, stages: Sequence[PlannedStage]) -> Iterator[StageBatch]:
    """Planned stages of one problem in order: in one batch, or for a wide problem one per run of few units.

    Raises PlanError for a stage of more units than compiled code supports.
    """
    if not problem.is_wide:
        yield batch_of(problem, stages)
        return
    begin = 0
    while begin < len(stages):
        held, end = 0, begin
        while end < len(stages) and (longer := held | stages[end].mask).bit_count() <= MAX_UNITS:
            held, end = longer, end + 1
        if end == begin:
            raise PlanError(
                f"block {problem.name!r}: a stage has {longer.bit_count()} units, and may have {MAX_UNITS}; "
                "split it in two"
            )
        units = bits(held)
        place = {unit: index for index, unit in enumerate(units)}
        yield batch_of(problem.restrict(units), [stage.spread(place) for stage in stages[begin:end]])
        begin = end


def planned_of(batch: StageBatch) -> list[PlannedStage]:
    """The stages of a batch, with the variants that they name."""
    found: dict[int, PlannedStage] = {}
    for names, stages in batch.by_variants():
        named = [(unit, name) for unit, name in enumerate(names) if name]
        for index in stages.tolist():
            mask, strategy = int(batch.masks[index]), Strategy.of_code(int(batch.strategies[index]))
            found[index] = PlannedStage(mask, strategy, tuple(each for each in named if mask >> each[0] & 1))
    return [found[index] for index in range(len(batch))]


def batch_of(problem: ScheduleProblem, stages: Sequence[PlannedStage]) -> StageBatch:
    """Planned stages of one problem that is not wide, as a batch for pricing."""
    masks = np.array([stage.mask for stage in stages], dtype=np.uint64)
    strategies = np.array([stage.strategy.code for stage in stages], dtype=np.uint8)
    if not any(stage.variants for stage in stages):
        return StageBatch(problem, masks, strategies)
    named = [[dict(stage.variants).get(unit, FASTEST) for unit in range(len(problem))] for stage in stages]
    return StageBatch(problem, masks, strategies, Variants.of(named, len(problem)))
