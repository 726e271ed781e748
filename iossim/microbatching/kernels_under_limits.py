"""Division of a network's kernels: each under its own limit (WR), or all under one (WD), beside undivided.

One limit for activations and workspaces together leaves for a kernel what the tensors that are alive meanwhile do not
take. Units run one after another, and a workspace ends with its unit, so that each kernel takes the fastest of its
configurations that fits. Packing shows whether the arena has addresses for all of them; if not, the limit is lowered by
the excess.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache, partial
from itertools import accumulate, chain
from math import fsum, inf
from typing import ClassVar, Generic

from iossim.base.display import Printed
from iossim.base.errors import OptionError
from iossim.execution.memory import plan_memory
from iossim.execution.plan import Command, Launch, Plan, Queued, accesses, aligned, segments, workspace_buffer
from iossim.microbatching.division import (
    BenchmarkRow,
    Configuration,
    Division,
    Kernel,
    divide,
    front,
    undominated,
    within,
)
from iossim.microbatching.network_kernels import FORWARD, KernelName

#: Most times that the limit is lowered until the arena keeps it.
_ATTEMPTS = 20


@dataclass(frozen=True)
class Memory(Generic[Kernel]):
    """One arena for the activations of a plan of one queue, and its workspaces. ``kernels`` are those of each unit."""

    plan: Plan
    kernels: Mapping[str, Sequence[Kernel]]
    limit_bytes: int

    def divided(self, fronts: Mapping[Kernel, Sequence[Configuration]]) -> Division[Kernel]:
        """The best configurations with which the plan keeps the limit, proved unless packing cost something. Raises
        OptionError, with the least that would do, where the limit is less.
        """
        runs = [(size, _kernels_of(command, self.kernels)) for command, size in _alive_bytes(self.plan)]
        alive = {name: size for size, names in runs for name in names}
        least = {name: aligned(front[-1].workspace_bytes) for name, front in fronts.items()}
        needed = max((size + max((least[name] for name in names), default=0) for size, names in runs), default=0)
        target, bound_us = self.limit_bytes, -inf
        for _ in range(_ATTEMPTS):
            if needed > target:
                break
            chosen = {
                name: next(each for each in front if alive[name] + aligned(each.workspace_bytes) <= target)
                for name, front in fronts.items()
            }
            if target == self.limit_bytes:
                bound_us = fsum(one.time_us for one in chosen.values())
            arena_bytes = plan_memory(with_workspaces(self.plan, self.kernels, chosen)).arena_bytes
            if arena_bytes <= self.limit_bytes:
                return Division(chosen, bound_us, arena_bytes=arena_bytes)
            target -= arena_bytes - self.limit_bytes
        # Below the limit it is packing that fails: its excess comes on top.
        needed += self.limit_bytes - target
        raise OptionError(
            f"`memory_limit` {self.limit_bytes}B: activations and workspaces need {needed} bytes; "
            f"give {needed}B or more"
        )


def _alive_bytes(plan: Plan) -> list[tuple[Queued, int]]:
    """Each command, in order, and the bytes of tensors alive meanwhile: accessed in it, or both before and after."""
    commands = [command for segment in segments(plan) for command in segment]
    touched: dict[str, list[int]] = {plan.region(name).storage: [0, len(commands) - 1] for name in plan.inputs}
    for name in plan.outputs:
        touched.setdefault(plan.region(name).storage, []).append(len(commands) - 1)
    for place, command in enumerate(commands):
        for name in chain(*accesses(command)):
            touched.setdefault(plan.region(name).storage, []).append(place)
    alive = [0] * (len(commands) + 1)
    for storage in plan.storages:
        if places := touched.get(storage.name):
            alive[min(places)] += aligned(storage.bytes)
            alive[max(places) + 1] -= aligned(storage.bytes)
    return list(zip(commands, accumulate(alive), strict=False))


def with_workspaces(
    plan: Plan, kernels: Mapping[str, Sequence[Kernel]], chosen: Mapping[Kernel, Configuration]
) -> Plan:
    """The plan with a workspace of its own for each launch, as large as the largest of its kernels."""
    buffers, commands = dict(plan.buffers), list(plan.commands)
    for number, command in enumerate(plan.commands):
        size = max((chosen[kernel].workspace_bytes for kernel in _kernels_of(command, kernels)), default=0)
        if isinstance(command, Launch) and size:
            workspace = workspace_buffer(command.units, size)
            buffers[workspace.name] = workspace
            commands[number] = replace(command, workspace=workspace.name)
    return replace(plan, buffers=buffers, commands=tuple(commands))


def _kernels_of(command: Command, kernels: Mapping[str, Sequence[Kernel]]) -> list[Kernel]:
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

    def to_json(self) -> dict[str, object]:
        return {
            "layer": self.name.layer,
            "pass": self.name.direction,
            "configuration": [asdict(part) for part in self.configuration.parts],
            "time_us": self.configuration.time_us,
            "undivided_us": None if self.undivided is None else self.undivided.time_us,
            "workspace_bytes": self.configuration.workspace_bytes,
        }


@dataclass(frozen=True, kw_only=True)
class MicroBatching(Division[KernelName], Printed):
    """The division of all kernels; they share ``total_workspace_limit_bytes``, or with activations
    ``memory_limit_bytes``. ``interval_us`` has nine in ten measurements of their time; None where the times are
    measurements.
    """

    kernels: tuple[DividedKernel, ...]
    policy: str
    workspace_limit_bytes: int | None
    total_workspace_limit_bytes: int | None
    memory_limit_bytes: int | None
    interval_us: tuple[float, float] | None = None
    remarks: tuple[str, ...] = ()

    drawn_by: ClassVar[str] = "iossim.microbatching.words"

    def __repr__(self) -> str:
        return f"<MicroBatching of {len(self.kernels)} kernels, policy {self.policy}: {self.time_us:,.1f} us>"

    @property
    def undivided_us(self) -> float | None:
        """All undivided under the same limits; None where some kernel cannot."""
        times = [one.undivided.time_us for one in self.kernels if one.undivided is not None]
        return fsum(times) if len(times) == len(self.kernels) else None

    @property
    def gain(self) -> float | None:
        """Speed-up over undivided; None if some kernel cannot run undivided."""
        return None if self.undivided_us is None else self.undivided_us / self.time_us

    def to_json(self) -> dict[str, object]:
        names = (
            *("policy", "workspace_limit_bytes", "total_workspace_limit_bytes", "time_us", "undivided_us"),
            *("interval_us", "lower_bound_us", "proved", "workspace_bytes"),
            *("memory_limit_bytes", "arena_bytes", "remarks"),
        )
        return {name: getattr(self, name) for name in names} | {"kernels": [one.to_json() for one in self.kernels]}


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
        return MicroBatching(
            **vars(found),
            kernels=kernels,
            policy=self.policy,
            workspace_limit_bytes=workspace_limit_bytes,
            total_workspace_limit_bytes=total_workspace_limit_bytes,
            memory_limit_bytes=None if memory is None else memory.limit_bytes,
        )


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
