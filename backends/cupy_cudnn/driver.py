"""The boundary between the backend and a GPU, which hides CuPy and cuDNN; and calls through it, prepared to be issued
repeatedly.

Addresses and sizes are plain integers, so that nothing above this boundary imports either. :mod:`.cupy_driver` and
:mod:`.cudnn_graphs` answer on a GPU; the tests answer on the host.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from iossim.backends.cupy_cudnn.convolution import Asked, ConvolutionCall
from iossim.backends.cupy_cudnn.views import KernelCall, Scalar, View
from iossim.ir.op import Array

#: Opaque to everything above the driver.
Stream = Any
Event = Any
Graph = Any
Kernel = Any
Handle = Any
#: Issues a convolution to a handle's stream: from the addresses of its operands, that of its workspace, and the handle.
Executable = Callable[[Mapping[str, int], int, Handle], None]
#: Issues one thing to the device, and returns before it has run.
Issue = Callable[[], None]
Address = Callable[[View], int]


@dataclass(frozen=True, slots=True)
class DeviceFacts:
    """Facts about the device, by its driver: the product's name, the driver's version, and sizes that timing needs.

    ``clock_khz`` is the most that the multiprocessors are clocked at, ``pci_bus`` its place: ``0000:1b:00.0``. Where it
    ``overlaps``, a kernel may start while the one ahead of it ends (programmatic dependent launch). There are ``sms``
    multiprocessors, or 0 where that is not known.
    """

    name: str
    driver: str
    l2_bytes: int
    clock_khz: int
    libraries: tuple[tuple[str, str], ...]
    pci_bus: str = ""
    overlaps: bool = False
    sms: int = 0


class Allocation(Protocol):
    """Device memory that lives as long as this object."""

    @property
    def address(self) -> int: ...


class Driver(Protocol):
    """Memory, streams, events, graphs and kernels of one device, and the clock of the host."""

    #: Exceptions by which a call says that it, or something issued before it, failed on the device.
    failures: tuple[type[Exception], ...]

    @property
    def facts(self) -> DeviceFacts: ...

    def host_us(self) -> float:
        """The host's clock, microseconds from some moment on."""

    def allocate(self, size_bytes: int) -> Allocation:
        """Memory at a multiple of 256 bytes; raises BackendError where the device has not as much left."""

    def free_bytes(self) -> int: ...

    def write(self, address: int, array: Array) -> None:
        """Copy a dense host array to the device, after all that was issued; returns when it is there."""

    def read(self, address: int, array: Array) -> None:
        """Fill a dense host array from the device, after all that was issued."""

    def poison(self, address: int, size_bytes: int) -> None:
        """Set every bit, which turns floats into NaNs, after all that was issued; returns when it is done."""

    def stream(self) -> Stream:
        """A new stream that does not synchronise with the default one."""

    def stream_of_part(self, division: tuple[range, ...], part: int) -> Stream:
        """Such a stream that has the SMs of one part of a division to itself; raises BackendError where none has."""

    def event(self, timing: bool = False) -> Event: ...
    def record(self, event: Event, stream: Stream) -> None: ...
    def wait(self, event: Event, stream: Stream) -> None: ...

    def synchronize(self) -> None:
        """Wait until the whole device is idle."""

    def elapsed_us(self, start: Event, end: Event) -> float: ...

    def begin_capture(self, stream: Stream, overlapped: bool = False) -> None:
        """Capture what is issued from now on; ``overlapped``: kernels start early whose text waits for those ahead."""

    def end_capture(self, stream: Stream) -> Graph:
        """Everything issued to the stream, and to those that it forked to, as a graph ready to launch."""

    def abandon_capture(self, stream: Stream) -> None:
        """End a capture in which something failed, and forget it."""

    def launch_graph(self, graph: Graph, stream: Stream) -> None: ...

    def held(self, graph: Graph) -> tuple[int, float]:
        """Blocks of the kernel of a graph that holds most of an SM, and the part of an SM that each holds; zeros where
        the driver does not tell.
        """

    def kernel(self, source: str, name: str) -> Kernel:
        """Compile and load kernel ``name``; the same again for the same source."""

    def launch(
        self, kernel: Kernel, blocks: int, threads: int, arguments: tuple[Scalar, ...], stream: Stream
    ) -> None: ...


@dataclass(frozen=True, slots=True)
class EnginePlan:
    """One way in which cuDNN runs a convolution: its name for it, and the workspace.

    What is planned for fewer SMs than there are says for how many: ``eng11_k2=1@66``.
    """

    name: str
    workspace_bytes: int


def target_of(name: str) -> int:
    """For how many SMs a plan of this name is; 0 for all."""
    return int(name.partition("@")[2] or 0)


def target_text(sms: int) -> str:
    """Suffix of the name of a plan for so many SMs; none for all of them."""
    return f"@{sms}" if sms else ""


def engines_first(names: Iterable[str]) -> list[str]:
    """Names of plans, ranked, such that each engine comes once before any comes twice.

    A name is the engine's with its knobs, as cuDNN writes it (``eng11_k2=1_k4=3``). Plans of one engine that differ
    in knobs take about the same time; engines do not, and a ranking lists an engine's knobs in a row.
    """
    seen: Counter[str] = Counter()

    def turn(name: str) -> int:
        seen[name.partition("_")[0]] += 1
        return seen[name.partition("_")[0]]

    return sorted(names, key=turn)


class ConvolutionLibrary(Protocol):
    """cuDNN: the plans of convolutions, and their execution."""

    #: Exceptions by which it refuses a plan that it offered; a device that is broken may raise them, too.
    refusals: tuple[type[Exception], ...]

    @property
    def built(self) -> int:
        """Number of plans built so far."""

    def handle(self, stream: Stream) -> Handle:
        """A handle whose calls go to the stream."""

    def plans(self, convolution: Asked, sms: int = 0) -> Iterator[EnginePlan]:
        """The plans that the options allow, for so many SMs (0: all), each name once, by cuDNN's heuristics,
        :func:`engines_first`.

        Each is built when it is asked for, if it was not before; those that cannot be built are left out.
        """

    def named(self, convolution: Asked, name: str) -> EnginePlan | None:
        """The plan of that name alone, built; None where it is not among :meth:`plans` for its SMs."""

    def bind(self, convolution: Asked, plan: str) -> Executable:
        """The plan of that name, ready to execute; raises KeyError where it is not among :meth:`plans`."""


@dataclass(frozen=True)
class Lane:
    """A stream with a cuDNN handle of its own, for the launches of one queue."""

    driver: Driver
    library: ConvolutionLibrary
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
