"""What some cost models can do besides pricing stages: contracts that are each asked for by ``isinstance``.

A wrapper (:class:`iossim.cost.model.WrappedCostModel`) has none of them unless it defines them itself.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from iossim.cost.model import CostModel, CostModelIdentity, Prices, StageBounds
from iossim.schedule.batch import StageBatch
from iossim.schedule.problem import Masks, ScheduleProblem

if TYPE_CHECKING:
    from iossim.execution.engine import Engine
    from iossim.execution.execution import Span
    from iossim.execution.plan import Plan
    from iossim.hardware.lowering.kernel import Candidate
    from iossim.hardware.profile import DeviceProfile
    from iossim.ir.network import Network
    from iossim.schedule.schedule import AnySchedule, Stage
    from iossim.schedule.stream_problem import StreamBatch, StreamProblem


class MeasuredBy(StrEnum):
    """Where the prices of a cost model that measures come from."""

    DEVICE = "device"  #: a price may take a run of the stage
    STORE = "store"  #: prices were measured before, and stages that were not have none
    STAND_IN = "stand-in"  #: prices are computed, and asked for as if they were measured


#: The signature of a stage that launches nothing: it takes no time.
FREE = "free"
#: The signature of units that do not merge: they cannot run as one.
IMPOSSIBLE = "impossible"


@runtime_checkable
class MeasuringCostModel(CostModel, Protocol):
    """A cost model that measures: each distinct stage is an expense."""

    @property
    def measured_by(self) -> MeasuredBy: ...

    def signatures(self, batch: StageBatch) -> list[Hashable]:
        """For each stage what its price depends on: stages of equal signature share one measurement.

        :data:`FREE` and :data:`IMPOSSIBLE` are known without one.
        """
        ...


@runtime_checkable
class RemarkingCostModel(CostModel, Protocol):
    """A cost model whose prices of a network rest on something that users may want otherwise."""

    def remarks(self, network: Network) -> Sequence[str]:
        """What that is, a sentence each; schedules carry them."""
        ...


class UnitVariant(NamedTuple):
    """A variant of a unit, its time alone, and the memory that its kernels need besides their tensors."""

    name: str
    alone_us: float
    workspace_bytes: int


class VariantBounds(NamedTuple):
    """Bounds of a unit's variants, as if each were a unit of its own, in the order of ``variants``.

    ``keys`` (uint64, shape ``[variants]``) are equal where the variants are priced alike in every stage.
    """

    bounds: StageBounds
    keys: Masks


def least_of_variants(ways: Sequence[VariantBounds]) -> StageBounds:
    """Bounds that hold whatever each unit runs as: for each unit the least of its variants, each number by itself."""
    own = [way.bounds for way in ways]
    work_us = np.stack([each.work_us.min(axis=0) for each in own])
    serial_us, single_us = (
        np.array([numbers.min() for numbers in column])
        for column in ([each.serial_us for each in own], [each.single_us for each in own])
    )
    issue_us = [each.issue_us.min() for each in own if each.issue_us is not None]
    return StageBounds(serial_us, single_us, work_us, np.array(issue_us) if len(issue_us) == len(own) else None)


@runtime_checkable
class VariantCostModel(CostModel, Protocol):
    """A cost model that knows the variants of units, and prices stages that name them."""

    def variants(self, problem: ScheduleProblem) -> tuple[tuple[UnitVariant, ...], ...]:
        """For each unit its variants, :data:`~iossim.schedule.batch.FASTEST` first."""
        ...

    def merged_workspace_bytes(self, problem: ScheduleProblem, mask: int) -> int:
        """The workspace of the units as one stacked convolution; 0 where they do not merge."""
        ...

    def bounds_of_variants(self, problem: ScheduleProblem) -> tuple[VariantBounds, ...]:
        """For each unit the bounds of its variants: a stage that runs some of them costs at least what they say."""
        ...


@runtime_checkable
class DeviceCostModel(CostModel, Protocol):
    """A cost model that computes its prices from the profile of a device, under an engine.

    The profile's provenance says how far the prices may be off.
    """

    @property
    def identity(self) -> CostModelIdentity:
        """By the name and with the argument that :func:`iossim.cost.create.create_cost_model` makes it from: the
        version is its own, the profile's fingerprint and the argument, if any, with ``+`` between them.
        """
        ...

    @property
    def profile(self) -> DeviceProfile: ...

    @property
    def engine(self) -> Engine: ...

    def at(self, profile: DeviceProfile | None = None, engine: Engine | None = None) -> DeviceCostModel:
        """The same model with these instead of its own, where they are given."""
        ...

    def price_changed(self, batch: StageBatch, interference: float, launches: float) -> Prices:
        """The prices at another interference of kernels, with launches that take ``launches`` times as long."""
        ...

    def price_candidates(self, candidates: Sequence[Candidate]) -> Prices:
        """The price of each candidate as a stage of its own, us; inf where the device or its libraries lack it."""
        ...

    def timeline(self, network: Network, schedule: AnySchedule) -> tuple[Span, ...]:
        """When each kernel runs, in us from the schedule's start; the last end is the schedule's latency."""
        ...

    def stage_facts(self, network: Network, stage: Stage) -> StageFacts:
        """What holds up a stage of a schedule; raises ScheduleError if its units are to merge and do not."""
        ...


@dataclass(frozen=True, eq=False)
class StreamPrices:
    """When the last kernel of each schedule ends, and when the host has issued all of it; us, shape ``[schedules]``.

    ``ends_us``, ``[schedules, launches]``, is when each launch has ended, 0 where it has no kernels.
    """

    latency_us: NDArray[np.float64]
    issued_us: NDArray[np.float64]
    ends_us: NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class LaunchWork:
    """What no schedule gives launches less than: ``serial_us`` alone, ``host_us`` to issue, both of shape ``[n]``, and
    ``work_us``, ``[n, resources]``, of each resource that is there once, if they filled it. In a microsecond that a
    launch would run alone it asks for at most ``share`` of a microsecond of the resource.
    """

    serial_us: NDArray[np.float64]
    host_us: NDArray[np.float64]
    work_us: NDArray[np.float64]
    share: NDArray[np.float64]


@runtime_checkable
class StreamCostModel(CostModel, Protocol):
    """A cost model that prices schedules of streams, and whole plans, of stages as well as of streams."""

    def price_streams(self, batch: StreamBatch) -> StreamPrices:
        """Raises OptionError where the engine runs no streams."""
        ...

    def launch_work(self, problem: StreamProblem) -> LaunchWork: ...

    def plan_us(self, network: Network, plan: Plan) -> float:
        """What a plan of the network takes by the model that prices streams, us."""
        ...

    def plan_spans(self, network: Network, plan: Plan) -> tuple[Span, ...]:
        """When each kernel of a plan runs by that model, in the order of issue; the stages are all numbered 0."""
        ...

    def simulated_plan_us(self, network: Network, plan: Plan, check: Callable[[], None] | None = None) -> float:
        """The time of a plan, simulated event by event, us; slow. ``check`` is called all along, and may raise."""
        ...


class Limit(StrEnum):
    """What holds a stage up."""

    ARITHMETIC = "arithmetic"
    POWER = "power"  #: arithmetic at the rate that the board's power sustains
    L2 = "L2"  #: between SMs and L2; on a processor, a core and its caches
    DRAM = "DRAM"
    UNFILLED = "unfilled SMs"  #: too few blocks for all SMs, a last wave that is not full, latency that is not hidden
    START = "kernel start"  #: from a kernel's turn to its first work, and its filling and draining
    HOST = "host"  #: the kernel is not issued yet
    QUEUE = "queue"  #: kernels that started before hold the slots of the SMs; of a processor, all cores
    SHARING = "sharing"  #: what kernels side by side take longer than alone


@dataclass(frozen=True, slots=True)
class KernelFacts:
    """One kernel of a stage. Times are microseconds from the stage's start; ``alone_us`` is what it takes by itself.

    ``waves`` is its blocks over those that the device holds at a time, ``occupancy`` resident warps over the most
    there may be. ``limits_us`` divides ``alone_us``.
    """

    name: str
    unit: str
    stream: int
    start_us: float
    end_us: float
    alone_us: float
    blocks: int
    resident_blocks_per_sm: int
    waves: float
    occupancy: float
    limits_us: dict[Limit, float]


@dataclass(frozen=True, slots=True)
class StageFacts:
    """One stage on a simulated device.

    ``limits_us`` divides ``duration_us`` by what holds the stage up. ``chain_us`` is the longest group by itself,
    ``host_us`` what the host needs to issue all kernels. ``occupancy`` is the mean of warps at work over the most
    that all SMs hold (of a processor: cores at work); ``arithmetic`` and ``dram`` are parts of the datasheet's peaks,
    the arithmetic that of the network itself, without what kernels do besides. ``sms`` is how many SMs each group has
    of its own, if any.
    """

    duration_us: float
    limits_us: dict[Limit, float]
    chain_us: float
    host_us: float
    occupancy: float
    arithmetic: float
    dram: float
    kernels: tuple[KernelFacts, ...]
    sms: tuple[int, ...] = ()

    @property
    def bound(self) -> Limit | None:
        """What holds it up most; None for a stage without kernels."""
        return max(self.limits_us, key=lambda limit: self.limits_us[limit], default=None)
