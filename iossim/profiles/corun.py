"""Concurrent kernels given by a user: the time of each, and who slows whom through which resource.

This is another interface of the event-driven engine: a stream's kernels run in order, streams run concurrently.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from math import fsum
from pathlib import Path
from typing import ClassVar

from iossim.backends.simulator.events.demand import BlockDemand
from iossim.backends.simulator.events.engine import execute
from iossim.backends.simulator.events.losses import Losses
from iossim.backends.simulator.events.multiprocessors import Through
from iossim.backends.simulator.events.program import IssuedKernel, IssueKernel
from iossim.backends.simulator.kernel_model import KernelModel
from iossim.backends.simulator.raw_kernels import RawKernel, raw_kernel_work
from iossim.base.display import Printed
from iossim.base.errors import OptionError, public
from iossim.execution.engine import Engine
from iossim.execution.execution import Execution
from iossim.hardware.profile import DeviceProfile
from iossim.profiles.kernel_table import kernels_of, profile_for, read_rows

__all__ = ["Corun", "CorunKernel", "Slowed", "Through", "corun", "corun_kernels"]


@dataclass(frozen=True, slots=True)
class Slowed:
    """Time that a kernel loses to that of row ``by`` (counted from 0)."""

    by: int
    through: Through
    us: float


@dataclass(frozen=True, slots=True)
class CorunKernel:
    """One row: its stream reached it at ``ready_us``, its blocks ran from ``start_us`` to ``end_us``.

    ``alone_us`` is its time on an idle device, on the SMs that it may use. The times in ``slowed_by`` sum to the extra
    time, counted from ``ready_us``, if there is any. ``inferred`` lists values that were not given.
    """

    kernel: RawKernel
    ready_us: float
    start_us: float
    end_us: float
    alone_us: float
    slowed_by: tuple[Slowed, ...]
    inferred: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Corun(Printed):
    """Concurrent streams: their makespan, the time of the longest alone, and the time of all in sequence.

    ``recorded_us`` is the duration of all kernels of a recording, None for any other table; during ``idle_us`` of it
    none of them ran. ``notes`` describe how the file was read.
    """

    drawn_by: ClassVar[str] = "iossim.profiles.corun_report"

    makespan_us: float
    alone_us: float
    sequential_us: float
    kernels: tuple[CorunKernel, ...]
    execution: Execution
    device: str
    recorded_us: float | None = None
    idle_us: float = 0.0
    notes: tuple[str, ...] = ()

    @property
    def difference_percent(self) -> float | None:
        """Excess of the simulated over the recorded makespan, in percent of the latter."""
        return 100 * (self.makespan_us / self.recorded_us - 1) if self.recorded_us else None

    def __repr__(self) -> str:
        return f"<Corun of {len(self.kernels)} kernels on {self.device}: {self.makespan_us:,.1f} us>"

    def to_json(self) -> dict[str, object]:
        """Output of ``iossim corun --json``."""
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
        times = ("makespan_us", "recorded_us", "difference_percent", "alone_us", "sequential_us")
        return {
            "device": self.device,
            **{name: getattr(self, name) for name in times},
            "kernels": rows,
            "notes": list(self.notes),
        }


@public
def corun(
    kernels: Path | str,
    device: DeviceProfile | str | Path | None = None,
    *,
    engine: str = Engine.GRAPH,
    sm_share: Sequence[float] | None = None,
) -> Corun:
    """Run the ``kernels`` of a table or of a recording (a file) concurrently.

    ``device`` is by default the one that a recording names. The result tells how long the recorded kernels took, too.
    ``engine``: ``graph``, all in one CUDA graph, or ``paper``, launched by the host. ``sm_share``: the percentage of
    the SMs that each stream has for itself. Raises KernelTableError, OptionError or ScheduleError.
    """
    path = Path(kernels)
    rows = read_rows(path)
    profile = profile_for(rows, path, device)
    called = Engine.named(engine, profile)
    table = kernels_of(rows, path, profile, called)
    run = corun_kernels(table.kernels, profile, called, sm_share)
    return replace(run, recorded_us=rows.recorded_us, idle_us=rows.idle_us, notes=table.notes)


def corun_kernels(
    kernels: Sequence[RawKernel],
    profile: DeviceProfile,
    engine: Engine = Engine.GRAPH,
    sm_share: Sequence[float] | None = None,
) -> Corun:
    """Run kernels concurrently on an idle device; rows of a stream run in order.

    Under ``graph`` all is issued before it runs; under ``paper`` the host launches row after row. ``sm_share`` gives
    each stream, ascending, its exclusive percentage of the SMs, as MPS and green contexts do. Raises OptionError for
    impossible figures, naming the kernel, and for shares whose number is not that of the streams, or of more SMs than
    exist; ScheduleError for a kernel of which no block fits an SM.
    """
    costs = profile.engine
    graph = engine.is_recorded
    streams = sorted({raw.stream for raw in kernels})
    sms = dict(zip(streams, _shares(streams, profile, sm_share), strict=True))
    libraries = engine.libraries_on(profile.architecture)
    models = {stream: KernelModel(profile, engine.issue, libraries, _count(of)) for stream, of in sms.items()}
    host_us, beside_us = (0.0, costs.graph_beside_us) if graph else (costs.bare_launch_us, 0.0)
    issued, inferred = [], []
    for row, raw in enumerate(kernels):
        of = sms[raw.stream]
        work, phrases = raw_kernel_work(raw, models[raw.stream])
        demand = BlockDemand.of(work, profile, _count(of))
        # The row serves as unit, to find its span again.
        kernel = IssuedKernel(demand, host_us, beside_us)
        issued.append(IssueKernel(kernel, raw.stream, str(row), 0, of))
        inferred.append(phrases)
    losses = Losses()
    execution = execute(issued, profile, observer=losses)
    by_themselves_us = [_by_itself_us([one.kernel for one in issued if one.queue == stream]) for stream in streams]
    rows = []
    for run, raw, phrases in zip(losses.runs(), kernels, inferred, strict=True):
        slowed = [Slowed(other.number, through, us) for (other, through), us in losses.of(run).items()]
        slowed.sort(key=lambda one: (-one.us, one.by, one.through))
        alone_us = run.demand.alone_us - run.demand.work.gap_us
        rows.append(CorunKernel(raw, run.ready_us, run.start_us, run.end_us, alone_us, tuple(slowed), phrases))
    longest_us = max(by_themselves_us, default=0.0)
    return Corun(execution.latency_us, longest_us, fsum(by_themselves_us), tuple(rows), execution, profile.name)


def _by_itself_us(kernels: Sequence[IssuedKernel]) -> float:
    """Time of a stream on an idle device: each kernel starts when it is issued and its predecessor has ended."""
    clock_us = end_us = 0.0
    for kernel in kernels:
        clock_us += kernel.host_us
        end_us = max(end_us, clock_us) + kernel.demand.alone_us
    return end_us


def _count(sms: range | None) -> int | None:
    return None if sms is None else len(sms)


def _shares(streams: Sequence[int], profile: DeviceProfile, percent: Sequence[float] | None) -> list[range | None]:
    """SMs of each stream; None for all."""
    if percent is None:
        return [None] * len(streams)
    if len(percent) != len(streams):
        raise OptionError(
            f"`sm_share` has {len(percent)} shares, and there are {len(streams)} streams; give one for each"
        )
    if not all(0 < share <= 100 for share in percent) or fsum(percent) > 100 + 1e-9:
        told = ",".join(f"{share:g}" for share in percent)
        raise OptionError(f"`sm_share` is {told}; give each stream more than 0, and all together at most 100")
    ends = [round(fsum(percent[:count]) / 100 * profile.sm_count) for count in range(len(percent) + 1)]
    found = [range(begin, end) for begin, end in pairwise(ends)]
    if not all(found):
        least = 100 / profile.sm_count
        raise OptionError(
            f"`sm_share` gives a stream no SM of {profile.name!r}, which has {profile.sm_count}; give {least:.3g} "
            "or more"
        )
    return list(found)
