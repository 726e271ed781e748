"""The clock of the device: kernels that follow it, times by events, and how it is brought to where it works.

How long the device takes for what is issued to a stream is told by events around it, behind a kernel that waits (the
*spin*) until the host has issued all (:mod:`iossim.execution.lead`).

A GPU that idles is clocked down, to a fifth of its clock and less, and takes a while to come back: what is timed
first would seem slow. So the device is kept busy for a while first, and again whenever it has idled. How fast it is
clocked is measured, not asked for: the time of a kernel that counts cycles follows the clock alone.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np

from iossim.backends.cupy_cudnn.driver import Driver, Stream
from iossim.execution.lead import Lead, Once, Taken, take

#: One thread that waits: what is issued behind it piles up, so the device never waits. Arguments: cycles.
SPIN = """extern "C" __global__ void spin(long long cycles) {
    const long long start = clock64();
    while (clock64() - start < cycles) { }
}
"""
#: Nothing, as what branches of a graph begin behind.
EMPTY = """extern "C" __global__ void empty() { }
"""
#: Reads as many numbers as there are threads, so that the L2 cache holds those and nothing else. Written, they would
#: be in the way of what is timed: it would have to wait until they are in memory. Arguments: elements, their address.
FLUSH = """extern "C" __global__ void flush(unsigned int elements, float* p) {
    const unsigned int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= elements) return;
    const float a = p[i];
    if (a == 1.17549435e-38f) p[i] = 0.0f;
}
"""
#: A fixed amount of arithmetic in registers, whose time follows the clock. Arguments: steps, address of one number.
SENTINEL = """extern "C" __global__ void sentinel(int steps, float* p) {
    float a = 1.0f + threadIdx.x, b = 0.5f;
    for (int step = 0; step < steps; ++step) { a = a * 0.999f + b; b = b * 0.998f + 0.001f; }
    if (a == -1.0f) *p = a + b;
}
"""

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


class DeviceTimer:
    """Times what is issued to one stream."""

    def __init__(self, driver: Driver, main: Stream) -> None:
        self._driver, self._main = driver, main
        self.spin = driver.kernel(SPIN, "spin")
        self._waiting, self._start, self._end = (driver.event(timing=True) for _ in range(3))

    def take(self, issue: Callable[[], None], before: Callable[[], None], lead: Lead) -> Taken:
        """One time of what ``issue`` issues; ``before`` issues what runs just before it, untimed."""

        def once(wait_us: float) -> Once:
            before()
            return self.once(issue, wait_us)

        return take(once, lead)

    def once(self, issue: Callable[[], None], wait_us: float) -> Once:
        """The same behind a wait of so long."""
        driver, main = self._driver, self._main
        begin_us = driver.host_us()  # the device comes to the next event after this, never before
        driver.record(self._waiting, main)
        driver.launch(self.spin, 1, 1, (cycles(driver, wait_us),), main)
        driver.record(self._start, main)
        issue()
        driver.record(self._end, main)
        issue_us = driver.host_us() - begin_us
        driver.synchronize()
        time_us, waited_us = (
            driver.elapsed_us(*pair) for pair in ((self._start, self._end), (self._waiting, self._start))
        )
        return Once(time_us, issue_us, waited_us)


class WorkingClock:
    """The clock of one device."""

    def __init__(self, driver: Driver, main: Stream) -> None:
        self._driver, self._main, self._timer = driver, main, DeviceTimer(driver, main)
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
        spin = (self._timer.spin, BLOCKS, THREADS, (cycles(self._driver, rated_us),), self._main)
        time_us = self._timer.once(partial(self._driver.launch, *spin), LEAD_IN_US).time_us
        self.worked()
        self.spent_us += time_us
        self._best = min(self._best, time_us / rated_us)
        return time_us / rated_us


def cycles(driver: Driver, rated_us: float) -> np.int64:
    """Cycles of the device's rated clock in that time, as the spinning kernel counts them."""
    return np.int64(rated_us * driver.facts.clock_khz / 1e3)
