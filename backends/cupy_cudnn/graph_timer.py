"""How long the device takes for a captured graph, or for calls one by one, by events around them.

The launch is issued behind a kernel that waits (the *spin*), so that the host has issued all of it before the device
begins, and does not count. Whether it had is checked: the spin cannot have ended before it was launched and had taken
its time, and by then the host must be through. A time taken otherwise is taken again, behind a longer spin.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from iossim.backends.cupy_cudnn.driver import Driver, Stream
from iossim.backends.cupy_cudnn.service_kernels import SPIN
from iossim.backends.cupy_cudnn.working_clock import cycles

#: How much longer than the host has needed lately is spun, and at least: host times scatter.
SPIN_MARGIN = 2.0
LEAST_SPIN_US = 20.0
MOST_SPIN_US = 20_000.0
#: Launches that the host's time is remembered of: one that was held up for long is forgotten after so many.
REMEMBERED = 10
#: How often a time is taken again where the host was not through.
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
    def spin_us(self) -> float:
        """How long the device must wait for the host to be through."""
        return min(MOST_SPIN_US, LEAST_SPIN_US + SPIN_MARGIN * self.largest_us)


class Taken(NamedTuple):
    """The time of a graph; how many were thrown away before it; whether the host was through in time."""

    time_us: float
    thrown_away: int
    ahead: bool


class GraphTimer:
    """Times what is issued to one stream."""

    def __init__(self, driver: Driver, main: Stream) -> None:
        self._driver, self._main = driver, main
        self._spin = driver.kernel(SPIN, "spin")
        self._waiting, self._start, self._end = (driver.event(timing=True) for _ in range(3))

    def take(self, issue: Callable[[], None], before: Callable[[], None], lead: Lead) -> Taken:
        """One time of what ``issue`` issues; ``before`` issues what runs just before it, untimed."""
        thrown_away = 0
        while True:
            time_us, ahead = self._once(issue, before, lead)
            if ahead or thrown_away == ATTEMPTS - 1:
                return Taken(time_us, thrown_away, ahead)
            thrown_away += 1

    def _once(self, issue: Callable[[], None], before: Callable[[], None], lead: Lead) -> tuple[float, bool]:
        driver, main = self._driver, self._main
        before()
        begin_us = driver.host_us()  # the device comes to the next event after this, never before
        driver.record(self._waiting, main)
        driver.launch(self._spin, 1, 1, (cycles(driver, lead.spin_us),), main)
        driver.record(self._start, main)
        issue()
        driver.record(self._end, main)
        issue_us = driver.host_us() - begin_us
        driver.synchronize()
        lead.add(issue_us)
        return driver.elapsed_us(self._start, self._end), issue_us <= driver.elapsed_us(self._waiting, self._start)
