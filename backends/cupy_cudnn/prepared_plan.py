"""A plan made ready to run: memory, addresses and algorithms settled, each command one call that the host makes.

What depends on the plan alone happens here, before anything runs or is captured: its arena is allocated, weights are
uploaded, kernels compiled, convolutions planned. A launch that needs more scratch than the plan gives it (it reads a
part of a merged convolution, say) works in memory of its queue's own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import groupby
from typing import NamedTuple

from iossim.backends.cupy_cudnn import element_kernels
from iossim.backends.cupy_cudnn.algorithms import Algorithms, most_workspace
from iossim.backends.cupy_cudnn.capture import Issue, Lane, capturable, fastest_graph
from iossim.backends.cupy_cudnn.convolution import ConvolutionCall
from iossim.backends.cupy_cudnn.driver import Driver, Event, Graph, Stream
from iossim.backends.cupy_cudnn.unit_calls import HostCall, UnitProgram
from iossim.backends.cupy_cudnn.unit_program import merged_program, unit_program
from iossim.backends.cupy_cudnn.views import Memory, View, dense
from iossim.backends.cupy_cudnn.weights import Weights
from iossim.base.errors import warn_once
from iossim.execution.backend import BackendError, remarks
from iossim.execution.layouts import ImageLayout
from iossim.execution.memory import with_memory
from iossim.execution.plan import MAIN, Copy, Launch, Plan, Queue, Queued, Record, Wait, segments
from iossim.ir.network import Network
from iossim.schedule.batch import Strategy, UnitVariant

#: A division of the SMs, and the number of a part of it.
Part = tuple[tuple[range, ...], int]


class _Work(NamedTuple):
    """The calls of a launch, how its convolutions run, and the scratch of both."""

    program: UnitProgram
    timed: Sequence[UnitVariant]
    scratch_bytes: int


class PreparedPlan:
    """A plan with memory of its own; :meth:`issues` turns commands into calls, as often as they are needed.

    ``lane`` gives that of a queue, or of its part of a division of the SMs.
    """

    def __init__(
        self, lane: Callable[..., Lane], algorithms: Algorithms, network: Network, weights: Weights, plan: Plan
    ) -> None:
        self.plan = with_memory(plan)
        self._lane_of, self._driver, self._weights = lane, lane(MAIN).driver, weights
        self._work: dict[Launch, _Work] = {}
        for launch in self.plan.launches:
            program = launch_program(network, self.plan, launch, weights)
            timed = algorithms.chosen(program, launch.algorithm)
            self._work[launch] = _Work(program, timed, program.scratch_bytes + most_workspace(timed))
        for line in remarks(network.name, [op for work in self._work.values() for op in work.program.fallbacks]):
            warn_once(line)
        if {"scaled_matmul", "scaled_conv"} & network.graph.of_kind.keys():
            warn_once(f"products of fp8 of {network.name!r} dequantise their operands: libraries' own are not called")
        self.arena = self._driver.allocate(self.plan.arena_bytes)
        self._extra_bytes: dict[Queue, int] = {}  # scratch of the queues with a launch whose workspace is too small
        for launch, work in self._work.items():
            if not self._has_room(launch):
                self._extra_bytes[launch.queue] = max(self._extra_bytes.get(launch.queue, 0), work.scratch_bytes)
        self._extra = {queue: self._driver.allocate(size) for queue, size in self._extra_bytes.items()}
        self._issued: dict[Launch | Copy, list[Issue]] = {}
        queued = [command for command in self.plan.commands if isinstance(command, Launch | Copy)]
        self._parts = {queued[place]: part for place, part in divisions([one.sms for one in queued]).items()}

    def issues(self, commands: Sequence[Queued]) -> list[Issue]:
        """The host's calls for commands between two synchronises; each event that they name is made anew.

        Waits for events of an earlier segment need no call: the host has waited for them.
        """
        driver = self._driver
        events: dict[int, Event] = {}
        found: list[Issue] = []
        streams: dict[Queue, Stream] = {}  # where queues are that run on parts of the device

        def stream_of(queue: Queue) -> Stream:
            return streams.get(queue, self._lane_of(queue).stream)

        def moved(queue: Queue, stream: Stream) -> None:
            """Continue a queue in another stream, after what it has issued."""
            if (before := stream_of(queue)) is not stream:
                event = driver.event()
                found.extend([partial(driver.record, event, before), partial(driver.wait, event, stream)])
                streams[queue] = stream

        for command in commands:
            match command:
                case Launch() | Copy():
                    moved(command.queue, self._lane(command).stream)
                    if command not in self._issued:
                        self._issued[command] = self._issues(command)
                    found += self._issued[command]
                case Record():
                    events[command.event] = driver.event()
                    found.append(partial(driver.record, events[command.event], stream_of(command.queue)))
                case Wait() if command.event in events:
                    found.append(partial(driver.wait, events[command.event], stream_of(command.queue)))
        moved(MAIN, self._lane_of(MAIN).stream)
        return found

    def through_host(self, segment: Sequence[Queued]) -> Iterator[tuple[bool, list[Queued]]]:
        """A segment in parts: launches of which the host computes an op, and what is between them."""

        def by_host(command: Queued) -> bool:
            return isinstance(command, Launch) and bool(self._work[command].program.fallbacks)

        return ((found, list(part)) for found, part in groupby(segment, by_host))

    def poison(self) -> None:
        """Fill the plan's memory with NaNs, so that an output that no run has written is recognised."""
        self._driver.poison(self.arena.address, self.plan.arena_bytes)
        for queue, size_bytes in self._extra_bytes.items():
            self._driver.poison(self._extra[queue].address, size_bytes)

    def view(self, name: str) -> View:
        """View of a buffer of the plan."""
        return buffer_view(self.plan, name, self._weights.layout)

    def address(self, view: View) -> int:
        """Address of a view of a buffer of the plan, or of a weight."""
        kind, name = view.memory
        if kind == "weight":
            begin = self._weights.address(view.memory)
        else:
            assert kind == "storage", f"{kind} has no address of its own"
            assert self.plan.offsets is not None
            begin = self.arena.address + self.plan.offsets[name]
        return begin + view.offset_bytes

    def _lane(self, command: Launch | Copy) -> Lane:
        return self._lane_of(command.queue, self._parts.get(command))

    def _has_room(self, launch: Launch) -> bool:
        given_bytes = 0 if launch.workspace is None else self.plan.buffers[launch.workspace].bytes
        return self._work[launch].scratch_bytes <= given_bytes

    def _scratch(self, launch: Launch) -> int:
        """Address of a launch's scratch; 0 where it needs none."""
        if not self._has_room(launch):
            return self._extra[launch.queue].address
        return 0 if launch.workspace is None else self.address(self.view(launch.workspace))

    def _issues(self, command: Launch | Copy) -> list[Issue]:
        lane = self._lane(command)
        if isinstance(command, Copy):
            copied = element_kernels.copy(self.view(command.source), self.view(command.target))
            return [lane.kernel(copied, self.address)]
        work, scratch = self._work[command], self._scratch(command)

        def address(view: View) -> int:
            return scratch + view.offset_bytes if view.memory.kind == "scratch" else self.address(view)

        issues: list[Issue] = []
        timed = iter(work.timed)
        for call in work.program.calls:
            if isinstance(call, ConvolutionCall):
                found = next(timed)
                workspace = scratch + work.program.scratch_bytes if found.workspace_bytes else 0
                issues += lane.convolution(call, found.name, address, workspace)
            elif isinstance(call, HostCall):
                issues.append(partial(call.run, lane.driver, self._weights.load, address))
            else:
                issues.append(lane.kernel(call, address))
        return issues


