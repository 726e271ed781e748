"""Which of cuDNN's execution plans a convolution runs by: the fastest when it runs alone, within a limit of workspace.

As the published engine chooses, and as any framework's autotuner does. Each plan is timed as it will run, with the kernel
behind it where that is apart: several copies in a captured graph between two events, so that the host does not count.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from iossim.backends.cupy_cudnn.convolution import ConvolutionCall
from iossim.backends.cupy_cudnn.driver import Allocation, ConvolutionLibrary, Driver
from iossim.backends.cupy_cudnn.issue import How, Issue, Lane, issue_convolution, issue_kernel
from iossim.backends.cupy_cudnn.kernel_call import KernelCall, over_elements
from iossim.backends.cupy_cudnn.service_kernels import RANDOMISE
from iossim.backends.cupy_cudnn.unit_program import Program
from iossim.backends.cupy_cudnn.views import ELEMENT_BYTES, Memory, View, dense
from iossim.execution.backend import BackendError, Choice

COPIES = 8
REPLAYS = 4


@dataclass(frozen=True, slots=True)
class Timed:
    """How a convolution runs, its workspace, and how long it took alone (0 where it was named, not timed)."""

    how: How
    workspace_bytes: int
    time_us: float


class Algorithms:
    """Chooses, once for all equal convolutions."""

    def __init__(self, driver: Driver, library: ConvolutionLibrary, lane: Lane, workspace_limit_bytes: int) -> None:
        self._driver, self._library, self._lane = driver, library, lane
        self._limit = workspace_limit_bytes
        self._fastest: dict[Hashable, Timed] = {}

    def choice(self, program: Program) -> Choice:
        """The choices for a program's convolutions as one text, and the scratch that it needs."""
        timed = [self.fastest(call) for call in program.convolutions]
        return Choice(
            " ".join(str(found.how) for found in timed),
            program.scratch_bytes + max((found.workspace_bytes for found in timed), default=0),
        )

    def chosen(self, program: Program, algorithm: str) -> list[Timed]:
        """The choices that ``algorithm`` (a text of :meth:`choice`, or empty) names, one for each convolution.

        Where it names none, or one that cuDNN does not offer for these operands, the fastest is taken.
        """
        calls = program.convolutions
        names = algorithm.split()
        if len(names) != len(calls):
            return [self.fastest(call) for call in calls]
        return [
            self._named(call, How.parsed(name)) or self.fastest(call) for call, name in zip(calls, names, strict=True)
        ]

    def fastest(self, call: ConvolutionCall) -> Timed:
        """Raises BackendError where no plan can run the call."""
        if call.key not in self._fastest:
            self._fastest[call.key] = self._timed(call)
        return self._fastest[call.key]

    def candidates(self, call: ConvolutionCall) -> Iterator[tuple[How, int]]:
        """All ways to run a call within the limit, with their workspaces."""
        kinds = [True] if call.fused else []
        if call.convolution.bias or call.convolution.relu or not call.fused:
            kinds.append(False)
        for fused in kinds:
            for plan in self._library.plans(How(fused, "").part_of(call)):
                if plan.workspace_bytes <= self._limit:
                    yield How(fused, plan.name), plan.workspace_bytes

    def _named(self, call: ConvolutionCall, how: How) -> Timed | None:
        for candidate, workspace_bytes in self.candidates(call):
            if candidate == how:
                return Timed(how, workspace_bytes, 0.0)
        return None

    def _timed(self, call: ConvolutionCall) -> Timed:
        candidates = list(self.candidates(call))
        room = _Room(self._driver, call, max((size for _, size in candidates), default=0), self._lane)
        best: Timed | None = None
        for how, workspace_bytes in candidates:
            try:
                issues = issue_convolution(
                    self._driver, self._library, call, how, room.address, room.workspace, self._lane
                )
                time_us = self._time_us(issues)
            except self._library.refusals:
                continue  # offered, but not for this device after all
            if best is None or time_us < best.time_us:
                best = Timed(how, workspace_bytes, time_us)
        if best is None:
            raise BackendError(
                f"cuDNN offers no way to run {call.convolution} within a workspace of {self._limit} bytes and the numerical "
                "options; raise workspace_limit_bytes, or allow tf32 or nondeterministic"
            )
        return best

    def _time_us(self, issues: Sequence[Issue]) -> float:
        """The best of a few replays of a graph of several copies, for one copy."""
        driver, stream = self._driver, self._lane.stream
        for issue in issues:
            issue()  # once outside a capture: libraries load what they need at a first use
        driver.synchronize()
        driver.begin_capture(stream)
        try:
            for _ in range(COPIES):
                for issue in issues:
                    issue()
        except self._library.refusals:
            driver.abandon_capture(stream)  # a plan that cannot be captured is refused as one that cannot run
            raise
        graph = driver.end_capture(stream)
        times = []
        for _ in range(1 + REPLAYS):
            start, end = driver.event(timing=True), driver.event(timing=True)
            driver.record(start, stream)
            driver.launch_graph(graph, stream)
            driver.record(end, stream)
            driver.synchronize()
            times.append(driver.elapsed_us(start, end) / COPIES)
        return min(times[1:])


class _Room:
    """Memory for the operands of one call, filled with noise, and the largest workspace."""

    def __init__(self, driver: Driver, call: ConvolutionCall, workspace_bytes: int, lane: Lane) -> None:
        kernels = [kernel for kernel in (call.epilogue, call.after) if kernel is not None]
        views = [
            *call.views.values(),
            *(item for kernel in kernels for item in kernel.arguments if isinstance(item, View)),
        ]
        sizes: dict[Memory, int] = {}
        for view in views:
            sizes[view.memory] = max(sizes.get(view.memory, 0), extent(view))
        self._memory: dict[Memory, Allocation] = {}
        for seed, (memory, elements) in enumerate(sizes.items()):
            self._memory[memory] = driver.allocate(elements * ELEMENT_BYTES)
            noise = randomise(dense(memory, (elements,)), seed)
            issue_kernel(driver, noise, self.address, lane)()
        self._workspace = driver.allocate(workspace_bytes)
        self.workspace = self._workspace.address

    def address(self, view: View) -> int:
        return self._memory[view.memory].address + view.offset * ELEMENT_BYTES


def randomise(view: View, seed: int) -> KernelCall:
    """Uniform noise in [-1, 1) in a dense view."""
    arguments = (np.uint32(view.elements), np.uint32(seed), view)
    return over_elements(RANDOMISE, "randomise", view.elements, arguments)


def extent(view: View) -> int:
    """How many elements of its memory a view reaches into; its strides are not negative."""
    return view.offset + 1 + sum((size - 1) * stride for size, stride in zip(view.shape, view.strides, strict=True))
