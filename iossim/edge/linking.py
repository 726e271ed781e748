"""Linking: an operator writes its feature map in the layout in which the next one reads it.

A layout is metadata of an edge; no op is added. By default, an image is written channel by channel, each row by row. A
convolution reads it pixel by pixel, all channels of each: if the visited data exceed the cache, every element costs a
line. Linked, it is read sequentially. A reader of windows returns to rows: they are written again in each band of rows
that needs them (the halo), so that no earlier row is looked up.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from iossim.edge.access import AS_IT_LIES, Order
from iossim.execution.plan import Box
from iossim.ir.network import Network, Unit
from iossim.ir.ops.conv import Conv
from iossim.ir.ops.matmul import Gemm, MatMul
from iossim.ir.ops.pool import AveragePool, GlobalAveragePool, GlobalMaxPool, MaxPool

#: Axis of an image's rows.
_ROWS = 2


@dataclass(frozen=True, slots=True)
class Layout:
    """Layout of a value that a reader visits in ``order``. With ``rows``, an image lies in bands: each has so many rows
    of the reader's output, and all rows of the image that their windows cover.
    """

    order: Order = AS_IT_LIES
    rows: int = 0

    @property
    def is_linked(self) -> bool:
        return self.order.axes is not None

    def bands(self, height: int) -> list[tuple[int, int]]:
        """First row and number of rows of each band. Rows that no window covers belong to the last band."""
        _, window, stride, before = self.order
        made = max(1, (height + 2 * before - window) // stride + 1)
        found = []
        for first in range(0, made, self.rows):
            last = min(made, first + self.rows) - 1
            low = max(0, first * stride - before)
            high = height if last == made - 1 else min(height, last * stride - before + window)
            found.append((low, max(0, high - low)))
        return found

    def read(self, box: Box, shape: tuple[int, ...], order: Order) -> list[tuple[int, Box]]:
        """The part of each block, by its number, from which a box is read. The reader that bands are made for reads the
        halo in each of them; another reads each row once.
        """
        if not self.rows:
            return [(0, box)]
        start, height = box.starts[_ROWS], shape[_ROWS]
        end, covered, found = start + box.shape[_ROWS], start, []
        is_own = order[1:] == self.order[1:]
        _, window, stride, before = self.order
        first = 0 if start == 0 else (start + before) // stride
        ranges = self.bands(height)
        last = len(ranges) * self.rows if end == height else max(0, end + before - window) // stride
        for band, (low, rows) in enumerate(ranges):
            is_visited = is_own and first // self.rows <= band <= last // self.rows
            begin, stop = max(start, low) if is_visited else max(covered, low), min(end, low + rows)
            if begin < stop:
                found.append((band, box.along(_ROWS, begin, stop - begin)))
                covered = max(covered, stop)
        return found

    def blocks(self, shape: tuple[int, ...]) -> list[Box]:
        """Blocks written one after the other: the whole, or its bands."""
        whole = Box.whole(shape)
        return [whole.along(_ROWS, *band) for band in self.bands(shape[_ROWS])] if self.rows else [whole]

    def elements(self, shape: tuple[int, ...]) -> int:
        """Number of elements, halos included."""
        return sum(math.prod(block.shape) for block in self.blocks(shape))

    def copies(self, box: Box, shape: tuple[int, ...]) -> float:
        """Average number of copies of each element of a box."""
        if not self.rows:
            return 1.0
        low, high = box.starts[_ROWS], box.starts[_ROWS] + box.shape[_ROWS]
        bands = self.bands(shape[_ROWS])
        return sum(max(0, min(high, start + rows) - max(low, start)) for start, rows in bands) / (high - low)


AS_MADE = Layout()


class Visit(NamedTuple):
    """Bytes moved to read a box. If ``streamed``, they arrive while a unit computes; else it waits for each line."""

    bytes: int
    streamed: bool


def visit(
    box: Box, order: Order, layout: Layout, shape: tuple[int, ...], item_bytes: int, line_bytes: int, cache_bytes: int
) -> Visit:
    """Cost of reading a box in an order, for a value in a layout."""
    elements = math.prod(box.shape)
    if layout.order.axes == order.axes:
        if layout.rows:
            elements = sum(math.prod(part.shape) for _, part in layout.read(box, shape, order))
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
    lies = layout.order.axes or tuple(range(rank))
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
        return Layout(Order(order.axes))
    row_bytes = shape[1] * shape[3] * item_bytes
    rows = max(1, (cache_bytes // row_bytes - order.window) // order.stride + 1)
    return Layout(order, rows)


@dataclass(frozen=True, slots=True)
class LinkedMap:
    """An edge whose value is laid out for its reader. ``bytes`` are moved by readers with linking, and without."""

    value: str
    form: str
    layout: Layout
    readers: tuple[str, ...]
    bytes: int
    unlinked_bytes: int

    @staticmethod
    def of(network: Network, value: str, layout: Layout, costs: Mapping[Layout, int]) -> LinkedMap:
        """The edge of a value of a network in a layout; ``costs`` are the bytes that each layout moves."""
        producer = next(unit for unit in network.units if value in unit.outputs)
        readers = [unit for unit in network.units if value in unit.inputs]
        form = _form(network, producer, readers) + (f", bands of {layout.rows}" if layout.rows else "")
        return LinkedMap(value, form, layout, tuple(unit.name for unit in readers), costs[layout], costs[AS_MADE])


def _form(network: Network, producer: Unit, readers: Sequence[Unit]) -> str:
    """Xenos' name of a producer linked to its readers: cbr, cbrm, cbra, or the kinds of both."""
    ops = [node.op for reader in readers for node in network.unit_nodes(reader)]
    if any(isinstance(node.op, Conv) for node in network.unit_nodes(producer)):
        if any(isinstance(op, MaxPool | GlobalMaxPool) for op in ops):
            return "cbrm"
        if any(isinstance(op, AveragePool | GlobalAveragePool) for op in ops):
            return "cbra"
        if any(isinstance(op, Conv) for op in ops):
            return "cbr"
    if any(isinstance(op, MatMul | Gemm) for op in ops):
        return "matmul"
    return f"{producer.kind} -> {', '.join(dict.fromkeys(reader.kind for reader in readers))}"


class MemoryKind(StrEnum):
    """Memories of an edge device: of each unit, and those that its units share."""

    PRIVATE = "private"
    SHARED = "shared"
    EXTERNAL = "external"


@dataclass(frozen=True, slots=True)
class PlacedMap:
    """A feature map in memory, from stage ``first`` (its producer; -1 for an input) through ``last`` (a consumer)."""

    value: str
    memory: MemoryKind
    address: int
    bytes: int
    first: int = -1
    last: int = sys.maxsize
    layout: Layout = AS_MADE

    @property
    def end(self) -> int:
        return self.address + self.bytes


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
        start = max(start, aligned(each.end))
    yield start, max(0, end - start)
