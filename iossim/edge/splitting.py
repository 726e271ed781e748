"""Splitting: an operator's output over units, and units' parameters into chunks that private memories hold.

Feature maps: a :class:`Partition` gives every unit boxes of the output. Parameters: a box is cut into chunks, along
output channels first, which costs nothing, then along input channels and the rows and columns of windows, which makes
partial sums.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import product

from iossim.base.errors import DeviceError
from iossim.edge.access import ParameterPart, part_sizes
from iossim.edge.operators import Demand, Operator, with_part
from iossim.execution.plan import Box

#: Most parts into which the parameters of an operator are cut.
MOST_PARTS = 32_768


@dataclass(frozen=True)
class Partition(ABC):
    """Boxes of ``space`` (a part of an operator's output) for each of ``units``, divided along ``axes``; together they
    cover it once.
    """

    space: Box
    units: int
    axes: tuple[int, ...]

    @abstractmethod
    def boxes(self, unit: int) -> tuple[Box, ...]:
        """Boxes of one unit; unit 0 has the most."""

    def elements(self, unit: int) -> int:
        """Number of elements of a unit."""
        return sum([math.prod(box.shape) for box in self.boxes(unit)])

    @property
    @abstractmethod
    def words(self) -> tuple[tuple[int, int], ...]:
        """Each axis that is split, and its number of parts."""


@dataclass(frozen=True)
class Even(Partition):
    """The paper's priority: units divide the first axis equally, and the remainder goes along the next.

    Pieces that no axis divides any more have equal size: dealing them from unit 0 on is the longest-processing-time
    rule.
    """

    def boxes(self, unit: int) -> tuple[Box, ...]:
        found: list[Box] = []
        first, left, each = 0, 1, self.space
        sizes: list[int] = []
        for axis in self.axes:
            sizes.append(each.shape[axis])
            first, left = first * sizes[-1], left * sizes[-1]
            share = left // self.units
            if share:
                found += self._boxes(first + unit * share, share, sizes)
                first, left = first + share * self.units, left - share * self.units
            if not left:
                return tuple(found)
        if not self.axes:
            return (self.space,) if unit == 0 else ()
        if unit < left:
            found += self._boxes(first + unit, 1, sizes)
        return tuple(found)

    def _boxes(self, start: int, count: int, sizes: Sequence[int]) -> Iterator[Box]:
        for ranges in _runs(start, count, sizes):
            starts, shape = list(self.space.starts), list(self.space.shape)
            for axis, (begin, size) in zip(self.axes, ranges, strict=False):
                starts[axis], shape[axis] = self.space.starts[axis] + begin, size
            yield Box(tuple(starts), tuple(shape))

    @property
    def words(self) -> tuple[tuple[int, int], ...]:
        found, left = [], 1
        for axis in self.axes:
            left *= self.space.shape[axis]
            found.append((axis, min(self.units, left)))
            left %= self.units
            if not left:
                break
        return tuple(found)


def _runs(start: int, count: int, sizes: Sequence[int]) -> list[tuple[tuple[int, int], ...]]:
    """A range of pieces of an array of ``sizes``, counted row by row, as blocks: a range along each axis."""
    if len(sizes) == 1:
        return [((start, count),)]
    inner = math.prod(sizes[1:])
    found: list[tuple[tuple[int, int], ...]] = []
    while count:
        outer, offset = divmod(start, inner)
        if offset == 0 and count >= inner:
            whole = count // inner
            found.append(((outer, whole), *((0, size) for size in sizes[1:])))
            taken = whole * inner
        else:
            taken = min(count, inner - offset)
            found += [((outer, 1), *rest) for rest in _runs(offset, taken, sizes[1:])]
        start, count = start + taken, count - taken
    return found


@dataclass(frozen=True)
class Grid(Partition):
    """``parts[i]`` parts along ``axes[i]``, as equal as possible, one block per unit; the largest comes first."""

    parts: tuple[int, ...]

    def boxes(self, unit: int) -> tuple[Box, ...]:
        if unit >= math.prod(self.parts):
            return ()
        starts, shape = list(self.space.starts), list(self.space.shape)
        for axis, parts in zip(reversed(self.axes), reversed(self.parts), strict=True):
            unit, place = divmod(unit, parts)
            begin, shape[axis] = part_range(self.space.shape[axis], parts, place)
            starts[axis] += begin
        return (Box(tuple(starts), tuple(shape)),)

    @property
    def words(self) -> tuple[tuple[int, int], ...]:
        return tuple((axis, parts) for axis, parts in zip(self.axes, self.parts, strict=True) if parts > 1)


@lru_cache(maxsize=4096)
def equal_units(partition: Partition) -> tuple[tuple[tuple[int, ...], int], ...]:
    """Units grouped by equal numbers of elements, without idle ones; and the first of each group with most boxes."""
    alike: dict[int, list[tuple[int, int]]] = {}
    for unit in range(partition.units):
        if boxes := len(partition.boxes(unit)):
            alike.setdefault(partition.elements(unit), []).append((unit, boxes))
    return tuple(
        (tuple(unit for unit, _ in units), max(units, key=lambda one: (one[1], -one[0]))[0]) for units in alike.values()
    )


def partition_words(operator: Operator, partition: Partition) -> str:
    """Partition of an operator in words, such as ``outC 8, inH 7``; ``whole`` on one unit."""
    return ", ".join(f"{operator.axis_name(axis)} {count}" for axis, count in partition.words) or "whole"


def grids(space: Box, units: int, axes: tuple[int, ...]) -> Iterator[Grid]:
    """Every grid of at most ``units`` blocks, without part counts that do not shrink the largest block."""
    counts = [part_counts(space.shape[axis], units) for axis in axes]
    for parts in product(*counts):
        if math.prod(parts) <= units:
            yield Grid(space, units, axes, parts)


def part_counts(size: int, most: int) -> list[int]:
    """Fewest parts for each size of the largest one."""
    largest = dict.fromkeys(-(-size // parts) for parts in range(1, min(size, most) + 1))
    return [-(-size // each) for each in largest]


def within_groups(operator: Operator, boxes: Iterable[Box]) -> tuple[Box, ...]:
    """The boxes, cut at the boundaries between groups of channels."""
    quantum = operator.channel_quantum
    if not quantum:
        return tuple(boxes)
    found = []
    for box in boxes:
        start, end = box.starts[1], box.starts[1] + box.shape[1]
        while start < end:
            stop = min(end, (start // quantum + 1) * quantum)
            found.append(box.along(1, start, stop - start))
            start = stop
    return tuple(found)


@dataclass(frozen=True, slots=True)
class Chunk:
    """A unit's computation with the parameters at hand. ``demand`` is restricted to ``part``, for a partial sum. The
    ``first`` partial sum of a box starts from zeros, and the ``last`` continues to the following ops.
    """

    demand: Demand
    parameter_bytes: int
    part: ParameterPart | None = None
    first: bool = True
    last: bool = True


def chunks(operator: Operator, box: Box, private_bytes: int | None) -> tuple[Chunk, ...]:
    """Chunks of a box: one if its parameters fit the private memory (None: they need not), else each in half of it,
    with the next arriving meanwhile. Raises DeviceError, naming the operator, if no cut makes them fit.
    """
    demand = operator.needed(box)
    size = operator.parameter_bytes(demand)
    if private_bytes is None or size <= private_bytes:
        return (Chunk(demand, size),)
    room = private_bytes // 2
    axis = operator.axes[0] if operator.axes else None
    if axis is not None:
        for parts in part_counts(box.shape[axis], box.shape[axis]):
            largest = operator.demand(next(even_parts(box, axis, parts)))
            if largest is not None and operator.parameter_bytes(largest) <= room:
                demands = map(operator.needed, within_groups(operator, even_parts(box, axis, parts)))
                return tuple(Chunk(each, operator.parameter_bytes(each)) for each in demands)
        singles = list(even_parts(box, axis, box.shape[axis]))
    else:
        singles = [box]
    return tuple(chunk for one in singles for chunk in _partial_sums(operator, one, room))


def _partial_sums(operator: Operator, box: Box, room: int) -> Iterator[Chunk]:
    demand, anchor = operator.needed(box), operator.anchor
    if not _is_product(operator):
        yield Chunk(demand, operator.parameter_bytes(demand))  # scales and the like are read in place
        return
    if anchor is not None and any(each.node is anchor for each in demand.calls):
        weight = operator.network.graph.types[anchor.inputs[1]].shape
        for divided in _divisions(part_sizes(anchor.op, weight)):
            largest = with_part(operator, demand, tuple(ranges[0] for ranges in divided))
            if operator.parameter_bytes(largest) <= room:
                parts = list(product(*divided))
                for part in parts:
                    found = with_part(operator, demand, part)
                    size = operator.parameter_bytes(found)
                    yield Chunk(found, size, part, part is parts[0], part is parts[-1])
                return
    size = operator.parameter_bytes(demand)
    raise DeviceError(
        f"operator {operator.name!r} needs {size:,} bytes of parameters at once, and half of a unit's private memory "
        f"is {room:,}; no split makes them fit"
    )


def check_fits(operator: Operator, private_bytes: int) -> None:
    """Raise the DeviceError that :func:`chunks` would raise for every split of an operator, without a search, also if
    the parameters would be cut into more than :data:`MOST_PARTS`, which would be impractical.
    """
    box = Box.whole(operator.output.shape)
    size, room = operator.parameter_bytes(operator.needed(box)), private_bytes // 2
    if operator.unknown or size <= private_bytes or not _is_product(operator):
        return
    if operator.axes:
        box = box.along(operator.axes[0], 0, 1)
    if operator.parameter_bytes(operator.needed(box)) > room:
        next(_partial_sums(operator, box, room))
    if (parts := -(-size // room)) > MOST_PARTS:
        raise DeviceError(
            f"operator {operator.name!r} has {size:,} bytes of parameters, and half of a unit's private memory is "
            f"{room:,}: it would be cut into {parts:,} parts; give units at least {2 * -(-size // MOST_PARTS):,} bytes"
        )


def _is_product(operator: Operator) -> bool:
    return any(node.op.kind in ("conv", "gemm", "matmul", "conv_transpose") for node in operator.nodes)


def _divisions(sizes: Sequence[int]) -> Iterator[list[ParameterPart]]:
    """Divisions of channels, then of each axis of windows, ever finer: the ranges along each of them."""
    done = [1] * len(sizes)
    for axis, size in enumerate(sizes):
        for done[axis] in part_counts(size, size):
            yield [
                tuple(part_range(n, count, place) for place in range(count))
                for n, count in zip(sizes, done, strict=True)
            ]


def part_range(size: int, parts: int, place: int) -> tuple[int, int]:
    """Start and size of one of ``parts`` parts of an axis: as equal as possible, the larger ones first."""
    each, larger = divmod(size, parts)
    return place * each + min(place, larger), each + (place < larger)


def even_parts(box: Box, axis: int, parts: int) -> Iterator[Box]:
    """The box in parts along an axis, as equal as possible; the first is one of the largest."""
    for place in range(parts):
        begin, size = part_range(box.shape[axis], parts, place)
        yield box.along(axis, box.starts[axis] + begin, size)
