"""Prepared calls of the driver or of a library, made of a unit's calls, to be issued repeatedly."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from iossim.backends.cupy_cudnn.convolution import ConvolutionCall
from iossim.backends.cupy_cudnn.driver import ConvolutionLibrary, Driver, Graph, Handle, Stream
from iossim.backends.cupy_cudnn.views import KernelCall, View

#: Issues one thing to the device, and returns before it has run.
Issue = Callable[[], None]
Address = Callable[[View], int]


class How(NamedTuple):
    """A way to run a convolution: one of ``ConvolutionCall.ways``, and a plan of a library.

    Where a way consists of several calls, its plan is how each of them runs, joined by ``+``: an attention apart is two
    products.
    """

    way: str
    plan: str

    def __str__(self) -> str:
        return f"{self.way}{':' if self.plan else ''}{self.plan}"

    @staticmethod
    def parsed(text: str) -> How:
        way, _, plan = text.partition(":")
        return How(way, plan)

    @property
    def parts(self) -> list[How]:
        """The way of each of several calls."""
        return [How.parsed(text) for text in self.plan.split("+") if text]


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

    def convolution(self, call: ConvolutionCall, how: How, address: Address, workspace: int) -> list[Issue]:
        """The steps of a call in one of its ways; raises KeyError where a library has no plan of the name."""
        issues: list[Issue] = []
        ways = iter(how.parts)
        for step in call.ways[how.way]:
            if isinstance(step, KernelCall):
                issues.append(self.kernel(step, address))
            elif isinstance(step, ConvolutionCall):
                issues += self.convolution(step, next(ways), address, workspace)
            else:
                addresses = {name: address(call.views[name]) for name in step.operands}
                bound = self.library.bind(step, how.plan)
                issues.append(partial(self.library.execute, bound, addresses, workspace, self.handle))
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
