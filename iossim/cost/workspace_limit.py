"""A limit on the total workspace of concurrent kernels: allocation within a stage, and its cost.

Groups of a stage run concurrently, so their workspaces add up; within a group units run sequentially, and the
group needs the maximum over its units. So a stage divides the limit among its groups, and each unit runs as
its fastest variant that fits. The price of a stage is that of its best division. Up to :data:`MOST_DIVISIONS`
divisions are all tried; if there are more, one is built greedily: groups begin with their minimum, and the one that
gains most per byte gets more.

A merged stage runs as its fastest convolution, or not at all if that does not fit.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from math import fsum, prod
from typing import NamedTuple

import numpy as np

from iossim.base.compiled import Integers
from iossim.base.errors import OptionError
from iossim.cost.capabilities import VariantChoosing, VariantCostModel
from iossim.cost.model import CostModel, CostModelIdentity, Prices
from iossim.ir.network import Network
from iossim.schedule.batch import FASTEST, StageBatch, Strategy, UnitVariant
from iossim.schedule.planned_stage import PlannedStage, batch_of
from iossim.schedule.problem import ScheduleProblem, bits

#: Maximum number of divisions of the limit that are priced for a stage.
MOST_DIVISIONS = 256


def workspace_limited(cost_model: CostModel, network: Network, limit_bytes: int) -> WorkspaceLimited:
    """The cost model under a limit; raises OptionError if it knows no workspaces, or a unit needs more.

    The latter error names the unit and the smallest sufficient limit.
    """
    if not isinstance(cost_model, VariantCostModel):
        raise OptionError(
            f"`workspace_limit`: cost model {cost_model.identity.name!r} does not know the workspaces of kernels; "
            "use the simulator, or leave the limit out"
        )
    least: list[tuple[int, str]] = []
    for block in network.blocks:
        problem = ScheduleProblem.of_block(network, block)
        for name, variants in zip(problem.unit_names, cost_model.variants(problem), strict=True):
            least.append((min(one.workspace_bytes for one in variants), name))
    needed, name = max(least, default=(0, ""))
    if needed > limit_bytes:
        raise OptionError(
            f"`workspace_limit` {limit_bytes} bytes: unit {name!r} of {network.name!r} needs {needed} bytes whatever "
            f"it runs as; give {needed} or more"
        )
    return WorkspaceLimited(cost_model, limit_bytes)


class _Choice(NamedTuple):
    """The variants of a stage's units, by unit, and the price of the stage with them."""

    variants: tuple[tuple[int, str], ...]
    price_us: float


