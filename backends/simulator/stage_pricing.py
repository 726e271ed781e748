"""Prices and bounds of the concurrent stages of a problem, all of whose units run as given variants.

Under the partition engine the groups of a stage have SMs of their own (:mod:`iossim.backends.simulator.partition`);
under the others all kernels share the device (:mod:`iossim.backends.simulator.stage_model`).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from iossim.backends.simulator.batch_pricing import PriceMemo, price_concurrent
from iossim.backends.simulator.device_sharing import ALONE, HOST
from iossim.backends.simulator.partition import PreparedPartition
from iossim.backends.simulator.preparation import PreparedProblem
from iossim.backends.simulator.stage_bounds import stage_bounds, stage_bounds_of_any
from iossim.backends.simulator.stage_model import MAX_GROUPS, StageKernels
from iossim.backends.simulator.unit_prices import UnitPrices
from iossim.cost.model import Prices, StageBounds
from iossim.hardware.lowering.target import target_of
from iossim.hardware.profile import DeviceProfile
from iossim.schedule.batch import StageBatch
from iossim.schedule.problem import Masks, ScheduleProblem


class StagePricing:
    """Prices stages by the prices of their units; equal problems are prepared once, equal stages priced once.

    At most ``max_kernels`` kernels run at a time.
    """

    def __init__(self, profile: DeviceProfile, units: UnitPrices) -> None:
        self.profile, self.units = profile, units
        self.interference = profile.parameters.interference
        self.max_kernels = profile.sm_count if target_of(profile).runs_one_kernel_per_sm else MAX_GROUPS
        self._problems: dict[tuple[str, ...], PreparedProblem] = {}
        self._partitions: dict[tuple[str, ...], PreparedPartition] = {}
        self._memo = PriceMemo()

    @property
    def is_divided(self) -> bool:
        """Whether the groups of a stage have SMs of their own."""
        return bool(self.units.parts)

    def price(self, problem: ScheduleProblem, masks: Masks, variants: Sequence[str] = ()) -> Prices:
        """The price of each mask as a concurrent stage with these variants, us, shape ``[len(masks)]``."""
        batch, predecessors = StageBatch.concurrent(problem, masks), problem.predecessors
        if self.is_divided:
            divided = self.partition(problem, variants)
            return self._memo.prices(batch, divided.unit_keys, lambda some: divided.price(some, predecessors))
        prepared = self.prepare(problem, variants)
        return self._memo.prices(
            batch,
            prepared.unit_keys,
            lambda some: price_concurrent(some, predecessors, prepared.kernels, self.interference, self.max_kernels),
        )

    def price_changed(
        self, problem: ScheduleProblem, masks: Masks, variants: Sequence[str], interference: float, launches: float
    ) -> Prices:
        """The same at another interference, with launches that take ``launches`` times as long."""
        if self.is_divided:
            # Groups on SMs of their own, issued before they run: neither changes anything.
            return self.price(problem, masks, variants)
        prepared = self.prepare(problem, variants)
        begin, columns, _ = prepared.kernels
        changed = columns.copy()
        changed[:, HOST] *= launches
        single_us = np.maximum(prepared.per_unit(changed[:, ALONE]), prepared.per_unit(changed[:, HOST]))
        kernels = StageKernels(begin, changed, single_us)
        return price_concurrent(masks, problem.predecessors, kernels, interference, self.max_kernels)

    def bounds(self, problem: ScheduleProblem) -> StageBounds:
        """Bounds of stages whose units run as what is fastest alone."""
        if self.is_divided:
            return self.partition(problem).bounds()
        return stage_bounds(self.prepare(problem), self.interference)

    def bounds_of_any_variant(self, problem: ScheduleProblem) -> StageBounds:
        """Bounds of stages whatever variants their units run as."""
        variants = self.units.price_variants(problem)
        if not self.is_divided:
            return stage_bounds_of_any([PreparedProblem.of(own) for own in variants], self.interference)
        by_size = [(sms, self.units.price_variants(problem, sms)) for sms in self.units.parts]
        rates = self.units.whole.rates
        return PreparedPartition.least(
            [
                PreparedPartition.of(self.profile, rates, own, [(sms, prices[unit]) for sms, prices in by_size])
                for unit, own in enumerate(variants)
            ]
        ).bounds()

    def prepare(self, problem: ScheduleProblem, variants: Sequence[str] = ()) -> PreparedProblem:
        """The problem's kernels, its units run as ``variants``; only what is fastest alone is kept."""
        if any(variants):
            return PreparedProblem.of(self.units.price(problem, variants))
        key = self._key(problem)
        if key not in self._problems:
            self._problems[key] = PreparedProblem.of(self.units.price(problem))
        return self._problems[key]

    def partition(self, problem: ScheduleProblem, variants: Sequence[str] = ()) -> PreparedPartition:
        """The problem's units on parts of each size, run as ``variants``."""
        key = (*self._key(problem), *(variants if any(variants) else ()))
        if key not in self._partitions:
            by_size = [(sms, self.units.price(problem, variants, sms)) for sms in self.units.parts]
            self._partitions[key] = PreparedPartition.of(
                self.profile, self.units.whole.rates, self.units.price(problem, variants), by_size
            )
        return self._partitions[key]

    def _key(self, problem: ScheduleProblem) -> tuple[str, ...]:
        return (problem.key, *(placement for _, placement in self.units.keys(problem)))
