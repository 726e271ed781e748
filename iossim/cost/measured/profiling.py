"""Profiling a network on a backend: selection of stages, measurement, and result.

A profile measures every distinct unit alone, pairs that may run concurrently, and stages of random schedules: all
from a seed, and each distinct signature once. Stages already in the store are not measured again.
"""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import islice

import numpy as np

from iossim.base.errors import OptionError, Progress, ignore
from iossim.base.tables import Cell
from iossim.cost.capabilities import FREE, IMPOSSIBLE
from iossim.cost.measured.cost_model import MeasuredCostModel
from iossim.cost.measured.record import MeasurementRecord
from iossim.ir.network import Network
from iossim.schedule.batch import StageBatch, Strategy
from iossim.schedule.planned_stage import PlannedStage, batch_of
from iossim.schedule.problem import ScheduleProblem, bits

#: Maximum number of random schedules to find the wanted stages in, and stages drawn per wanted one.
_SCHEDULES = 50
_DRAWN = 20
#: Probability of merging units that may merge.
_MERGED_PART = 0.25
#: A measurement is noisy if its 90th and 10th percentile differ by more than this fraction of its median.
NOISY = 0.1


@dataclass(frozen=True, slots=True)
class ProfileOptions:
    """Numbers of sampled pairs and stages; stages have up to ``max_groups`` groups of ``max_group_size``."""

    pairs: int = 40
    stages: int = 40
    seed: int = 0
    max_group_size: int | None = 3
    max_groups: int | None = 8

    def __post_init__(self) -> None:
        for name, least in (("pairs", 0), ("stages", 0), ("max_group_size", 1), ("max_groups", 1)):
            value = getattr(self, name)
            if value is not None and value < least:
                raise OptionError(f"`{name}` {value} is too few; give {least} or more")


@dataclass(frozen=True, eq=False)
class ProfilePart:
    """One part of a profile, by blocks: ``units``, ``pairs`` or ``stages`` of new signatures."""

    name: str
    batches: tuple[StageBatch, ...]


def profile_parts(network: Network, model: MeasuredCostModel, options: ProfileOptions) -> list[ProfilePart]:
    """The stages to be measured: all units, then the requested number of pairs and stages, or as many as exist."""
    problems = [ScheduleProblem.of_block(network, block) for block in network.blocks]
    generator = random.Random(options.seed)
    sampler = _Sampler(model, problems)
    units = [
        (index, PlannedStage(1 << unit, Strategy.CONCURRENT))
        for index, problem in enumerate(problems)
        for unit in range(len(problem))
    ]
    found = [ProfilePart("units", sampler.first(units, len(units)))]
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
    """Selects stages (problem's number, stage) with signatures not selected before."""

    model: MeasuredCostModel
    problems: Sequence[ScheduleProblem]
    seen: set[object] = field(default_factory=lambda: {FREE, IMPOSSIBLE})

    def first(self, stages: Sequence[tuple[int, PlannedStage]], count: int) -> tuple[StageBatch, ...]:
        """The first ``count`` new ones, as batches."""
        chosen: dict[int, list[PlannedStage]] = {}
        for index, stage in islice(filter(self._is_new, stages), count):
            chosen.setdefault(index, []).append(stage)
        return tuple(batch_of(self.problems[index], of_one) for index, of_one in sorted(chosen.items()))

    def _is_new(self, place: tuple[int, PlannedStage]) -> bool:
        index, stage = place
        (signature,) = self.model.signatures(batch_of(self.problems[index], [stage]))
        is_new = signature not in self.seen
        self.seen.add(signature)
        return is_new


