"""A plan is what every executor runs: a flat list of commands that the host issues in order to queues.

Commands of one queue run one after another, in the order issued. Commands of different queues run in any order, unless
an event (:class:`Record`, then :class:`Wait`) or a :class:`Synchronize` stands between them. A plan says nothing about
how an executor computes a unit, so that a simulator, a GPU and NumPy run the same one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from iossim.ir.types import TensorType
from iossim.schedule.batch import Strategy


class Queue(NamedTuple):
    """A stream of a device: commands in it run in the order issued."""

    device: int
    stream: int

    def __str__(self) -> str:
        return f"queue {self.device}:{self.stream}"


@dataclass(frozen=True, slots=True)
class Buffer:
    """Memory that holds a value of the graph, or several values of a merged stage.

    A *view* has no memory of its own: it is channels ``[channel_begin, channel_begin + type.shape[1])`` of the buffer
    that ``view_of`` names.
    """

    name: str
    type: TensorType
    view_of: str | None = None
    channel_begin: int = 0

    @property
    def bytes(self) -> int:
        """Memory of its own: a view takes none."""
        return 0 if self.view_of else self.type.bytes


class Region(NamedTuple):
    """Where a buffer lies: channels ``[begin, end)`` of ``storage``; a scalar or vector has one channel."""

    storage: str
    begin: int
    end: int

    def overlaps(self, other: Region) -> bool:
        return self.storage == other.storage and self.begin < other.end and other.begin < self.end

    def contains(self, other: Region) -> bool:
        return self.storage == other.storage and self.begin <= other.begin and other.end <= self.end


@dataclass(frozen=True, slots=True)
class Launch:
    """Run units (names) on a queue: one unit, or several as one stacked convolution.

    ``reads`` and ``writes`` are buffer names. Weights are no buffers: nothing writes them while the plan runs.
    """

    units: tuple[str, ...]
    strategy: Strategy
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    queue: Queue

    def __str__(self) -> str:
        return f"{'+'.join(self.units)} on {self.queue}"


@dataclass(frozen=True, slots=True)
class Record:
    """The event fires when all that was issued to ``queue`` before has run; a plan records an event once."""

    event: int
    queue: Queue


@dataclass(frozen=True, slots=True)
class Wait:
    """What is issued to ``queue`` after this runs when the event has fired."""

    event: int
    queue: Queue


@dataclass(frozen=True, slots=True)
class Synchronize:
    """The host waits until all queues are empty: what it issues afterwards, or reads, comes after all before."""


Command = Launch | Record | Wait | Synchronize


@dataclass(frozen=True, eq=False)
class Plan:
    """Commands in the order that the host issues them.

    ``inputs`` are the buffers that the host fills before the first command, ``outputs`` those it reads after the last;
    ``buffers`` holds every buffer by name. ``graph_hash`` is that of the graph that the plan computes.
    """

    graph_hash: str
    buffers: Mapping[str, Buffer]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    commands: tuple[Command, ...]

    @property
    def launches(self) -> tuple[Launch, ...]:
        return tuple(command for command in self.commands if isinstance(command, Launch))

    @cached_property
    def queues(self) -> tuple[Queue, ...]:
        """The queues that run something, in order."""
        return tuple(sorted({launch.queue for launch in self.launches}))

    def region(self, name: str) -> Region:
        """Where a buffer's contents lie, views resolved."""
        buffer = self.buffers[name]
        shape = buffer.type.shape
        channels = shape[1] if len(shape) > 1 else 1
        return Region(buffer.view_of or name, buffer.channel_begin, buffer.channel_begin + channels)
