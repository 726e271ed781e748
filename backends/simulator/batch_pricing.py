"""Prices of many concurrent stages of one problem: equal ones are priced once, and the others on all cores.

What a concurrent stage costs depends on its groups in their order, and on the kernels of the units of each, in
theirs. In a block of equal cells, and from block to block, a fifth to a third of the stages of a search are equal in
that. A stage's price depends on no other's, and the compiled code holds no interpreter lock.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache

import numpy as np

from iossim.backends.simulator.device_sharing import Floats
from iossim.backends.simulator.stage_model import MAX_GROUPS, StageKernels, price_masks
from iossim.base.compiled import jit
from iossim.base.cores import usable_cores
from iossim.schedule.batch import StageBatch
from iossim.schedule.hash_table import GrowingTable, find_slot
from iossim.schedule.problem import Masks
from iossim.schedule.stage_hash import stage_hashes

#: A memo keeps at most this many prices: 32 MiB with the hashes, in a table that is at most half full.
MOST_KEPT = 1 << 20
#: Fewer stages than this are priced by the thread that asks: some milliseconds, against the cost of handing them
#: over.
FEWEST_IN_PARALLEL = 2_000
_NO_SPANS = np.empty((0, 3))
_limit: int | None = None


class PriceMemo:
    """Keeps prices by the hash of what a stage asks of the device."""

    def __init__(self) -> None:
        self._known = GrowingTable()

    def prices(self, batch: StageBatch, unit_keys: Masks, price: Callable[[Masks], Floats]) -> Floats:
        """The price of each stage of a batch of concurrent ones, us, shape ``[len(batch)]``.

        ``price`` prices the masks of stages that are not known; ``unit_keys[u]`` identifies the kernels of unit
        ``u``.
        """
        hashes = stage_hashes(batch, unit_keys, ordered=True)
        hashes[hashes == 0] = 1
        if self._known.used + len(batch) > MOST_KEPT:
            self._known = GrowingTable()
        unknown = self._known.unknown(hashes)
        if len(unknown):
            try:
                found = price(batch.masks[unknown])
            except BaseException:
                # A key without a price must not stay.
                self._known = GrowingTable()
                raise
            self._known.enter(hashes[unknown], found)
        result = np.empty(len(batch), dtype=np.float64)
        _look_up(hashes, *self._known.table, result)
        return result


def price_concurrent(
    masks: Masks, predecessors: Masks, kernels: StageKernels, interference: float, max_kernels: int = MAX_GROUPS
) -> Floats:
    """The price of each mask as a concurrent stage, us, shape ``[len(masks)]``; the same on any number of cores."""
    prices = np.empty(len(masks), dtype=np.float64)
    parts = (_limit or len(usable_cores())) if len(masks) >= FEWEST_IN_PARALLEL else 1
    if parts == 1:
        price_masks(masks, predecessors, *kernels, interference, prices, max_kernels, _NO_SPANS)
        return prices
    bounds = np.linspace(0, len(masks), parts + 1).astype(np.int64).tolist()

    def price(part: int) -> None:
        own = slice(bounds[part], bounds[part + 1])
        price_masks(masks[own], predecessors, *kernels, interference, prices[own], max_kernels, _NO_SPANS)

    list(_threads().map(price, range(parts)))
    return prices


def set_pricing_threads(count: int | None) -> None:
    """Limit the threads of this process that price at a time; None takes all cores."""
    global _limit  # noqa: PLW0603
    _limit = count


@cache
def _threads() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(len(usable_cores()), thread_name_prefix="iossim-pricing")


if hasattr(os, "register_at_fork"):
    # A forked process has none of its parent's threads: it starts its own.
    os.register_at_fork(after_in_child=_threads.cache_clear)


@jit
def _look_up(hashes: Masks, known: Masks, prices: Floats, result: Floats) -> None:
    for index in range(len(hashes)):
        result[index] = prices[find_slot(hashes[index], known)]
