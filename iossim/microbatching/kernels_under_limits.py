"""Division of a network's kernels: each under its own limit (WR), or all under one (WD), beside undivided.

One limit for activations and workspaces together leaves for workspaces what the tensors that are alive do not take. A
plan's launches make *moments*: what runs in one moment may run at the same time, and nothing of two moments does. In a
moment each queue runs its kernels one after another in one workspace, so that it has a front as a kernel has one: sums
of times, the largest workspace. Moments have no kernel in common, and workspaces end with their moment, so that each is
a program of its own (:func:`~iossim.microbatching.division.divide`) and all are exact together. Packing shows whether
the arena has addresses for all of them; if not, the limit is lowered by the excess.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache, partial
from itertools import accumulate, chain
from math import fsum, inf
from typing import Any, ClassVar, Generic

from iossim.base.display import Printed
from iossim.base.errors import OptionError
from iossim.execution.memory import plan_memory
from iossim.execution.plan import Command, Launch, Plan, Queue, Queued, accesses, aligned, segments, workspace_buffer
from iossim.microbatching.division import BenchmarkRow, Configuration, Division, K, divide, front, undominated, within
from iossim.microbatching.network_kernels import FORWARD, KernelName

#: Most times that the limit is lowered until the arena keeps it.
_ATTEMPTS = 20


@dataclass(frozen=True)
class Moment(Generic[K]):
    """Kernels by queue, in the order in which they run, and the bytes of all tensors that are alive meanwhile."""

    queues: tuple[tuple[K, ...], ...]
    alive_bytes: int


@dataclass(frozen=True)
class Memory(Generic[K]):
    """One arena for a plan's activations and workspaces. ``kernels`` are those of each unit."""

    plan: Plan
    kernels: Mapping[str, Sequence[K]]
    limit_bytes: int

    def divided(self, fronts: Mapping[K, Sequence[Configuration]]) -> Division[K]:
        """The best configurations with which the plan keeps the limit, proved unless packing cost something. Raises
        OptionError, with the least that would do, where the limit is less.
        """
        moments = _moments(self.plan, self.kernels)
        least = {kernel: aligned(front[-1].workspace_bytes) for kernel, front in fronts.items()}
        needed = max(
            (each.alive_bytes + sum(max(least[kernel] for kernel in row) for row in each.queues) for each in moments),
            default=0,
        )
        target, bound_us = self.limit_bytes, -inf
        for _ in range(_ATTEMPTS):
            if needed > target:
                break
            chosen, lower_us = _divided(fronts, moments, target)
            bound_us = max(bound_us, lower_us) if target == self.limit_bytes else bound_us
            arena_bytes = plan_memory(with_workspaces(self.plan, self.kernels, chosen)).arena_bytes
            if arena_bytes <= self.limit_bytes:
                return Division({kernel: chosen[kernel] for kernel in fronts}, bound_us, arena_bytes=arena_bytes)
            target -= arena_bytes - self.limit_bytes
        # Below the limit it is packing that fails: its excess comes on top.
        needed += self.limit_bytes - target
        raise OptionError(
            f"`memory_limit` {self.limit_bytes}B: activations and workspaces need {needed} bytes; "
            f"give {needed}B or more"
        )


def _divided(
    fronts: Mapping[K, Sequence[Configuration]], moments: Sequence[Moment[K]], limit_bytes: int
) -> tuple[dict[K, Configuration], float]:
    """The best configurations beside the tensors that are alive, and a lower bound."""
    chosen: dict[K, Configuration] = {}
    bounds: list[float] = []
    for moment in moments:
        division = divide(
            {row: _in_a_row([fronts[kernel] for kernel in row]) for row in moment.queues},
            limit_bytes - moment.alive_bytes,
        )
        bounds.append(division.lower_bound_us)
        for row, own in division.chosen.items():
            chosen |= {kernel: _fastest(fronts[kernel], own.workspace_bytes) for kernel in row}
    return chosen, fsum(bounds)


def _in_a_row(fronts: Sequence[Sequence[Configuration]]) -> tuple[Configuration, ...]:
    """The front of kernels that run one after another in one workspace; sizes as an arena has them."""
    least = max(aligned(front[-1].workspace_bytes) for front in fronts)
    rooms = {aligned(one.workspace_bytes) for front in fronts for one in front}
    times_us = {room: fsum(_fastest(front, room).time_us for front in fronts) for room in rooms if room >= least}
    return undominated(Configuration((), time_us, room) for room, time_us in times_us.items())


def _fastest(front: Sequence[Configuration], room_bytes: int) -> Configuration:
    return next(one for one in front if aligned(one.workspace_bytes) <= room_bytes)


