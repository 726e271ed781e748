"""Device times that do not count the host: what is timed is issued behind a wait that outlasts its issue.

Whether it did is checked: the wait cannot have ended before it was issued and had taken its time, and by then the host
must be through. A time taken otherwise is taken again, behind a longer wait.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import NamedTuple

#: How much longer than the host has needed lately is waited, and at least: host times scatter.
MARGIN = 2.0
LEAST_US = 20.0
MOST_US = 20_000.0
#: Launches that the host's time is remembered of: one that was held up for long is forgotten after so many.
REMEMBERED = 10
#: How often a time is taken at most until the host is ahead.
ATTEMPTS = 5


class Lead:
    """What the host has needed to issue a graph, or several alike."""

    def __init__(self) -> None:
        self._issue_us: deque[float] = deque(maxlen=REMEMBERED)

    def add(self, issue_us: float) -> None:
        self._issue_us.append(issue_us)

    @property
    def largest_us(self) -> float:
        """The most of the last launches."""
        return max(self._issue_us, default=0.0)

    @property
    def wait_us(self) -> float:
        """How long the device must wait for the host to be through."""
        return min(MOST_US, LEAST_US + MARGIN * self.largest_us)


class Once(NamedTuple):
    """One try, microseconds: what the device took, what the host took to issue it, and how long the wait was."""

    time_us: float
    issue_us: float
    waited_us: float


class Taken(NamedTuple):
    """The time of a graph; how many were thrown away before it; whether the host was through in time."""

    time_us: float
    thrown_away: int
    ahead: bool


def take(once: Callable[[float], Once], lead: Lead) -> Taken:
    """One time of what ``once`` issues behind a wait of so many microseconds."""
    thrown_away = 0
    while True:
        found = once(lead.wait_us)
        lead.add(found.issue_us)
        ahead = found.issue_us <= found.waited_us
        if ahead or thrown_away == ATTEMPTS - 1:
            return Taken(found.time_us, thrown_away, ahead)
        thrown_away += 1
