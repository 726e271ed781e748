"""Times of several ways to run a convolution alone, in interleaved rounds.

Each way is a captured graph of several copies, with the kernel that follows a convolution run apart. In each round
every way runs once, in a newly drawn order, so that the device's clock affects all alike; the best three are then
timed again, in more rounds.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping
from functools import partial

import numpy as np

from iossim.backends.cupy_cudnn.capture import Lane, captured
from iossim.backends.cupy_cudnn.clock import WorkingClock
from iossim.backends.cupy_cudnn.convolution import ConvolutionCall
from iossim.backends.cupy_cudnn.driver import Allocation, Graph
from iossim.backends.cupy_cudnn.kernel_text import kernel
from iossim.backends.cupy_cudnn.views import KernelCall, Memory, View, dense
from iossim.base.errors import first_line
from iossim.execution.lead import Lead
from iossim.ir.types import DType
from iossim.schedule.batch import UnitVariant

#: A hash of (seed, index).
_RANDOMISE = """unsigned int h = (i + 1u) * 2654435761u ^ seed * 2246822519u;
h ^= h >> 16; h *= 2146121005u; h ^= h >> 15; h *= 2221713035u; h ^= h >> 16;
p[i] = (float)(h >> 8) * (1.0f / 8388608.0f) - 1.0f;
"""
COPIES = 8
#: Rounds of all ways, and (``FINAL_ROUNDS``) of the best of them.
ROUNDS = 3
#: Multiple of the fastest first run from which a way is not timed: cuDNN's last resorts take milliseconds.
HOPELESS = 30
FINALISTS = 3
FINAL_ROUNDS = 7


class CandidateTiming:
    """Times ways to run convolutions on one device."""

    def __init__(self, lane: Lane, clock: WorkingClock) -> None:
        self._driver, self.lane, self._clock = lane.driver, lane, clock
        #: Errors of plans that were offered but did not run.
        self.refusals: list[str] = []
        #: Number of ways timed so far.
        self.timed = 0

    def times_us(
        self, call: ConvolutionCall, candidates: Mapping[str, int], finalists: int | None = None
    ) -> list[UnitVariant]:
        """The median time of one copy of each finalist (by default ``FINALISTS``, and without what it holds), in order.

        Candidates come with their workspaces; empty if none of them runs. Raises one of the driver's failures if the
        device is broken.
        """
        room = _Room(self.lane, call, max(candidates.values(), default=0))
        graphs: dict[str, Graph] = {}
        fastest_us = math.inf
        for how in candidates:
            graph, once_us = self._graph(call, how, room, HOPELESS * fastest_us)
            fastest_us = min(fastest_us, once_us)
            if graph is not None:
                graphs[how] = graph
        self.timed += len(graphs)
        self._clock.ensure()
        least = {how: min(taken) for how, taken in self._rounds(graphs, ROUNDS).items()}
        last_ones = sorted(least, key=least.__getitem__)[: finalists or FINALISTS]
        if len(last_ones) > 1:
            last = self._rounds({how: graphs[how] for how in last_ones}, FINAL_ROUNDS)
            least = {how: float(np.median(taken)) for how, taken in last.items()}
        in_order = sorted(least.items(), key=lambda taken: taken[1])
        held = {how: self._driver.held(graphs[how]) if finalists else () for how in least}
        return [UnitVariant(how, time_us, candidates[how], *held[how]) for how, time_us in in_order]

    def _graph(self, call: ConvolutionCall, how: str, room: _Room, most_us: float) -> tuple[Graph | None, float]:
        """Several copies as a graph, and the host's time to issue one and wait for it.

        No graph if the plan fails, or takes more than ``most_us``.
        """
        driver = self._driver
        try:
            issues = self.lane.convolution(call, how, room.address, room.workspace)
            once_us = math.inf
            for _ in range(2):  # outside a capture: libraries load what they need at a first use
                begin_us = driver.host_us()
                for issue in issues:
                    issue()
                driver.synchronize()
                once_us = driver.host_us() - begin_us
            if once_us > most_us:
                return None, once_us
            return captured(driver, self.lane.stream, issues * COPIES), once_us
        except (*self.lane.library.refusals, *self._driver.failures) as error:
            self.refusals.append(f"{how} of {call.convolution}: {first_line(error)}")
        # Outside the handler: an error of the device itself is not a refusal of the plan.
        driver.synchronize()
        return None, math.inf

    def _rounds(self, graphs: Mapping[str, Graph], rounds: int) -> dict[str, list[float]]:
        """Times of one copy of each graph, by round."""
        hows = list(graphs)
        generator = random.Random(len(hows))
        lead = Lead()
        times: dict[str, list[float]] = {how: [] for how in hows}
        for _ in range(rounds):
            for how in generator.sample(hows, len(hows)):
                launch = partial(self._driver.launch_graph, graphs[how], self.lane.stream)
                taken = self._clock.timer.take(launch, launch, lead)
                times[how].append(taken.time_us / COPIES)
                self._clock.worked()
        return times


class _Room:
    """Memory for the operands of one call, filled with noise, and for the largest workspace."""

    def __init__(self, lane: Lane, call: ConvolutionCall, workspace_bytes: int) -> None:
        sizes: dict[tuple[Memory, DType], int] = {}
        for view in call.operands:
            key = view.memory, view.dtype
            sizes[key] = max(sizes.get(key, 0), view.extent)
        # Scratch may hold values of several types: here they are apart, since their place does not affect times.
        self._memory: dict[tuple[Memory, DType], Allocation] = {}
        for seed, ((memory, dtype), elements) in enumerate(sizes.items()):
            self._memory[memory, dtype] = lane.driver.allocate(elements * dtype.bytes)
            noise = randomise(dense(memory, (elements,), dtype=dtype), seed)
            lane.kernel(noise, self.address)()
        self._workspace = lane.driver.allocate(workspace_bytes)
        self.workspace = self._workspace.address
        lane.driver.synchronize()

    def address(self, view: View) -> int:
        return self._memory[view.memory, view.dtype].address + view.offset_bytes


def randomise(view: View, seed: int) -> KernelCall:
    """Uniform noise in [-1, 1) in a dense view."""
    more = {"unsigned int seed": np.uint32(seed)}
    return kernel("randomise", _RANDOMISE, {"p": view}, {}, {"i": view.elements}, more=more)
