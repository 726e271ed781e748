"""Host, streams and devices together: SimPy processes that run a list of instructions.

The host issues in order, on its own clock, and runs ahead of the device until it awaits it. A stream runs what it was
given one after another: a kernel's turn comes when it was issued and its predecessor in the stream has ended, the later
of the two, in a graph ``apart_us`` after the last turn at the soonest. It becomes ready ``gap_us`` after its turn.
What was issued but is not ready occupies nothing.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Generator, Sequence
from typing import Any

import simpy

from iossim.backends.simulator.events.device import Observer, SimulatedDevice
from iossim.backends.simulator.events.program import (
    AwaitDevice,
    Instruction,
    IssueKernel,
    IssueRecord,
    IssueTransfer,
    IssueWait,
)
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
    (found,) = execute_on_all(instructions, (profile,), grouped, observer)
    return found


def execute_on_all(
    instructions: Sequence[Instruction],
    profiles: Sequence[DeviceProfile],
    grouped: bool = True,
    observer: Observer | None = None,
) -> tuple[Execution, ...]:
    """Run instructions on idle devices (numbered as ``profiles``): what each did until all of it has ended."""
    return _Engine(instructions, profiles, grouped, observer).run()


class _Engine:
    def __init__(
        self,
        instructions: Sequence[Instruction],
        profiles: Sequence[DeviceProfile],
        grouped: bool,
        observer: Observer | None,
    ) -> None:
        self._environment = simpy.Environment()
        self._devices = [SimulatedDevice(self._environment, profile, grouped, observer) for profile in profiles]
        #: Link of each pair of devices, for one transfer at a time.
        self._links: defaultdict[tuple[int, int], simpy.Resource]
        self._links = defaultdict(lambda: simpy.Resource(self._environment))
        self._instructions = instructions
        self._streams: dict[Queue, simpy.Store] = {}
        self._events: defaultdict[int, simpy.Event] = defaultdict(self._environment.event)
        #: Kernels that each device ran.
        self._spans: defaultdict[int, list[Span]] = defaultdict(list)
        #: Earliest turn of the next kernel of each device, us.
        self._turn_us: defaultdict[int, float] = defaultdict(float)
        #: Instructions that streams were given and have not done.
        self._outstanding = 0
        #: The same of each stream.
        self._left: Counter[Queue] = Counter()
        self._idle: simpy.Event | None = None

    def run(self) -> tuple[Execution, ...]:
        self._environment.process(self._host())
        self._environment.run()
        latency_us = max((span.end_us for spans in self._spans.values() for span in spans), default=0.0)
        found = []
        for number, device in enumerate(self._devices):
            spans = sorted(self._spans[number], key=lambda span: (span.start_us, span.stream, span.end_us))
            found.append(device.record.execution(latency_us, tuple(spans)))
        return tuple(found)

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
        while True:
            number, instruction = yield issued.get()
            match instruction:
                case IssueKernel():
                    demand, device, now = instruction.kernel.demand, instruction.queue.device, environment.now
                    turn_us = max(now, self._turn_us[device])
                    self._turn_us[device] = turn_us + instruction.kernel.apart_us
                    gap_us = turn_us - now + demand.work.gap_us
                    if instruction.kernel.beside_us and self._left.total() > self._left[instruction.queue]:
                        gap_us += instruction.kernel.beside_us
                    if gap_us:
                        yield environment.timeout(gap_us)
                    run, ended = self._devices[device].submit(demand, number, instruction.sms)
                    yield ended
                    self._ran(instruction, demand.work.name, run.start_us, run.end_us)
                case IssueTransfer():
                    with self._links[instruction.link].request() as free:
                        yield free
                        start_us = environment.now
                        yield environment.timeout(instruction.link_us)
                    yield environment.timeout(instruction.latency_us)
                    source, target = instruction.link
                    self._ran(instruction, f"transfer {source} to {target}", start_us, environment.now)
                case IssueRecord():
                    if instruction.stream_us:
                        yield environment.timeout(instruction.stream_us)
                    self._events[instruction.event].succeed()
                case IssueWait():
                    yield self._events[instruction.event]
                    if instruction.stream_us:
                        yield environment.timeout(instruction.stream_us)
            self._outstanding -= 1
            self._left[instruction.queue] -= 1
            if self._idle is not None and not self._outstanding:
                self._idle.succeed()
                self._idle = None

    def _ran(self, issued: IssueKernel | IssueTransfer, name: str, start_us: float, end_us: float) -> None:
        sms = issued.sms if isinstance(issued, IssueKernel) else None
        span = Span(name, issued.unit, issued.stage, issued.queue.stream, start_us, end_us, sms)
        self._spans[issued.queue.device].append(span)
