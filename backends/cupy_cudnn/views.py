"""Views of tensors: a place in a named memory, a shape, and strides. Everything that runs on the device reads
views, and a launch of one of our own kernels names them before their addresses are known.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from iossim.ir.op import normal_axis
from iossim.ir.types import DType

#: What cuDNN assumes of every pointer; storages, weights and scratch begin at multiples of 256 bytes.
CUDNN_ALIGNMENT_BYTES = 16


class Memory(NamedTuple):
    """A name of memory: its ``kind`` (``storage``, ``weight`` or ``scratch``) and its name among those."""

    kind: str
    name: str = ""


@dataclass(frozen=True, slots=True)
class View:
    """A tensor of ``shape`` that begins ``offset`` elements into ``memory``, with ``strides`` in elements."""

    memory: Memory
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int = 0
    dtype: DType = DType.FLOAT32

    @property
    def elements(self) -> int:
        return math.prod(self.shape)

    @property
    def extent(self) -> int:
        """Number of elements of its memory up to its last one."""
        pairs = zip(self.shape, self.strides, strict=True)
        return self.offset + 1 + sum((size - 1) * max(0, stride) for size, stride in pairs)

    @property
    def is_dense(self) -> bool:
        """True where the elements lie in row-major order without gaps."""
        ones = zip(self.shape, self.strides, row_major(self.shape), strict=True)
        return all(size == 1 or own == packed for size, own, packed in ones)

    @property
    def offset_bytes(self) -> int:
        return self.offset * self.dtype.bytes

    def suits_cudnn(self, last: bool = False) -> bool:
        """True where cuDNN accepts it as an image in a layout: aligned, and dense but for steps between images.

        With channels ``last``, it may be a slice of the channels: then the steps between positions are larger too.
        """
        step, may_skip = 1, last
        for axis in _from_innermost(len(self.shape), last)[:-1]:
            size, stride = self.shape[axis], self.strides[axis]
            if size == 1:
                continue
            if axis > 1 and may_skip and stride > step:
                step = stride
            elif stride != step:
                return False
            may_skip = may_skip and axis == 1
            step *= size
        images_apart = self.shape[0] == 1 or self.strides[0] >= step
        return images_apart and self.offset_bytes % CUDNN_ALIGNMENT_BYTES == 0

    def is_packed(self, last: bool = False) -> bool:
        """True where an image that suits cuDNN in a layout has no gaps."""
        return self.image_strides(last)[0] * self.shape[0] == self.elements

    @property
    def suits_product(self) -> bool:
        """True where cuDNN accepts it as a stack of matrices: aligned, with rows or columns without gaps."""
        (rows, columns), (down, across) = self.shape[-2:], self.strides[-2:]
        dense = (across == 1 and down >= columns) or (down == 1 and across >= rows)
        is_repeated = any(size > 1 and not stride for size, stride in zip(self.shape, self.strides, strict=True))
        dense = dense and min(self.strides) >= 0 and not is_repeated
        return dense and self.offset_bytes % CUDNN_ALIGNMENT_BYTES == 0

    def part(self, axis: int, begin: int, count: int, step: int = 1) -> View:
        """Elements ``begin``, ``begin + step``, ... of an axis."""
        shape, strides = list(self.shape), list(self.strides)
        offset = self.offset + begin * strides[axis]
        shape[axis], strides[axis] = count, strides[axis] * step
        return replace(self, shape=tuple(shape), strides=tuple(strides), offset=offset)

    def split(self, axis: int, sizes: Sequence[int]) -> View:
        """An axis as several, whose sizes multiply to its own."""
        steps = (self.strides[axis] * step for step in row_major(sizes))
        shape = (*self.shape[:axis], *sizes, *self.shape[axis + 1 :])
        return replace(self, shape=shape, strides=(*self.strides[:axis], *steps, *self.strides[axis + 1 :]))

    def permuted(self, axes: Sequence[int]) -> View:
        """Axis ``i`` is axis ``axes[i]`` of this one."""
        return replace(
            self, shape=tuple(self.shape[axis] for axis in axes), strides=tuple(self.strides[axis] for axis in axes)
        )

    def broadcast(self, shape: Sequence[int]) -> View:
        """The view repeated to ``shape`` by NumPy's rules: a repeated axis has stride 0."""
        missing = len(shape) - len(self.shape)
        own = zip(self.shape, self.strides, strict=True)
        strides = tuple(0 if size == 1 else stride for size, stride in own)
        return replace(self, shape=tuple(shape), strides=(0,) * missing + strides)

    @property
    def narrow(self) -> View:
        """The view without repetition: one element of each axis that it is repeated along."""
        return replace(
            self, shape=tuple(size if step else 1 for size, step in zip(self.shape, self.strides, strict=True))
        )

    def reshaped(self, shape: Sequence[int]) -> View | None:
        """The same elements in row-major order under another shape; None where strides cannot express that."""
        old = [pair for pair in zip(self.shape, self.strides, strict=True) if pair[0] > 1]
        strides, step, left = list(row_major(shape)), 1, 1  # the step between neighbours of ``left`` elements
        for axis in reversed(range(len(shape))):
            if shape[axis] == 1:
                continue
            if left == 1:
                left, step = old.pop()
            while left % shape[axis]:
                size, outer = old.pop()
                if outer != step * left:
                    return None
                left *= size
            strides[axis], step, left = step, step * shape[axis], left // shape[axis]
        return replace(self, shape=tuple(shape), strides=tuple(strides))

    def along(self, axis: int, rank: int) -> View:
        """One number, or one for each place along an axis, as it broadcasts to tensors of a rank."""
        if self.elements == 1:
            return self.with_ones(())
        place = normal_axis(axis, rank)
        return self.with_ones([self.elements if at == place else 1 for at in range(rank)])

    def as_stack(self, stack: Sequence[int]) -> View | None:
        """Matrices repeated to ``stack`` as ``[count, rows, columns]``; None where the steps between them differ."""
        wide = self.broadcast((*stack, *self.shape[-2:])) if stack else self
        found = wide.reshaped((math.prod(wide.shape[:-2]), *self.shape[-2:]))
        return found and replace(found, strides=(found.strides[0], *self.strides[-2:]))

    def with_ones(self, shape: Sequence[int]) -> View:
        """The view under a shape that its strides allow, such as one with axes of one element added or taken away."""
        shaped = self.reshaped(shape)
        assert shaped is not None, f"{self} is not of shape {shape}"
        return shaped

    @property
    def planar(self) -> View:
        """Images ``[N, C, W]``, or filters of such, as ones of height one; others as they are."""
        if len(self.shape) != 3:
            return self
        shape, strides = self.shape, self.strides
        return replace(self, shape=(*shape[:2], 1, shape[2]), strides=(*strides[:2], 0, strides[2]))

    def image_strides(self, last: bool = False) -> tuple[int, ...]:
        """Strides as cuDNN is told them: those of axes of one element are what they would be if it were dense.

        So that views that differ only in steps that are never taken have one description.
        """
        strides, step = [0] * len(self.shape), 1
        for axis in _from_innermost(len(self.shape), last):
            strides[axis] = step if self.shape[axis] == 1 else self.strides[axis]
            step = strides[axis] * self.shape[axis]
        return tuple(strides)


