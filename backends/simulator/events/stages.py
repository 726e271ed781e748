"""The stages that a search may form, and each one run by the event-driven engine."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from iossim.backends.simulator.events.engine import execute
from iossim.backends.simulator.events.program import Instruction, IssueKernel, KernelLibrary
from iossim.execution.plan import Queue
from iossim.ir.network import Network
from iossim.schedule.problem import ScheduleProblem, bits
from iossim.scheduling.options import StageSpace


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


def distinct_stages(problem: ScheduleProblem, space: StageSpace) -> NDArray[np.uint64]:
    """Every set of units that is a stage from some state, masks ascending, shape ``[stages]``; enumerated one by one, for
    blocks of few units.

    A set is one if nothing outside it both follows and precedes its units. ``space`` limits its groups.
    """
    return np.array(sorted(set(_stages(problem, space))), dtype=np.uint64)


def _stages(problem: ScheduleProblem, space: StageSpace) -> Iterator[int]:
    largest, most = space.limits(len(problem))
    ancestors = [int(mask) for mask in problem.ancestors]
    predecessors = [int(mask) for mask in problem.predecessors]

    def grow(mask: int, start: int) -> Iterator[int]:
        # Units are in topological order, so that a set is met once, by adding its units in ascending order.
        for unit in range(start, len(problem)):
            grown = mask | 1 << unit
            # What a unit follows through units outside the stage must not be in the stage.
            outside = ancestors[unit] & ~grown
            if any(ancestors[other] & grown for other in bits(outside)):
                continue
            groups = problem.groups(grown)
            if max(group.bit_count() for group in groups) > largest:
                continue
            # A later unit may join groups, but each joins at most ``largest - 1``.
            if len(groups) <= most and (
                not space.single_root or all(_roots(group, predecessors) == 1 for group in groups)
            ):
                yield grown
            yield from grow(grown, unit + 1)

    return grow(0, 0)


def _roots(group: int, predecessors: list[int]) -> int:
    """Units of a group that read nothing of it."""
    return sum(not predecessors[unit] & group for unit in bits(group))
