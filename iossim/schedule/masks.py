"""Compiled operations on masks (sets of units as bits of a 64-bit integer): groups of stages, hash tables of masks, and
the hash that is the identity of a stage by its work, in any block, network or rewrite, whatever its units' names.

That work is the strategy and the groups, a multiset (or a sequence, if the host issues them in order), each the
sequence of its units' keys, which the caller chooses: units with equal keys are equal, one with an empty key does
nothing. It is a 64-bit number for each of millions of stages (:func:`stage_hashes`; among a million different stages
two share one with a probability of about 3e-8); stores of measurements have it as a text
(:func:`iossim.cost.measured.stage_plans.stage_digest`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from iossim.base.compiled import Floats, Integers, jit
from iossim.schedule.batch import StageBatch
from iossim.schedule.problem import Masks


def _de_bruijn() -> Integers:
    table = np.zeros(64, dtype=np.int64)
    for bit in range(64):
        table[((1 << bit) * 0x03F79D71B4CB0A89 & (1 << 64) - 1) >> 58] = bit
    return table


_DE_BRUIJN = _de_bruijn()


@jit(inline="always")
def lowest_bit(mask: np.uint64) -> int:
    """Index of the lowest set bit of a non-zero mask.

    Multiplying the isolated bit by a de Bruijn sequence puts its index in the top six bits (Leiserson, Prokop and
    Randall, "Using de Bruijn sequences to index a 1 in a computer word", 1998).
    """
    isolated = mask & (~mask + np.uint64(1))
    return int(_DE_BRUIJN[(isolated * np.uint64(0x03F79D71B4CB0A89)) >> np.uint64(58)])


@jit(inline="always")
def count_bits(mask: np.uint64) -> int:
    """Number of set bits."""
    mask = mask - (mask >> np.uint64(1) & np.uint64(0x5555555555555555))
    mask = (mask & np.uint64(0x3333333333333333)) + (mask >> np.uint64(2) & np.uint64(0x3333333333333333))
    mask = mask + (mask >> np.uint64(4)) & np.uint64(0x0F0F0F0F0F0F0F0F)
    return int(mask * np.uint64(0x0101010101010101) >> np.uint64(56))


@jit(inline="always")
def scramble(value: np.uint64) -> np.uint64:
    """A well-mixed, bijective hash of a 64-bit number; for a table, use its low bits.

    The finaliser of SplitMix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014,
    with the constants of variant 13 of Stafford, "Better bit mixing", 2011).
    """
    value = (value ^ value >> np.uint64(30)) * np.uint64(0xBF58476D1CE4E5B9)
    value = (value ^ value >> np.uint64(27)) * np.uint64(0x94D049BB133111EB)
    return value ^ value >> np.uint64(31)


@jit
def find_groups(mask: np.uint64, predecessors: Masks, groups: Masks) -> int:
    """Write the groups of a stage, as from ``ScheduleProblem.groups``, into ``groups``; returns their number.

    The latter is for callers with few stages, which would wait longer for compiled code to load. ``predecessors``
    and ``groups`` are uint64 of shape ``[units]``. They are the connected components, lowest unit first: a joined one
    takes the position of its lowest part.
    """
    count = 0
    rest = mask
    while rest:
        unit = lowest_bit(rest)
        joined = rest & (~rest + np.uint64(1))
        rest &= rest - np.uint64(1)
        before = predecessors[unit]
        place = -1
        kept = 0
        for g in range(count):
            if before & groups[g]:
                if place < 0:
                    place = kept
                    groups[kept] = groups[g] | joined
                    kept += 1
                else:
                    groups[place] |= groups[g]
            else:
                groups[kept] = groups[g]
                kept += 1
        if place < 0:
            groups[kept] = joined
            kept += 1
        count = kept
    return count


def count_groups(masks: Masks, predecessors: Masks) -> Integers:
    """Number of groups of each stage, shape ``[len(masks)]``."""
    counts = np.empty(len(masks), dtype=np.int64)
    _count_groups(masks, predecessors, counts)
    return counts


@jit
def _count_groups(masks: Masks, predecessors: Masks, counts: Integers) -> None:
    groups = np.zeros(len(predecessors), dtype=np.uint64)
    for index in range(len(masks)):
        counts[index] = find_groups(masks[index], predecessors, groups)


_FIRST_SIZE = 1 << 12
#: Number of entries that compiled code moves per call: interrupts are handled only between calls.
_MOVED_AT_A_TIME = 1 << 21


class FloatTable(NamedTuple):
    """``values[i]`` (float64) belongs to ``keys[i]`` (uint64)."""

    keys: Masks
    values: Floats


class GrowingTable:
    """A float for each key, in a table that grows so as to be at most half full."""

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

    def unknown(self, keys: Masks, limits: Floats) -> Integers:
        """The indices of keys whose values are to be found, each key once; enters them without a value (NaN).

        A negative value says that the true one is its magnitude at least: it is known where no ``limits[i]`` is above.
        Each limit that is returned becomes the largest of its key.
        """
        self.reserve(len(keys))
        places = np.empty(len(keys), dtype=np.int64)
        found, more = _enter_unknown(keys, limits, *self.table, places)
        self.used += more
        return places[:found]

    def enter(self, keys: Masks, values: Floats) -> None:
        """Set the values of keys that were unknown."""
        enter(keys, values, *self.table)


def _empty_table(size: int) -> FloatTable:
    return FloatTable(np.zeros(size, dtype=np.uint64), np.zeros(size))


@jit(inline="always")
def find_slot(key: np.uint64, keys: Masks) -> np.uint64:
    """The slot of a key; if absent, the empty slot where it belongs (linear probing)."""
    last = np.uint64(len(keys) - 1)
    slot = scramble(key) & last
    while keys[slot] != 0 and keys[slot] != key:
        slot = slot + np.uint64(1) & last
    return slot


@jit
def insert(key: np.uint64, keys: Masks) -> bool:
    """Add a key to a table that has room (:meth:`GrowingTable.reserve`); False if it was present."""
    slot = find_slot(key, keys)
    if keys[slot] == key:
        return False
    keys[slot] = key
    return True


@jit
def enter(entered: Masks, given: Floats, keys: Masks, values: Floats) -> None:
    """Set the values of keys, ``[entered]`` each, in a table with sufficient capacity."""
    for index in range(len(entered)):
        slot = find_slot(entered[index], keys)
        keys[slot] = entered[index]
        values[slot] = given[index]


@jit
def _enter_unknown(looked_up: Masks, limits: Floats, keys: Masks, values: Floats, places: Integers) -> tuple[int, int]:
    """Returns how many places are filled in, and how many keys are new."""
    count = 0
    new = 0
    for index in range(len(looked_up)):
        slot = find_slot(looked_up[index], keys)
        if keys[slot] == 0:
            keys[slot] = looked_up[index]
            values[slot] = 0.0
            new += 1
        elif not (values[slot] < 0.0 and -values[slot] < limits[index]):
            continue
        values[slot] = -limits[index]
        places[count] = index
        count += 1
    found = 0
    for each in range(count):
        index = places[each]
        slot = find_slot(looked_up[index], keys)
        if values[slot] <= 0.0:  # of a key that is met again with a larger limit, the first place stands
            limits[index] = -values[slot]
            values[slot] = np.nan
            places[found] = index
            found += 1
    return found, new


def unit_keys(signatures: Sequence[object], salt: object = "") -> Masks:
    """A key for each unit's signature, uint64 ``[units]``, the same in every process for one ``salt``."""
    digests = [hashlib.sha256(f"{salt}\0{signature}".encode()).digest() for signature in signatures]
    return np.array([int.from_bytes(digest[:8], "little") for digest in digests], dtype=np.uint64)


