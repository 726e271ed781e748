"""Lowering of a schedule to a plan: group ``i`` of a stage goes to stream ``i``, and stages are separated.

Under the *paper* engine the host waits for the device between two stages, unless both have a single group and so
share stream 0 (as the published engine does). The *graph* engine never returns to the host: a stage forks off stream
0 and joins it again by events, as a captured CUDA graph does. The *partition* engine is the graph engine with each
group of a stage of several on separate SMs, given by ``divided`` if the device is known. *onnxruntime* has no
stages: they become streams, with an event wherever data crosses (:mod:`iossim.schedule.streams`).

By default each unit is launched, including concats, as the published engine does, and as simulators of it need. With
``in_place`` values are placed by :mod:`iossim.execution.in_place`, and units without remaining work are not launched.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import count
from typing import TYPE_CHECKING

from iossim.base.errors import OptionError, PlanError, ScheduleError
from iossim.execution.engine import Between, Engine
from iossim.execution.in_place import Slot, in_place_buffers, starting
from iossim.execution.plan import (
    MAIN,
    Buffer,
    Command,
    Copy,
    Launch,
    Plan,
    Queue,
    Record,
    Region,
    Synchronize,
    Wait,
    accesses,
    workspace_buffer,
)
from iossim.ir.merging import merged_convolution
from iossim.ir.network import Network, boundary
from iossim.ir.types import TensorType
from iossim.schedule.batch import FASTEST, Strategy
from iossim.schedule.fit import fit
from iossim.schedule.schedule import AnySchedule, Schedule, StreamSchedule
from iossim.schedule.streams import as_streams, issue_order, reduced_waits

if TYPE_CHECKING:
    from iossim.execution.backend import Choices, Divided

_NO_VARIANTS: Mapping[str, str] = {}

Work = Launch | Copy


def lower_schedule(
    schedule: AnySchedule,
    network: Network,
    engine: str = Engine.PAPER,
    *,
    in_place: bool = False,
    choices: Choices | None = None,
    divided: Divided | None = None,
) -> Plan:
    """The plan of a schedule on one device; ``engine`` is the name of one.

    ``divided`` has the SMs of the groups of a stage, under the partition engine. ``choices`` give each launch its
    algorithm and workspace; by default, the algorithm is the variant in the schedule. Raises ScheduleError if
    the schedule does not fit the network, OptionError for an unknown engine, or if streams are to be partitioned.
    """
    chosen = Engine.named(engine)
    fit(schedule, network)
    lowering = _Lowering(network, chosen, in_place, choices, divided)
    graph = network.graph
    for name in graph.inputs:
        lowering.buffer(name)
    outputs = tuple(name for name in graph.outputs if name not in graph.constants)
    if isinstance(schedule, Schedule) and not chosen.has_barriers:
        schedule = as_streams(schedule, network)
    if isinstance(schedule, StreamSchedule):
        if chosen.facts.divides_sms:
            raise OptionError("`engine` partition divides stages, and this schedule has streams; give paper or graph")
        return lowering.plan(tuple(lowering.streams(schedule, chosen)), graph.inputs, outputs)
    stages = [
        lowering.stage(
            [[network.unit_index[name] for name in group] for group in stage.groups], stage.strategy, stage.variants
        )
        for stage in schedule.stages
    ]
    return lowering.plan(tuple(_SEPARATORS[chosen.facts.between](stages)), graph.inputs, outputs)


def lower_stage(
    network: Network,
    groups: Sequence[Sequence[int]],
    strategy: Strategy,
    engine: str = Engine.PAPER,
    *,
    variants: Mapping[str, str] = _NO_VARIANTS,
    in_place: bool = False,
    choices: Choices | None = None,
    divided: Divided | None = None,
) -> Plan:
    """The plan of a single stage, for measurement by a backend.

    ``groups`` are indices of the network's units, each group in execution order (one group if they merge), and
    ``variants`` the units' variants, by name. The inputs of the plan are the values that they read and none of them
    makes, its outputs those that are read elsewhere. Raises ScheduleError for units that do not merge, OptionError for
    an unknown engine.
    """
    chosen = Engine.named(engine)
    units = [network.units[unit] for group in groups for unit in group]
    inputs, outputs = boundary(network.graph, [node for unit in units for node in network.unit_nodes(unit)])
    lowering = _Lowering(network, chosen, in_place, choices, divided)
    for value in inputs:
        lowering.buffer(value)
    stages = [lowering.stage(groups, strategy, variants)]
    return lowering.plan(tuple(_SEPARATORS[chosen.facts.between](stages)), inputs, outputs)


class _Lowering:
    """Lowers stage by stage; ``buffers`` accumulates."""

    def __init__(
        self, network: Network, engine: Engine, in_place: bool, choices: Choices | None, divided: Divided | None
    ) -> None:
        self.network, self.choices = network, choices
        self.placement = in_place_buffers(network) if in_place else None
        self.divided = divided if engine.facts.divides_sms else None
        self.buffers: dict[str, Buffer] = {}

    def plan(self, commands: tuple[Command, ...], inputs: tuple[str, ...], outputs: tuple[str, ...]) -> Plan:
        return Plan(self.network.graph.hash, self.buffers, inputs, outputs, commands)

    def stage(
        self, groups: Sequence[Sequence[int]], strategy: Strategy, variants: Mapping[str, str] = _NO_VARIANTS
    ) -> list[Work]:
        """The work of a stage; the host issues groups sequentially, as the published engine does."""
        if strategy is Strategy.MERGE:
            if len(groups) != 1:
                raise ScheduleError(f"a merged stage has one group, not {len(groups)}; give its units as one")
            return self._merged(groups[0], MAIN)
        parts = self.divided(groups, variants) if self.divided is not None and len(groups) > 1 else ()
        contexts = list(dict.fromkeys(parts))
        work: list[Work] = []
        for stream, group in enumerate(groups):
            # Groups on the same SMs share a stream: they run sequentially.
            queue = contexts.index(parts[stream]) if parts else stream
            for unit in group:
                issued = self._unit(unit, queue, variants.get(self.network.units[unit].name, FASTEST))
                work += [replace(one, sms=parts[stream]) for one in issued] if parts else issued
        return work

    def streams(self, schedule: StreamSchedule, engine: Engine) -> Iterator[Command]:
        """The commands of streams: events for dependences between streams, one synchronise at the end.

        The events are the fewest that order accesses to the same memory, and the schedule's other waits: a unit that
        launches nothing, as values are in place, neither waits nor is waited for. Under the graph engine all streams
        fork off the first and join it, as in a captured graph, unless their events imply that already.
        """
        issued = self._issued(schedule)
        stream_of = [stream for stream, _, _ in issued]
        reads: list[Iterable[int]] = [read for _, _, read in issued]
        last = {stream: number for number, stream in enumerate(stream_of)}
        if engine.is_recorded:  # the first stream ends after all others
            stream_of.append(0)
            reads.append(last.values())
        waits = reduced_waits(stream_of, reads)
        event = count()
        first = {stream: number for number, stream in reversed(list(enumerate(stream_of)))}
        forked = [stream for stream in sorted(last) if stream and not waits[first[stream]]] * engine.is_recorded
        if forked:
            yield Record(fork := next(event), MAIN)
            yield from (Wait(fork, stream) for stream in forked)
        awaited = {number for own in waits for number in own}
        ended: dict[int, int] = {}
        for number, (stream, own) in enumerate(zip(stream_of, waits, strict=True)):
            yield from (Wait(ended[before], stream) for before in sorted(own, key=lambda one: stream_of[one]))
            if number < len(issued):
                yield from issued[number][1]
            if number in awaited:
                yield Record(end := next(event), stream)
                ended[number] = end
        yield Synchronize()

    def _issued(self, schedule: StreamSchedule) -> list[tuple[int, list[Work], set[int]]]:
        """The launches with work, in the order of issue: for each its stream, its commands, and the numbers of those
        that must have ended before: those that access the same memory, and those that the schedule names.
        """
        network = self.network
        issued: list[tuple[int, list[Work], set[int]]] = []
        ends: dict[int, set[int]] = {}  # for each unit the launches after which its outputs exist
        for stream, launch in issue_order(schedule):
            units = [network.unit_index[name] for name in launch.units]
            work = self._merged(units, stream) if len(units) > 1 else self._unit(units[0], stream, launch.variant)
            read = {before for unit in units for before in network.predecessors[unit]}
            named = {network.unit_index[name] for name in launch.after} - read
            ends |= dict.fromkeys(
                units, {len(issued)} if work else {end for unit in read | named for end in ends[unit]}
            )
            if work:
                issued.append((stream, work, {end for unit in named for end in ends[unit]}))
        touched: dict[str, list[tuple[int, Region, bool]]] = {}
        plan = self.plan((), (), ())
        for number, (_, work, before) in enumerate(issued):
            for command in work:
                for names, writes in zip(accesses(command), (False, True), strict=True):
                    for region in map(plan.region, names):
                        others = touched.setdefault(region.storage, [])
                        before.update(
                            other for other, where, wrote in others if (wrote or writes) and where.overlaps(region)
                        )
                        others.append((number, region, writes))
            before.discard(number)
        return issued

    def buffer(self, value: str, slot: Slot | None = None, name: str | None = None) -> str:
        """Ensure that the buffer of a value exists: at its place, or at ``slot`` under another ``name``."""
        name = name or value
        if name in self.buffers:
            return name
        types = self.network.graph.types
        if slot is None:
            slot = self._slot(value)
        if slot.value == name:
            self.buffers[name] = Buffer(name, types[name])
        else:
            self.buffers[name] = self._view(name, types[value], slot)
        return name

    def _view(self, name: str, of_type: TensorType, slot: Slot) -> Buffer:
        """A buffer at ``slot``: a view of the storage that contains it."""
        outer = self.buffers[self.buffer(slot.value)]
        return Buffer(name, of_type, outer.view_of or outer.name, outer.box.moved(slot.starts).starts)

    def _slot(self, value: str) -> Slot:
        if self.placement is None:
            return Slot(value, (0,) * len(self.network.graph.types[value].shape))
        return self.placement.slot(value)

    def _unit(self, index: int, queue: Queue, variant: str) -> list[Work]:
        unit = self.network.units[index]
        for value in (*unit.inputs, *unit.outputs):
            self.buffer(value)
        if self.placement is not None and index in self.placement.moves:
            if variant:
                raise PlanError(
                    f"the schedule runs {unit.name!r} as {variant!r}, and in place it moves values only; leave the "
                    "variant out"
                )
            return [Copy(term, self._place(term, slot), unit.name, queue) for term, slot in self.placement.moves[index]]
        launch = self._launch((unit.name,), Strategy.CONCURRENT, unit.inputs, unit.outputs, queue, variant)
        slots = {} if self.placement is None else self.placement.slots
        updated = [value for value in unit.inputs if value in slots and slots[value].value in unit.outputs]
        return [replace(launch, adds_to=updated[0]) if updated else launch]

    def _place(self, value: str, slot: Slot) -> str:
        """The buffer for a copy of a value at ``slot``, wherever the value itself is placed."""
        name = f"{value}@{slot.value}:{','.join(map(str, slot.starts))}"
        return self.buffer(value, self._slot(slot.value).at(slot.starts), name)

    def _merged(self, indices: Sequence[int], queue: Queue) -> list[Work]:
        """One stacked convolution into one buffer, of which the outputs of its parts are channel slices.

        Parts placed elsewhere, in a concat, are copied there; unless all are, adjacent and in the same
        order: then the convolution writes there directly.
        """
        network = self.network
        units = [network.units[index] for index in indices]
        names = tuple(unit.name for unit in units)
        merged = merged_convolution(network, indices)
        values = [unit.outputs[0] for unit in units]
        self.buffer(merged.input)
        slots = [self._slot(value) for value in values]
        rank = len(merged.output.shape)
        starts = [starting(rank, 1, begin) for begin in merged.channel_begin[: len(values)]]
        together = None if self.placement is None else self.placement.together(values)
        whole = "merged:" + "+".join(names)
        if together is not None:
            self.buffers[whole] = self._view(whole, merged.output, together)
            for value in values:
                self.buffer(value)
        else:
            self.buffers[whole] = Buffer(whole, merged.output)
        work: list[Work] = [self._launch(names, Strategy.MERGE, (merged.input,), (whole,), queue)]
        if together is not None:
            return work
        for unit, value, slot, own in zip(units, values, slots, starts, strict=True):
            part = value if slot.value == value else f"{value}@{whole}"
            self.buffers[part] = Buffer(part, network.graph.types[value], whole, own)
            if part != value:
                work.append(Copy(part, self.buffer(value), unit.name, queue))
        return work

    def _launch(
        self,
        names: tuple[str, ...],
        strategy: Strategy,
        reads: tuple[str, ...],
        writes: tuple[str, ...],
        queue: Queue,
        variant: str = FASTEST,
    ) -> Launch:
        launch = Launch(names, strategy, reads, writes, queue, algorithm=variant)
        if self.choices is None:
            return launch
        choice = self.choices(names, strategy, variant)
        if not choice.workspace_bytes:
            return replace(launch, algorithm=choice.algorithm)
        workspace = workspace_buffer(names, choice.workspace_bytes)
        self.buffers[workspace.name] = workspace
        return replace(launch, algorithm=choice.algorithm, workspace=workspace.name)


def _synchronise_between(stages: list[list[Work]]) -> Iterator[Command]:
    """The paper engine: a device synchronise unless the stages on both sides run in stream 0 only."""
    before: set[Queue] = set()
    for stage in stages:
        queues = {work.queue for work in stage}
        if before and queues and before | queues != {MAIN}:
            yield Synchronize()
        yield from stage
        before = queues or before
    yield Synchronize()


def _fork_and_join(stages: list[list[Work]]) -> Iterator[Command]:
    """The graph engine: side streams wait for stream 0 before a stage, and stream 0 for them after it."""
    event = count()
    for stage in stages:
        side = sorted({work.queue for work in stage} - {MAIN})
        if side:
            yield Record(fork := next(event), MAIN)
            yield from (Wait(fork, queue) for queue in side)
        yield from stage
        for queue in side:
            yield Record(join := next(event), queue)
            yield Wait(join, MAIN)
    yield Synchronize()


_SEPARATORS: dict[Between, Callable[[list[list[Work]]], Iterator[Command]]] = {
    Between.SYNCHRONISATION: _synchronise_between,
    Between.FORK_AND_JOIN: _fork_and_join,
    Between.NOTIFICATION: _synchronise_between,
}
