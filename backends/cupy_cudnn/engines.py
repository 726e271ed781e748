"""The two engines: kernel by kernel with the host waiting where the plan says, or as captured graphs.

*paper*: the host issues each call to its stream, and waits for the device at each synchronise. *graph*: what lies between
two synchronises is captured once, from stream 0, and then launched as one; nothing is allocated while it is captured,
since all memory was settled before. What libraries load at a first use cannot be captured, so a plan runs call by call
before it is captured.
"""

from __future__ import annotations

from collections.abc import Sequence

from iossim.backends.cupy_cudnn.driver import Driver, Graph, Stream
from iossim.backends.cupy_cudnn.issue import captured
from iossim.backends.cupy_cudnn.prepared_plan import PreparedPlan
from iossim.execution.engine import Engine
from iossim.execution.lower import MAIN
from iossim.execution.plan import Queue, Queued, Record, Wait, segments


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
    """Runs a prepared plan, which has run call by call before, as graphs: one between two synchronises."""

    def __init__(self, driver: Driver, prepared: PreparedPlan, main: Stream) -> None:
        self._driver, self._main = driver, main
        self.prepared = prepared  # whose memory the graphs are bound to
        parts = [capturable(segment) for segment in segments(prepared.plan)]
        self.graphs: list[Graph] = [captured(driver, main, prepared.issues(segment)) for segment in parts if segment]

    def run(self) -> None:
        """Launch all, and return when the device has run all."""
        for graph in self.graphs:
            self._driver.launch_graph(graph, self._main)
            self._driver.synchronize()
        if not self.graphs:
            self._driver.synchronize()


Run = PaperRun | GraphRun


def ready_to_run(engine: Engine, driver: Driver, prepared: PreparedPlan, main: Stream) -> Run:
    """A run by the engine, of a plan that has run call by call."""
    return GraphRun(driver, prepared, main) if engine is Engine.GRAPH else PaperRun(driver, prepared)


def capturable(segment: Sequence[Queued]) -> list[Queued]:
    """A segment as a capture of stream 0 takes it: every other stream forks from it, and joins it in the end.

    A plan of the graph engine has all forks and joins already and stays as it is. Waits for events of an earlier segment
    go: the host has waited for them.
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
    side = sorted({command.queue for command in kept} - {MAIN})
    begins = {queue: next(command for command in kept if command.queue == queue) for queue in side}
    alone = [queue for queue in side if not isinstance(begins[queue], Wait)]
    forks: list[Queued] = [Record(fresh, MAIN), *(Wait(fresh, queue) for queue in alone)] if alone else []
    joins: list[Queued] = []
    for number, queue in enumerate(queue for queue in side if not _joined(kept, queue)):
        event = fresh + 1 + number
        joins += [Record(event, queue), Wait(event, MAIN)]
    return [*forks, *kept, *joins]


def _joined(commands: Sequence[Queued], queue: Queue) -> bool:
    """Whether the last command of a queue is a record that stream 0 waits for."""
    last = [command for command in commands if command.queue == queue][-1]
    return isinstance(last, Record) and Wait(last.event, MAIN) in commands