def _moments(plan: Plan, kernels: Mapping[str, Sequence[K]]) -> list[Moment[K]]:
    """The moments of a plan: the commands of a segment together, or one by one where a single queue has them. A
    tensor is alive in one if it is accessed in it, or both before and after it.
    """
    runs: list[list[Queued]] = []
    for segment in segments(plan):
        alone = len({command.queue for command in segment}) <= 1
        runs += [[command] for command in segment] if alone else [segment]
    touched: dict[str, list[int]] = {plan.region(name).storage: [0, len(runs) - 1] for name in plan.inputs}
    for name in plan.outputs:
        touched.setdefault(plan.region(name).storage, []).append(len(runs) - 1)
    for place, run in enumerate(runs):
        for name in chain.from_iterable(chain(*accesses(command)) for command in run):
            touched.setdefault(plan.region(name).storage, []).append(place)
    alive = [0] * (len(runs) + 1)
    for storage in plan.storages:
        if places := touched.get(storage.name):
            alive[min(places)] += aligned(storage.bytes)
            alive[max(places) + 1] -= aligned(storage.bytes)
    moments = []
    for run, alive_bytes in zip(runs, accumulate(alive), strict=False):
        rows: dict[Queue, list[K]] = {}
        for command in run:
            if own := _kernels_of(command, kernels):
                rows.setdefault(command.queue, []).extend(own)
        moments.append(Moment(tuple(map(tuple, rows.values())), alive_bytes))
    return moments


def with_workspaces(plan: Plan, kernels: Mapping[str, Sequence[K]], chosen: Mapping[K, Configuration]) -> Plan:
    """The plan with a workspace of its own for each launch, as large as the largest of its kernels."""
    buffers, commands = dict(plan.buffers), list(plan.commands)
    for number, command in enumerate(plan.commands):
        size = max((chosen[kernel].workspace_bytes for kernel in _kernels_of(command, kernels)), default=0)
        if isinstance(command, Launch) and size:
            workspace = workspace_buffer(command.units, command.queue, size)
            buffers[workspace.name] = workspace
            commands[number] = replace(command, workspace=workspace.name)
    return replace(plan, buffers=buffers, commands=tuple(commands))


def _kernels_of(command: Command, kernels: Mapping[str, Sequence[K]]) -> list[K]:
    """Kernels that a command launches."""
    units = command.units if isinstance(command, Launch) else ()
    return [kernel for unit in units for kernel in kernels.get(unit, ())]


#: A batch is divided where that takes less than this part of the time undivided.
WORTH_DIVIDING = 0.99


@dataclass(frozen=True)
class DividedKernel:
    """Algorithm of a kernel, and that of the undivided kernel under the same limits; None if there is none. ``front``:
    all configurations that no other beats, whatever the limits.
    """

    name: KernelName
    batch: int
    configuration: Configuration
    undivided: Configuration | None
    front: tuple[Configuration, ...]

    @property
    def gain(self) -> float | None:
        """Speed-up over undivided; None if it cannot run undivided."""
        return None if self.undivided is None else self.undivided.time_us / self.configuration.time_us

    def to_json(self) -> dict[str, Any]:
        return {
            "layer": self.name.layer,
            "pass": self.name.direction,
            "configuration": [asdict(part) for part in self.configuration.parts],
            "time_us": self.configuration.time_us,
            "undivided_us": None if self.undivided is None else self.undivided.time_us,
            "workspace_bytes": self.configuration.workspace_bytes,
        }


@dataclass(frozen=True)
class MicroBatching(Printed):
    """All kernels, as ``division`` divides them; they share ``total_workspace_limit_bytes``, or with activations
    ``memory_limit_bytes``.
    """

    kernels: tuple[DividedKernel, ...]
    division: Division[KernelName]
    policy: str
    workspace_limit_bytes: int | None
    total_workspace_limit_bytes: int | None
    memory_limit_bytes: int | None = None

    drawn_by: ClassVar[str] = "iossim.microbatching.words"

    def __repr__(self) -> str:
        return f"<MicroBatching of {len(self.kernels)} kernels, policy {self.policy}: {self.time_us:,.1f} us>"

    @property
    def time_us(self) -> float:
        return self.division.time_us

    @property
    def undivided_us(self) -> float | None:
        """All undivided under the same limits; None where some kernel cannot."""
        times = [one.undivided.time_us for one in self.kernels if one.undivided is not None]
        return fsum(times) if len(times) == len(self.kernels) else None

    @property
    def gain(self) -> float | None:
        """Speed-up over undivided; None if some kernel cannot run undivided."""
        return None if self.undivided_us is None else self.undivided_us / self.time_us

    @property
    def workspace_bytes(self) -> int:
        """Total of all kernels."""
        return self.division.workspace_bytes

    @property
    def lower_bound_us(self) -> float:
        """No choice under the limits takes less."""
        return self.division.lower_bound_us

    @property
    def proved(self) -> bool:
        return self.division.proved

    def to_json(self) -> dict[str, Any]:
        return {
            "policy": self.policy,
            "workspace_limit_bytes": self.workspace_limit_bytes,
            "total_workspace_limit_bytes": self.total_workspace_limit_bytes,
            "time_us": self.time_us,
            "undivided_us": self.undivided_us,
            "lower_bound_us": self.lower_bound_us,
            "proved": self.proved,
            "workspace_bytes": self.workspace_bytes,
            "memory_limit_bytes": self.memory_limit_bytes,
            "arena_bytes": self.division.arena_bytes,
            "kernels": [one.to_json() for one in self.kernels],
        }


