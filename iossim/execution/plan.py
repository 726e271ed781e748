"""Plans, the input of every executor: a flat list of commands that the host issues in order to queues.

Commands of one queue run sequentially, in the order of issue. Commands of different queues run in any order,
unless an event (:class:`Record`, then :class:`Wait`) or a :class:`Synchronize` orders them. A plan does not
specify how an executor computes a unit, so that a simulator, a GPU and NumPy run the same one.

As JSON (:func:`plan_to_json`) a plan is one object, its commands in order, each tagged by its kind; default values are
left out.

Memory is accessed in boxes: a box is the range of a slice in a whole array, along every axis. Channels of a concat,
images of a micro-batch, rows and columns with a halo are all boxes. Whether the elements of one are contiguous in
memory concerns the reader only.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import groupby, zip_longest
from operator import lt
from types import EllipsisType
from typing import NamedTuple

from iossim.ir.types import DType, TensorType
from iossim.schedule.batch import Strategy


class Box(NamedTuple):
    """Elements ``[starts[axis], starts[axis] + shape[axis])`` along each axis.

    The shape of the whole is that of the box's storage.
    """

    starts: tuple[int, ...]
    shape: tuple[int, ...]

    @staticmethod
    def whole(shape: tuple[int, ...]) -> Box:
        return Box((0,) * len(shape), shape)

    @staticmethod
    def between(starts: Iterable[int], ends: Iterable[int]) -> Box:
        starts = tuple(starts)
        return Box(starts, tuple(end - start for start, end in zip(starts, ends, strict=True)))

    @property
    def ends(self) -> tuple[int, ...]:
        return tuple(start + size for start, size in zip(self.starts, self.shape, strict=True))

    @property
    def selection(self) -> tuple[slice | EllipsisType, ...]:
        """The index that selects the box from an array of the whole, as a view even if that is a scalar."""
        return (*map(slice, self.starts, self.ends), ...)

    def moved(self, by: tuple[int, ...]) -> Box:
        """The box in coordinates of an enclosing array, in which the whole begins at ``by``."""
        return Box(tuple(start + more for start, more in zip(self.starts, by, strict=True)), self.shape)

    def along(self, axis: int, start: int, size: int) -> Box:
        """The box with another range along one axis, which is counted from the front."""
        starts = (*self.starts[:axis], start, *self.starts[axis + 1 :])
        return Box(starts, (*self.shape[:axis], size, *self.shape[axis + 1 :]))

    def overlaps(self, other: Box) -> bool:
        """True if two boxes of one whole have an element in common."""
        return all(map(lt, map(max, self.starts, other.starts), map(min, self.ends, other.ends)))

    def common(self, other: Box) -> Box | None:
        """The intersection of two boxes of one whole; None if it is empty."""
        if not self.overlaps(other):
            return None
        return Box.between(map(max, self.starts, other.starts), map(min, self.ends, other.ends))

    def hull(self, other: Box) -> Box:
        """The smallest box that contains both."""
        return Box.between(map(min, self.starts, other.starts), map(max, self.ends, other.ends))

    def without(self, other: Box) -> list[Box]:
        """The difference of two boxes of the same whole, as disjoint boxes: at most two per axis."""
        if not self.overlaps(other):
            return [self]
        rest, left = self, list[Box]()
        for axis, (start, size) in enumerate(zip(other.starts, other.shape, strict=True)):
            begin, end = rest.starts[axis], rest.starts[axis] + rest.shape[axis]
            for part_begin, part_end in ((begin, start), (start + size, end)):
                if part_begin < part_end:
                    left.append(rest.along(axis, part_begin, part_end - part_begin))
            first = max(begin, start)
            rest = rest.along(axis, first, min(end, start + size) - first)
        return left

    def covered_by(self, parts: Iterable[Box]) -> bool:
        """True if every element of the box is in one of ``parts``, boxes of the same whole."""
        left = [self] if all(self.shape) else []
        for part in parts:
            left = [rest for piece in left for rest in piece.without(part)]
            if not left:
                break
        return not left


#: Number of a stream of the device, whose commands run in the order of issue.
Queue = int
#: The stream of the first group of every stage; that of a captured graph.
MAIN: Queue = 0

#: Alignment of storages, in bytes: that of CUDA's own allocator.
ALIGNMENT_BYTES = 256


@dataclass(frozen=True, slots=True)
class Buffer:
    """Memory that holds a value of the graph, several values of a merged stage, or a kernel's workspace.

    A *view* has no memory of its own: it is a box of the buffer that ``view_of`` names, which is not a view itself (a
    *storage*), and has as many axes. It begins at ``starts``, one entry per axis, and has the shape of its ``type``.
    """

    name: str
    type: TensorType
    view_of: str | None = None
    starts: tuple[int, ...] = ()

    @property
    def bytes(self) -> int:
        """Size of its own memory: 0 for a view."""
        return 0 if self.view_of else self.type.elements * self.type.dtype.bytes

    @property
    def box(self) -> Box:
        """Its box in its storage: the whole, if it is a storage."""
        return Box(self.starts, self.type.shape) if self.view_of else Box.whole(self.type.shape)


class Region(NamedTuple):
    """Location of a buffer: a box of ``storage``."""

    storage: str
    box: Box

    def overlaps(self, other: Region) -> bool:
        return self.storage == other.storage and self.box.overlaps(other.box)

    def covered_by(self, parts: Iterable[Region]) -> bool:
        """True if parts of the same storage cover all of it."""
        return self.box.covered_by(part.box for part in parts)


@dataclass(frozen=True, slots=True)
class Launch:
    """Run units (names) on a queue: one unit, or several as one stacked convolution.

    ``reads`` and ``writes`` are buffers (names) for the unit's inputs and outputs, in order. Weights are not buffers:
    nothing writes them while the plan runs. ``algorithm`` is the executor's own name of the unit's algorithm, empty
    if there is no choice; ``workspace`` names the buffer of its workspace, whose contents do not outlive it.
    ``sms`` are the numbers of the SMs available to it: all, unless the device is partitioned. ``adds_to`` is the one
    of ``reads`` at the same place as the output: it is updated in place (beta 1).
    """

    units: tuple[str, ...]
    strategy: Strategy
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    queue: Queue
    algorithm: str = ""
    workspace: str | None = None
    sms: range | None = None
    adds_to: str | None = None

    def __str__(self) -> str:
        return f"{'+'.join(self.units)} on queue {self.queue}{sms_text(self.sms)}"


@dataclass(frozen=True, slots=True)
class Copy:
    """Copy a buffer to another of the same shape on a queue: data movement of a unit that views cannot replace.

    ``unit`` is the unit that needs it; ``sms`` as for a launch.
    """

    source: str
    target: str
    unit: str
    queue: Queue
    sms: range | None = None

    def __str__(self) -> str:
        return f"the copy of {self.source!r} to {self.target!r} on queue {self.queue}{sms_text(self.sms)}"


@dataclass(frozen=True, slots=True)
class Record:
    """The event fires when everything issued to ``queue`` before has run; a plan records an event once."""

    event: int
    queue: Queue


@dataclass(frozen=True, slots=True)
class Wait:
    """Commands issued to ``queue`` after this run once the event has fired."""

    event: int
    queue: Queue


@dataclass(frozen=True, slots=True)
class Synchronize:
    """The host waits until all queues are empty: its later commands and reads come after all earlier ones."""


#: Commands that are issued to a queue, and run there in order.
Queued = Launch | Copy | Record | Wait
Command = Queued | Synchronize


@dataclass(frozen=True, eq=False)
class Plan:
    """Commands in the order that the host issues them.

    ``inputs`` are the buffers that the host fills before the first command, ``outputs`` those it reads after the
    last; ``buffers`` has every buffer by name. ``graph_hash`` is that of the graph.

    With its memory planned (:func:`~iossim.execution.memory.plan_memory`), each storage begins at ``offsets[name]``
    of one arena of ``arena_bytes``; without, each has separate memory.
    """

    graph_hash: str
    buffers: Mapping[str, Buffer]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    commands: tuple[Command, ...]
    offsets: Mapping[str, int] | None = None
    arena_bytes: int = 0

    @property
    def launches(self) -> tuple[Launch, ...]:
        return tuple(command for command in self.commands if isinstance(command, Launch))

    @cached_property
    def queues(self) -> tuple[Queue, ...]:
        """The queues with commands, in order."""
        return tuple(sorted({command.queue for command in self.commands if isinstance(command, Launch | Copy)}))

    @cached_property
    def storages(self) -> tuple[Buffer, ...]:
        """The buffers that have memory of their own."""
        return tuple(buffer for buffer in self.buffers.values() if buffer.view_of is None)

    @property
    def storage_bytes(self) -> int:
        """Total size of all storages without sharing memory."""
        return sum(aligned(buffer.bytes) for buffer in self.storages)

    def region(self, name: str) -> Region:
        """Location of a buffer's contents, views resolved."""
        buffer = self.buffers[name]
        return Region(buffer.view_of or name, buffer.box)


