"""Host, streams and device together: SimPy processes that run a list of instructions.

The host issues in order, on its own clock, and runs ahead of the device until it awaits it. A stream runs what it was
given one after another: a kernel's turn comes when it was issued and its predecessor in the stream has ended, the later
of the two, in a graph ``apart_us`` after the last turn at the soonest, ``code_us`` more with code that no running one
has, and ``follow_us`` after its predecessor if others run then. It becomes ready ``gap_us`` after its turn. What was
issued but is not ready occupies nothing.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Generator, Sequence
from typing import Any

import simpy

from iossim.backends.simulator.events.device import Observer, SimulatedDevice
from iossim.backends.simulator.events.program import AwaitDevice, Instruction, IssueKernel, IssueRecord, IssueWait
from iossim.execution.execution import Execution, Span
from iossim.execution.plan import Queue
from iossim.hardware.profile import DeviceProfile

_Process = Generator[simpy.Event, Any, None]


def execute(
    instructions: Sequence[Instruction], profile: DeviceProfile, grouped: bool = True, observer: Observer | None = None
) -> Execution:
    """Run instructions on an idle device, until all of it has ended.

    ``grouped=False`` simulates every SM by itself, to the same result; ``observer`` is called at each change.
    """
    return _Engine(instructions, profile, grouped, observer).run()


class _Engine:
    def __init__(
        self, instructions: Sequence[Instruction], profile: DeviceProfile, grouped: bool, observer: Observer | None
    ) -> None:
        self._environment = simpy.Environment()
        self._device = SimulatedDevice(self._environment, profile, grouped, observer)
        self._instructions = instructions
        self._streams: dict[Queue, simpy.Store] = {}
        self._events: defaultdict[int, simpy.Event] = defaultdict(self._environment.event)
        #: Kernels that ran.
        self._spans: list[Span] = []
        #: Earliest turn of the next kernel, us.
        self._turn_us = 0.0
        #: Kernels whose turn came and that have not ended, by their code.
        self._running: Counter[float] = Counter()
        #: Instructions that streams were given and have not done.
        self._outstanding = 0
        #: The same of each stream.
        self._left: Counter[Queue] = Counter()
        self._idle: simpy.Event | None = None

    def run(self) -> Execution:
        self._environment.process(self._host())
        self._environment.run()
        latency_us = max((span.end_us for span in self._spans), default=0.0)
        spans = sorted(self._spans, key=lambda span: (span.start_us, span.stream, span.end_us))
        return self._device.record.execution(latency_us, tuple(spans))

    def _host(self) -> _Process:
        environment = self._environment
        for number, instruction in enumerate(self._instructions):
            if isinstance(instruction, AwaitDevice):
                if self._outstanding:
                    self._idle = environment.event()
                    yield self._idle
                yield environment.timeout(instruction.host_us)
                continue
            host_us = instruction.kernel.host_us if isinstance(instruction, IssueKernel) else instruction.host_us
            if host_us:
                yield environment.timeout(host_us)
            self._outstanding += 1
            self._left[instruction.queue] += 1
            self._stream(instruction.queue).put((number, instruction))

    def _stream(self, queue: Queue) -> simpy.Store:
        if queue not in self._streams:
            issued = self._streams[queue] = simpy.Store(self._environment)
            self._environment.process(self._run_stream(issued))
        return self._streams[queue]

    def _run_stream(self, issued: simpy.Store) -> _Process:
        environment = self._environment
        ended_us = -math.inf  # of a predecessor without an event between
        while True:
            number, instruction = yield issued.get()
            match instruction:
                case IssueKernel():
                    kernel, demand, now = instruction.kernel, instruction.kernel.demand, environment.now
                    is_new = kernel.code and self._running.total() and not self._running[kernel.code]
                    turn_us = max(now, self._turn_us + (kernel.code_us if is_new else 0.0))
                    if self._running.total():
                        turn_us = max(turn_us, ended_us + kernel.follow_us)
                    self._turn_us = turn_us + kernel.apart_us
                    self._running[kernel.code] += 1
                    gap_us = turn_us - now + demand.work.gap_us
                    if kernel.beside_us and self._left.total() > self._left[instruction.queue]:
                        gap_us += kernel.beside_us
                    if gap_us:
                        yield environment.timeout(gap_us)
                    run, ended = self._device.submit(demand, number, instruction.sms)
                    yield ended
                    ended_us = environment.now
                    self._running[kernel.code] -= 1
                    ran = demand.work.name, instruction.unit, instruction.stage, instruction.queue
                    self._spans.append(Span(*ran, run.start_us, run.end_us, instruction.sms))
                case IssueRecord():
                    if instruction.stream_us:
                        yield environment.timeout(instruction.stream_us)
                    self._events[instruction.event].succeed()
                case IssueWait():
                    yield self._events[instruction.event]
                    ended_us = -math.inf
                    if instruction.stream_us:
                        yield environment.timeout(instruction.stream_us)
            self._outstanding -= 1
            self._left[instruction.queue] -= 1
            if self._idle is not None and not self._outstanding:
                self._idle.succeed()
                self._idle = None
