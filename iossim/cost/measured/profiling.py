"""Profiling a network on a backend: how long it will take, the measuring itself, and what came of it.

What the store holds is not measured again, so that an interrupted profile goes on where it stopped.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from iossim.cost.measured.cost_model import QUICK_ROUNDS, QUICK_WARM_UP, MeasuredCostModel
from iossim.cost.measured.profile_parts import ProfilePart
from iossim.cost.measured.record import MeasurementRecord
from iossim.ir.network import Network
from iossim.schedule.batch import StageBatch
from iossim.schedule.problem import ScheduleProblem, bits

#: A measurement is noisy if its 90th and 10th percentile differ by more than this part of its median.
NOISY = 0.1

Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class ProfileEstimate:
    """What a profile is about to do: ``kept`` stages are in the store already."""

    measurements: int
    kept: int
    duration_s: float


@dataclass(frozen=True, eq=False)
class ProfiledPart:
    """What is known of a part's stages: records and prices (us) in step; ``kept`` of them were in the store before."""

    name: str
    records: tuple[MeasurementRecord, ...]
    prices_us: tuple[float, ...]
    kept: int

    @property
    def noisy(self) -> list[MeasurementRecord]:
        """The noisy records, worst first."""
        found = [record for record in self.records if record.relative_spread > NOISY]
        return sorted(found, key=lambda record: -record.relative_spread)

    def to_json(self) -> dict[str, Any]:
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
    """What a profile found. ``sequential_us`` is the sum of all units of the network, each priced alone, of which
    ``noisy_us`` are from noisy measurements. Not ``complete`` if it was interrupted."""

    parts: tuple[ProfiledPart, ...]
    boundary_us: float
    sequential_us: float
    noisy_us: float
    duration_s: float
    complete: bool = True

    @property
    def noisy_fraction(self) -> float:
        """The part of the sequential time that noisy measurements tell."""
        return self.noisy_us / self.sequential_us if self.sequential_us else 0.0

    def to_json(self) -> dict[str, Any]:
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


def estimate(model: MeasuredCostModel, parts: Sequence[ProfilePart]) -> ProfileEstimate:
    """How long a profile will take, from one quick round of the units that are still to be measured.

    A stage is taken to need what its units need one by one, which is the most that it should; rounds are rejected as often
    as in the quick round; and on top comes what that needed besides running plans: preparing them.
    """
    batches = [batch for part in parts for batch in part.batches]
    total = sum(len(batch) for batch in batches)
    missing = model.recall(*batches)
    if not missing:
        return ProfileEstimate(0, total, 0.0)
    units = [batch for part in parts if part.name == "units" for batch in part.batches]
    boundary_us = model.boundary_us()
    began = time.perf_counter()
    quick_us = model.quick_us(*units)
    elapsed_us = 1e6 * (time.perf_counter() - began)
    quick_rounds = QUICK_ROUNDS + QUICK_WARM_UP
    repeated = 1.0 + model.rejected_rounds / max(1, model.accepted_rounds)
    running_us = repeated * quick_rounds * sum(quick_us.values())
    preparing_us = max(0.0, elapsed_us - running_us) / max(1, len(quick_us))
    unit_us = {signature: record.copy_us(boundary_us) for signature, record in model.known(*units).items()} | quick_us
    rounds = model.timing.rounds + model.timing.warm_up
    needed_us = 0.0
    for batch in batches:
        known = model.known(batch)
        for mask, signature in zip(batch.masks.tolist(), model.signatures(batch), strict=True):
            if signature in known:
                continue
            singles = np.array([1 << unit for unit in bits(mask)], dtype=np.uint64)
            signed = model.signatures(StageBatch.concurrent(batch.problem, singles))
            one_us = sum(unit_us.get(str(single), 0.0) for single in signed)
            quick = 0.0 if signature in quick_us else quick_rounds * one_us
            needed_us += repeated * (rounds * max(model.target_us, one_us) + quick) + 2 * preparing_us
    return ProfileEstimate(missing, total - missing, needed_us / 1e6)


def profile(
    network: Network,
    model: MeasuredCostModel,
    parts: Sequence[ProfilePart],
    progress: Progress = lambda done, total: None,
) -> Profile:
    """Measure the parts, and tell what came of it; KeyboardInterrupt ends it with what is measured so far."""
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
    found = [_profiled(part, model, before, boundary_us) for part in parts]
    sequential_us = noisy_us = 0.0
    for block in network.blocks:
        problem = ScheduleProblem.of_block(network, block)
        units = StageBatch.concurrent(problem, np.array([1 << unit for unit in range(len(problem))], dtype=np.uint64))
        known = model.known(units)
        for record in (known[str(signature)] for signature in model.signatures(units) if signature in known):
            sequential_us += record.copy_us(boundary_us)
            noisy_us += record.copy_us(boundary_us) if record.relative_spread > NOISY else 0.0
    return Profile(tuple(found), boundary_us, sequential_us, noisy_us, time.perf_counter() - began, complete)


def _profiled(part: ProfilePart, model: MeasuredCostModel, before: set[str], boundary_us: float) -> ProfiledPart:
    records = model.known(*part.batches)
    prices_us = tuple(record.copy_us(boundary_us) for record in records.values())
    return ProfiledPart(part.name, tuple(records.values()), prices_us, len(before & records.keys()))
