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
    """How a convolution runs: with its epilogue in one call of cuDNN or apart, by which plan, and whether its result
    is packed first. Of an attention apart the plan is how each of its products runs, joined by ``+``.
    """

    fused: bool
    plan: str
    packed: bool = False

    def __str__(self) -> str:
        return f"{'fused' if self.fused else 'apart'}{'-packed' if self.packed else ''}:{self.plan}"

    @staticmethod
    def parsed(text: str) -> How:
        kind, _, plan = text.partition(":")
        begin, _, form = kind.partition("-")
        return How(begin == "fused", plan, form == "packed")

    @staticmethod
    def joined(parts: Sequence[How]) -> How:
        """Apart, by these ways."""
        return How(False, "+".join(map(str, parts)))

    @property
    def parts(self) -> list[How]:
        """The ways that were joined."""
        return [How.parsed(text) for text in self.plan.split("+") if text]

    def form_of(self, call: ConvolutionCall) -> ConvolutionCall:
        """The call as it is, or with a packed result."""
        return call.packed if self.packed and call.packed is not None else call

    def part_of(self, call: ConvolutionCall) -> Asked:
        """What cuDNN computes of the call."""
        asked = self.form_of(call).convolution
        return asked if self.fused else asked.plain


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
    """The convolution, then the kernel behind it, or what computes the same apart.

    Raises KeyError where cuDNN has no plan ``how.plan``, or a way is not given for each part.
    """
    if call.apart and not how.fused:
        ways = iter(how.parts)
        if len(how.parts) != len(call.parts):
            raise KeyError(how.plan)
        apart: list[Issue] = []
        for part in call.apart:
            if isinstance(part, ConvolutionCall):
                apart += issue_convolution(driver, library, part, next(ways), address, workspace, lane)
            else:
                apart.append(issue_kernel(driver, part, address, lane))
        return apart
    convolution, call = how.part_of(call), how.form_of(call)
    executable = library.bind(convolution, how.plan)
    addresses = {name: address(call.views[name]) for name in convolution.operands}
    issues: list[Issue] = [partial(library.execute, executable, addresses, workspace, lane.handle)]
    behind = call.after if how.fused else call.epilogue
    if behind is not None:
        issues.append(issue_kernel(driver, behind, address, lane))
    return issues


def captured(driver: Driver, stream: Stream, issues: Sequence[Issue]) -> Graph:
    """Calls as a graph, captured from ``stream``; what fails meanwhile, or interrupts, leaves no capture open."""
    driver.begin_capture(stream)
    try:
        for issue in issues:
            issue()
        return driver.end_capture(stream)
    except BaseException:
        driver.abandon_capture(stream)
        raise