def launch_program(network: Network, plan: Plan, launch: Launch, weights: Weights) -> UnitProgram:
    """The calls of a launch on the plan's buffers."""
    for name in launch.units:
        if name not in network.unit_index:
            raise BackendError(
                f"the plan launches {name!r}, which is no unit of {network.name!r}; lower its schedule again"
            )
    units = [network.unit_index[name] for name in launch.units]
    reads = [buffer_view(plan, name, weights.layout) for name in launch.reads]
    writes = [buffer_view(plan, name, weights.layout) for name in launch.writes]
    if launch.strategy is Strategy.MERGE:
        return merged_program(network, units, reads[0], writes[0], weights)
    return unit_program(network, units[0], reads, writes, weights)


def buffer_view(plan: Plan, name: str, layout: ImageLayout) -> View:
    """Place of a buffer of a plan: a box of its storage."""
    buffer = plan.buffers[name]
    storage, box = plan.region(name)
    last = layout.storage(plan, storage)
    whole = dense(Memory("storage", storage), plan.buffers[storage].type.shape, dtype=buffer.type.dtype, last=last)
    offset = sum(start * stride for start, stride in zip(box.starts, whole.strides, strict=True))
    return replace(whole, shape=box.shape, offset=offset)


def divisions(parts: Sequence[range | None]) -> dict[int, Part]:
    """For each launch that has SMs of its own, by its place among ``parts``, its division and its part of that.

    Launches in the order of issue belong to one division while their SMs are disjoint or the same.
    """
    found: dict[int, Part] = {}
    members: dict[int, range] = {}
    for place, sms in [*enumerate(parts), (len(parts), None)]:
        others = {*members.values()} - {sms}
        if sms is None or any(sms.start < other.stop and other.start < sms.stop for other in others):
            division = tuple(sorted({*members.values()}, key=lambda own: own.start))
            found |= {each: (division, division.index(own)) for each, own in members.items()}
            members = {}
        if sms is not None:
            members[place] = sms
    return found


class Run:
    """A prepared plan ready to run call by call, or by graphs captured from a stream ``main``.

    Of graphs, for which the plan has run call by call before, there is one between two synchronises; launches of which
    the host computes an op run call by call between graphs.
    """

    def __init__(self, driver: Driver, prepared: PreparedPlan, main: Stream | None = None) -> None:
        self._driver = driver
        self.prepared = prepared  # whose memory calls and graphs are bound to
        self.graphs: list[Graph] = []
        self._steps: list[list[Issue]] = []  # calls, or one that launches a graph
        for segment in segments(prepared.plan):
            for by_host, part in prepared.through_host(segment) if main is not None else [(True, segment)]:
                if by_host:
                    self._steps.append(prepared.issues(part))
                elif commands := capturable(part):
                    self.graphs.append(fastest_graph(driver, main, prepared.issues, commands))
                    self._steps.append([partial(driver.launch_graph, self.graphs[-1], main)])

    @property
    def is_one_graph(self) -> bool:
        return len(self.graphs) == len(self._steps) == 1

    def run(self) -> None:
        """Issue all, and return when the device has run all."""
        for step in self._steps or [[]]:
            for issue in step:
                issue()
            self._driver.synchronize()
