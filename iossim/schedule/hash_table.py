"""Open-addressing hash tables of 64-bit keys, for compiled code.

A table is an array of keys (uint64) whose length is a power of two, and whatever arrays stand beside it; the key 0 is an empty
slot, and at least one slot must be empty.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from iossim.compiled import jit
from iossim.schedule.masks import scramble
from iossim.schedule.problem import Masks

Floats = NDArray[np.float64]


@jit(inline="always")
def find_slot(key: np.uint64, keys: Masks) -> np.uint64:
    """The slot that holds a key; where none does, the empty one that it belongs in (linear probing)."""
    last = np.uint64(len(keys) - 1)
    slot = scramble(key) & last
    while keys[slot] != 0 and keys[slot] != key:
        slot = slot + np.uint64(1) & last
    return slot


def empty_set() -> Masks:
    return np.zeros(1 << 12, dtype=np.uint64)


@jit
def insert(key: np.uint64, keys: Masks) -> bool:
    """Add a key to a table that is a set; False if it was there. At most half of it should be in use: see :func:`grown`."""
    slot = find_slot(key, keys)
    if keys[slot] == key:
        return False
    keys[slot] = key
    return True


@jit
def grown(keys: Masks) -> Masks:
    """The set with four times the room."""
    larger = np.zeros(4 * len(keys), dtype=np.uint64)
    for key in keys:
        if key:
            insert(key, larger)
    return larger


@jit
def enter(entered: Masks, given: Floats, keys: Masks, values: Floats) -> None:
    """Give keys their values, whether they stand in the table or not."""
    for index in range(len(entered)):
        slot = find_slot(entered[index], keys)
        keys[slot] = entered[index]
        values[slot] = given[index]
