"""Weights: external to the graph and lazy. A graph holds the origin of each constant, not its array."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from iossim.base.errors import GraphError
from iossim.ir.op import Array
from iossim.ir.types import DType, TensorType


class Constant(ABC):
    """A tensor that is known before the network runs."""

    type: TensorType

    @property
    def is_at_hand(self) -> bool:
        """True if loading reads existing data, or computes with a few numbers. Else it may take any time and memory."""
        return True

    @property
    def is_absent(self) -> bool:
        """True if its values, or values that it is computed from, are missing, so that it cannot be loaded."""
        return False

    @abstractmethod
    def load(self) -> Array:
        """The array, of ``type``'s shape and element type."""

    @property
    def origin(self) -> Constant:
        """The constant that this one rearranges or rounds; itself if there is none."""
        return self

    @property
    def loadable(self) -> Constant:
        """The constant as it was before it took a type that it cannot be loaded in; itself if it can."""
        return self


@dataclass(frozen=True, eq=False)
class ArrayConstant(Constant):
    """An array in memory."""

    array: Array
    type: TensorType = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "type", TensorType(self.array.shape, dtype_of(self.array)))

    def load(self) -> Array:
        return self.array


@dataclass(frozen=True)
class SeededConstant(Constant):
    """Normal noise from a seed, scaled to keep the variance of activations (He et al., 2015).

    The seed is derived from ``name``, so that equal names mean equal weights in every process.
    """

    type: TensorType
    name: str
    seed: int = 0

    def load(self) -> Array:
        digest = hashlib.sha256(f"{self.seed}:{self.name}".encode()).digest()
        generator = np.random.default_rng(int.from_bytes(digest[:8], "little"))
        shape = self.type.shape
        fan_in = max(1, int(np.prod(shape[1:])))
        scale = (2.0 / fan_in) ** 0.5 if len(shape) > 1 else 0.1
        values = generator.standard_normal(shape, dtype=np.float32) * np.float32(scale)
        return values.astype(self.type.dtype.numpy)


@dataclass(frozen=True)
class FilledConstant(Constant):
    """Every element is ``value``."""

    type: TensorType
    value: float = 0.0

    def load(self) -> Array:
        return np.full(self.type.shape, self.value).astype(self.type.dtype.numpy)


@dataclass(frozen=True)
class IdentityConstant(Constant):
    """The weight ``[C, C / groups, *kernel]`` of an identity convolution, or the identity matrix ``[n, n]``.

    It is 1 at the centre of each channel's own filter (for an even size the element before it), 0 elsewhere.
    Raises GraphError for any other shape.
    """

    type: TensorType

    def __post_init__(self) -> None:
        shape = self.type.shape
        if len(shape) < 2 or (len(shape) == 2 and shape[0] != shape[1]) or shape[1] < 1 or shape[0] % shape[1]:
            raise GraphError(f"there is no identity of shape {list(shape)}")

    def load(self) -> Array:
        shape = self.type.shape
        array = np.zeros(shape)
        channels = np.arange(shape[0])
        taps: tuple[Any, ...] = (channels, channels % shape[1], *((size - 1) // 2 for size in shape[2:]))
        array[taps] = 1.0
        return array.astype(self.type.dtype.numpy)


@dataclass(frozen=True)
class AbsentConstant(Constant):
    """Weights without values: enough to schedule and price, not to execute. ``reason`` gives cause and remedy."""

    type: TensorType
    reason: str = "this graph was read without its weights; load the model itself to execute it"
    is_at_hand = False
    is_absent = True

    def load(self) -> Array:
        raise GraphError(self.reason)


def dtype_of(array: Array) -> DType:
    """The element type of an array; raises GraphError for one unknown to iossim."""
    found = DType.of_numpy(array.dtype)
    if found is None:
        raise GraphError(f"element type {array.dtype} is not supported; known: {', '.join(DType)}")
    return found
