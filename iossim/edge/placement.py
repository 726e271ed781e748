"""Where feature maps lie: in the shared memory while there is room from when they are made until they are last read, else outside."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from iossim.edge.linking import AS_MADE, Layout


class MemoryKind(StrEnum):
    """The memories of an edge device."""

    PRIVATE = "private"
    SHARED = "shared"
    EXTERNAL = "external"


@dataclass(frozen=True, slots=True)
class PlacedMap:
    """A feature map in memory, from stage ``first`` (that makes it; -1 for an input) through ``last`` (that reads it)."""

    value: str
    memory: MemoryKind
    address: int
    bytes: int
    first: int
    last: int
    layout: Layout = AS_MADE


#: Addresses are multiples of this: a line of any device.
ALIGNMENT = 64


def aligned(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT


def place(
    lives: Iterable[tuple[str, int, int, int, Layout]], shared_bytes: int, external_from: int
) -> dict[str, PlacedMap]:
    """A buffer for each ``(value, bytes, first, last, layout)``: in the lowest gap of the shared memory, in order of making."""
    found: dict[str, PlacedMap] = {}
    shared: list[PlacedMap] = []
    external: list[PlacedMap] = []
    for value, size, first, last, layout in lives:
        for memory, taken, room in ((MemoryKind.SHARED, shared, shared_bytes), (MemoryKind.EXTERNAL, external, None)):
            beside = [each for each in taken if each.first <= last and first <= each.last]
            address = lowest_gap(beside, size, 0 if memory is MemoryKind.SHARED else external_from)
            if room is None or address + size <= room:
                found[value] = PlacedMap(value, memory, address, size, first, last, layout)
                taken.append(found[value])
                break
    return found


def lowest_gap(taken: Sequence[PlacedMap], size: int, start: int = 0) -> int:
    """The lowest address from which on ``size`` bytes are free."""
    for each in sorted(taken, key=lambda one: one.address):
        if each.address - start >= size:
            break
        start = max(start, aligned(each.address + each.bytes))
    return start


def largest_gap(taken: Sequence[PlacedMap], end: int) -> tuple[int, int]:
    """Where the largest free run of the shared memory begins, and its bytes."""
    best, start = (0, 0), 0
    for each in sorted(taken, key=lambda one: one.address):
        if each.address - start > best[1]:
            best = (start, each.address - start)
        start = max(start, aligned(each.address + each.bytes))
    return max(best, (start, max(0, end - start)), key=lambda gap: gap[1])
