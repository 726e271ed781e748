"""Compiled operations on masks: sets of units as bits of a 64-bit integer."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from iossim.base.compiled import jit
from iossim.schedule.problem import Masks


def _de_bruijn() -> NDArray[np.int64]:
    table = np.zeros(64, dtype=np.int64)
    for bit in range(64):
        table[((1 << bit) * 0x03F79D71B4CB0A89 & (1 << 64) - 1) >> 58] = bit
    return table


_DE_BRUIJN = _de_bruijn()


@jit(inline="always")
def lowest_bit(mask: np.uint64) -> int:
    """Index of the lowest set bit of a non-zero mask.

    Multiplying the isolated bit by a de Bruijn sequence puts its index in the top six bits (Leiserson, Prokop and Randall,
    "Using de Bruijn sequences to index a 1 in a computer word", 1998).
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
    """A well-mixed hash of a 64-bit number, one to one; for a table, cut it to its low bits.

    The finaliser of SplitMix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014, with
    the constants of variant 13 of Stafford, "Better bit mixing", 2011).
    """
    value = (value ^ value >> np.uint64(30)) * np.uint64(0xBF58476D1CE4E5B9)
    value = (value ^ value >> np.uint64(27)) * np.uint64(0x94D049BB133111EB)
    return value ^ value >> np.uint64(31)


@jit
def find_groups(mask: np.uint64, predecessors: Masks, groups: Masks) -> int:
    """The groups of a stage, as :meth:`iossim.schedule.problem.ScheduleProblem.groups`, into ``groups``; returns how many.

    That one is for whoever asks of few stages, and would wait longer for compiled code to be loaded.
    ``predecessors`` and ``groups`` are uint64 of shape ``[units]``. They are the connected components, lowest unit first: a joined one takes the place of its lowest part.
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


@jit
def count_groups(masks: Masks, predecessors: Masks) -> NDArray[np.int64]:
    """How many groups each stage has, shape ``[len(masks)]``."""
    counts = np.empty(len(masks), dtype=np.int64)
    groups = np.zeros(len(predecessors), dtype=np.uint64)
    for index in range(len(masks)):
        counts[index] = find_groups(masks[index], predecessors, groups)
    return counts
