"""Compiled functions on all cores of this process: they release the interpreter lock."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import TypeVar

A = TypeVar("A")

_limit: int | None = None


def limit_threads(count: int | None) -> None:
    """Let this process compute in at most this number of threads; None allows all cores."""
    global _limit  # noqa: PLW0603
    _limit = count


def threads() -> int:
    """Number of threads that this process computes in."""
    return _limit or len(usable_cores())


def on_all_cores(work: Callable[[A], None], parts: Sequence[A]) -> None:
    """Do the work for each part, in order on one thread, or on several."""
    if len(parts) == 1 or threads() == 1:
        for part in parts:
            work(part)
    else:
        list(_pool().map(work, parts))


@cache
def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(len(usable_cores()), thread_name_prefix="iossim")


if hasattr(os, "register_at_fork"):
    # A forked process has none of its parent's threads: it starts its own.
    os.register_at_fork(after_in_child=_pool.cache_clear)


def usable_cores() -> tuple[int, ...]:
    """Their numbers, in ascending order; all cores if the system does not say which."""
    if hasattr(os, "sched_getaffinity"):
        return tuple(sorted(os.sched_getaffinity(0)))
    return tuple(range(os.cpu_count() or 1))
