"""The device as a SimPy process: kernels arrive, blocks are placed, progress and end.

Kernels are served in the order in which they became ready: as long as blocks of one wait for room, no later kernel
gets any, though its blocks might be small enough for what is left (kernels side by side on a GTX 1080 Ti start in
each other's tails only). All that happens at one time is settled together: ends, placement, then rates.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import simpy
from simpy.events import EventPriority

from iossim.backends.simulator.events.demand import BlockDemand
from iossim.backends.simulator.events.footprint import empty_multiprocessor
from iossim.backends.simulator.events.multiprocessors import (
    KernelRun,
    MultiprocessorClass,
    gpcs_of,
    overlap,
    place,
    scheduling_order,
)
from iossim.backends.simulator.events.sharing import Sharing, share
from iossim.execution.execution import Execution, Span
from iossim.hardware.kind import GPU
from iossim.hardware.profile import DeviceProfile

#: Ends that are no further apart are one: far above rounding, far below anything that a GPU does.
_TOGETHER_US = 1e-7

#: Priority of an event that comes last of all at its time, in SimPy's terms: urgent is 0, normal 1.
_LAST = EventPriority(2)

#: Called after each settlement with the time and the classes: for tests that look inside.
Observer = Callable[[float, list[MultiprocessorClass]], None]


class SimulatedDevice:
    """SMs, their contents, and what they did.

    ``grouped`` keeps SMs of equal contents as one; without, the same happens SM by SM, only slower.
    """

    def __init__(
        self,
        environment: simpy.Environment,
        profile: DeviceProfile,
        grouped: bool = True,
        observer: Observer | None = None,
    ) -> None:
        self._environment = environment
        self._grouped = grouped
        self._observer = observer
        empty = empty_multiprocessor(profile.limits)
        self._order, self._gpcs = scheduling_order(profile), gpcs_of(profile)
        # Kernels on GPUs were measured to cost each other no more than what they ask for (``sharing``).
        self._interference = 0.0 if profile.kind == GPU else profile.parameters.interference
        self._l2_bytes = profile.parameters.l2_resident_fraction * profile.datasheet.l2_bytes.value
        numbers = list(range(profile.sm_count))
        parts = [numbers] if grouped else [[number] for number in numbers]
        self._classes = [MultiprocessorClass(part, empty) for part in parts]
        self._queue: list[KernelRun] = []
        self._ended: dict[KernelRun, simpy.Event] = {}
        self._arrivals: list[KernelRun] = []
        self._settling = False
        self._freed = False
        self._sharing = Sharing()
        self._wake_us = float("inf")
        self.record = _Record(profile.sm_count, empty.warps)

    def submit(self, demand: BlockDemand, number: int, sms: range | None = None) -> tuple[KernelRun, simpy.Event]:
        """A kernel that is ready now; the event fires when its last block has ended.

        ``number`` counts launches as the host issued them: of kernels that become ready together the lower comes
        first. ``sms`` are the numbers of the SMs that it may use, None for all.
        """
        run = KernelRun(demand, number, self._environment.now, sms)
        self._arrivals.append(run)
        ended = self._ended[run] = self._environment.event()
        self._settle_at_end_of_time()
        return run, ended

    def _wake(self, due_us: float) -> None:
        # A wake-up that was overtaken finds another time due.
        if due_us == self._wake_us:
            self._settle_at_end_of_time()

    def _settle_at_end_of_time(self) -> None:
        """Settle what happens now when all of it has happened: what kernels that end let others do included."""
        if not self._settling:
            self._settling = True
            end = self._environment.event()
            end.callbacks.append(lambda _: self._settle())
            end._ok, end._value = True, None
            self._environment.schedule(end, priority=_LAST)

    def _settle(self) -> None:
        now = self._environment.now
        self._settling = False
        ended = len(self._ended)
        self._freed |= self._finish(now)
        if len(self._ended) < ended:
            # Those that follow may be ready now, too.
            self._settle_at_end_of_time()
            return
        if self._freed or self._arrivals:
            self._queue += sorted(self._arrivals, key=lambda run: run.number)
            self._arrivals.clear()
            self._freed = False
            self._place(now)
        if self._grouped:
            self._merge(now)
        self._sharing = share(self._classes, now, self._sharing, self._interference, self._l2_bytes)
        self.record.add(now, self._classes)
        if self._observer is not None:
            self._observer(now, self._classes)
        self._wake_us = min(found.next_us for found in self._classes)
        if self._wake_us < float("inf"):
            due_us = self._wake_us
            wake = self._environment.timeout(max(0.0, due_us - now))
            wake.callbacks.append(lambda _: self._wake(due_us))

    def _finish(self, now: float) -> bool:
        """Remove the blocks that have ended by now."""
        freed = False
        for found in self._classes:
            if found.next_us > now + _TOGETHER_US:
                continue
            found.advance(now)
            # Even if rounding leaves a block a little short: then the class is looked at again.
            found.changed = True
            for run, resident in list(found.residents.items()):
                finished = resident.take_finished(resident.rate * _TOGETHER_US)
                if finished:
                    freed = True
                    found.remove(run, finished)
                    run.unfinished -= finished * len(found.sms)
                    if not run.unfinished:
                        run.end_us = now
                        self._ended.pop(run).succeed()
        return freed

    def _place(self, now: float) -> None:
        waiting: list[range | None] = []
        for run in self._queue:
            if any(overlap(run.sms, sms) for sms in waiting):
                continue
            before = run.pending
            if place(self._classes, run, now, self._order, self._gpcs):
                waiting.append(run.sms)
            if run.start_us < 0 and run.pending < before:
                run.start_us = now
        self._queue = [run for run in self._queue if run.pending]

    def _merge(self, now: float) -> None:
        """Join classes that have come to have equal contents: those that changed just now, and empty ones."""
        kept: dict[object, MultiprocessorClass] = {}
        classes: list[MultiprocessorClass] = []
        for found in self._classes:
            if found.residents and not found.changed:
                classes.append(found)
                continue
            key = found.contents()
            if key in kept:
                kept[key].sms += found.sms
            else:
                found.advance(now)
                kept[key] = found
                classes.append(found)
        if len(classes) < len(self._classes):
            for found in kept.values():
                found.sms.sort()
        self._classes = classes


class _Record:
    """The device's state over time, a row each time that it changed."""

    def __init__(self, sms: int, most_warps: int) -> None:
        self._sms = sms
        self._most_warps = most_warps
        self._rows: list[tuple[float, float, float, float, float]] = []
        self._warps: list[tuple[tuple[int, int], ...]] = []

    def add(self, now: float, classes: list[MultiprocessorClass]) -> None:
        issue = l2 = dram = power = 0.0
        for found in classes:
            size = len(found.sms)
            issue += size * found.issue_use
            l2 += size * found.l2_use
            dram += size * found.dram_use
            power += size * found.power_use
        if self._rows and self._rows[-1][0] == now:
            self._rows.pop()
            self._warps.pop()
        self._rows.append((now, issue / self._sms, l2 / self._sms, dram, power))
        self._warps.append(tuple((found.warps, len(found.sms)) for found in classes))

    def execution(self, latency_us: float, spans: tuple[Span, ...]) -> Execution:
        """The run until ``latency_us``, the end of all work on this device and others."""
        # The device stands idle before the first state; the last one, at the end, is idle again.
        rows = [row for row in self._rows if row[0] < latency_us]
        if latency_us > 0 and (not rows or rows[0][0] > 0):
            rows.insert(0, (0.0, 0.0, 0.0, 0.0, 0.0))
        idle = len(rows) - sum(row[0] < latency_us for row in self._rows)
        table = np.array(rows, dtype=np.float64).reshape(-1, 5)
        sms_by_warps = np.zeros((len(rows), self._most_warps + 1), dtype=np.int64)
        sms_by_warps[:idle, 0] = self._sms
        for state, of_classes in enumerate(self._warps[: len(rows) - idle], start=idle):
            for warps, size in of_classes:
                sms_by_warps[state, warps] += size
        return Execution(
            latency_us,
            spans,
            np.append(table[:, 0], latency_us),
            sms_by_warps @ np.arange(self._most_warps + 1),
            sms_by_warps,
            *np.ascontiguousarray(table[:, 1:].T),
        )
