"""Linking: an operator writes its feature map in the layout in which the next one reads it.

A layout is metadata of an edge; no op is added. By default, an image is written channel by channel, each row by row. A
convolution reads it pixel by pixel, all channels of each: if the visited data exceed the cache, every element costs a
line. Linked, it is read sequentially. A reader of windows returns to rows: they are written again in each band of rows
that needs them (the halo), so that no earlier row is looked up.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

from iossim.edge.access import Order
from iossim.execution.box import Box
from iossim.ir.network import Network
from iossim.ir.ops.conv import Conv
from iossim.ir.ops.matmul import Gemm, MatMul
from iossim.ir.ops.pool import AveragePool, GlobalAveragePool, GlobalMaxPool, MaxPool

#: Axis of an image's rows.
_ROWS = 2


@dataclass(frozen=True, slots=True)
class Bands:
    """Bands with ``rows`` rows of the reader's output each, and all rows of the image that their windows cover."""

    rows: int
    window: int
    stride: int
    before: int

    def of(self, height: int) -> list[tuple[int, int]]:
        """First row and number of rows of each band. Rows that no window covers belong to the last band."""
        made = max(1, (height + 2 * self.before - self.window) // self.stride + 1)
        found = []
        for first in range(0, made, self.rows):
            last = min(made, first + self.rows) - 1
            low = max(0, first * self.stride - self.before)
            high = height if last == made - 1 else min(height, last * self.stride - self.before + self.window)
            found.append((low, max(0, high - low)))
        return found

    def read(self, start: int, size: int, height: int, order: Order) -> list[tuple[int, int, int]]:
        """Bands from which a box of rows is read: the band, its first row of the image, and its number of rows. The
        reader that the bands are made for reads the halo in each of them; another reads each row once.
        """
        end, found, covered = start + size, [], start
        is_own = (order.window, order.stride, order.before) == (self.window, self.stride, self.before)
        first = 0 if start == 0 else (start + self.before) // self.stride
        ranges = self.of(height)
        last = len(ranges) * self.rows if end == height else max(0, end + self.before - self.window) // self.stride
        for band, (low, rows) in enumerate(ranges):
            is_visited = is_own and first // self.rows <= band <= last // self.rows
            begin, stop = max(start, low) if is_visited else max(covered, low), min(end, low + rows)
            if begin < stop:
                found.append((band, begin, stop - begin))
                covered = max(covered, stop)
        return found


@dataclass(frozen=True, slots=True)
class Layout:
    """Axes of a value from the slowest to the fastest, None for the default; and the bands of its rows."""

    axes: tuple[int, ...] | None = None
    bands: Bands | None = None

    @property
    def is_linked(self) -> bool:
        return self.axes is not None or self.bands is not None

    def blocks(self, shape: tuple[int, ...]) -> list[Box]:
        """Blocks written one after the other: the whole, or its bands."""
        if self.bands is None:
            return [Box.whole(shape)]
        return [
            Box((0, 0, low, *(0,) * (len(shape) - 3)), (*shape[:2], rows, *shape[3:]))
            for low, rows in self.bands.of(shape[_ROWS])
        ]

    def elements(self, shape: tuple[int, ...]) -> int:
        """Number of elements, halos included."""
        return sum(math.prod(block.shape) for block in self.blocks(shape))


AS_MADE = Layout()


@dataclass(frozen=True, slots=True)
class Visit:
    """Bytes moved to read a box. If ``streamed``, they arrive while a unit computes; else it waits for each line."""

    bytes: int
    streamed: bool


def visit(
    box: Box, order: Order, layout: Layout, shape: tuple[int, ...], item_bytes: int, line_bytes: int, cache_bytes: int
) -> Visit:
    """Cost of reading a box in an order, for a value in a layout."""
    elements = math.prod(box.shape)
    if layout.axes == order.axes:
        if layout.bands is not None:
            parts = layout.bands.read(box.starts[_ROWS], box.shape[_ROWS], shape[_ROWS], order)
            elements = elements // box.shape[_ROWS] * sum(rows for _, _, rows in parts)
        return Visit(elements * item_bytes, True)
    size = elements * item_bytes
    run_bytes = _run(box, order, layout, shape) * item_bytes
    lines = -(-run_bytes // line_bytes) * line_bytes
    if size <= cache_bytes or lines == run_bytes:
        return Visit(size, True)
    return Visit(size // run_bytes * lines, False)


def _run(box: Box, order: Order, layout: Layout, shape: tuple[int, ...]) -> int:
    """Number of adjacent elements that are visited in sequence."""
    rank = len(shape)
    lies = layout.axes or tuple(range(rank))
    reads = order.axes or tuple(range(rank))
    run = 1
    for lying, reading in zip(reversed(lies), reversed(reads), strict=True):
        if lying != reading:
            break
        run *= box.shape[lying]
        if box.shape[lying] != shape[lying]:
            break
    return run


def wanted(order: Order, shape: tuple[int, ...], item_bytes: int, cache_bytes: int) -> Layout:
    """Layout preferred by a reader: its order, in bands that fit the cache if it has windows."""
    if order.axes is None:
        return AS_MADE
    if order.window <= order.stride or len(shape) != 4:
        return Layout(order.axes)
    row_bytes = shape[1] * shape[3] * item_bytes
    rows = max(1, (cache_bytes // row_bytes - order.window) // order.stride + 1)
    return Layout(order.axes, Bands(rows, order.window, order.stride, order.before))


@dataclass(frozen=True, slots=True)
class LinkedMap:
    """An edge whose value is laid out for its reader. ``bytes`` are moved by readers with linking, and without."""

    value: str
    layout: Layout
    readers: tuple[str, ...]
    bytes: int
    unlinked_bytes: int


def linked_form(network: Network, producer: int, readers: Sequence[int]) -> str:
    """Xenos' name of a producer linked to its readers: cbr, cbrm, cbra, or the kinds of both."""
    kinds = [network.units[reader].kind for reader in readers]
    ops = [node.op for reader in readers for node in network.unit_nodes(network.units[reader])]
    own = network.units[producer].kind
    if any(isinstance(node.op, Conv) for node in network.unit_nodes(network.units[producer])):
        if any(isinstance(op, MaxPool | GlobalMaxPool) for op in ops):
            return "cbrm"
        if any(isinstance(op, AveragePool | GlobalAveragePool) for op in ops):
            return "cbra"
        if any(isinstance(op, Conv) for op in ops):
            return "cbr"
    if any(isinstance(op, MatMul | Gemm) for op in ops):
        return "matmul"
    return f"{own} -> {', '.join(dict.fromkeys(kinds))}"


class MemoryKind(StrEnum):
    """Memories of an edge device that its units share."""

    SHARED = "shared"
    EXTERNAL = "external"


@dataclass(frozen=True, slots=True)
class PlacedMap:
    """A feature map in memory, from stage ``first`` (its producer; -1 for an input) through ``last`` (a consumer)."""

    value: str
    memory: MemoryKind
    address: int
    bytes: int
    first: int
    last: int
    layout: Layout = AS_MADE


#: Addresses are multiples of this: a cache line of any device.
ALIGNMENT = 64


def aligned(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT


def place(
    lives: Iterable[tuple[str, int, int, int, Layout]], shared_bytes: int, external_from: int
) -> dict[str, PlacedMap]:
    """A buffer for each ``(value, bytes, first, last, layout)``: in the lowest gap of shared memory, in order."""
    found: dict[str, PlacedMap] = {}
    shared: list[PlacedMap] = []
    external: list[PlacedMap] = []
    for value, size, first, last, layout in lives:
        for memory, taken, room in ((MemoryKind.SHARED, shared, shared_bytes), (MemoryKind.EXTERNAL, external, None)):
            beside = [each for each in taken if each.first <= last and first <= each.last]
            free = gaps(beside, 0 if memory is MemoryKind.SHARED else external_from)
            address = next(start for start, free_bytes in free if free_bytes >= size)
            if room is None or address + size <= room:
                found[value] = PlacedMap(value, memory, address, size, first, last, layout)
                taken.append(found[value])
                break
    return found


def gaps(taken: Sequence[PlacedMap], start: int = 0, end: int = sys.maxsize) -> Iterator[tuple[int, int]]:
    """Start and bytes of each free range of a memory from ``start`` to ``end``; none of the bytes overlaps a map."""
    for each in sorted(taken, key=lambda one: one.address):
        yield start, each.address - start
        start = max(start, aligned(each.address + each.bytes))
    yield start, max(0, end - start)
