"""One stage, run by the event-driven engine."""

from __future__ import annotations

from collections.abc import Sequence

from iossim.backends.simulator.events.engine import execute
from iossim.backends.simulator.events.program import Instruction, IssueKernel, KernelLibrary
from iossim.execution.backend import Divided
from iossim.execution.plan import Queue
from iossim.ir.network import Network
from iossim.schedule.problem import ScheduleProblem, bits


def stage_us(
    problem: ScheduleProblem, mask: int, network: Network, library: KernelLibrary, divided: Divided | None = None
) -> float:
    """One concurrent stage by the event-driven engine, on a device that is ``divided`` among its groups, if it is.

    A stage of several groups is run on an idle device, its first kernel not issued yet, as behind a synchronisation. One
    of a single group follows others in its stream, where the host may have run ahead or fallen behind: it is priced as
    what a second run adds to a first.
    """
    groups = [list(bits(group)) for group in problem.groups(mask)]
    parts: Sequence[range | None] = [None] * len(groups)
    if divided is not None and len(groups) > 1:
        parts = divided([[problem.units[unit] for unit in group] for group in groups], {})
    streams = list(range(len(groups))) if divided is None else [parts.index(sms) for sms in parts]
    issued: list[Instruction] = [
        IssueKernel(kernel, Queue(0, stream), problem.unit_names[unit], 0, sms)
        for stream, group, sms in zip(streams, groups, parts, strict=True)
        for unit in group
        for kernel in library.unit(network, problem.units[unit], sms=None if sms is None else len(sms))
    ]
    once_us = execute(issued, library.profile).latency_us
    return once_us if len(groups) > 1 else execute(issued * 2, library.profile).latency_us - once_us
