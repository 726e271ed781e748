"""A device on the host, behind the backend's driver boundary: it records what it is asked, and really computes it.

Streams, events and captures order work as CUDA does; between those orders, work runs at random, so that what the backend
fails to order shows as a wrong result. New memory holds NaNs, and what the host copies there lands when the device is
synchronised with. Kernels are the backend's own, compiled for the host; the convolutions are NumPy's
(``host_library``).

Time is virtual, the host's as well: what runs has a duration, and independent work runs at once. Its clock may begin slow
(:class:`Ramp`), a call may take the host time (``issue_us``), and work may break the device (:meth:`HostDriver.fail`), which
then fails every call, as CUDA's sticky errors do.

What it cannot catch, and where ``benchmarks/gpu_report.py`` meets it first, in the order of its sections:

- that cuDNN's front end takes the pointers, strides and types of a variant pack: ``first``, one convolution in each precision,
  fused and apart (without a device a pack is taken as far as the missing handle: ``test_deviceless_planning``);
- that plans of cuDNN read slices of channels with the steps that they were told: ``graph/NAME``, whose outputs are looked at;
- that cuDNN's fused attention reads heads by their strides, scales before it adds the mask, and softens in fp32: ``first``,
  one attention in 16 bits, fused and apart; with masks, ``tests``;
- that cuBLAS takes the arguments that ctypes gives it, and the workspace in a capture: ``tests``, and ``graph/bert_layer``, whose
  products are timed by it (its arguments are held to what its manual says: ``test_cublas``);
- calls that are illegal in a capture, beyond allocation, copies and timing events: ``first``, on the graph engine;
- what CuPy's NVRTC makes of a kernel's text on that driver (that it compiles is tested for three architectures): ``first``;
- products in less than is stored (TF32 where fp32 was asked for, sums of fp16): ``first``, by the tolerance of each precision;
- that cuDNN sums products of int8 in int32, with any number of channels: ``tests``;
- real concurrency: which streams share a queue, what waits by accident: ``costs``, placement and launches of two streams;
- that kernels and cuDNN run in streams of green contexts, and in one graph of several (``--engine partition``): ``tests``;
- aborts of the libraries, which end the process: each section is one of its own, and ``doctor`` tries cuDNN in another.
"""

from __future__ import annotations

import random
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from host_kernels import host_kernel

from iossim.backends.cupy_cudnn.driver import DeviceFacts
from iossim.backends.cupy_cudnn.kernel_text import WAIT
from iossim.ir.op import Array

KERNEL_US = 2.0
#: How much of a kernel is hidden behind the end of the one ahead of it.
OVERLAP_US = 0.5


class Call(NamedTuple):
    """What the device was asked: the verb, the number of the stream (-1 for none), and what else there is to say."""

    verb: str
    stream: int
    about: object = None
    captured: bool = False


@dataclass(eq=False)
class Node:
    """A piece of work, how long it takes at full clock, and what it comes after."""

    run: Callable[[], None]
    duration_us: float
    after: set[Node]
    held: tuple[int, float] = (0, 0.0)
    end_us: float = 0.0
    done: bool = False


@dataclass
class Ramp:
    """A clock that begins slow, and is slow again after a pause: ``slowdown`` at first, 1 after ``ramp_us`` of work.

    A pause of more than ``idle_us`` ends the work.
    """

    slowdown: float = 1.0
    ramp_us: float = 1.0
    idle_us: float = float("inf")
    _since_us: float = float("-inf")
    _until_us: float = float("-inf")

    def factor(self, begin_us: float) -> float:
        """By how much more time than at full clock work takes that begins then."""
        if self._until_us == float("-inf") or begin_us - self._until_us > self.idle_us:
            self._since_us = begin_us
        return 1.0 + (self.slowdown - 1.0) * max(0.0, 1.0 - (begin_us - self._since_us) / self.ramp_us)

    def ran(self, end_us: float) -> None:
        self._until_us = max(self._until_us, end_us)


