"""What a worker keeps from one piece of work to the next: the last few values by key."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

V = TypeVar("V")


class LruCache(threading.local, Generic[V]):
    """The ``maxsize`` values that were asked for last, of each thread; a value that cannot be made is tried again.

    A Dask worker may have several threads, and cost models are no two threads' at a time.
    """

    def __init__(self, maxsize: int) -> None:
        self._made = functools.lru_cache(maxsize)(lambda key: self._make())

    def get(self, key: Hashable, make: Callable[[], V]) -> V:
        self._make = make
        value: V = self._made(key)
        return value
