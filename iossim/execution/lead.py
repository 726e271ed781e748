"""Device times without host time: the timed work is issued after a device-side wait that outlasts its issue.

This is verified: the wait cannot have ended before its own issue plus its duration, and by then the host
must have finished. A time that fails the check is repeated, with a longer wait.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import NamedTuple

#: The wait over the host's recent issue time, and its minimum: host times scatter.
MARGIN = 2.0
LEAST_US = 20.0
MOST_US = 20_000.0
#: Number of launches whose host times are remembered: a single delay is forgotten after that.
REMEMBERED = 10
#: Maximum number of attempts until the host is ahead.
ATTEMPTS = 5


class Lead:
    """Recent host times for issuing a graph, or several alike."""

    def __init__(self) -> None:
        self._issue_us: deque[float] = deque(maxlen=REMEMBERED)

    def add(self, issue_us: float) -> None:
        self._issue_us.append(issue_us)

    @property
    def largest_us(self) -> float:
        """The longest of the last launches."""
        return max(self._issue_us, default=0.0)

    @property
    def wait_us(self) -> float:
        """Duration of the device's wait that lets the host finish."""
        return min(MOST_US, LEAST_US + MARGIN * self.largest_us)


class Once(NamedTuple):
    """One attempt, microseconds: the device's time, the host's time to issue it, and the duration of the wait."""

    time_us: float
    issue_us: float
    waited_us: float


class Taken(NamedTuple):
    """The time of a graph; the number of discarded attempts; whether the host finished in time."""

    time_us: float
    thrown_away: int
    ahead: bool


def take(once: Callable[[float], Once], lead: Lead) -> Taken:
    """One time of the work that ``once`` issues after a wait of the given duration in microseconds."""
    thrown_away = 0
    while True:
        found = once(lead.wait_us)
        lead.add(found.issue_us)
        ahead = found.issue_us <= found.waited_us
        if ahead or thrown_away == ATTEMPTS - 1:
            return Taken(found.time_us, thrown_away, ahead)
        thrown_away += 1
