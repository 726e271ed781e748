"""Capabilities of some cost models besides pricing stages: contracts that are each checked by ``isinstance``.

A wrapper (:class:`iossim.cost.model.WrappedCostModel`) has none of them unless it defines them itself.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from iossim.base.errors import OptionError
from iossim.cost.model import CostModel, CostModelIdentity, Prices, StageBounds, WrappedCostModel
from iossim.schedule.batch import StageBatch, UnitVariant
from iossim.schedule.planned_stage import PlannedStage
from iossim.schedule.problem import ScheduleProblem

if TYPE_CHECKING:
    from iossim.cost.facts import LaunchWork, StageFacts, StreamPrices, VariantBounds
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


@dataclass(eq=False)
class VariantChoosing(WrappedCostModel):
    """A wrapper that chooses the variants itself for a stage that names none."""

    inner: VariantCostModel

    def bounds(self, problem: ScheduleProblem) -> StageBounds:
        """Bounds of stages whose units run as any variant."""
        from iossim.cost.facts import least_of_variants

        return least_of_variants(self.inner.bounds_of_variants(problem))

    def chosen(self, problem: ScheduleProblem, stage: PlannedStage) -> PlannedStage:
        """The stage with the variants in its price."""
        raise NotImplementedError


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