#: Function that chooses the best configurations under a limit of all kernels, from the fronts of each.
Choose = Callable[[Mapping[KernelName, Sequence[Configuration]]], Division[KernelName]]


@dataclass(frozen=True)
class Benchmarks:
    """Kernels, their batches, and the benchmarks of each at the sizes of a policy."""

    batches: Mapping[KernelName, int]
    rows: Mapping[KernelName, tuple[BenchmarkRow, ...]]
    policy: str = "all"

    def divided(
        self,
        workspace_limit_bytes: int | None = None,
        total_workspace_limit_bytes: int | None = None,
        memory: Memory[KernelName] | None = None,
    ) -> MicroBatching:
        """Each kernel in the micro-batches that are best under a limit of its own, and under one of all workspaces or
        of these with the activations. None limits nothing. Raises OptionError where a limit is less than what is
        needed, and names the least that would do.
        """
        front_of = cache(front)  # many kernels of a network are alike

        def fitting(own: tuple[Configuration, ...]) -> tuple[Configuration, ...]:
            limit = workspace_limit_bytes
            return own if limit is None else tuple(one for one in own if one.workspace_bytes <= limit)

        batches = self.batches
        all_of = {name: front_of(self.rows[name], batch, self.policy) for name, batch in batches.items()}
        whole = {name: fitting(front_of(self.rows[name], batch, "undivided")) for name, batch in batches.items()}
        fronts = {name: _worth_dividing(fitting(own), whole[name]) for name, own in all_of.items()}
        for name, own in fronts.items():
            if not own:
                direction = f" ({name.direction})" if name.direction != FORWARD else ""
                called = f"layer {name.layer!r}{direction}"
                within(all_of[name], workspace_limit_bytes or 0, batches[name], called)  # says why
        choose: Choose | None = None if memory is None else memory.divided
        if total_workspace_limit_bytes is not None:
            choose = partial(divide, limit_bytes=total_workspace_limit_bytes)
        if choose is None:
            # A kernel gains nothing by leaving some of its own limit: the fastest undivided configuration counts.
            fastest = {
                name: next((one for one in whole[name][:1] if own[0].time_us >= WORTH_DIVIDING * one.time_us), own[0])
                for name, own in fronts.items()
            }
            found = Division(fastest)
            undivided: Mapping[KernelName, Configuration] = {name: own[0] for name, own in whole.items() if own}
        else:
            found, undivided = choose(fronts), _all_undivided(whole, choose)
        kernels = tuple(
            DividedKernel(name, batch, found.chosen[name], undivided.get(name), all_of[name])
            for name, batch in batches.items()
        )
        memory_bytes = None if memory is None else memory.limit_bytes
        limits = workspace_limit_bytes, total_workspace_limit_bytes, memory_bytes
        return MicroBatching(kernels, found, self.policy, *limits)


def _worth_dividing(own: Sequence[Configuration], whole: Sequence[Configuration]) -> tuple[Configuration, ...]:
    """A front without the divisions that gain too little on an undivided configuration that needs no more workspace.
    ``whole`` is the front of the undivided configurations.
    """
    worth = [
        one
        for one in own
        if one.micro_batches > 1
        and all(
            each.workspace_bytes > one.workspace_bytes or one.time_us < WORTH_DIVIDING * each.time_us for each in whole
        )
    ]
    return undominated((*whole, *worth))


def _all_undivided(
    fronts: Mapping[KernelName, tuple[Configuration, ...]], choose: Choose
) -> Mapping[KernelName, Configuration]:
    """All undivided under one limit; none where that cannot be."""
    try:
        return choose(fronts).chosen if all(fronts.values()) else {}
    except OptionError:
        return {}