def stage_hashes(batch: StageBatch, keys: Masks, *, ordered: bool = False) -> Masks:
    """The hash of each stage, uint64 of shape ``[len(batch)]``, the same in every process.

    ``keys``, uint64 of shape ``[units]``: the key of each unit of the problem (:func:`unit_keys`), 0 for one that does
    nothing. A stage of such units only has the hash 0. Units are also distinguished by the names of their variants, if
    the batch has any. With ``ordered``, groups are a sequence, by their lowest units.
    """
    masks = np.ascontiguousarray(batch.masks, dtype=np.uint64)
    strategies = np.ascontiguousarray(batch.strategies)
    if batch.variants is None:
        return _hashes(masks, strategies, batch.problem.predecessors, keys, ordered)
    hashes = np.empty(len(batch), dtype=np.uint64)
    for names, stages in batch.by_variants():
        own = np.where((keys == 0) | np.array([not name for name in names]), keys, keys ^ unit_keys(names, "variant"))
        hashes[stages] = _hashes(masks[stages], strategies[stages], batch.problem.predecessors, own, ordered)
    return hashes


def _hashes(masks: Masks, strategies: NDArray[np.uint8], predecessors: Masks, keys: Masks, ordered: bool) -> Masks:
    hashes = np.empty(len(masks), dtype=np.uint64)
    _hash_stages(masks, strategies, predecessors, keys, ordered, hashes)
    return hashes


@jit
def _hash_stages(
    masks: Masks, strategies: NDArray[np.uint8], predecessors: Masks, keys: Masks, ordered: bool, hashes: Masks
) -> None:
    one = np.uint64(1)
    groups = np.zeros(len(predecessors), dtype=np.uint64)
    for index in range(len(masks)):
        if strategies[index] != 0:
            groups[0], count = masks[index], 1
        else:
            count = find_groups(masks[index], predecessors, groups)
        total = np.uint64(strategies[index])
        for g in range(count):
            sequence = np.uint64(0)
            rest = groups[g]
            while rest:
                key = keys[lowest_bit(rest)]
                rest &= rest - one
                if key != 0:
                    sequence = scramble(sequence ^ key) + one
            if sequence != 0:
                # A sum is independent of the order.
                total = scramble(total ^ sequence) + one if ordered else total + scramble(sequence)
        hashes[index] = scramble(total)
