"""Prices and bounds of the concurrent stages of a problem, all of whose units run as given variants.

Under the partition engine the groups of a stage have SMs of their own (:mod:`iossim.backends.simulator.partition`);
under the others all kernels share the device (:mod:`iossim.backends.simulator.stage_model`). A price depends on a
stage's groups in their order, and on the kernels of their units. A fifth to a third of the stages of a search are
equal in that and priced once, the others on all cores: the compiled code holds no interpreter lock.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import TYPE_CHECKING

import numpy as np

from iossim.backends.simulator.device_sharing import ALONE, HOST, Fluid, KnownSlowdowns, StageKernels
from iossim.backends.simulator.event_costs import EventCosts, kernels_at_a_time
from iossim.backends.simulator.preparation import PreparedProblem
from iossim.backends.simulator.stage_bounds import stage_bounds
from iossim.backends.simulator.stage_model import price_masks
from iossim.backends.simulator.unit_prices import UnitPrices
from iossim.base.compiled import Floats, jit
from iossim.base.threads import on_all_cores, threads
from iossim.cost.model import Prices, StageBounds
from iossim.execution.engine import Engine
from iossim.hardware.profile import DeviceProfile
from iossim.schedule.batch import StageBatch
from iossim.schedule.masks import GrowingTable, find_slot, stage_hashes
from iossim.schedule.problem import Masks, ScheduleProblem

if TYPE_CHECKING:
    from iossim.backends.simulator.partition import PreparedPartition


class StagePricing:
    """Prices stages by the prices of their units; equal problems are prepared once, equal stages priced once.

    ``limits`` are how many kernels run at a time, at most, and how far apart they start, us.
    """

    def __init__(self, profile: DeviceProfile, units: UnitPrices, engine: Engine = Engine.PAPER) -> None:
        self.profile, self.units = profile, units
        self.interference = profile.parameters.interference
        self.limits = kernels_at_a_time(engine, profile), *EventCosts.of(engine, profile)[-3:]
        self._problems: dict[tuple[str, ...], PreparedProblem] = {}
        self._bounds = cache(partial(stage_bounds, interference=self.interference))
        self._partitions: dict[tuple[str, ...], PreparedPartition] = {}
        self._prices = GrowingTable()  # by the hash of what a stage asks of the device
        self._known = [KnownSlowdowns.room() for _ in range(threads())]

    @property
    def is_divided(self) -> bool:
        """True where the groups of a stage have SMs of their own."""
        return bool(self.units.sizes)

    def price(
        self, problem: ScheduleProblem, masks: Masks, variants: Sequence[str] = (), limits_us: Floats | None = None
    ) -> Prices:
        """The price of each mask as a concurrent stage with these variants, us, shape ``[len(masks)]``.

        With limits, as :class:`~iossim.cost.capabilities.LimitedCostModel` has them.
        """
        batch, predecessors = StageBatch.concurrent(problem, masks), problem.predecessors
        if self.is_divided:
            divided = self.partition(problem, variants)
            return self._kept(batch, divided.unit_keys, lambda some, _: divided.price(some, predecessors))
        prepared = self.prepare(problem, variants)
        fluid = partial(self.fluid, predecessors, prepared.kernels)
        return self._kept(batch, prepared.unit_keys, fluid, limits_us)

    def _kept(
        self, batch: StageBatch, keys: Masks, price: Callable[[Masks, Floats], Floats], limits_us: Floats | None = None
    ) -> Floats:
        """The price of each stage of a batch of concurrent ones, us, shape ``[len(batch)]``, found once.

        ``price`` prices the masks of unknown stages, up to their limits; ``keys[u]`` is that of the kernels of unit
        ``u``.
        """
        hashes = stage_hashes(batch, keys, ordered=True)
        hashes[hashes == 0] = 1
        limits_us = np.full(len(batch), np.inf) if limits_us is None else limits_us.copy()
        if self._prices.used + len(batch) > MOST_KEPT:
            self._prices = GrowingTable()
        try:
            unknown = self._prices.unknown(hashes, limits_us)
            if len(unknown):
                self._prices.enter(hashes[unknown], price(batch.masks[unknown], limits_us[unknown]))
        except BaseException:
            # A key without a price must not stay.
            self._prices = GrowingTable()
            raise
        result = np.empty(len(batch), dtype=np.float64)
        _look_up(hashes, *self._prices.table, result)
        return result

    def fluid(
        self, predecessors: Masks, kernels: StageKernels, masks: Masks, limits_us: Floats | None = None
    ) -> Floats:
        """The price of each mask as a concurrent stage whose kernels share the device."""
        ways = [Fluid.of(kernels, self.interference, *self.limits, known) for known in self._known]
        return price_concurrent(masks, predecessors, ways, limits_us)

    def price_changed(self, problem: ScheduleProblem, masks: Masks, variants: Sequence[str], launches: float) -> Prices:
        """The same with launches that take ``launches`` times as long; the device is not divided."""
        prepared = self.prepare(problem, variants)
        changed = prepared.kernels.columns.copy()
        changed[:, HOST] *= launches
        single_us = np.maximum(prepared.per_unit(changed[:, ALONE]), prepared.per_unit(changed[:, HOST]))
        kernels = prepared.kernels._replace(columns=changed, single_us=single_us)
        return self.fluid(problem.predecessors, kernels, masks)

    def bounds(self, problem: ScheduleProblem) -> StageBounds:
        """Bounds of stages whose units run as what is fastest alone."""
        if self.is_divided:
            return self.partition(problem).bounds()
        return self._bounds(self.prepare(problem))

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
        from iossim.backends.simulator.partition import PreparedPartition

        key = (*self._key(problem), *(variants if any(variants) else ()))
        if key not in self._partitions:
            by_size = [(sms, self.units.price(problem, variants, sms)) for sms in self.units.sizes]
            self._partitions[key] = PreparedPartition.of(
                self.profile, self.units.whole.rates, self.units.price(problem, variants), by_size
            )
        return self._partitions[key]

    def _key(self, problem: ScheduleProblem) -> tuple[str, ...]:
        return (problem.key, *(placement for _, placement in self.units.keys(problem)))


#: A memo keeps at most this many prices: 32 MiB with the hashes, in a table that is at most half full.
MOST_KEPT = 1 << 20
#: Fewer stages than this are priced by the thread that asks: handing them over costs more.
FEWEST_IN_PARALLEL = 2_000


def price_concurrent(
    masks: Masks, predecessors: Masks, ways: Sequence[Fluid], limits_us: Floats | None = None
) -> Floats:
    """The price of each mask as a concurrent stage, us, shape ``[len(masks)]``; the same on any number of cores.

    ``ways`` has the same fluid for each thread; ``limits_us`` as ``price_masks`` has them.
    """
    prices = np.empty(len(masks), dtype=np.float64)
    limits_us = np.full(len(masks), np.inf) if limits_us is None else limits_us
    parts = len(ways) if len(masks) >= FEWEST_IN_PARALLEL else 1
    bounds = np.linspace(0, len(masks), parts + 1).astype(np.int64).tolist()

    def price(part: int) -> None:
        own = slice(*bounds[part : part + 2])
        price_masks(masks[own], predecessors, ways[part], prices[own], limits_us[own])

    on_all_cores(price, range(parts))
    return prices


@jit
def _look_up(hashes: Masks, known: Masks, prices: Floats, result: Floats) -> None:
    for index in range(len(hashes)):
        result[index] = prices[find_slot(hashes[index], known)]
