"""Capabilities of some cost models besides pricing stages: contracts that are each checked by ``isinstance``, and what
they return: the facts of a stage, prices and bounds of streams, and bounds of variants.

A wrapper (:class:`iossim.cost.model.WrappedCostModel`) has none of them unless it defines them itself.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple, Protocol, runtime_checkable

import numpy as np

from iossim.base.compiled import Floats
from iossim.base.errors import OptionError
from iossim.cost.model import CostModel, CostModelIdentity, Prices, StageBounds
from iossim.schedule.batch import StageBatch, UnitVariant
from iossim.schedule.problem import Masks, ScheduleProblem

if TYPE_CHECKING:
    from iossim.execution.engine import Engine
    from iossim.execution.execution import Span
    from iossim.execution.plan import Plan
    from iossim.hardware.lowering.kernel import Candidate
    from iossim.hardware.profile import DeviceProfile
    from iossim.ir.network import Network
    from iossim.schedule.schedule import AnySchedule, Stage
    from iossim.schedule.streams import StreamBatch, StreamProblem


class MeasuredBy(StrEnum):
    """Origin of the prices of a measuring cost model."""

    DEVICE = "device"  #: a price may take a run of the stage
    STORE = "store"  #: prices were measured before; other stages have none
    STAND_IN = "stand-in"  #: prices are computed, but requested as if they were measured


#: The signature of a stage that launches nothing: it takes no time.
FREE = "free"
#: The signature of units that do not merge: they cannot run as one.
IMPOSSIBLE = "impossible"


@runtime_checkable
class MeasuringCostModel(CostModel, Protocol):
    """A cost model that measures: each distinct stage costs time."""

    @property
    def measured_by(self) -> MeasuredBy: ...

    def signatures(self, batch: StageBatch) -> Sequence[Hashable]:
        """Everything that each stage's price depends on: stages of equal signature share one measurement.

        :data:`FREE` and :data:`IMPOSSIBLE` need no measurement.
        """
        ...


@runtime_checkable
class LimitedCostModel(CostModel, Protocol):
    """A cost model that may stop pricing a stage once it is known to take too long."""

    def price_below(self, batch: StageBatch, limits_us: Prices) -> Prices:
        """Microseconds of each concurrent stage without variants, shape ``[len(batch)]``; or, where that is no less
        than its limit, perhaps the negative of a lower bound that is no less either.
        """
        ...


@runtime_checkable
class RemarkingCostModel(CostModel, Protocol):
    """A cost model whose prices of a network rest on an assumption that users may change."""

    def remarks(self, network: Network) -> Sequence[str]:
        """The assumptions, one sentence each; schedules carry them."""
        ...


@runtime_checkable
class NamesVariants(CostModel, Protocol):
    """A cost model that knows the variants of units, and prices stages that name them, by measuring perhaps."""

    def variants(self, problem: ScheduleProblem) -> tuple[tuple[UnitVariant, ...], ...]:
        """Variants of each unit, :data:`~iossim.schedule.batch.FASTEST` first."""
        ...


@runtime_checkable
class VariantCostModel(NamesVariants, Protocol):
    """Such a cost model that computes its prices, and bounds of them."""

    def merged_workspace_bytes(self, problem: ScheduleProblem, mask: int) -> int:
        """Workspace of the units as one stacked convolution; 0 if they do not merge."""
        ...

    def bounds_of_variants(self, problem: ScheduleProblem) -> tuple[VariantBounds, ...]:
        """Bounds of each unit's variants: a stage with some of these variants costs at least their bounds."""
        ...


@runtime_checkable
class DeviceCostModel(CostModel, Protocol):
    """A cost model that computes its prices from the profile of a device, under an engine.

    The profile's provenance has the uncertainty of the prices.
    """

    @property
    def identity(self) -> CostModelIdentity:
        """The name and argument from which :func:`iossim.cost.create.create_cost_model` makes it: the
        version is its own, the profile's fingerprint and the argument, if any, joined by ``+``.
        """
        ...

    @property
    def profile(self) -> DeviceProfile: ...

    @property
    def engine(self) -> Engine: ...

    def at(self, profile: DeviceProfile | None = None, engine: Engine | None = None) -> DeviceCostModel:
        """The same model with the given ones of these replaced."""
        ...

    def price_changed(self, batch: StageBatch, launches: float) -> Prices:
        """The prices with launches that take ``launches`` times as long."""
        ...

    def price_candidates(self, candidates: Sequence[Candidate]) -> Prices:
        """The price of each candidate as a separate stage, us; inf if the device or its libraries lack it."""
        ...

    def timeline(self, network: Network, schedule: AnySchedule) -> tuple[Span, ...]:
        """The time span of each kernel, in us from the schedule's start; the last end is the schedule's latency."""
        ...

    def stage_facts(self, network: Network, stage: Stage) -> StageFacts:
        """The limiting factors of a schedule's stage; raises ScheduleError if it merges units that do not merge."""
        ...


