"""Open-addressing hash tables of 64-bit keys, for compiled code.

A table is an array of keys (uint64) whose length is a power of two, and whatever arrays stand beside it; the key 0 is an empty
slot, and at least one slot must be empty.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from iossim.base.compiled import jit
from iossim.schedule.masks import scramble
from iossim.schedule.problem import Masks

Floats = NDArray[np.float64]

_FIRST_SIZE = 1 << 12
#: Compiled code moves so many entries at one go: only in between an interrupt is heard.
_MOVED_AT_A_TIME = 1 << 21


class FloatTable(NamedTuple):
    """``values[i]`` (float64) belongs to ``keys[i]`` (uint64)."""

    keys: Masks
    values: Floats


class GrowingTable:
    """A float for each key, in a table that grows so that it is at most half full."""

    def __init__(self) -> None:
        self.used = 0
        self.table = _empty_table(_FIRST_SIZE)

    def reserve(self, more: int) -> None:
        """Make room for ``more`` keys."""
        size = len(self.table.keys)
        while 2 * (self.used + more) > size:
            size *= 2
        if size > len(self.table.keys):
            table = _empty_table(size)
            for begin in range(0, len(self.table.keys), _MOVED_AT_A_TIME):
                keys, values = (column[begin : begin + _MOVED_AT_A_TIME] for column in self.table)
                enter(keys[keys != 0], values[keys != 0], *table)
            self.table = table

    def unknown(self, keys: Masks) -> NDArray[np.int64]:
        """The places of keys that are not in the table, each key once; makes room, and enters them without a value (NaN)."""
        self.reserve(len(keys))
        places = np.empty(len(keys), dtype=np.int64)
        return places[: _enter_unknown(keys, *self.table, places)]

    def enter(self, keys: Masks, values: Floats) -> None:
        """Give the keys that were unknown their values."""
        enter(keys, values, *self.table)
        self.used += len(keys)


def _empty_table(size: int) -> FloatTable:
    return FloatTable(np.zeros(size, dtype=np.uint64), np.zeros(size))


@jit(inline="always")
def find_slot(key: np.uint64, keys: Masks) -> np.uint64:
    """The slot that holds a key; where none does, the empty one that it belongs in (linear probing)."""
    last = np.uint64(len(keys) - 1)
    slot = scramble(key) & last
    while keys[slot] != 0 and keys[slot] != key:
        slot = slot + np.uint64(1) & last
    return slot


def empty_set() -> Masks:
    """A set of no keys, uint64."""
    return np.zeros(_FIRST_SIZE, dtype=np.uint64)


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
    """Give keys their values, ``[entered]`` each, whether they stand in the table or not; it must have room for them."""
    for index in range(len(entered)):
        slot = find_slot(entered[index], keys)
        keys[slot] = entered[index]
        values[slot] = given[index]


@jit
def _enter_unknown(looked_up: Masks, keys: Masks, values: Floats, places: NDArray[np.int64]) -> int:
    count = 0
    for index in range(len(looked_up)):
        slot = find_slot(looked_up[index], keys)
        if keys[slot] == 0:
            keys[slot] = looked_up[index]
            values[slot] = np.nan
            places[count] = index
            count += 1
    return count
