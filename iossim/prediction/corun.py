"""Kernels side by side, as a user gives them: what each takes, and who slows whom through what.

It is the event-driven engine with another way in: a stream's kernels run in order, streams run side by side.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from math import fsum
from typing import Any

from iossim.backends.simulator.events.demand import BlockDemand
from iossim.backends.simulator.events.engine import execute
from iossim.backends.simulator.events.program import IssuedKernel, IssueKernel
from iossim.backends.simulator.kernel_model import KernelModel
from iossim.backends.simulator.raw_kernels import RawKernel, raw_kernel_work
from iossim.devices.profile import DeviceProfile
from iossim.execution.engine import Engine
from iossim.execution.execution import Execution
from iossim.execution.plan import Queue


class Through(StrEnum):
    """What a kernel loses time through."""

    SLOTS = "slots"  #: room on the SMs
    ISSUE = "issue"  #: instructions of an SM
    PIPE = "pipe"  #: an arithmetic pipe of an SM
    L2 = "L2"  #: an SM's port to L2, L2's bandwidth, or room in it
    DRAM = "DRAM"
    POWER = "power"


@dataclass(frozen=True, slots=True)
class Slowed:
    """Time that a kernel loses to that of row ``by`` (counted from 0)."""

    by: int
    through: Through
    us: float


@dataclass(frozen=True, slots=True)
class CorunKernel:
    """One row: its stream reached it at ``ready_us``, its first block ran at ``start_us``, and its last ended at ``end_us``.

    ``alone_us`` is what it takes on an idle device. What ``slowed_by`` tells sums up to what it took longer, counted from
    ``ready_us``. ``inferred`` says what was not given.
    """

    kernel: RawKernel
    ready_us: float
    start_us: float
    end_us: float
    alone_us: float
    slowed_by: tuple[Slowed, ...]
    inferred: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Corun:
    """Streams side by side: until all have ended, the longest of them by itself, and one after another."""

    makespan_us: float
    alone_us: float
    sequential_us: float
    kernels: tuple[CorunKernel, ...]
    execution: Execution

    def to_json(self) -> dict[str, Any]:
        """What ``iossim corun --json`` prints."""
        rows = [
            {
                "name": row.kernel.name,
                "stream": row.kernel.stream,
                "start_us": row.start_us,
                "end_us": row.end_us,
                "alone_us": row.alone_us,
                "slowed_by": [asdict(one) for one in row.slowed_by],
                "inferred": list(row.inferred),
            }
            for row in self.kernels
        ]
        return {
            "makespan_us": self.makespan_us,
            "alone_us": self.alone_us,
            "sequential_us": self.sequential_us,
            "kernels": rows,
        }


def corun(
    kernels: Sequence[RawKernel],
    profile: DeviceProfile,
    engine: Engine = Engine.GRAPH,
    sm_share: Sequence[float] | None = None,
) -> Corun:
    """Run kernels side by side on an idle device; rows of a stream run in order.

    Under ``graph`` all is issued before it runs; under ``paper`` the host launches row after row. ``sm_share`` gives each
    stream, ascending, its percentage of the SMs, of its own.
    """
    costs = profile.engine
    graph = engine is Engine.GRAPH
    model = KernelModel(profile, costs.graph_gap_factor if graph else 1.0, engine.libraries_on(profile.architecture))
    issued, inferred = [], []
    for row, raw in enumerate(kernels):
        work, phrases = raw_kernel_work(raw, model)
        demand = BlockDemand.of(work, profile)
        host_us = 0.0 if graph else costs.bare_launch_us
        # The unit is the row, to find its span again.
        issued.append(IssueKernel(IssuedKernel(demand, host_us), Queue(0, raw.stream), str(row), 0))
        inferred.append(phrases)
    execution = execute(issued, profile)
    streams = sorted({raw.stream for raw in kernels})
    alone_us = [
        execute([one for one in issued if one.queue.stream == stream], profile).latency_us for stream in streams
    ]
    spans = {int(span.unit): span for span in execution.spans}
    rows = tuple(
        CorunKernel(
            raw,
            spans[row].start_us,
            spans[row].start_us,
            spans[row].end_us,
            issued[row].kernel.demand.alone_us - issued[row].kernel.demand.work.gap_us,
            (),
            inferred[row],
        )
        for row, raw in enumerate(kernels)
    )
    return Corun(execution.latency_us, max(alone_us, default=0.0), fsum(alone_us), rows, execution)
