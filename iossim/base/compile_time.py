"""Compile time: reported once it exceeds a second, and excluded from the reported search time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Timer
from time import perf_counter

#: Called once, when compiling has taken a second in total.
on_long_compiling: list[Callable[[], None]] = []
_LONG_S = 1.0
_spent_s = 0.0
_depth = 0


def working_s() -> float:
    """A clock, in seconds, that stops while functions are compiled; search times are measured with it."""
    return perf_counter() - _spent_s


@contextmanager
def compiling() -> Iterator[None]:
    """Count the time spent inside as compile time; nested calls count once."""
    global _spent_s, _depth  # noqa: PLW0603
    begun, timer = perf_counter(), None
    if _depth == 0 and on_long_compiling:
        timer = Timer(max(0.0, _LONG_S - _spent_s), _report)
        timer.daemon = True
        timer.start()
    _depth += 1
    try:
        yield
    finally:
        _depth -= 1
        if timer is not None:
            timer.cancel()
        if _depth == 0:
            _spent_s += perf_counter() - begun


def _report() -> None:
    while on_long_compiling:
        on_long_compiling.pop()()