class HostDeviceError(RuntimeError):
    """What the device says of each call once it is broken; CuPy's is a RuntimeError, too."""


@dataclass(eq=False)
class HostGraph:
    nodes: list[Node]


@dataclass(eq=False)
class HostStream:
    ptr: int
    front: set[Node] = field(default_factory=set)
    capture: HostGraph | None = None
    sms: range | None = None


@dataclass(eq=False)
class HostEvent:
    timing: bool
    number: int
    front: set[Node] | None = None
    capture: HostGraph | None = None
    recorded_us: float = 0.0

    @property
    def fired_us(self) -> float:
        return max(_end(self.front or set()), self.recorded_us)


class HostMemory:
    """Bytes at a multiple of 256, all ones: NaNs."""

    def __init__(self, size_bytes: int) -> None:
        self._bytes = np.full(size_bytes + 512, 0xFF, np.uint8)
        begin = self._bytes.ctypes.data
        self.address = begin + -begin % 256
        self.size_bytes = size_bytes

    def part(self, address: int, size_bytes: int) -> Array:
        begin = address - self._bytes.ctypes.data
        return self._bytes[begin : begin + size_bytes]


class HostDriver:
    """See :class:`iossim.backends.cupy_cudnn.driver.Driver`; ``seed`` draws the order of what nothing orders.

    ``issue_us`` says how long the host takes for a call, by its verb. A device that ``overlaps`` starts kernels of an
    overlapped capture without the ones ahead of them in their stream, unless their text waits for those.
    """

    failures: tuple[type[Exception], ...] = (HostDeviceError,)

    def __init__(
        self,
        seed: int = 0,
        free_bytes: int = 2**34,
        ramp: Ramp | None = None,
        issue_us: Callable[[str], float] = lambda verb: 0.0,
        overlaps: bool = False,
    ) -> None:
        self._overlaps, self._overlapped = overlaps, False
        self.calls: list[Call] = []
        self.broken = ""
        self.now_us = 0.0
        self._ramp = ramp or Ramp()
        self._issue_us = issue_us
        self._random = random.Random(seed)
        self._memory: weakref.WeakSet[HostMemory] = weakref.WeakSet()
        self._pending: list[Node] = []
        self.streams: list[HostStream] = []
        self._copies = HostStream(-1)  # the legacy stream, which nothing else is ordered with
        self._events = 0
        self._free_bytes = free_bytes
        self.kernels: dict[tuple[str, str], int] = {}

    @property
    def facts(self) -> DeviceFacts:
        libraries = (("cuda", "13.0"), ("cupy", "14.2.0"))
        place = "0000:1b:00.0"
        return DeviceFacts("NVIDIA H100 80GB HBM3", "580.1", 4096, 1_000_000, libraries, place, self._overlaps, 132)

    @property
    def is_capturing(self) -> bool:
        return any(stream.capture is not None for stream in self.streams)

    def fail(self, reason: str) -> None:
        """Break the device: from the next synchronise on every call fails, until :meth:`reset`."""
        self.broken = reason

    def reset(self) -> None:
        self.broken = ""
        self._pending = []

    def host_us(self) -> float:
        return self.now_us

    def allocate(self, size_bytes: int) -> HostMemory:
        assert not self.is_capturing, "memory is allocated during a capture"
        self._say("allocate", None, size_bytes)
        memory = HostMemory(size_bytes)
        self._memory.add(memory)
        return memory

    def free_bytes(self) -> int:
        return self._free_bytes

    def write(self, address: int, array: Array) -> None:
        self.copy_in(address, np.ascontiguousarray(array).view(np.uint8).reshape(-1))
        self.synchronize()

    def copy_in(self, address: int, data: Array) -> None:
        """A copy from pageable memory: it has left the host when this returns, and lands before the next synchronise."""
        assert not self.is_capturing, "memory is copied to the device during a capture"
        self._alive()
        target, staged = self.bytes(address, data.nbytes), data.copy()
        self.enqueue(self._copies, lambda: np.copyto(target, staged), KERNEL_US)

    def read(self, address: int, array: Array) -> None:
        self._alive()
        self.synchronize()
        array.reshape(-1).view(np.uint8)[:] = self.bytes(address, array.nbytes)

    def poison(self, address: int, size_bytes: int) -> None:
        self.synchronize()
        self._say("poison", None, size_bytes)
        self.bytes(address, size_bytes)[:] = 0xFF

    def bytes(self, address: int, size_bytes: int) -> Array:
        """Device memory, which must lie in one allocation that is still alive."""
        for memory in self._memory:
            if memory.address <= address and address + size_bytes <= memory.address + memory.size_bytes:
                return memory.part(address, size_bytes)
        raise AssertionError(f"{size_bytes} bytes at {address} are no memory of the device")

    def stream(self) -> HostStream:
        self.streams.append(HostStream(len(self.streams)))
        return self.streams[-1]

    def stream_of_part(self, division: tuple[range, ...], part: int) -> HostStream:
        stream = self.stream()
        stream.sms = division[part]
        return stream

    def event(self, timing: bool = False) -> HostEvent:
        self._events += 1
        return HostEvent(timing, self._events)

    def record(self, event: HostEvent, stream: HostStream) -> None:
        assert not (event.timing and stream.capture), "a timing event is recorded in a capture"
        self._say("record", stream, event.number)
        event.front, event.capture, event.recorded_us = set(stream.front), stream.capture, self.now_us

    def wait(self, event: HostEvent, stream: HostStream) -> None:
        assert event.front is not None, "a stream waits for an event that is not recorded"
        self._say("wait", stream, event.number)
        if event.capture is not None and stream.capture is None:
            assert not stream.front, "a stream joins a capture with work of its own before it"
            stream.capture = event.capture
        assert stream.capture is event.capture, "a capture waits for an event from outside, or the other way round"
        stream.front |= event.front

    def synchronize(self) -> None:
        assert not self.is_capturing, "the device is synchronised with during a capture"
        self._say("synchronize", None)
        pending, self._pending = self._pending, []
        self.now_us = max([self.now_us, *(node.end_us for node in pending)])
        for stream in (*self.streams, self._copies):
            stream.front = set()
        self._execute(pending)
        self._alive()

    def elapsed_us(self, start: HostEvent, end: HostEvent) -> float:
        assert start.timing, "the event keeps no time"
        assert end.timing, "the event keeps no time"
        assert not self._pending, "events are read before the device was synchronised with"
        return end.fired_us - start.fired_us

    def begin_capture(self, stream: HostStream, overlapped: bool = False) -> None:
        self._overlapped = overlapped
        assert not self.is_capturing, "two captures at a time"
        assert not self._pending, "a capture begins while work is pending"
        self._say("begin_capture", stream)
        stream.capture, stream.front = HostGraph([]), set()

    def end_capture(self, stream: HostStream) -> HostGraph:
        self._overlapped = False
        graph = stream.capture
        assert graph is not None, "the stream does not capture"
        seen, left = set(stream.front), list(stream.front)
        while left:
            fresh = left.pop().after - seen
            seen |= fresh
            left += fresh
        assert seen == set(graph.nodes), "the capture holds work that never joins its first stream"
        for other in self.streams:
            if other.capture is graph:
                other.capture, other.front = None, set()
        self._say("end_capture", stream, len(graph.nodes))
        return graph

    def abandon_capture(self, stream: HostStream) -> None:
        self._overlapped = False
        for other in self.streams:
            other.capture, other.front = None, set()
        self.calls.append(Call("abandon_capture", stream.ptr))

    def launch_graph(self, graph: HostGraph, stream: HostStream) -> None:
        self._say("launch_graph", stream, len(graph.nodes))

        def run() -> None:
            for node in graph.nodes:
                node.done = False
            self._execute(graph.nodes)

        begin_us = max(_end(stream.front), self.now_us)
        factor = self._ramp.factor(begin_us)
        # The longest path is the same in whatever order it is walked.
        full_us = begin_us  # until when kernels that hold every SM run, one after another
        for node in graph.nodes:
            fills = node.held[0] * node.held[1] >= self.facts.sms
            node.end_us = max(_end(node.after), full_us if fills else begin_us) + node.duration_us * factor
            full_us = node.end_us if fills else full_us
        self.enqueue(stream, run, max(_end(set(graph.nodes)) - begin_us, 0.0) / factor)

    def held(self, graph: HostGraph) -> tuple[int, float]:
        return max((node.held for node in graph.nodes), key=lambda one: (one[1], one[0]), default=(0, 0.0))

    def kernel(self, source: str, name: str) -> tuple[str, str]:
        assert (source, name) in self.kernels or not self.is_capturing, "a kernel is loaded during a capture"
        self.kernels[source, name] = self.kernels.get((source, name), 0) + 1
        return source, name

    def launch(
        self, kernel: tuple[str, str], blocks: int, threads: int, arguments: tuple[np.generic, ...], stream: HostStream
    ) -> None:
        self._say("launch", stream, kernel[1])
        assert max(blocks / 2**31, threads / 1025) < 1 <= min(blocks, threads), "as much as a launch has"
        function = host_kernel(*kernel) if kernel[1] not in ("spin", "sentinel", "flush", "empty") else None
        duration_us = float(arguments[0]) / (self.facts.clock_khz / 1e3) if kernel[1] == "spin" else KERNEL_US
        if self._overlapped and kernel[1] != "empty":
            duration_us -= OVERLAP_US
            if WAIT not in kernel[0]:
                stream.front = {before for ahead in stream.front for before in ahead.after}
        self.enqueue(stream, lambda: None if function is None else function(blocks, threads, arguments), duration_us)

    def enqueue(
        self, stream: HostStream, run: Callable[[], None], duration_us: float, held: tuple[int, float] = (0, 0.0)
    ) -> None:
        node = Node(run, duration_us, set(stream.front), held)
        if stream.capture is None:
            begin_us = max(_end(node.after), self.now_us)
            node.end_us = begin_us + duration_us * self._ramp.factor(begin_us)
            self._ramp.ran(node.end_us)
            self._pending.append(node)
        else:
            stream.capture.nodes.append(node)
        stream.front = {node}

    def say(self, verb: str, stream: HostStream, about: object) -> None:
        self._say(verb, stream, about)

    def _alive(self) -> None:
        if self.broken:
            raise HostDeviceError(self.broken)

    def _say(self, verb: str, stream: HostStream | None, about: object = None) -> None:
        self._alive()
        self.now_us += self._issue_us(verb)
        number = -1 if stream is None else stream.ptr
        self.calls.append(Call(verb, number, about, stream is not None and stream.capture is not None))

    def _execute(self, nodes: list[Node]) -> None:
        """Run all in a random order that what each comes after allows."""
        inside = set(nodes)
        waiting = {node: sum(other in inside and not other.done for other in node.after) for node in nodes}
        behind: dict[Node, list[Node]] = {}
        for node in nodes:
            for other in node.after & inside:
                behind.setdefault(other, []).append(node)
        ready = [node for node in nodes if not waiting[node]]
        ran = 0
        while ready:
            node = ready.pop(self._random.randrange(len(ready)))
            node.run()
            node.done = True
            if self.broken:
                return
            ran += 1
            for other in behind.get(node, []):
                waiting[other] -= 1
                if not waiting[other]:
                    ready.append(other)
        assert ran == len(nodes), "work waits for itself"


class DropsEdges(HostDriver):
    """Graphs are captured without what orders their nodes: the last that were captured run first."""

    def end_capture(self, stream: HostStream) -> HostGraph:
        graph = super().end_capture(stream)
        return HostGraph([Node(node.run, node.duration_us, set()) for node in reversed(graph.nodes)])

    def _execute(self, nodes: list[Node]) -> None:
        for node in nodes:
            node.run()
            node.done = True


def _end(nodes: set[Node]) -> float:
    return max((node.end_us for node in nodes), default=0.0)
