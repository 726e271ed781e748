"""What a profile measures: every distinct unit alone, pairs that may run at the same time, stages of random schedules.

All from a seed, and each distinct signature once.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field

from iossim.base.errors import OptionError
from iossim.cost.measured.cost_model import MeasuredCostModel
from iossim.cost.model import FREE, IMPOSSIBLE
from iossim.ir.network import Network
from iossim.schedule.batch import StageBatch
from iossim.schedule.planned_stage import PlannedStage, batch_of
from iossim.schedule.problem import ScheduleProblem, bits
from iossim.schedule.strategy import Strategy

#: Random schedules that are drawn at most to find the stages that are wanted, and the stages that are drawn for each.
_SCHEDULES = 50
_DRAWN = 20
#: How often units that may merge do.
_MERGED_PART = 0.25


@dataclass(frozen=True, slots=True)
class ProfileOptions:
    """How much is sampled besides the units: ``pairs`` and ``stages``; stages have at most ``max_groups`` groups of at
    most ``max_group_size`` units."""

    pairs: int = 40
    stages: int = 40
    seed: int = 0
    max_group_size: int | None = 3
    max_groups: int | None = 8

    def __post_init__(self) -> None:
        for name, value, least in (
            ("pairs", self.pairs, 0),
            ("stages", self.stages, 0),
            ("max_group_size", self.max_group_size, 1),
            ("max_groups", self.max_groups, 1),
        ):
            if value is not None and value < least:
                raise OptionError(f"`{name}` {value} is too few; give {least} or more")


@dataclass(frozen=True, eq=False)
class ProfilePart:
    """One part of a profile, by blocks: ``units``, ``pairs`` or ``stages``. Its stages have distinct signatures, which no
    earlier part has."""

    name: str
    batches: tuple[StageBatch, ...]


def profile_parts(network: Network, model: MeasuredCostModel, options: ProfileOptions) -> list[ProfilePart]:
    """What a profile measures: all units, then as many pairs and stages as the options say, or as there are."""
    problems = [ScheduleProblem.of_block(network, block) for block in network.blocks]
    generator = random.Random(options.seed)
    sampler = _Sampler(model, problems)
    units = [[PlannedStage(1 << unit, Strategy.CONCURRENT) for unit in range(len(problem))] for problem in problems]
    found = [ProfilePart("units", sampler.distinct(units))]
    pairs = [(index, stage) for index, problem in enumerate(problems) for stage in _pairs(problem)]
    generator.shuffle(pairs)
    found.append(ProfilePart("pairs", sampler.first(pairs, options.pairs)))
    drawn = []
    for _ in range(_SCHEDULES):
        for index, problem in enumerate(problems):
            drawn += [(index, stage) for stage in random_stages(problem, generator, options)]
        if len(drawn) > _DRAWN * options.stages:
            break
    generator.shuffle(drawn)
    found.append(ProfilePart("stages", sampler.first(drawn, options.stages)))
    return found


@dataclass
class _Sampler:
    """Chooses stages (problem's number, stage) of signatures that were not chosen before."""

    model: MeasuredCostModel
    problems: Sequence[ScheduleProblem]
    seen: set[object] = field(default_factory=lambda: {FREE, IMPOSSIBLE})

    def distinct(self, stages: Sequence[Sequence[PlannedStage]]) -> tuple[StageBatch, ...]:
        """All stages of each problem that are new."""
        flat = [(index, stage) for index, of_one in enumerate(stages) for stage in of_one]
        return self.first(flat, len(flat))

    def first(self, stages: Sequence[tuple[int, PlannedStage]], count: int) -> tuple[StageBatch, ...]:
        """The first ``count`` that are new, as batches."""
        chosen: dict[int, list[PlannedStage]] = {}
        left = count
        for index, stage in stages:
            if left == 0:
                break
            (signature,) = self.model.signatures(batch_of(self.problems[index], [stage]))
            if signature not in self.seen:
                self.seen.add(signature)
                chosen.setdefault(index, []).append(stage)
                left -= 1
        return tuple(batch_of(self.problems[index], of_one) for index, of_one in sorted(chosen.items()))


def random_stages(problem: ScheduleProblem, generator: random.Random, options: ProfileOptions) -> list[PlannedStage]:
    """The stages of one random valid schedule: each grows from a ready unit by a coin a unit; what may merge may merge."""
    predecessors, classes = problem.predecessors.tolist(), problem.merge_class.tolist()
    largest = options.max_group_size or len(problem)
    most = options.max_groups or len(problem)
    done, found = 0, []
    while done != problem.full:
        ready = [unit for unit in bits(problem.full & ~done) if not predecessors[unit] & ~done]
        first = generator.choice(ready)
        merging = [unit for unit in ready if 0 <= classes[unit] == classes[first]][:most]
        if len(merging) > 1 and generator.random() < _MERGED_PART:
            stage = PlannedStage(sum(1 << unit for unit in merging), Strategy.MERGE)
        else:
            mask = 1 << first
            for unit in bits(problem.full & ~done & ~mask):
                if predecessors[unit] & ~(done | mask) or generator.random() < 0.5:
                    continue
                groups = problem.groups(mask | 1 << unit)
                if len(groups) <= most and max(group.bit_count() for group in groups) <= largest:
                    mask |= 1 << unit
            stage = PlannedStage(mask, Strategy.CONCURRENT)
        found.append(stage)
        done |= stage.mask
    return found


def _pairs(problem: ScheduleProblem) -> list[PlannedStage]:
    """Pairs of units of which neither comes before the other, side by side."""
    ancestors = problem.ancestors.tolist()
    return [
        PlannedStage(1 << low | 1 << high, Strategy.CONCURRENT)
        for high in range(len(problem))
        for low in range(high)
        if not ancestors[high] >> low & 1
    ]
