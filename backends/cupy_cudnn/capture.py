"""Calls issued to a stream; and commands between two synchronises as one CUDA graph: what a capture needs around them,
and the order that is fastest.

A graph has the same nodes in whatever order they are recorded, but the driver assigns them to *lanes* by that order. On
an H100 the first child of a node continues in its lane, and a node that joins several continues in the lane of the one
recorded first; in another lane it starts later. So plans in which a join's own stream is recorded after the others are
also captured with it first. Branches at the root of a graph start 1.5 us and more apart, those after any kernel 0.19
us: such a graph is also captured after an empty kernel. And where the device supports it, each is also captured with
kernels of ours that start while their predecessors end. All are timed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from heapq import heappop, heappush
from itertools import chain
from statistics import median

from iossim.backends.cupy_cudnn.clock import EMPTY, DeviceTimer
from iossim.backends.cupy_cudnn.convolution import ConvolutionCall
from iossim.backends.cupy_cudnn.cublas import WithCublas
from iossim.backends.cupy_cudnn.cudnn_graphs import Handle
from iossim.backends.cupy_cudnn.driver import Driver, Graph, Stream
from iossim.backends.cupy_cudnn.views import KernelCall, View
from iossim.base.errors import first_line, warn_once
from iossim.execution.lead import Lead
from iossim.execution.plan import MAIN, Queue, Queued, Record, Wait

#: Timings of each captured graph; the first does not count.
ROUNDS = 4

#: Issues one thing to the device, and returns before it has run.
Issue = Callable[[], None]
Address = Callable[[View], int]


@dataclass(frozen=True)
class Lane:
    """A stream with a cuDNN handle of its own, for the launches of one queue."""

    driver: Driver
    library: WithCublas
    stream: Stream
    handle: Handle

    def kernel(self, call: KernelCall, address: Address) -> Issue:
        """The launch of a kernel, which is compiled if it is new."""
        kernel = self.driver.kernel(call.source, call.name)
        return partial(self.driver.launch, kernel, call.blocks, call.threads, call.bound(address), self.stream)

    def convolution(self, call: ConvolutionCall, how: str, address: Address, workspace: int) -> list[Issue]:
        """The steps of a call in one of its ways, ``WAY:PLAN``.

        Raises KeyError where a library has no plan of the name.
        """
        issues: list[Issue] = []
        way, _, plan = how.partition(":")
        ways = iter(plan.split("+"))
        for step in call.ways[way]:
            if isinstance(step, KernelCall):
                issues.append(self.kernel(step, address))
            elif isinstance(step, ConvolutionCall):
                issues += self.convolution(step, next(ways), address, workspace)
            else:
                addresses = {name: address(call.views[name]) for name in step.operands}
                issues.append(partial(self.library.bind(step, plan), addresses, workspace, self.handle))
        return issues


def captured(driver: Driver, stream: Stream, issues: Sequence[Issue], overlapped: bool = False) -> Graph:
    """Calls as a graph, captured from ``stream``; what fails meanwhile, or interrupts, leaves no capture open."""
    driver.begin_capture(stream, overlapped)
    try:
        for issue in issues:
            issue()
        return driver.end_capture(stream)
    except BaseException:
        driver.abandon_capture(stream)
        raise


def fastest_graph(
    driver: Driver, main: Stream, issues: Callable[[Sequence[Queued]], list[Issue]], commands: Sequence[Queued]
) -> Graph:
    """The fastest graph of the calls for ``commands``, which are :func:`capturable`."""
    ways = [issues(order) for order in orders(commands)]
    if forks_at_root(commands):
        empty = partial(driver.launch, driver.kernel(EMPTY, "empty"), 1, 1, (), main)
        ways += [[empty, *way] for way in ways]
    graphs = [captured(driver, main, way) for way in ways]
    if driver.facts.overlaps:
        try:
            graphs += [captured(driver, main, way, overlapped=True) for way in ways]
        except driver.failures as error:
            warn_once(f"the driver captures no kernels that start while others end ({first_line(error)})")
    if len(graphs) == 1:
        return graphs[0]
    timer, lead = DeviceTimer(driver, main), Lead()
    launches = [partial(driver.launch_graph, graph, main) for graph in graphs]
    rounds = [[timer.take(launch, driver.synchronize, lead).time_us for launch in launches] for _ in range(ROUNDS)]
    taken_us = [median(times[1:]) for times in zip(*rounds, strict=True)]  # the first launch uploads it
    return graphs[taken_us.index(min(taken_us))]


def forks_at_root(commands: Sequence[Queued]) -> bool:
    """True where other streams begin before stream 0 has done any work."""
    return isinstance(next((command for command in commands if command.queue == MAIN), None), Record)


def orders(commands: Sequence[Queued]) -> list[list[Queued]]:
    """The commands as given, and reordered so that streams record their own work before the work that they join.

    One order if the two are equal. If two joins contradict each other, the earlier one decides.
    """
    followers = _followers(commands)
    last: dict[Queue, int] = {}
    waited: dict[Queue, list[int]] = {}
    events: dict[int, list[int]] = {}
    for number, command in enumerate(commands):
        queue = command.queue
        match command:
            case Record():
                events[command.event] = [last[queue]] if queue in last else []
            case Wait():
                waited.setdefault(queue, []).extend(events[command.event])
            case _:
                for other in waited.pop(queue, []) if queue in last else []:
                    if not _leads_to(last[queue], other, followers):
                        followers[last[queue]].add(other)
                last[queue] = number
    missing = Counter(chain.from_iterable(followers))
    ready = [number for number in range(len(commands)) if not missing[number]]
    order = []
    while ready:  # it stays sorted
        order.append(heappop(ready))
        for number in followers[order[-1]]:
            missing[number] -= 1
            if not missing[number]:
                heappush(ready, number)
    return [list(commands), *([[commands[number] for number in order]] if order != sorted(order) else [])]


def capturable(segment: Sequence[Queued]) -> list[Queued]:
    """A segment in the form that a capture of stream 0 needs: every other stream forks from it and finally joins it.

    A plan of the graph engine already has all forks and joins, and is unchanged. Waits for events of an earlier segment
    are dropped: the host has waited for them.
    """
    recorded: set[int] = set()
    kept: list[Queued] = []
    for command in segment:
        if isinstance(command, Wait) and command.event not in recorded:
            continue
        if isinstance(command, Record):
            recorded.add(command.event)
        kept.append(command)
    fresh = 1 + max(recorded, default=-1)
    begins = {command.queue: command for command in reversed(kept)}
    alone = [queue for queue in sorted(begins) if queue != MAIN and not isinstance(begins[queue], Wait)]
    forks: list[Queued] = [Record(fresh, MAIN), *(Wait(fresh, queue) for queue in alone)] if alone else []
    ends = {command.queue: number for number, command in enumerate(kept) if not isinstance(command, Record)}
    followers = _followers(kept)
    end = max((number for number, command in enumerate(kept) if command.queue == MAIN), default=-1)
    left = [queue for queue, number in sorted(ends.items()) if queue != MAIN and not _leads_to(end, number, followers)]
    joins: list[Queued] = []
    for event, queue in enumerate(left, start=fresh + 1):
        joins += [Record(event, queue), Wait(event, MAIN)]
    return [*forks, *kept, *joins]


def _followers(commands: Sequence[Queued]) -> list[set[int]]:
    """For each command its direct successors, by number: the next one of its stream, and waits for its event."""
    found: list[set[int]] = [set() for _ in commands]
    last: dict[Queue, int] = {}
    recorded: dict[int, int] = {}
    for number, command in enumerate(commands):
        if command.queue in last:
            found[last[command.queue]].add(number)
        if isinstance(command, Wait) and command.event in recorded:
            found[recorded[command.event]].add(number)
        last[command.queue] = number
        if isinstance(command, Record):
            recorded[command.event] = number
    return found


def _leads_to(end: int, begin: int, followers: Sequence[set[int]]) -> bool:
    """True where command ``end`` always runs after ``begin``."""
    seen, left = {begin}, [begin]
    while left and end not in seen:
        fresh = followers[left.pop()] - seen
        seen |= fresh
        left += fresh
    return end in seen
