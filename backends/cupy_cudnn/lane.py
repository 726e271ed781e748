"""Calls prepared to be issued repeatedly: to a stream with a handle of cuDNN's, one by one or as a graph."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from iossim.backends.cupy_cudnn.convolution import ConvolutionCall
from iossim.backends.cupy_cudnn.cublas import WithCublas
from iossim.backends.cupy_cudnn.driver import Driver, Graph, Stream
from iossim.backends.cupy_cudnn.views import KernelCall, View

#: Issues one thing to the device, and returns before it has run.
Issue = Callable[[], None]
Address = Callable[[View], int]


@dataclass(frozen=True)
class Lane:
    """A stream with a cuDNN handle of its own, for the launches of one queue."""

    driver: Driver
    library: WithCublas
    stream: Stream
    handle: Any

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
