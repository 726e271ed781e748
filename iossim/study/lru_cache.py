"""What a worker keeps from one piece of work to the next: the last few values by key."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

V = TypeVar("V")


@dataclass(frozen=True)
class _Keyed:
    """A key, and what makes its value; equal where the keys are."""

    key: Hashable
    make: Callable[[], Any] = field(compare=False)


class LruCache(threading.local, Generic[V]):
    """The ``maxsize`` values that were asked for last, of each thread; a value that cannot be made is tried again.

    A Dask worker may have several threads, and cost models are no two threads' at a time.
    """

    def __init__(self, maxsize: int) -> None:
        self._made = functools.lru_cache(maxsize)(lambda keyed: keyed.make())

    def get(self, key: Hashable, make: Callable[[], V]) -> V:
        value: V = self._made(_Keyed(key, make))
        return value

    def clear(self) -> None:
        self._made.cache_clear()