def _from_innermost(rank: int, last: bool) -> list[int]:
    """The axes of an image in the order of their strides, smallest first."""
    axes = list(range(rank - 1, -1, -1))
    return [1, *(axis for axis in axes if axis != 1)] if last and rank > 2 else axes


def row_major(shape: Sequence[int]) -> tuple[int, ...]:
    """Strides of a dense tensor."""
    strides = [1] * len(shape)
    for axis in range(len(shape) - 2, -1, -1):
        strides[axis] = strides[axis + 1] * shape[axis + 1]
    return tuple(strides)


def channels_last(shape: Sequence[int]) -> tuple[int, ...]:
    """Strides of a dense tensor of images ``[N, C, ...]`` whose channels lie innermost."""
    images, *places, channels = row_major((shape[0], *shape[2:], shape[1]))
    return (images, channels, *places)


def dense(
    memory: Memory, shape: Sequence[int], offset: int = 0, dtype: DType = DType.FLOAT32, last: bool = False
) -> View:
    """A dense tensor, of images with channels ``last`` if that is said."""
    return View(memory, tuple(shape), channels_last(shape) if last else row_major(shape), offset, dtype)


def coalesced(shape: Sequence[int], strides: Sequence[Sequence[int]]) -> tuple[list[int], list[list[int]]]:
    """The same walk over several operands with as few axes as their strides allow: sizes, and strides by operand.

    Axes of one element go, neighbours that all operands step through as one become one; at least one is left.
    """
    sizes: list[int] = []
    steps: list[list[int]] = []  # of all operands, by axis
    for size, *own in zip(shape, *strides, strict=True):
        if sizes and steps[-1] == [step * size for step in own]:
            sizes[-1], steps[-1] = sizes[-1] * size, own
        elif size > 1:
            sizes.append(size)
            steps.append(own)
    if not sizes:
        return [1], [[0] for _ in strides]
    return sizes, [list(walked) for walked in zip(*steps, strict=True)]


#: Threads of a block where nothing speaks for another number.
BLOCK_THREADS = 256
#: So many let each SM of a large GPU have one.
ENOUGH_BLOCKS = 128

#: Scalars as CUDA takes them; views become the address of their first element.
Scalar = np.int32 | np.uint32 | np.int64 | np.uint64 | np.float32
Argument = View | Scalar


@dataclass(frozen=True)
class KernelCall:
    """Kernel ``name`` of ``source`` over ``blocks`` blocks of ``threads`` threads; ``arguments`` in its order."""

    source: str
    name: str
    blocks: int
    threads: int
    arguments: tuple[Argument, ...]

    @property
    def key(self) -> tuple[str, int, tuple[float, ...]]:
        """Equal for calls that do equal work, wherever their operands lie."""
        return self.source, self.blocks, tuple(item.item() for item in self.arguments if not isinstance(item, View))

    def bound(self, address: Callable[[View], int]) -> tuple[Scalar, ...]:
        """The arguments with each view as the address of its first element."""
        return tuple(np.uint64(address(item)) if isinstance(item, View) else item for item in self.arguments)


def spread(threads: int) -> tuple[int, int]:
    """Blocks, and threads of one, for so many: smaller ones where there would be less than :data:`ENOUGH_BLOCKS`."""
    block = BLOCK_THREADS
    while block > 64 and threads < ENOUGH_BLOCKS * block:
        block //= 2
    return -(-threads // block), block
