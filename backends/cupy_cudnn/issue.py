"""From calls to what the host really does: prepared calls of the driver or of cuDNN, to be issued repeatedly."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from iossim.backends.cupy_cudnn.convolution import Asked, ConvolutionCall
from iossim.backends.cupy_cudnn.driver import ConvolutionLibrary, Driver, Graph, Handle, Stream
from iossim.backends.cupy_cudnn.views import KernelCall, View

#: Issues one thing to the device, and returns before it has run.
Issue = Callable[[], None]
Address = Callable[[View], int]


class How(NamedTuple):
    """How a convolution runs: with its epilogue in one call of cuDNN (way ``fused``) or ``apart``, by which plan; or by
    one of ``ConvolutionCall.others``. Of those the plan is how each of their calls of cuDNN runs, joined by ``+``: an
    attention apart is two products.
    """

    way: str
    plan: str

    def __str__(self) -> str:
        return f"{self.way}{':' if self.plan else ''}{self.plan}"

    @staticmethod
    def parsed(text: str) -> How:
        way, _, plan = text.partition(":")
        return How(way, plan)

    @staticmethod
    def joined(way: str, parts: Sequence[How]) -> How:
        """One of the other ways, its calls of cuDNN by these."""
        return How(way, "+".join(map(str, parts)))

    @property
    def fused(self) -> bool:
        return self.way == "fused"

    @property
    def parts(self) -> list[How]:
        """The ways that were joined."""
        return [How.parsed(text) for text in self.plan.split("+") if text]

    def part_of(self, call: ConvolutionCall) -> Asked:
        """What cuDNN computes of the call."""
        return call.convolution if self.fused else call.convolution.plain


@dataclass(frozen=True)
class Lane:
    """A stream with a cuDNN handle of its own, for the launches of one queue."""

    stream: Stream
    handle: Handle


def issue_kernel(driver: Driver, call: KernelCall, address: Address, lane: Lane) -> Issue:
    """Compiles the kernel if it is new."""
    kernel = driver.kernel(call.source, call.name)
    return partial(driver.launch, kernel, call.blocks, call.threads, call.bound(address), lane.stream)


def issue_convolution(
    driver: Driver,
    library: ConvolutionLibrary,
    call: ConvolutionCall,
    how: How,
    address: Address,
    workspace: int,
    lane: Lane,
) -> list[Issue]:
    """The convolution with the kernels before and behind it, or what computes the same instead.

    Raises KeyError where cuDNN has no plan ``how.plan``, or a way is not given for each part.
    """
    issues: list[Issue] = []
    if how.way in call.others:
        ways = iter(how.parts)
        if len(how.parts) != len(call.parts(how.way)):
            raise KeyError(how.plan)
        for part in call.others[how.way]:
            if isinstance(part, ConvolutionCall):
                issues += issue_convolution(driver, library, part, next(ways), address, workspace, lane)
            else:
                issues.append(issue_kernel(driver, part, address, lane))
        return issues
    issues += [issue_kernel(driver, kernel, address, lane) for kernel in call.before]
    convolution = how.part_of(call)
    executable = library.bind(convolution, how.plan)
    addresses = {name: address(call.views[name]) for name in convolution.operands}
    issues.append(partial(library.execute, executable, addresses, workspace, lane.handle))
    behind = call.after if how.fused else call.epilogue
    if behind is not None:
        issues.append(issue_kernel(driver, behind, address, lane))
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
