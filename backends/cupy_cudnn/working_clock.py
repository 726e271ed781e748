"""Brings the device to the clock at which it works, and keeps it there.

A GPU that idles is clocked down, to a fifth of its clock and less, and takes a while to come back: what is timed
first would seem slow. So the device is kept busy for a while first, and again whenever it has idled. How fast it is
clocked is measured, not asked for: the time of a kernel that counts cycles follows the clock alone.
"""

from __future__ import annotations

import numpy as np

from iossim.backends.cupy_cudnn.driver import Driver, Stream
from iossim.backends.cupy_cudnn.service_kernels import SPIN

#: How long the device is kept busy at first, at least; and later at most, where it does not come back to its best.
WARM_UP_US = 300_000.0
MOST_US = 2_000_000.0
#: A pause from which on the clock may have fallen.
IDLE_US = 20_000.0
#: One kernel at full clock: at first, and to see where the clock is.
STEP_US = 10_000.0
PROBE_US = 500.0
#: A wait before it, in which the host issues it.
LEAD_IN_US = 100.0
#: Clocks within this much of each other are the same.
TOLERANCE = 0.02
#: Enough blocks for every multiprocessor.
BLOCKS, THREADS = 512, 32


class WorkingClock:
    """The clock of one device."""

    def __init__(self, driver: Driver, main: Stream) -> None:
        self._driver, self._main = driver, main
        self._spin = driver.kernel(SPIN, "spin")
        self._start, self._end = (driver.event(timing=True) for _ in range(2))
        #: How much longer than at its rated clock the device takes at its best so far.
        self._best = float("inf")
        self._busy_until_us = float("-inf")
        #: For how long the device was kept busy so far, microseconds.
        self.spent_us = 0.0

    def ensure(self) -> None:
        """Return with the device at its working clock."""
        first = self._best == float("inf")
        if not first:
            if self._driver.host_us() - self._busy_until_us <= IDLE_US:
                return
            if self._slowness(PROBE_US) <= self._best * (1 + TOLERANCE):
                return
        begin_us, last = self.spent_us, float("inf")
        while True:
            slowness = self._slowness(STEP_US)
            spent_us = self.spent_us - begin_us
            settled = slowness <= min(last, self._best) * (1 + TOLERANCE) and last <= slowness * (1 + TOLERANCE)
            if settled and (spent_us >= WARM_UP_US or not first):
                return
            if spent_us >= (MOST_US if first else WARM_UP_US):
                self._best = slowness  # held down, by heat or power: this is how it works now
                return
            last = slowness

    def worked(self) -> None:
        """The device was busy until now."""
        self._busy_until_us = self._driver.host_us()

    def _slowness(self, rated_us: float) -> float:
        """The time of a kernel over what it takes at the rated clock."""
        driver, main = self._driver, self._main
        driver.launch(self._spin, 1, 1, (cycles(driver, LEAD_IN_US),), main)
        driver.record(self._start, main)
        driver.launch(self._spin, BLOCKS, THREADS, (cycles(driver, rated_us),), main)
        driver.record(self._end, main)
        driver.synchronize()
        self.worked()
        time_us = driver.elapsed_us(self._start, self._end)
        self.spent_us += time_us
        self._best = min(self._best, time_us / rated_us)
        return time_us / rated_us


def cycles(driver: Driver, rated_us: float) -> np.int64:
    """How many cycles of its rated clock the device has in that time: what the spinning kernel counts."""
    return np.int64(rated_us * driver.facts.clock_khz / 1e3)