@runtime_checkable
class StreamCostModel(CostModel, Protocol):
    """A cost model that prices schedules of streams, and whole plans, of stages as well as of streams."""

    def price_streams(self, batch: StreamBatch) -> StreamPrices:
        """The prices of a batch; raises OptionError if the engine runs no streams."""
        ...

    def launch_work(self, problem: StreamProblem) -> LaunchWork: ...

    def plan_us(self, network: Network, plan: Plan) -> float:
        """Time of a plan of the network by the model that prices streams, us."""
        ...

    def plan_spans(self, network: Network, plan: Plan) -> tuple[Span, ...]:
        """The time span of each kernel of a plan by that model, in the order of issue; all stages have number 0."""
        ...

    def simulated_plan_us(self, network: Network, plan: Plan, check: Callable[[], None] = ...) -> float:
        """Time of a plan by event-driven simulation, us; slow. ``check`` is called throughout, and may raise."""
        ...


def pricing_streams(cost_model: CostModel, why: str, otherwise: str = "") -> StreamCostModel:
    """The cost model, one that prices streams; raises OptionError, which says ``why``, for one of stages alone."""
    if not isinstance(cost_model, StreamCostModel):
        name, remedy = cost_model.identity.name, f"give `cost_model` simulator{otherwise}"
        raise OptionError(f"{why}, and cost model {name!r} prices stages alone; {remedy}")
    return cost_model


@dataclass(frozen=True, eq=False)
class StreamPrices:
    """End of each schedule's last kernel, and of the host's issuing; us, shape ``[schedules]``.

    ``ends_us``, ``[schedules, launches]``, is the end of each launch, 0 if it has no kernels.
    """

    latency_us: Floats
    issued_us: Floats
    ends_us: Floats


@dataclass(frozen=True, eq=False)
class LaunchWork:
    """Lower bounds of launches in any schedule: ``serial_us`` alone, ``host_us`` to issue, both of shape ``[n]``, and
    ``work_us``, ``[n, resources]``, on each resource that exists once, at full utilisation. In a microsecond of its
    time alone a launch needs at most ``share`` of a microsecond of the resource.
    """

    serial_us: Floats
    host_us: Floats
    work_us: Floats
    share: Floats


class Limit(StrEnum):
    """Limiting factor of a stage."""

    ARITHMETIC = "arithmetic"
    CUDA_CORES = "CUDA cores"  #: arithmetic outside tensor cores, in a precision that they have
    POWER = "power"  #: arithmetic at the rate that the board's power sustains
    L2 = "L2"  #: between SMs and L2; on a processor, a core and its caches
    DRAM = "DRAM"
    UNFILLED = "unfilled SMs"  #: too few blocks for all SMs, or a partial last wave
    LATENCY = "latency"  #: of a block's steps, one after another: too few warps on its SM hide it
    START = "kernel start"  #: from a kernel's turn to its first work, and its filling and draining
    HOST = "host"  #: the kernel is not issued yet
    QUEUE = "queue"  #: earlier kernels occupy the slots of the SMs; on a processor, all cores
    SHARING = "sharing"  #: slowdown of concurrent kernels over running alone


@dataclass(frozen=True, slots=True)
class KernelFacts:
    """One kernel of a stage. Times are microseconds from the stage's start; ``alone_us`` is its time alone.

    ``waves`` is its blocks over the device's capacity, ``occupancy`` resident warps over their maximum.
    ``limits_us`` divides ``alone_us``.
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

    ``limits_us`` divides ``duration_us`` by limiting factor. ``chain_us`` is the longest group alone,
    ``host_us`` the host's time to issue all kernels. ``occupancy`` is the mean of active warps over the capacity
    of all SMs (on a processor: active cores); ``arithmetic`` and ``dram`` are fractions of the datasheet's peaks,
    counting only the network's own arithmetic, without overhead of kernels. ``sms`` is each group's number of reserved
    SMs, if any; ``multiprocessors`` is what the device's are called.
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
    multiprocessors: str = "SMs"

    @property
    def bound(self) -> Limit | None:
        """The main limiting factor; None for a stage without kernels."""
        return max(self.limits_us, key=lambda limit: self.limits_us[limit], default=None)


class VariantBounds(NamedTuple):
    """Bounds of a unit's variants, as if each were a separate unit, in the order of ``variants``.

    ``keys`` (uint64, shape ``[variants]``) are equal for variants with equal prices in every stage.
    """

    bounds: StageBounds
    keys: Masks


def least_of_variants(ways: Sequence[VariantBounds]) -> StageBounds:
    """Bounds that hold for any variants: for each unit the minimum over its variants, separately for each number."""
    own = [way.bounds for way in ways]
    work_us = np.stack([each.work_us.min(axis=0) for each in own])
    serial_us, single_us = (
        np.array([numbers.min() for numbers in column])
        for column in ([each.serial_us for each in own], [each.single_us for each in own])
    )
    issue_us = [each.issue_us.min() for each in own if each.issue_us is not None]
    return StageBounds(serial_us, single_us, work_us, np.array(issue_us) if len(issue_us) == len(own) else None)
