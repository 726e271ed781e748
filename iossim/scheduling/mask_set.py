"""Sets of masks in compiled code: open addressing in an array whose size is a power of two; 0 is no member."""

from __future__ import annotations

import numpy as np

from iossim.compiled import jit
from iossim.schedule.masks import scramble
from iossim.schedule.problem import Masks


def empty_set() -> Masks:
    return np.zeros(1 << 12, dtype=np.uint64)


@jit
def insert(table: Masks, key: np.uint64) -> bool:
    """Add a mask; False if it was there. At most half of the table should be in use: see :func:`grown`."""
    slots = np.uint64(len(table) - 1)
    slot = scramble(key) & slots
    while table[slot] != 0:
        if table[slot] == key:
            return False
        slot = slot + np.uint64(1) & slots
    table[slot] = key
    return True


@jit
def grown(table: Masks) -> Masks:
    """The set with four times the room."""
    larger = np.zeros(4 * len(table), dtype=np.uint64)
    for key in table:
        if key:
            insert(larger, key)
    return larger