@dataclass(eq=False)
class WorkspaceLimited(VariantChoosing):
    """``inner`` under a limit of ``limit_bytes``."""

    limit_bytes: int
    _fronts: dict[str, tuple[tuple[UnitVariant, ...], ...]] = field(default_factory=dict, repr=False)
    _choices: dict[tuple[str, int], _Choice] = field(default_factory=dict, repr=False)

    @property
    def identity(self) -> CostModelIdentity:
        inner = self.inner.identity
        return replace(inner, version=f"{inner.version}+workspace-limit={self.limit_bytes}")

    def price_stages(self, batch: StageBatch) -> Prices:
        """Microseconds of each stage, shape ``[len(batch)]``; inf if it needs more workspace than the limit.

        A stage that names variants is priced with these.
        """
        prices = self.inner.price_stages(batch)
        for names, stages in batch.by_variants():
            part = batch.take(stages)
            over = self._needs_bytes(part, names) > self.limit_bytes
            prices[stages[over]] = np.inf
            open_ = stages[over & ~part.merged] if batch.variants is None else stages[:0]
            self._choose(batch.problem, batch.masks[open_].tolist())
            for index in open_.tolist():
                prices[index] = self._choices[batch.problem.key, int(batch.masks[index])].price_us
        return prices

    def chosen(self, problem: ScheduleProblem, stage: PlannedStage) -> PlannedStage:
        """The stage with the variants in its price."""
        (needed_bytes,) = self._needs_bytes(batch_of(problem, [stage]), (FASTEST,) * len(problem)).tolist()
        if stage.variants or stage.strategy is Strategy.MERGE or needed_bytes <= self.limit_bytes:
            return stage
        self._choose(problem, [stage.mask])
        return replace(stage, variants=self._choices[problem.key, stage.mask].variants)

    def _choose(self, problem: ScheduleProblem, masks: Sequence[int]) -> None:
        """Find the best division of each stage that is not known yet; all are priced together."""
        pending = [mask for mask in dict.fromkeys(masks) if (problem.key, mask) not in self._choices]
        tried = [(mask, variants) for mask in pending for variants in self._divisions(problem, mask)]
        stages = [PlannedStage(mask, Strategy.CONCURRENT, variants) for mask, variants in tried]
        prices = self.inner.price_stages(batch_of(problem, stages)).tolist() if stages else []
        for mask in pending:
            self._choices[problem.key, mask] = _Choice((), np.inf)
        for (mask, variants), price_us in zip(tried, prices, strict=True):
            if price_us < self._choices[problem.key, mask].price_us:
                self._choices[problem.key, mask] = _Choice(variants, price_us)

    def _divisions(self, problem: ScheduleProblem, mask: int) -> Iterator[tuple[tuple[int, str], ...]]:
        """The variants of a stage's units under each division of the limit that suffices for all groups."""
        fronts = self._front(problem)
        groups = [bits(group) for group in problem.groups(mask)]
        parts = [_parts([fronts[unit] for unit in group]) for group in groups]
        if prod(map(len, parts)) <= MOST_DIVISIONS:
            divisions = [each for each in product(*parts) if sum(each) <= self.limit_bytes]
        else:
            divisions = self._greedily([[fronts[unit] for unit in group] for group in groups], parts)
        for division in divisions:
            yield tuple(
                sorted(
                    (unit, variant)
                    for group, part in zip(groups, division, strict=True)
                    for unit in group
                    if (variant := _fastest(fronts[unit], part).name) != FASTEST
                )
            )

    def _greedily(
        self, groups: Sequence[Sequence[tuple[UnitVariant, ...]]], parts: Sequence[Sequence[int]]
    ) -> list[tuple[int, ...]]:
        """One division, by the gain in time alone per byte; none if the minima of all groups exceed the limit."""
        level = [0] * len(groups)
        left = self.limit_bytes - sum(part[0] for part in parts)
        while left >= 0:
            best: tuple[float, int, int] | None = None
            for number, (group, part) in enumerate(zip(groups, parts, strict=True)):
                now = part[level[number]]
                for higher in range(level[number] + 1, bisect_right(part, now + left)):
                    gain_us = _alone_us(group, now) - _alone_us(group, part[higher])
                    offer = (-gain_us / (part[higher] - now), number, higher)
                    best = offer if best is None else min(best, offer)
            if best is None:
                return [tuple(part[own] for part, own in zip(parts, level, strict=True))]
            _, number, higher = best
            left -= parts[number][higher] - parts[number][level[number]]
            level[number] = higher
        return []

    def _front(self, problem: ScheduleProblem) -> tuple[tuple[UnitVariant, ...], ...]:
        """Pareto front of each unit's variants in time and workspace, the fastest first."""
        if problem.key not in self._fronts:
            self._fronts[problem.key] = tuple(map(_undominated, self.inner.variants(problem)))
        return self._fronts[problem.key]

    def _needs_bytes(self, batch: StageBatch, names: Sequence[str]) -> Integers:
        """The workspaces of stages whose units run as ``names``; an upper bound if that is within the limit."""
        problem = batch.problem
        of_unit = [
            next(one.workspace_bytes for one in variants if one.name == name)
            for variants, name in zip(self.inner.variants(problem), names, strict=True)
        ]
        needed: Integers = batch.held.astype(np.int64) @ np.array(of_unit, dtype=np.int64)
        for index in np.flatnonzero(batch.merged).tolist():
            needed[index] = self.inner.merged_workspace_bytes(problem, int(batch.masks[index]))
        # Units of a group run sequentially.
        for index in np.flatnonzero((needed > self.limit_bytes) & ~batch.merged).tolist():
            groups = problem.groups(int(batch.masks[index]))
            needed[index] = sum(max(of_unit[unit] for unit in bits(group)) for group in groups)
        return needed


def _undominated(variants: Sequence[UnitVariant]) -> tuple[UnitVariant, ...]:
    front: list[UnitVariant] = []
    for one in sorted(variants, key=lambda one: (one.alone_us, one.workspace_bytes, one.name)):
        if not front or one.workspace_bytes < front[-1].workspace_bytes:
            front.append(one)
    return tuple(front)


def _fastest(front: Sequence[UnitVariant], part_bytes: int) -> UnitVariant:
    """The fastest variant that fits into a part of the limit, which suffices for at least one."""
    return next(one for one in front if one.workspace_bytes <= part_bytes)


def _alone_us(group: Sequence[Sequence[UnitVariant]], part_bytes: int) -> float:
    return fsum(_fastest(front, part_bytes).alone_us for front in group)


def _parts(group: Sequence[Sequence[UnitVariant]]) -> list[int]:
    """The parts of a limit that make a difference to a group, ascending: all suffice for each of its units."""
    least = max(front[-1].workspace_bytes for front in group)
    return sorted({least, *(one.workspace_bytes for front in group for one in front if one.workspace_bytes > least)})
