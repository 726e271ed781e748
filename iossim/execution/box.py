"""A box of an array: the range of a slice in the whole, along every axis.

Channels of a concat, images of a micro-batch, rows and columns with a halo are all boxes. Whether the elements of one
are contiguous in memory concerns the reader only.
"""

from __future__ import annotations

from collections.abc import Iterable
from operator import lt
from types import EllipsisType
from typing import NamedTuple


class Box(NamedTuple):
    """Elements ``[starts[axis], starts[axis] + shape[axis])`` along each axis.

    The shape of the whole is that of the box's storage.
    """

    starts: tuple[int, ...]
    shape: tuple[int, ...]

    @staticmethod
    def whole(shape: tuple[int, ...]) -> Box:
        return Box((0,) * len(shape), shape)

    @staticmethod
    def between(starts: Iterable[int], ends: Iterable[int]) -> Box:
        starts = tuple(starts)
        return Box(starts, tuple(end - start for start, end in zip(starts, ends, strict=True)))

    @property
    def ends(self) -> tuple[int, ...]:
        return tuple(start + size for start, size in zip(self.starts, self.shape, strict=True))

    @property
    def selection(self) -> tuple[slice | EllipsisType, ...]:
        """The index that selects the box from an array of the whole, as a view even if that is a scalar."""
        return (*map(slice, self.starts, self.ends), ...)

    def moved(self, by: tuple[int, ...]) -> Box:
        """The box in coordinates of an enclosing array, in which the whole begins at ``by``."""
        return Box(tuple(start + more for start, more in zip(self.starts, by, strict=True)), self.shape)

    def along(self, axis: int, start: int, size: int) -> Box:
        """The box with another range along one axis, which is counted from the front."""
        starts = (*self.starts[:axis], start, *self.starts[axis + 1 :])
        return Box(starts, (*self.shape[:axis], size, *self.shape[axis + 1 :]))

    def overlaps(self, other: Box) -> bool:
        """True if two boxes of one whole have an element in common."""
        return all(map(lt, map(max, self.starts, other.starts), map(min, self.ends, other.ends)))

    def common(self, other: Box) -> Box | None:
        """The intersection of two boxes of one whole; None if it is empty."""
        if not self.overlaps(other):
            return None
        return Box.between(map(max, self.starts, other.starts), map(min, self.ends, other.ends))

    def hull(self, other: Box) -> Box:
        """The smallest box that contains both."""
        return Box.between(map(min, self.starts, other.starts), map(max, self.ends, other.ends))

    def without(self, other: Box) -> list[Box]:
        """The difference of two boxes of the same whole, as disjoint boxes: at most two per axis."""
        if not self.overlaps(other):
            return [self]
        rest, left = self, list[Box]()
        for axis, (start, size) in enumerate(zip(other.starts, other.shape, strict=True)):
            begin, end = rest.starts[axis], rest.starts[axis] + rest.shape[axis]
            for part_begin, part_end in ((begin, start), (start + size, end)):
                if part_begin < part_end:
                    left.append(rest.along(axis, part_begin, part_end - part_begin))
            first = max(begin, start)
            rest = rest.along(axis, first, min(end, start + size) - first)
        return left

    def covered_by(self, parts: Iterable[Box]) -> bool:
        """True if every element of the box is in one of ``parts``, boxes of the same whole."""
        left = [self] if all(self.shape) else []
        for part in parts:
            left = [rest for piece in left for rest in piece.without(part)]
            if not left:
                break
        return not left
