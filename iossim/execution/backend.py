"""The contract of a backend, which runs plans on real hardware.

A backend runs plans and times them; it knows no schedule, no search and no store. Pricing and reporting by measurement
(:mod:`iossim.cost.measured.cost_model`, ``iossim run``, ``iossim bench``) depend on this file only.
:mod:`iossim.execution.backends` finds one by name.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol, runtime_checkable

import numpy as np

from iossim.base.errors import IossimError, PlanError, Progress, ignore
from iossim.execution.plan import Plan
from iossim.ir.network import Network
from iossim.ir.op import Array
from iossim.schedule.batch import FASTEST, Strategy, UnitVariant


class BackendError(IossimError):
    """A backend that cannot run here (the missing part, and how to install it), or cannot run what it was given."""


class DeviceLostError(BackendError):
    """The device failed permanently: nothing more runs on it in this process."""


@dataclass(frozen=True, slots=True)
class Context:
    """Everything that a measured time depends on besides the work: the key under which it may be stored and reused.

    ``libraries`` are sorted pairs of a library and its version; ``driver`` is that of a GPU, or the system's kernel.
    ``options`` are settings of the backend that affect times (threads of an op, clocks), also sorted pairs.
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
        """This context plus the timing conditions that affect times: cold caches are one more option.

        The store keeps such times under the plain context, distinguished from warm ones by a mark.
        """
        if not timing.cold:
            return self
        return replace(self, options=tuple(sorted({**dict(self.options), "caches": "cold"}.items())))


#: The condition of samples with the time of a graph without nodes: part of a stage's time, but not of its work.
EMPTY_GRAPH = "empty_graph_us"


@dataclass(frozen=True, slots=True)
class Samples:
    """The times of one plan: accepted rounds in the order they were taken, microseconds.

    ``rejected`` is the number of rounds left out because the machine was busy otherwise; ``conditions``
    describe the machine meanwhile (load, involuntary switches, clocks, temperature).
    """

    times_us: tuple[float, ...]
    rejected: int = 0
    conditions: Mapping[str, float | str] = field(default_factory=dict)

    @property
    def median_us(self) -> float:
        return float(np.median(self.times_us))

    @property
    def spread_us(self) -> float:
        """90th minus 10th percentile."""
        low, high = np.percentile(self.times_us, (10, 90))
        return float(high - low)


@dataclass(frozen=True, slots=True)
class Choice:
    """Choice for one launch: the backend's name of an algorithm, and its workspace."""

    algorithm: str = ""
    workspace_bytes: int = 0


class Choices(Protocol):
    """Chooses algorithms of units (names; several if merged): those of the schedule's variant, if it has one.

    Raises PlanError for an unknown variant.
    """

    def __call__(self, units: tuple[str, ...], strategy: Strategy, variant: str = FASTEST) -> Choice: ...


class Divided(Protocol):
    """Partitions a device among the groups of a stage: the SMs of each; those of two are disjoint or the same.

    ``groups`` are indices of the network's units, each group in execution order; ``variants`` as in a schedule.
    """

    def __call__(self, groups: Sequence[Sequence[int]], variants: Mapping[str, str]) -> tuple[range, ...]: ...


def without_variants(backend: str) -> Choices:
    """The choices of a backend that has none: a schedule that names a variant is refused."""

    def choices(units: tuple[str, ...], strategy: Strategy, variant: str = FASTEST) -> Choice:
        if variant:
            raise PlanError(
                f"the schedule runs {'+'.join(units)} as {variant!r}, and backend {backend} knows no variants; "
                "leave them out of the schedule"
            )
        return Choice()

    return choices


@dataclass(frozen=True, slots=True)
class Timing:
    """Timing protocol of plans.

    ``rounds`` accepted rounds follow ``warm_up`` uncounted ones; in each round every plan runs once, in
    an order drawn from ``seed``, so that drift affects all equally. ``cold``: caches are flushed before.
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

        Raises BackendError if the backend cannot run it, GraphError for inputs that do not fit.
        """

    def measure(
        self, network: Network, plans: Sequence[Plan], timing: Timing, progress: Progress = ignore
    ) -> list[Samples]:
        """Time each plan, from its first command until the host has waited for its last, with synthetic inputs."""


@runtime_checkable
class OffersVariants(Backend, Protocol):
    """A backend that runs units as what is fastest alone, or as a variant that leaves others more of the device."""

    def variants(self, network: Network, unit: str) -> tuple[UnitVariant, ...]:
        """Variants of a unit, :data:`~iossim.schedule.batch.FASTEST` first; the same names in every process."""


@runtime_checkable
class TimesAlgorithms(Backend, Protocol):
    """A backend that can time each algorithm of a unit, as a library's own benchmark does."""

    def algorithms(self, network: Network, unit: str) -> list[UnitVariant]:
        """The algorithms of a unit of one convolution. Raises BackendError if there is none, or no choice."""


@runtime_checkable
class DividesDevice(Backend, Protocol):
    """A backend that knows the SMs of its device."""

    def divided(self, network: Network) -> Divided:
        """The partition of the SMs among the groups of a stage of the network under the partition engine."""


@runtime_checkable
class ChoosesLayouts(Backend, Protocol):
    """A backend that chooses the layout of images per network, if the user leaves that open (context ``auto``)."""

    def context_of(self, network: Network) -> Context:
        """The timing context of that network."""


def context_of(backend: Backend, network: Network) -> Context:
    """The timing context of a network on a backend, including the layout of its images there."""
    return backend.context_of(network) if isinstance(backend, ChoosesLayouts) else backend.context


def divided_by(backend: Backend, network: Network) -> Divided | None:
    """The partition function of a backend; None if it has none, or does not know its SMs."""
    return backend.divided(network) if isinstance(backend, DividesDevice) else None


@dataclass(frozen=True, slots=True)
class Fallback:
    """An op that a backend does not compute on its device: its name, kind and unit, and the reason."""

    op: str
    kind: str
    unit: str
    reason: str


def remarks(network: str, found: Iterable[tuple[str, str, str]]) -> Iterator[str]:
    """A line for each kind and reason of the ops of a network that run on the host (name, kind, reason)."""
    causes: dict[tuple[str, str], list[str]] = {}
    for op, kind, reason in found:
        causes.setdefault((kind, reason), []).append(repr(op))
    for (kind, reason), ops in causes.items():
        named = ", ".join(ops[:3]) + (f" and {len(ops) - 3} more" if len(ops) > 3 else "")
        yield f"{kind} of {network!r} (op {named}) runs on the host, by NumPy, and the device waits: {reason}"
