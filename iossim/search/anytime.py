"""The contract of searches that may end at any moment: by an interrupt, or when their time is up.

A search that ends early gives the best whole schedule that it knows, at the least one that needs no search. It takes
:class:`Steps`: one that its clock ends is left out, and the schedule says what that leaves unknown; after an interrupt
no other is taken, and the schedule is not ``complete``.

Within seconds a search of stages prunes first: pruning to groups of few units, and to few groups, takes hundredths of
the time of the whole search of a wide block, and finds schedules within some percent of the best (section 3.4 of the
thesis prunes to r = 3 and s = 8).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from math import inf
from time import perf_counter
from typing import ParamSpec, Protocol, TypeVar

from iossim.base.errors import Progress
from iossim.search.options import SearchOptions

#: The most units of a group, and the most groups, of the searches that come before the one that is asked for.
PRUNINGS = (1, 4), (2, 8), (3, 8)
#: Time limit of a search that has no time left: it ends at its first look at the clock.
_LEAST_S = 1e-3


class TimeIsUp(KeyboardInterrupt):
    """Ends a search as an interrupt by the user does: what was found until then stands."""


class Clock:
    """Time limit of a search, in seconds from now; None for no limit."""

    def __init__(self, seconds: float | None = None) -> None:
        self._quarter_s = (seconds or 0.0) / 4
        self._ends_s = inf if seconds is None else perf_counter() + seconds

    @property
    def is_limited(self) -> bool:
        return self._ends_s < inf

    def rest_s(self) -> float | None:
        """Seconds for the last step: those left, or a quarter of all if earlier ones took more; None if unlimited."""
        return None if (left_s := self.part_s()) is None else max(left_s, self._quarter_s)

    def part_s(self, part: float = 1.0) -> float | None:
        """Seconds of this part of the time left, never quite 0; None without a limit."""
        return max(_LEAST_S, part * (self._ends_s - perf_counter())) if self.is_limited else None

    @property
    def is_up(self) -> bool:
        return perf_counter() >= self._ends_s

    def check(self) -> None:
        """Raise :class:`TimeIsUp` once the time is up."""
        if self.is_up:
            raise TimeIsUp

    def telling(self, progress: Progress) -> Progress:
        """The progress, which also checks the clock."""

        def told(done: int, total: int) -> None:
            progress(done, total)
            self.check()

        return told


P = ParamSpec("P")
S = TypeVar("S")


@dataclass
class Steps:
    """Steps of a search that may end at any moment."""

    clock: Clock = field(default_factory=Clock)
    interrupted: bool = False

    def take(self, otherwise: S, step: Callable[P, S], *args: P.args, **kwargs: P.kwargs) -> S:
        """The result of a step; ``otherwise`` where the time ran out or an interrupt came before its end."""
        if self.interrupted:
            return otherwise
        try:
            self.clock.check()
            return step(*args, **kwargs)
        except TimeIsUp:
            return otherwise
        except KeyboardInterrupt:
            self.interrupted = True
            return otherwise

    @property
    def ended(self) -> bool:
        """True once no further step is taken."""
        return self.interrupted or self.clock.is_up

    @property
    def cause(self) -> str:
        """Reason in words why a step was left out."""
        return "the search was interrupted" if self.interrupted else "the time was up"


def finished(make: Callable[[bool], S]) -> S:
    """The result of ``make(True)``; if that is interrupted, of ``make(False)``: the search did not come to its end."""
    try:
        return make(True)
    except KeyboardInterrupt:
        return make(False)


class Found(Protocol):
    """Result of a search: ``complete`` if the search came to its end."""

    @property
    def complete(self) -> bool: ...


F = TypeVar("F", bound=Found)


def within(
    options: SearchOptions,
    progress: Progress,
    search: Callable[[SearchOptions, Progress, F | None], F],
    prunings: Sequence[tuple[int, int]] = PRUNINGS,
) -> F:
    """Result of the last search that there is time for; all of them share ``options.seconds``.

    ``search`` is given its options, its progress, and the result of the search before it, from which it takes what it
    does not reach. Without seconds there is one search.
    """
    if options.seconds is None:
        return search(options, progress, None)
    pruned = [options.space.pruned(*most) for most in prunings]
    told = Clock(options.seconds).telling(progress)
    found: F | None = None
    for space in dict.fromkeys([*pruned, options.space]):
        found = search(replace(options, space=space), told, found)
        if not found.complete:
            break
    assert found is not None
    return found
