"""The clock of the device: kernels whose time depends on it, times by events, and bringing it to its working rate.

Work issued to a stream is timed by events around it, after a kernel that waits (the *spin*) until the host has issued
all of it (:mod:`iossim.execution.lead`).

An idle GPU lowers its clock, to a fifth and less, and takes a while to raise it again: whatever is timed first would
seem slow. So the device is first kept busy for a while, and again whenever it has idled. Its clock is measured, not
queried: the time of a kernel that counts cycles depends on the clock alone.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np

from iossim.backends.cupy_cudnn.driver import Driver, Stream
from iossim.execution.lead import Lead, Once, Taken, take

#: One thread that waits: work issued after it queues up, so that the device never waits. Arguments: cycles.
SPIN = """extern "C" __global__ void spin(long long cycles) {
    const long long start = clock64();
    while (clock64() - start < cycles) { }
}
"""
#: An empty kernel, after which the branches of a graph begin.
EMPTY = """extern "C" __global__ void empty() { }
"""
#: Reads as many numbers as there are threads, so that the L2 cache holds nothing else. It writes none, since writing
#: them back to memory would delay the timed work. Arguments: elements, their address.
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

#: Least time for which the device is kept busy at first, and most time later, if it does not regain its best clock.
WARM_UP_US = 300_000.0
MOST_US = 2_000_000.0
#: Length of a pause after which the clock may have dropped.
IDLE_US = 20_000.0
#: Duration of one kernel at full clock: in the warm-up, and in a check of the clock.
STEP_US = 10_000.0
PROBE_US = 500.0
#: Duration of the spin before it, while the host issues it.
LEAD_IN_US = 100.0
#: Relative difference up to which two clocks count as equal.
TOLERANCE = 0.02
#: Blocks and threads of a warm-up kernel: enough for every multiprocessor.
BLOCKS, THREADS = 512, 32


class DeviceTimer:
    """Times work issued to one stream."""

    def __init__(self, driver: Driver, main: Stream) -> None:
        self._driver, self._main = driver, main
        self.spin = driver.kernel(SPIN, "spin")
        self._waiting, self._start, self._end = (driver.event(timing=True) for _ in range(3))

    def take(self, issue: Callable[[], None], before: Callable[[], None], lead: Lead) -> Taken:
        """One time of the work that ``issue`` issues; ``before`` issues untimed work just before it."""

        def once(wait_us: float) -> Once:
            before()
            return self.once(issue, wait_us)

        return take(once, lead)

    def once(self, issue: Callable[[], None], wait_us: float) -> Once:
        """The same after a spin of ``wait_us``."""
        driver, main = self._driver, self._main
        begin_us = driver.host_us()  # the device reaches the next event after this, never before
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
        self._driver, self._main, self.timer = driver, main, DeviceTimer(driver, main)
        #: Time over that at the rated clock, at the device's best so far.
        self._best = float("inf")
        self._busy_until_us = float("-inf")
        #: Total time for which the device was kept busy, microseconds.
        self.spent_us = 0.0

    def ensure(self) -> None:
        """Bring the device to its working clock."""
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
                self._best = slowness  # limited by heat or power: this is its working clock now
                return
            last = slowness

    def worked(self) -> None:
        """Note that the device was busy until now."""
        self._busy_until_us = self._driver.host_us()

    def _slowness(self, rated_us: float) -> float:
        """The time of a kernel over its time at the rated clock."""
        spin = (self.timer.spin, BLOCKS, THREADS, (cycles(self._driver, rated_us),), self._main)
        time_us = self.timer.once(partial(self._driver.launch, *spin), LEAD_IN_US).time_us
        self.worked()
        self.spent_us += time_us
        self._best = min(self._best, time_us / rated_us)
        return time_us / rated_us


def cycles(driver: Driver, rated_us: float) -> np.int64:
    """Cycles of the device's rated clock in a time, as the spinning kernel counts them."""
    return np.int64(rated_us * driver.facts.clock_khz / 1e3)
