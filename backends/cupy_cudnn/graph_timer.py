"""How long the device takes for a captured graph, or for calls one by one: by events around them, behind a kernel that
waits (the *spin*) until the host has issued all (:mod:`iossim.execution.lead`).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from iossim.backends.cupy_cudnn.driver import Driver, Stream
from iossim.backends.cupy_cudnn.service_kernels import SPIN
from iossim.backends.cupy_cudnn.working_clock import cycles
from iossim.execution.lead import Lead, Once, Taken, take


class GraphTimer:
    """Times what is issued to one stream."""

    def __init__(self, driver: Driver, main: Stream) -> None:
        self._driver, self._main = driver, main
        self._spin = driver.kernel(SPIN, "spin")
        self._waiting, self._start, self._end = (driver.event(timing=True) for _ in range(3))

    def take(self, issue: Callable[[], None], before: Callable[[], None], lead: Lead) -> Taken:
        """One time of what ``issue`` issues; ``before`` issues what runs just before it, untimed."""
        return take(partial(self._once, issue, before), lead)

    def _once(self, issue: Callable[[], None], before: Callable[[], None], wait_us: float) -> Once:
        driver, main = self._driver, self._main
        before()
        begin_us = driver.host_us()  # the device comes to the next event after this, never before
        driver.record(self._waiting, main)
        driver.launch(self._spin, 1, 1, (cycles(driver, wait_us),), main)
        driver.record(self._start, main)
        issue()
        driver.record(self._end, main)
        issue_us = driver.host_us() - begin_us
        driver.synchronize()
        times_us = driver.elapsed_us(self._start, self._end), driver.elapsed_us(self._waiting, self._start)
        return Once(times_us[0], issue_us, times_us[1])
