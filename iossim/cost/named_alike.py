"""Prices of the variants that another cost model names: each at the price of the most similar variant known here.

A library names its kernels differently from the simulator. Variants are similar if they are slower than the fastest by
the same factor when alone, and if they have as many blocks that occupy as much of an SM; equal names are the same
variant. One most similar to the fastest is no variant here, and of several with one counterpart the first counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import log

from iossim.cost.capabilities import NamesVariants, VariantCostModel
from iossim.cost.facts import VariantBounds
from iossim.cost.model import Prices, StageBounds, WrappedCostModel
from iossim.schedule.batch import StageBatch, UnitVariant, Variants
from iossim.schedule.problem import ScheduleProblem

#: Variants with a counterpart, each with its counterpart's index among the variants of the unit.
_Alike = tuple[tuple[UnitVariant, int], ...]


@dataclass(eq=False)
class NamedAlike(WrappedCostModel):
    """``inner``, a :class:`~iossim.cost.capabilities.VariantCostModel` itself, with the names of ``names``."""

    inner: VariantCostModel
    names: NamesVariants
    _alike: dict[tuple[str, tuple[int, ...]], tuple[_Alike, ...]] = field(default_factory=dict, repr=False)

    def variants(self, problem: ScheduleProblem) -> tuple[tuple[UnitVariant, ...], ...]:
        return tuple(tuple(variant for variant, _ in own) for own in self._of(problem))

    def price_stages(self, batch: StageBatch) -> Prices:
        """Microseconds of each stage, shape ``[len(batch)]``; raises PlanError for a variant without a counterpart."""
        if batch.variants is None:
            return self.inner.price_stages(batch)
        known = [
            {variant.name: own[place].name for variant, place in alike}
            for alike, own in zip(self._of(batch.problem), self.inner.variants(batch.problem), strict=True)
        ]
        names = tuple(
            tuple(own.get(name, name) for name in named) for own, named in zip(known, batch.variants.names, strict=True)
        )
        return self.inner.price_stages(replace(batch, variants=Variants(names, batch.variants.chosen)))

    def merged_workspace_bytes(self, problem: ScheduleProblem, mask: int) -> int:
        return self.inner.merged_workspace_bytes(problem, mask)

    def bounds_of_variants(self, problem: ScheduleProblem) -> tuple[VariantBounds, ...]:
        found = []
        for own, alike in zip(self.inner.bounds_of_variants(problem), self._of(problem), strict=True):
            at, bounds = [place for _, place in alike], own.bounds
            issue_us = None if bounds.issue_us is None else bounds.issue_us[at]
            kept = StageBounds(bounds.serial_us[at], bounds.single_us[at], bounds.work_us[at], issue_us)
            found.append(VariantBounds(kept, own.keys[at]))
        return tuple(found)

    def _of(self, problem: ScheduleProblem) -> tuple[_Alike, ...]:
        key = problem.key, problem.units
        if key not in self._alike:
            pairs = zip(self.names.variants(problem), self.inner.variants(problem), strict=True)
            self._alike[key] = tuple(_alike(theirs, own) for theirs, own in pairs)
        return self._alike[key]


def _alike(theirs: Sequence[UnitVariant], own: Sequence[UnitVariant]) -> _Alike:
    """Variants of a unit in their order, each with the index of the most similar one; the fastest first."""
    names = [one.name for one in own]
    found = {0: theirs[0]}
    for variant in theirs[1:]:
        if variant.name in names:
            place = names.index(variant.name)
        elif variant.blocks:
            place = most_alike(variant, theirs[0], own)
        else:
            place = 0
        if own[place][1:] != own[0][1:]:
            found.setdefault(place, variant)
    return tuple((variant, place) for place, variant in found.items())


def most_alike(variant: UnitVariant, fastest: UnitVariant, others: Sequence[UnitVariant]) -> int:
    """Index of the variant among ``others`` (the fastest first) that compares to its fastest as ``variant`` does."""
    return min(range(len(others)), key=lambda at: _distance(variant, fastest, others[at], others[0]))


def _distance(one: UnitVariant, fastest: UnitVariant, other: UnitVariant, other_fastest: UnitVariant) -> float:
    """Distance of two variants: differences of logarithms; times are relative to those of the fastest."""
    ratios = one.alone_us / fastest.alone_us, one.blocks, one.sm_share
    others = other.alone_us / other_fastest.alone_us, other.blocks, other.sm_share
    return sum(abs(log(a / b)) for a, b in zip(ratios, others, strict=True) if min(a, b) > 0)
