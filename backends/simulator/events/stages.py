"""One stage, run by the event-driven engine."""

from __future__ import annotations

from iossim.backends.simulator.events.engine import execute
from iossim.backends.simulator.events.program import Instruction, IssueKernel, KernelLibrary
from iossim.execution.plan import Queue
from iossim.ir.network import Network
from iossim.schedule.problem import ScheduleProblem, bits


def stage_us(problem: ScheduleProblem, mask: int, network: Network, library: KernelLibrary) -> float:
    """One concurrent stage by the event-driven engine.

    A stage of several groups is run on an idle device, its first kernel not issued yet, as behind a synchronisation. One
    of a single group follows others in its stream, where the host may have run ahead or fallen behind: it is priced as
    what a second run adds to a first.
    """
    groups = problem.groups(mask)
    issued: list[Instruction] = [
        IssueKernel(kernel, Queue(0, stream), problem.unit_names[unit], 0)
        for stream, group in enumerate(groups)
        for unit in bits(group)
        for kernel in library.unit(network, problem.units[unit])
    ]
    once_us = execute(issued, library.profile).latency_us
    return once_us if len(groups) > 1 else execute(issued * 2, library.profile).latency_us - once_us
