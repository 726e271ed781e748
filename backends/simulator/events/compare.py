"""The analytic stage prices against the event-driven engine, stage by stage."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from iossim.backends.simulator.cost_model import SimulatorCostModel
from iossim.backends.simulator.events.engine import execute
from iossim.backends.simulator.events.program import Instruction, IssueKernel, KernelLibrary
from iossim.devices.profile import DeviceProfile
from iossim.execution.engine import Engine
from iossim.execution.plan import Queue
from iossim.ir.network import Network
from iossim.schedule.batch import StageBatch
from iossim.schedule.problem import ScheduleProblem, bits
from iossim.scheduling.options import StageSpace


@dataclass(frozen=True, eq=False)
class EngineComparison:
    """Stages priced by both engines; one entry a stage in every array.

    ``blocks[i]`` is the block that stage ``i`` is of, ``masks[i]`` its units there, ``groups[i]`` how many groups run
    side by side. Prices are microseconds, without what stands between stages.
    """

    network: str
    device: str
    engine: str
    blocks: tuple[str, ...]
    masks: NDArray[np.uint64]
    groups: NDArray[np.int64]
    analytic_us: NDArray[np.float64]
    events_us: NDArray[np.float64]

    @property
    def difference(self) -> NDArray[np.float64]:
        """Event-driven over analytic, less 1."""
        return self.events_us / self.analytic_us - 1.0


def compare_engines(
    network: Network,
    profile: DeviceProfile,
    engine: str = Engine.PAPER,
    space: StageSpace | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> EngineComparison:
    """Price every distinct stage of a network's blocks (r = 3, s = 8 unless ``space`` says otherwise) both ways.

    Blocks that are equal are taken once. ``progress`` is told of stages done and in all.
    """
    space = space or StageSpace("general", 3, 8)
    model = SimulatorCostModel(profile, network.precision, Engine.named(engine))
    library = KernelLibrary(profile, Engine.named(engine))
    problems = {
        problem.key: problem
        for problem in reversed([ScheduleProblem.of_block(network, block) for block in network.blocks])
    }
    stages = [(problem, distinct_stages(problem, space)) for problem in reversed(problems.values())]
    total = sum(len(masks) for _, masks in stages)
    blocks: list[str] = []
    groups: list[int] = []
    events: list[float] = []
    for problem, masks in stages:
        for mask in masks.tolist():
            blocks.append(problem.name)
            groups.append(len(problem.groups(mask)))
            events.append(stage_us(problem, mask, network, library))
            progress(len(events), total)
    analytic = [model.price_stages(StageBatch.concurrent(problem, masks)) for problem, masks in stages]
    return EngineComparison(
        network.name,
        profile.name,
        str(engine),
        tuple(blocks),
        np.concatenate([masks for _, masks in stages]),
        np.array(groups, dtype=np.int64),
        np.concatenate(analytic),
        np.array(events),
    )


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
    """Every set of units that is a stage from some state, ascending; enumerated one by one, for blocks of few units.

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
