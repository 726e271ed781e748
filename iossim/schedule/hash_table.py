"""Open-addressing hash tables of 64-bit keys, for compiled code.

A table is an array of keys (uint64) whose length is a power of two, and whatever arrays stand beside it; the key 0 is an empty
slot, and at least one slot must be empty.
"""

from __future__ import annotations

import numpy as np

from iossim.compiled import jit
from iossim.schedule.masks import scramble
from iossim.schedule.problem import Masks


@jit(inline="always")
def find_slot(key: np.uint64, keys: Masks) -> np.uint64:
    """The slot that holds a key; where none does, the empty one that it belongs in (linear probing)."""
    last = np.uint64(len(keys) - 1)
    slot = scramble(key) & last
    while keys[slot] != 0 and keys[slot] != key:
        slot = slot + np.uint64(1) & last
    return slot
