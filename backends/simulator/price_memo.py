"""Stages that ask the same of a device are priced once.

What a concurrent stage costs depends on its groups in their order, and on the kernels of the units of each, in theirs. In a
block of equal cells, and from block to block, a fifth to a third of the stages of a search differ in that.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from iossim.base.compiled import jit
from iossim.schedule.batch import StageBatch
from iossim.schedule.hash_table import GrowingTable, find_slot
from iossim.schedule.problem import Masks
from iossim.schedule.stage_hash import stage_hashes

Floats = NDArray[np.float64]

#: Prices that are kept at most: 32 MiB with the hashes, in a table that is at most half full.
MOST = 1 << 20


class PriceMemo:
    """Prices by hash."""

    def __init__(self) -> None:
        self._known = GrowingTable()

    def prices(self, batch: StageBatch, unit_keys: Masks, price: Callable[[Masks], Floats]) -> Floats:
        """The price of each stage of a batch of concurrent ones, us, shape ``[len(batch)]``.

        Those that are not known are asked of ``price`` by their masks; ``unit_keys[u]`` tells the kernels of unit ``u``.
        """
        hashes = stage_hashes(batch, unit_keys, ordered=True)
        hashes[hashes == 0] = 1
        if self._known.used + len(batch) > MOST:
            self._known = GrowingTable()
        unknown = self._known.unknown(hashes)
        if len(unknown):
            try:
                found = price(batch.masks[unknown])
            except BaseException:
                # What was entered without a price must not stay.
                self._known = GrowingTable()
                raise
            self._known.enter(hashes[unknown], found)
        result = np.empty(len(batch), dtype=np.float64)
        _look_up(hashes, *self._known.table, result)
        return result


@jit
def _look_up(hashes: Masks, known: Masks, prices: Floats, result: Floats) -> None:
    for index in range(len(hashes)):
        result[index] = prices[find_slot(hashes[index], known)]
