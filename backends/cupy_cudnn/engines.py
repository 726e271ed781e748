"""The two engines: kernel by kernel with the host waiting where the plan says, or as captured graphs.

*paper*: the host issues each call to its stream, and waits for the device at each synchronise. *graph*: what lies between
two synchronises is captured once, from stream 0, and then launched as one; nothing is allocated while it is captured,
since all memory was settled before.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from iossim.backends.cupy_cudnn.driver import Driver, Graph, Stream
from iossim.backends.cupy_cudnn.issue import Issue
from iossim.backends.cupy_cudnn.prepared_plan import PreparedPlan
from iossim.execution.engine import Engine
from iossim.execution.lower import MAIN
from iossim.execution.plan import Command, Plan, Queue, Record, Synchronize, Wait


class PaperRun:
    """Runs a prepared plan call by call."""

    def __init__(self, driver: Driver, prepared: PreparedPlan) -> None:
        self._driver = driver
        self.prepared = prepared  # whose memory the calls are bound to
        self._segments = [prepared.issues(segment) for segment in segments(prepared.plan)]

    def run(self) -> None:
        """Issue all, and return when the device has run all."""
        synchronize = self._driver.synchronize
        for segment in self._segments:
            for issue in segment:
                issue()
            synchronize()


class GraphRun:
    """Runs a prepared plan as graphs, one between two synchronises."""

    def __init__(self, driver: Driver, prepared: PreparedPlan, main: Stream) -> None:
        self._driver, self._main = driver, main
        self.prepared = prepared  # whose memory the graphs are bound to
        captured = [capturable(segment) for segment in segments(prepared.plan)]
        # Once call by call: what libraries load and set up at a first use cannot be captured.
        for segment in captured:
            for issue in prepared.issues(segment):
                issue()
            driver.synchronize()
        self.graphs: list[Graph] = [self._captured(prepared.issues(segment)) for segment in captured if segment]

    def run(self) -> None:
        """Launch all, and return when the device has run all."""
        for graph in self.graphs:
            self._driver.launch_graph(graph, self._main)
            self._driver.synchronize()
        if not self.graphs:
            self._driver.synchronize()

    def _captured(self, issues: Sequence[Issue]) -> Graph:
        self._driver.begin_capture(self._main)
        for issue in issues:
            issue()
        return self._driver.end_capture(self._main)


Run = PaperRun | GraphRun


def ready_to_run(engine: Engine, driver: Driver, prepared: PreparedPlan, main: Stream) -> Run:
    return GraphRun(driver, prepared, main) if engine is Engine.GRAPH else PaperRun(driver, prepared)


def segments(plan: Plan) -> Iterator[list[Command]]:
    """The commands between synchronises; what follows the last one is a segment too."""
    segment: list[Command] = []
    for command in plan.commands:
        if isinstance(command, Synchronize):
            yield segment
            segment = []
        else:
            segment.append(command)
    if segment:
        yield segment


def capturable(segment: Sequence[Command]) -> list[Command]:
    """A segment as a capture of stream 0 takes it: every other stream forks from it, and joins it in the end.

    A plan of the graph engine has all forks and joins already and stays as it is. Waits for events of an earlier segment
    go: the host has waited for them.
    """
    recorded: set[int] = set()
    kept: list[Command] = []
    for command in segment:
        if isinstance(command, Wait) and command.event not in recorded:
            continue
        if isinstance(command, Record):
            recorded.add(command.event)
        kept.append(command)
    fresh = 1 + max(recorded, default=-1)
    side = sorted({_queue(command) for command in kept} - {MAIN})
    begins = {queue: next(command for command in kept if _queue(command) == queue) for queue in side}
    alone = [queue for queue in side if not isinstance(begins[queue], Wait)]
    forks: list[Command] = [Record(fresh, MAIN), *(Wait(fresh, queue) for queue in alone)] if alone else []
    joins: list[Command] = []
    for number, queue in enumerate(queue for queue in side if not _joined(kept, queue)):
        event = fresh + 1 + number
        joins += [Record(event, queue), Wait(event, MAIN)]
    return [*forks, *kept, *joins]


def _joined(commands: Sequence[Command], queue: Queue) -> bool:
    """Whether the last command of a queue is a record that stream 0 waits for."""
    last = [command for command in commands if _queue(command) == queue][-1]
    return isinstance(last, Record) and Wait(last.event, MAIN) in commands


def _queue(command: Command) -> Queue:
    assert not isinstance(command, Synchronize), "segments hold no synchronise"
    return command.queue
