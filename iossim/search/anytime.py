"""A search within seconds: pruned ones first, so that there is a good schedule whenever the time is up.

Pruning to groups of few units, and to few groups, takes hundredths of the time of the whole search of a wide block, and
finds schedules within some percent of the best (section 3.4 of the thesis prunes to r = 3 and s = 8).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from time import perf_counter
from typing import Protocol, TypeVar

from iossim.search.options import SearchOptions
from iossim.search.scheduler import Progress

#: The most units of a group, and the most groups, of the searches that come before the one that is asked for.
PRUNINGS = (1, 4), (2, 8), (3, 8)


class TimeIsUp(KeyboardInterrupt):
    """Ends a search as its user would: what was found until then stands."""


class Found(Protocol):
    """What a search finds; ``complete``: did it come to its end?"""

    @property
    def complete(self) -> bool: ...


F = TypeVar("F", bound=Found)


def until(deadline_s: float, progress: Progress) -> Progress:
    """The progress, which raises :class:`TimeIsUp` once :func:`time.perf_counter` is past the deadline."""

    def told(done: int, total: int) -> None:
        progress(done, total)
        if perf_counter() >= deadline_s:
            raise TimeIsUp

    return told


def within(
    options: SearchOptions,
    progress: Progress,
    search: Callable[[SearchOptions, Progress, F | None], F],
    prunings: Sequence[tuple[int, int]] = PRUNINGS,
) -> F:
    """What the last search finds that there is time for; all of them have ``options.seconds`` together.

    ``search`` is given its options, its progress, and what the search before it found, from which it takes what it
    does not get to. Without seconds there is one search.
    """
    if options.seconds is None:
        return search(options, progress, None)
    asked = options.space
    pruned = [
        replace(
            asked,
            max_group_size=min(most_units, asked.max_group_size or most_units),
            max_groups=min(most_groups, asked.max_groups or most_groups),
        )
        for most_units, most_groups in prunings
    ]
    told = until(perf_counter() + options.seconds, progress)
    found: F | None = None
    for space in dict.fromkeys([*pruned, asked]):
        found = search(replace(options, space=space), told, found)
        if not found.complete:
            break
    assert found is not None
    return found
