"""What runs plans for real: the contract of a backend.

A backend runs plans and times them; it knows no schedule, no search and no store. Whatever prices or reports by
measurement (:mod:`iossim.cost.measured.cost_model`, ``iossim run``, ``iossim bench``) is written against this file
alone. :mod:`iossim.execution.backends` finds one by name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol, runtime_checkable

import numpy as np

from iossim.base.errors import IossimError, PlanError
from iossim.execution.plan import Plan
from iossim.ir.network import Network
from iossim.ir.op import Array
from iossim.schedule.batch import FASTEST, Strategy


class BackendError(IossimError):
    """A backend that cannot run here (what is missing, and how to install it), or cannot run what it was given."""


class DeviceLostError(BackendError):
    """The device failed in a way that stays: nothing more runs on it in this process."""


@dataclass(frozen=True, slots=True)
class Context:
    """All that a measured time depends on besides the work: the key under which it may be kept and used again.

    ``libraries`` are sorted pairs of a library and its version; ``driver`` is that of a GPU, or the system's kernel.
    ``options`` are settings of the backend that change times (threads of an op, clocks), sorted pairs too.
    """

    backend: str
    device: str
    precision: str
    engine: str
    layout: str = "nchw"
    driver: str = ""
    libraries: tuple[tuple[str, str], ...] = ()
    options: tuple[tuple[str, str], ...] = ()

    def timed(self, timing: Timing) -> Context:
        """This context with what times depend on of how they are taken: cold caches are one more option.

        The store keeps such times under the plain context, apart from warm ones by a mark of their own.
        """
        if not timing.cold:
            return self
        return replace(self, options=tuple(sorted({**dict(self.options), "caches": "cold"}.items())))


#: The condition of samples that says what a graph without a node takes: of a stage, that is no part of its work.
EMPTY_GRAPH = "empty_graph_us"


@dataclass(frozen=True, slots=True)
class Samples:
    """The times of one plan: accepted rounds in the order they were taken, microseconds.

    ``rejected`` counts rounds that were left out because the machine was busy with something else; ``conditions``
    tell what the machine was like meanwhile (load, involuntary switches, clocks, temperature).
    """

    times_us: tuple[float, ...]
    rejected: int = 0
    conditions: Mapping[str, float | str] = field(default_factory=dict)

    @property
    def median_us(self) -> float:
        return float(np.median(self.times_us))

    @property
    def spread_us(self) -> float:
        """90th less 10th percentile."""
        low, high = np.percentile(self.times_us, (10, 90))
        return float(high - low)


@dataclass(frozen=True, slots=True)
class Choice:
    """How one launch runs: the backend's name of an algorithm, and the workspace that it needs."""

    algorithm: str = ""
    workspace_bytes: int = 0


class Choices(Protocol):
    """Chooses how units run (names; several where they merge): as the variant that a schedule names, if it does.

    Raises PlanError for a variant that it does not know.
    """

    def __call__(self, units: tuple[str, ...], strategy: Strategy, variant: str = FASTEST) -> Choice: ...


class Divided(Protocol):
    """Divides a device among the groups of a stage: the SMs of each; those of two are disjoint or the same.

    ``groups`` are indices of the network's units, each group in execution order; ``variants`` as a schedule has them.
    """

    def __call__(self, groups: Sequence[Sequence[int]], variants: Mapping[str, str]) -> tuple[range, ...]: ...


def without_variants(backend: str, choose: Callable[[tuple[str, ...], Strategy], Choice]) -> Choices:
    """The choices of a backend that knows no variants: a schedule that names one is refused."""

    def choices(units: tuple[str, ...], strategy: Strategy, variant: str = FASTEST) -> Choice:
        if variant:
            raise PlanError(
                f"the schedule runs {'+'.join(units)} as {variant!r}, and backend {backend} knows no variants; "
                "leave them out of the schedule"
            )
        return choose(units, strategy)

    return choices


@dataclass(frozen=True, slots=True)
class Timing:
    """How plans are timed.

    ``rounds`` accepted rounds are wanted after ``warm_up`` that do not count; in each round every plan runs once, in
    an order drawn from ``seed``, so that drift meets all alike. ``cold``: caches are flushed before.
    """

    rounds: int = 30
    warm_up: int = 3
    seed: int = 0
    cold: bool = False


class Backend(Protocol):
    """Runs plans on one device at one precision under one engine."""

    @property
    def context(self) -> Context: ...

    def choices(self, network: Network) -> Choices:
        """The algorithms of the network's units: those that are fastest alone, or a variant."""

    def execute(self, network: Network, plan: Plan, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Run a plan once; the arrays of ``plan.outputs`` by name, from arrays for ``plan.inputs``.

        Raises BackendError for what the backend cannot run, GraphError for inputs that do not fit.
        """

    def measure(
        self,
        network: Network,
        plans: Sequence[Plan],
        timing: Timing,
        progress: Callable[[int, int], None] = lambda done, total: None,
    ) -> list[Samples]:
        """Time each plan, from its first command until the host has waited for its last, with made inputs."""


@dataclass(frozen=True, slots=True)
class TimedAlgorithm:
    """One way to run a unit: the backend's name of it, what it takes alone, and what it works in."""

    algorithm: str
    time_us: float
    workspace_bytes: int


@runtime_checkable
class TimesAlgorithms(Backend, Protocol):
    """Can time each way to run a unit, as a library's own benchmark does."""

    def algorithms(self, network: Network, unit: str) -> list[TimedAlgorithm]:
        """Of a unit of one convolution. Raises BackendError where there is no way, or no choice to make."""


@runtime_checkable
class DividesDevice(Backend, Protocol):
    """Knows the SMs of its device."""

    def divided(self, network: Network) -> Divided:
        """Which of them the groups of a stage of the network have under the partition engine."""


@runtime_checkable
class ChoosesLayouts(Backend, Protocol):
    """Lays images out as suits a network, where the user leaves that open: then its own context says ``auto``."""

    def context_of(self, network: Network) -> Context:
        """What the times of that network depend on."""


def context_of(backend: Backend, network: Network) -> Context:
    """What the times of a network on a backend depend on, with the layout that its images have there."""
    return backend.context_of(network) if isinstance(backend, ChoosesLayouts) else backend.context


def divided_by(backend: Backend, network: Network) -> Divided | None:
    """How the backend divides its device; None of one that leaves it open, or does not know its SMs."""
    return backend.divided(network) if isinstance(backend, DividesDevice) else None


@dataclass(frozen=True, slots=True)
class Fallback:
    """An op that a backend computes elsewhere than on its device: its name, kind and unit, and why."""

    op: str
    kind: str
    unit: str
    reason: str