def sms_text(sms: range | None) -> str:
    """The SMs of a launch as a suffix: " (SMs 0-39)"; empty for all SMs."""
    return "" if sms is None else f" (SMs {sms.start}-{sms.stop - 1})"


def segments(plan: Plan) -> Iterator[list[Queued]]:
    """The commands between two synchronises; those after the last one form a segment, too."""
    segment: list[Queued] = []
    for command in plan.commands:
        if isinstance(command, Synchronize):
            yield segment
            segment = []
        else:
            segment.append(command)
    if segment:
        yield segment


def accesses(command: Command) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The buffers that a command reads, and those it writes; a workspace is written."""
    match command:
        case Launch():
            workspace = () if command.workspace is None else (command.workspace,)
            return command.reads, (*command.writes, *workspace)
        case Copy():
            return (command.source,), (command.target,)
        case _:
            return (), ()


def aligned(size_bytes: int) -> int:
    """A size rounded up to the alignment of storages."""
    return -(-size_bytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES


def workspace_buffer(units: tuple[str, ...], size_bytes: int) -> Buffer:
    """The workspace of one launch: live while that runs, so that planned memory shares it with all that is not live."""
    return Buffer(f"workspace:{'+'.join(units)}", TensorType((size_bytes,), DType.UINT8))


def repeat(plan: Plan, copies: int, synchronise: bool) -> Plan:
    """The commands of a plan ``copies`` times in a row, on the same buffers; events are recorded anew each time.

    The last synchronise of the plan comes once, at the end, or with ``synchronise`` after each copy: then the time of
    a copy is that of the stage with its trailing boundary. Without it, several streams must be joined.
    """
    *body, end = plan.commands
    assert isinstance(end, Synchronize), "every plan ends in a synchronise"
    events = 1 + max((command.event for command in body if isinstance(command, Record | Wait)), default=-1)
    commands: list[Command] = []
    for copy in range(copies):
        commands += [
            replace(command, event=command.event + copy * events) if isinstance(command, Record | Wait) else command
            for command in body
        ]
        if synchronise or copy == copies - 1:
            commands.append(end)
    return replace(plan, commands=tuple(commands))


def forks_and_joins(commands: Sequence[Command]) -> tuple[set[int], set[int]]:
    """The places of the records that are forks, and of the waits that are joins, of a captured graph.

    A wait for an event that was recorded before any launch depends on nothing.

    A *fork* is a node with several successors: a record after a launch whose event several streams wait for, including
    its own if that launches again before it waits. A *join* is a node with several predecessors: a wait of a stream
    that has launched since its last record, or a wait directly after another wait of its stream.
    """
    void: set[int] = set()
    launching: set[Queue] = set()
    of_queue: dict[Queue, list[tuple[int, Queued]]] = {}
    for place, command in enumerate(commands):
        if isinstance(command, Synchronize) or (isinstance(command, Wait) and command.event in void):
            continue
        of_queue.setdefault(command.queue, []).append((place, command))
        if isinstance(command, Launch | Copy):
            launching.add(command.queue)
        elif isinstance(command, Record) and command.queue not in launching:
            void.add(command.event)
    waiting = Counter(command.event for command in commands if isinstance(command, Wait))
    forks: set[int] = set()
    joins: set[int] = set()
    for own in of_queue.values():
        runs = [(kind, list(run)) for kind, run in groupby(own, lambda placed: _kind(placed[1]))]
        open_end = False
        for (kind, run), following in zip_longest(runs, [kind for kind, _ in runs[1:]]):
            if kind is Launch:
                open_end = True
            elif kind is Record:
                open_end = False
                own_successors = int(following is Launch)
                events = [(place, record.event) for place, record in run if isinstance(record, Record)]
                forks.update(at for at, event in events if event not in void and waiting[event] + own_successors > 1)
            elif open_end or len(run) > 1:  # consecutive waits are one join, at the last of them
                joins.add(run[-1][0])
    return forks, joins


def _kind(command: Queued) -> type[Queued]:
    """The type of a command, with copies as launches."""
    return Launch if isinstance(command, Copy) else type(command)


#: Version 1 had only views of channels, and queues without a device, of which there is one.
FORMAT_VERSION = 2


def plan_to_json(plan: Plan) -> str:
    """A plan as JSON text."""
    offsets = plan.offsets or {}
    buffers = [
        {"name": buffer.name, "shape": buffer.type.shape, "dtype": buffer.type.dtype}
        | _given(view_of=buffer.view_of, starts=buffer.starts, offset=offsets.get(buffer.name))
        for buffer in plan.buffers.values()
    ]
    document = {
        "format_version": FORMAT_VERSION,
        "graph_hash": plan.graph_hash,
        "inputs": plan.inputs,
        "outputs": plan.outputs,
        **_given(arena_bytes=plan.arena_bytes or None),
        "buffers": buffers,
        "commands": [_command(command) for command in plan.commands],
    }
    return json.dumps(document)


def _command(command: Command) -> dict[str, object]:
    """A command in the file, where a queue is its device, which is the first, and its stream."""
    match command:
        case Launch():
            return {"kind": "launch"} | _given(
                queue=(0, command.queue),
                units=command.units,
                strategy=None if command.strategy is Strategy.CONCURRENT else command.strategy,
                reads=command.reads,
                writes=command.writes,
                algorithm=command.algorithm,
                workspace=command.workspace,
                sms=_ends(command.sms),
                adds_to=command.adds_to,
            )
        case Copy():
            moved = {"units": [command.unit], "reads": [command.source], "writes": [command.target]}
            return {"kind": "copy", "queue": (0, command.queue), **moved, **_given(sms=_ends(command.sms))}
        case Record() | Wait():
            kind = "record" if isinstance(command, Record) else "wait"
            return {"kind": kind, "queue": (0, command.queue), "event": command.event}
        case Synchronize():
            return {"kind": "synchronise"}


def _ends(sms: range | None) -> tuple[int, int] | None:
    """The first SM available to a command, and the first one after the range."""
    return None if sms is None else (sms.start, sms.stop)


def _given(**values: object) -> dict[str, object]:
    """The values that are not empty."""
    return {name: value for name, value in values.items() if value not in (None, "", ())}
