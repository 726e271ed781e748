"""From a schedule to a plan: group ``i`` of a stage goes to stream ``i``, and stages are kept apart.

Two engines keep them apart. The *paper* engine lets the host wait for the device between two stages, unless both have
a single group and so share stream 0 (as the published engine does). The *graph* engine never returns to the host:
a stage forks off stream 0 and joins it again by events, which is what a captured CUDA graph holds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count

from iossim.execution.engine import Engine
from iossim.execution.plan import Buffer, Command, Launch, Plan, Queue, Record, Synchronize, Wait
from iossim.ir.merging import merged_convolution
from iossim.ir.network import Network
from iossim.schedule.batch import Strategy
from iossim.schedule.fit import fit
from iossim.schedule.schedule import Schedule, Stage

MAIN = Queue(0, 0)


def lower_schedule(schedule: Schedule, network: Network, engine: str = Engine.PAPER) -> Plan:
    """The plan of a schedule on one device; ``engine`` is ``paper`` or ``graph``.

    Raises ScheduleError if the schedule does not fit the network, OptionError for an unknown engine.
    """
    separated = _SEPARATORS[Engine.named(engine)]
    fit(schedule, network)
    graph = network.graph
    buffers = {name: Buffer(name, graph.types[name]) for name in graph.inputs}
    launches: list[list[Launch]] = []
    for stage in schedule.stages:
        if stage.strategy == "merge":
            launches.append([_merged_launch(network, stage, buffers)])
        else:
            launches.append(_concurrent_launches(network, stage, buffers))
    outputs = tuple(name for name in graph.outputs if name not in graph.constants)
    commands = tuple(separated(launches))
    return Plan(graph.hash, buffers, graph.inputs, outputs, commands)


def _concurrent_launches(network: Network, stage: Stage, buffers: dict[str, Buffer]) -> list[Launch]:
    """The units of each group in order; the host issues group after group, as the published engine does."""
    launches: list[Launch] = []
    for stream, group in enumerate(stage.groups):
        for name in group:
            unit = network.units[network.unit_index[name]]
            for value in unit.outputs:
                buffers[value] = Buffer(value, network.graph.types[value])
            queue = Queue(MAIN.device, stream)
            launches.append(Launch((name,), Strategy.CONCURRENT, unit.inputs, unit.outputs, queue))
    return launches


def _merged_launch(network: Network, stage: Stage, buffers: dict[str, Buffer]) -> Launch:
    """One stacked convolution into one buffer; the outputs of its parts are channel slices of that."""
    (names,) = stage.groups
    units = [network.unit_index[name] for name in names]
    merged = merged_convolution(network, units)
    whole = Buffer("merged:" + "+".join(names), merged.output)
    buffers[whole.name] = whole
    for unit, begin in zip(units, merged.channel_begin, strict=False):
        (value,) = network.units[unit].outputs
        buffers[value] = Buffer(value, network.graph.types[value], whole.name, begin)
    return Launch(tuple(names), Strategy.MERGE, (merged.input,), (whole.name,), MAIN)


def _synchronise_between(stages: list[list[Launch]]) -> Iterator[Command]:
    """The paper engine: a device synchronise unless the stages on both sides run in stream 0 alone."""
    before: set[Queue] = set()
    for launches in stages:
        queues = {launch.queue for launch in launches}
        if before and before | queues != {MAIN}:
            yield Synchronize()
        yield from launches
        before = queues
    yield Synchronize()


def _fork_and_join(stages: list[list[Launch]]) -> Iterator[Command]:
    """The graph engine: side streams wait for stream 0 before their first launch of a stage, and it for their last."""
    event = count()
    for launches in stages:
        side = sorted({launch.queue for launch in launches} - {MAIN})
        if side:
            yield Record(fork := next(event), MAIN)
            for queue in side:
                yield Wait(fork, queue)
        yield from launches
        for queue in side:
            yield Record(join := next(event), queue)
            yield Wait(join, MAIN)
    yield Synchronize()


_SEPARATORS: dict[Engine, Callable[[list[list[Launch]]], Iterator[Command]]] = {
    Engine.PAPER: _synchronise_between,
    Engine.GRAPH: _fork_and_join,
}
