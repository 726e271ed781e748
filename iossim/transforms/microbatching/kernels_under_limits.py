"""How the kernels of a network are divided: each under a limit of its own (WR), or all under one (WD), beside undivided."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import fsum
from typing import Any

from iossim.base.errors import OptionError
from iossim.transforms.microbatching.configuration import BenchmarkRow, Configuration
from iossim.transforms.microbatching.division import SAME, Division, divide
from iossim.transforms.microbatching.memory import InMemory
from iossim.transforms.microbatching.network_kernels import FORWARD, KernelName
from iossim.transforms.microbatching.reuse import front, within

#: A batch is divided where that takes less than this part of the time undivided.
WORTH_DIVIDING = 0.99

#: Of each kernel the configurations that it may have, the fastest first.
Fronts = Mapping[str, Sequence[Configuration]]


@dataclass(frozen=True)
class DividedKernel:
    """What a kernel runs as, and as what it runs undivided under the same limits; None where it cannot.

    ``front`` are all configurations that no other beats, whatever the limits.
    """

    name: KernelName
    batch: int
    configuration: Configuration
    undivided: Configuration | None
    front: tuple[Configuration, ...]

    @property
    def gain(self) -> float | None:
        """How many times as fast as undivided; None where it cannot run undivided."""
        return None if self.undivided is None else self.undivided.time_us / self.configuration.time_us

    def to_json(self) -> dict[str, Any]:
        return {
            "layer": self.name.layer,
            "pass": self.name.direction,
            "configuration": [
                {"micro_batch": part.micro_batch, "count": part.count, "algorithm": part.algorithm}
                for part in self.configuration.parts
            ],
            "time_us": self.configuration.time_us,
            "undivided_us": None if self.undivided is None else self.undivided.time_us,
            "workspace_bytes": self.configuration.workspace_bytes,
        }


@dataclass(frozen=True)
class MicroBatching:
    """All kernels. ``division`` tells of the limit that they share, ``memory`` of one that they share with activations; without either
    each has its own best."""

    kernels: tuple[DividedKernel, ...]
    policy: str
    workspace_limit_bytes: int | None
    total_workspace_limit_bytes: int | None
    division: Division | None = None
    memory_limit_bytes: int | None = None
    memory: InMemory | None = None

    @property
    def time_us(self) -> float:
        return fsum(one.configuration.time_us for one in self.kernels)

    @property
    def undivided_us(self) -> float | None:
        """All undivided under the same limits; None where some kernel cannot."""
        times = [one.undivided.time_us for one in self.kernels if one.undivided is not None]
        return fsum(times) if len(times) == len(self.kernels) else None

    @property
    def gain(self) -> float | None:
        """How many times as fast as undivided; None where some kernel cannot."""
        return None if self.undivided_us is None else self.undivided_us / self.time_us

    @property
    def workspace_bytes(self) -> int:
        """Of all kernels together."""
        return sum(one.configuration.workspace_bytes for one in self.kernels)

    @property
    def lower_bound_us(self) -> float:
        """No choice under the limits takes less."""
        found = self.division or self.memory
        return self.time_us if found is None else min(found.lower_bound_us, self.time_us)

    @property
    def proved(self) -> bool:
        return self.time_us - self.lower_bound_us <= SAME * self.time_us

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
            "arena_bytes": None if self.memory is None else self.memory.arena_bytes,
            "kernels": [one.to_json() for one in self.kernels],
        }


def micro_batch(
    batches: Mapping[KernelName, int],
    rows: Mapping[KernelName, Sequence[BenchmarkRow]],
    policy: str = "all",
    workspace_limit_bytes: int | None = None,
    total_workspace_limit_bytes: int | None = None,
    memory_limit_bytes: int | None = None,
    in_memory: Callable[[Fronts], InMemory] | None = None,
) -> MicroBatching:
    """Divide kernels of these batches, by their rows.

    Each keeps the first limit, all together the second, and the third together with activations: ``in_memory`` is what keeps it.
    None limits nothing. Raises OptionError where a limit is less than
    what is needed, and names the least that would do.
    """
    known: dict[tuple[int, tuple[BenchmarkRow, ...], str], tuple[Configuration, ...]] = {}

    def undominated(name: KernelName, policy: str) -> tuple[Configuration, ...]:
        key = batches[name], tuple(rows[name]), policy
        if key not in known:
            known[key] = front(key[1], key[0], policy)
        return known[key]

    def fitting(own: tuple[Configuration, ...]) -> tuple[Configuration, ...]:
        limit = workspace_limit_bytes
        return own if limit is None else tuple(one for one in own if one.workspace_bytes <= limit)

    all_of = {name: undominated(name, policy) for name in batches}
    whole = {name: fitting(undominated(name, "undivided")) for name in batches}
    fronts = {name: _worth_dividing(fitting(own), whole[name]) for name, own in all_of.items()}
    for name, own in fronts.items():
        if not own:
            within(all_of[name], workspace_limit_bytes or 0, batches[name], _called(name))  # says why
    division: Division | None = None
    # Under a limit of its own a kernel gains nothing by leaving some of it: the fastest undivided configuration counts.
    chosen = {
        name: next((one for one in whole[name][:1] if own[0].time_us >= WORTH_DIVIDING * one.time_us), own[0])
        for name, own in fronts.items()
    }
    undivided = {name: own[0] for name, own in whole.items() if own}
    if total_workspace_limit_bytes is not None:
        division = divide({str(name): own for name, own in fronts.items()}, total_workspace_limit_bytes)
        chosen = {name: division.chosen[str(name)] for name in fronts}
        undivided = _all_undivided(whole, lambda fronts: divide(fronts, total_workspace_limit_bytes).chosen)
    memory = None
    if in_memory is not None:
        memory = in_memory({str(name): own for name, own in fronts.items()})
        chosen = {name: memory.chosen[str(name)] for name in fronts}
        undivided = _all_undivided(whole, lambda fronts: in_memory(fronts).chosen)
    kernels = tuple(
        DividedKernel(name, batches[name], chosen[name], undivided.get(name), all_of[name]) for name in batches
    )
    return MicroBatching(
        kernels, policy, workspace_limit_bytes, total_workspace_limit_bytes, division, memory_limit_bytes, memory
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
            each.workspace_bytes > one.workspace_bytes or one.time_us < WORTH_DIVIDING * each.time_us
            for each in whole
        )
    ]
    found: list[Configuration] = []
    for one in sorted((*whole, *worth), key=lambda one: (one.time_us, one.workspace_bytes, one.micro_batches)):
        if not found or one.workspace_bytes < found[-1].workspace_bytes:
            found.append(one)
    return tuple(found)


def _all_undivided(
    fronts: Mapping[KernelName, tuple[Configuration, ...]], choose: Callable[[Fronts], Mapping[str, Configuration]]
) -> dict[KernelName, Configuration]:
    """All undivided under one limit; none where that cannot be."""
    try:
        found = choose({str(name): own for name, own in fronts.items()}) if all(fronts.values()) else {}
    except OptionError:
        return {}
    return {name: found[str(name)] for name in fronts if found}


def _called(name: KernelName) -> str:
    return f"layer {name.layer!r}" + (f" ({name.direction})" if name.direction != FORWARD else "")
