"""One limit for activations and workspaces together: what is left beside the tensors that are alive is the workspace there may be.

A plan's launches make *moments*: what runs in one moment may run at the same time, and nothing of two moments does. In a moment each
queue runs its kernels one after another in one workspace, so that it has a front as a kernel has one: sums of times, the largest
workspace. The workspaces of the queues and what is alive share the limit. Moments have no kernel in common, and workspaces
end with their moment: so each is a program of its own (:func:`~iossim.transforms.microbatching.division.divide`), and all are exact together.

Whether an arena has room for all at addresses as well, packing tells: where it does not, the limit is lowered by what is too much.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, chain
from math import fsum, inf

from iossim.base.errors import OptionError
from iossim.execution.memory import plan_memory
from iossim.execution.plan import Launch, Plan, Queue, Queued, accesses, aligned, segments, workspace_buffer
from iossim.transforms.microbatching.configuration import Configuration
from iossim.transforms.microbatching.division import divide

#: How often the limit is lowered until the arena keeps it.
_ATTEMPTS = 20


@dataclass(frozen=True)
class Moment:
    """Kernels by queue, in the order in which they run, and the bytes of all tensors that are alive meanwhile."""

    queues: tuple[tuple[str, ...], ...]
    alive_bytes: int


@dataclass(frozen=True)
class InMemory:
    """The configuration of each kernel, and the arena of the plan with their workspaces.

    No choice that keeps the limit takes less than ``lower_bound_us``; that is what this one takes, unless packing cost something.
    """

    chosen: Mapping[str, Configuration]
    lower_bound_us: float
    arena_bytes: int

    @property
    def time_us(self) -> float:
        return fsum(one.time_us for one in self.chosen.values())


def divide_in_memory(
    fronts: Mapping[str, Sequence[Configuration]], plan: Plan, kernels: Mapping[str, Sequence[str]], limit_bytes: int
) -> InMemory:
    """The best configurations with which a plan keeps the limit.

    ``kernels``: those of each unit. Raises OptionError, with the least that would do, where the limit is less.
    """
    runs = _runs(plan)
    moments = _moments(plan, runs, kernels)
    needed = max((moment.alive_bytes + _least(fronts, moment) for moment in moments), default=0)
    target, bound_us = limit_bytes, -inf
    for _ in range(_ATTEMPTS):
        if needed > target:
            break
        chosen, lower_us = _divided(fronts, moments, target)
        bound_us = max(bound_us, lower_us) if target == limit_bytes else bound_us
        arena_bytes = plan_memory(with_workspaces(plan, kernels, chosen)).arena_bytes
        if arena_bytes <= limit_bytes:
            return InMemory({kernel: chosen[kernel] for kernel in fronts}, bound_us, arena_bytes)
        target -= arena_bytes - limit_bytes
    # Below the limit it is packing that fails: what is too much comes on top.
    needed += limit_bytes - target
    raise OptionError(
        f"`memory_limit` {limit_bytes}B: activations and workspaces need {needed} bytes; give {needed}B or more"
    )


def _divided(
    fronts: Mapping[str, Sequence[Configuration]], moments: Sequence[Moment], limit_bytes: int
) -> tuple[dict[str, Configuration], float]:
    """The best configurations beside what is alive, and a lower bound."""
    chosen: dict[str, Configuration] = {}
    bounds: list[float] = []
    for moment in moments:
        own = {str(number): _in_a_row([fronts[kernel] for kernel in row]) for number, row in enumerate(moment.queues)}
        division = divide(own, limit_bytes - moment.alive_bytes)
        bounds.append(division.lower_bound_us)
        for number, row in enumerate(moment.queues):
            room = division.chosen[str(number)].workspace_bytes
            chosen |= {kernel: _fastest(fronts[kernel], room) for kernel in row}
    return chosen, fsum(bounds)


def _in_a_row(fronts: Sequence[Sequence[Configuration]]) -> list[Configuration]:
    """The front of kernels that run one after another in one workspace; sizes as an arena has them."""
    least = max(aligned(front[-1].workspace_bytes) for front in fronts)
    rooms = {aligned(one.workspace_bytes) for front in fronts for one in front}
    found: list[Configuration] = []
    for room in sorted(room for room in rooms if room >= least):
        time_us = fsum(_fastest(front, room).time_us for front in fronts)
        if not found or time_us < found[-1].time_us:
            found.append(Configuration((), time_us, room))
    return found[::-1]


def _fastest(front: Sequence[Configuration], room_bytes: int) -> Configuration:
    return next(one for one in front if aligned(one.workspace_bytes) <= room_bytes)


def _least(fronts: Mapping[str, Sequence[Configuration]], moment: Moment) -> int:
    return sum(max(aligned(fronts[kernel][-1].workspace_bytes) for kernel in row) for row in moment.queues)


def _runs(plan: Plan) -> list[list[Queued]]:
    """A plan's commands in moments: those of a segment together, or one by one where a single queue has them."""
    found: list[list[Queued]] = []
    for segment in segments(plan):
        alone = len({command.queue for command in segment}) <= 1
        found += [[command] for command in segment] if alone else [segment]
    return found


def _moments(plan: Plan, runs: Sequence[Sequence[Queued]], kernels: Mapping[str, Sequence[str]]) -> list[Moment]:
    """The moments; alive in one is what is accessed in it, or before it and behind it."""
    touched: dict[str, list[int]] = {}
    for place, run in enumerate(runs):
        for command in run:
            for name in chain(*accesses(command)):
                touched.setdefault(plan.region(name).storage, []).append(place)
    for name in plan.inputs:
        touched.setdefault(plan.region(name).storage, []).extend((0, len(runs) - 1))
    for name in plan.outputs:
        touched.setdefault(plan.region(name).storage, []).append(len(runs) - 1)
    alive = [0] * (len(runs) + 1)
    for storage in plan.storages:
        if places := touched.get(storage.name):
            alive[min(places)] += aligned(storage.bytes)
            alive[max(places) + 1] -= aligned(storage.bytes)
    moments = []
    for run, alive_bytes in zip(runs, accumulate(alive), strict=False):
        rows: dict[Queue, list[str]] = {}
        for command in run:
            if isinstance(command, Launch) and (own := _kernels_of(command, kernels)):
                rows.setdefault(command.queue, []).extend(own)
        moments.append(Moment(tuple(map(tuple, rows.values())), alive_bytes))
    return moments


def with_workspaces(plan: Plan, kernels: Mapping[str, Sequence[str]], chosen: Mapping[str, Configuration]) -> Plan:
    """The plan with a workspace of its own for each launch, as large as the largest of its kernels."""
    buffers, commands = dict(plan.buffers), list(plan.commands)
    for number, command in enumerate(plan.commands):
        own = _kernels_of(command, kernels) if isinstance(command, Launch) else []
        size = max((chosen[kernel].workspace_bytes for kernel in own), default=0)
        if isinstance(command, Launch) and size:
            workspace = workspace_buffer(command.units, command.queue, size)
            buffers[workspace.name] = workspace
            commands[number] = replace(command, workspace=workspace.name)
    return replace(plan, buffers=buffers, commands=tuple(commands))


def _kernels_of(launch: Launch, kernels: Mapping[str, Sequence[str]]) -> list[str]:
    return [kernel for unit in launch.units for kernel in kernels.get(unit, ())]