def random_stages(problem: ScheduleProblem, generator: random.Random, options: ProfileOptions) -> list[PlannedStage]:
    """The stages of one random schedule: each grows from a ready unit by a coin toss per unit, or merges units."""
    predecessors, classes = problem.predecessors.tolist(), problem.merge_class.tolist()
    largest = options.max_group_size or len(problem)
    most = options.max_groups or len(problem)
    done, found = 0, []
    while done != problem.full:
        ready = bits(problem.ready(done))
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
    """Pairs of concurrent units, neither of which is an ancestor of the other."""
    ancestors = problem.ancestors.tolist()
    return [
        PlannedStage(1 << low | 1 << high, Strategy.CONCURRENT)
        for high in range(len(problem))
        for low in range(high)
        if not ancestors[high] >> low & 1
    ]


@dataclass(frozen=True, eq=False)
class ProfiledPart:
    """The records and prices (us) of a part's stages, in parallel; ``kept`` of them were in the store before."""

    name: str
    records: tuple[MeasurementRecord, ...]
    prices_us: tuple[float, ...]
    kept: int

    @property
    def noisy(self) -> list[MeasurementRecord]:
        """The noisy records, worst first."""
        found = [record for record in self.records if record.relative_spread > NOISY]
        return sorted(found, key=lambda record: -record.relative_spread)

    def to_json(self) -> dict[str, Cell]:
        spreads = [record.relative_spread for record in self.records]
        return {
            "part": self.name,
            "stages": len(self.records),
            "kept": self.kept,
            "measured": len(self.records) - self.kept,
            "median_us": float(np.median(self.prices_us)) if self.prices_us else None,
            "median_spread": float(np.median(spreads)) if spreads else None,
            "rejected_rounds": sum(record.samples.rejected for record in self.records),
            "noisy": len(self.noisy),
        }


@dataclass(frozen=True, eq=False)
class Profile:
    """Result of profiling. ``sequential_us`` is the sum of all units of the network, each priced alone, of which
    ``noisy_us`` are from noisy measurements. Not ``complete`` if it was interrupted.
    """

    parts: tuple[ProfiledPart, ...]
    boundary_us: float
    sequential_us: float
    noisy_us: float
    duration_s: float
    complete: bool = True

    @property
    def noisy_fraction(self) -> float:
        """Fraction of the sequential time that comes from noisy measurements."""
        return self.noisy_us / self.sequential_us if self.sequential_us else 0.0

    def to_json(self) -> dict[str, object]:
        return {
            "complete": self.complete,
            "duration_s": self.duration_s,
            "boundary_us": self.boundary_us,
            "sequential_us": self.sequential_us,
            "noisy_fraction": self.noisy_fraction,
            "parts": [part.to_json() for part in self.parts],
            "noisy": [
                {"stage": record.words, "spread": record.relative_spread}
                for part in self.parts
                for record in part.noisy
            ],
        }


def profile(
    network: Network, model: MeasuredCostModel, parts: Sequence[ProfilePart], progress: Progress = ignore
) -> Profile:
    """Measure the parts, and return the results; KeyboardInterrupt ends it with the measurements so far."""
    began = time.perf_counter()
    batches = [batch for part in parts for batch in part.batches]
    boundary_us = model.boundary_us()
    model.recall(*batches)
    before = set(model.known(*batches))
    model.progress = progress
    complete = True
    try:
        model.measure(*batches)
    except KeyboardInterrupt:
        complete = False
    found = []
    for part in parts:
        records = model.known(*part.batches)
        prices_us = tuple(record.copy_us(boundary_us) for record in records.values())
        found.append(ProfiledPart(part.name, tuple(records.values()), prices_us, len(before & records.keys())))
    sequential_us = noisy_us = 0.0
    for block in network.blocks:
        problem = ScheduleProblem.of_block(network, block)
        units = StageBatch.alone(problem)
        known = model.known(units)
        for record in (known[signature] for signature in model.signatures(units) if signature in known):
            sequential_us += record.copy_us(boundary_us)
            noisy_us += record.copy_us(boundary_us) if record.relative_spread > NOISY else 0.0
    return Profile(tuple(found), boundary_us, sequential_us, noisy_us, time.perf_counter() - began, complete)
