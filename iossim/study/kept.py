"""What a worker keeps from one piece of work to the next: the last few values by key."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

V = TypeVar("V")


class Kept(threading.local, Generic[V]):
    """The last ``most`` values that were asked for, of each thread; a value that cannot be made is tried again.

    A Dask worker may have several threads, and cost models are no two threads' at a time.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._values: OrderedDict[Hashable, V] = OrderedDict()

    def get(self, key: Hashable, make: Callable[[], V]) -> V:
        if key not in self._values:
            made = make()
            while len(self._values) >= self._most:
                self._values.popitem(last=False)
            self._values[key] = made
        self._values.move_to_end(key)
        return self._values[key]

    def clear(self) -> None:
        self._values.clear()
