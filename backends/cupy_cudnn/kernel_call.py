"""A launch of one of our own kernels, before its addresses are known."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from iossim.backends.cupy_cudnn.views import View
from iossim.execution.backend import BackendError

#: Threads of a block where nothing speaks for another number.
BLOCK_THREADS = 256
#: Kernels count elements in 32 bits.
MOST_ELEMENTS = 2**31 - 1

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


def over_elements(source: str, name: str, elements: int, arguments: tuple[Argument, ...]) -> KernelCall:
    """One thread an element; raises BackendError for more elements than a kernel counts."""
    if elements > MOST_ELEMENTS:
        raise BackendError(
            f"a tensor of {elements} elements is larger than the {MOST_ELEMENTS} that kernels count; take a smaller batch"
        )
    return KernelCall(source, name, -(-elements // BLOCK_THREADS), BLOCK_THREADS, arguments)


def int32s(values: tuple[int, ...] | list[int]) -> tuple[Scalar, ...]:
    return tuple(np.int32(value) for value in values)
