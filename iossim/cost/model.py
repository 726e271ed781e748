"""The contract between a search and what prices its stages.

A cost model never sees the search, and a search never sees what is behind the prices: a simulator, a measured
device, a table. Prices are microseconds as float64; ``inf`` means that the stage cannot run.

What stands between two stages depends on both of them: an engine that gives each group a stream synchronises
between two stages unless both have a single group. So the price of a stage leaves the boundary out, a boundary is
priced from one bit of each neighbour (*concurrent*: does it run several groups?), and the latency of a schedule is

    sum of stage prices + sum over neighbours of price_boundary(left, right)

:class:`CostModel` is all that a search needs. What some cost models know besides has a small protocol each, which is asked
for by ``isinstance``. Whole plans are priced by what runs them (:class:`iossim.execution.backend.Backend`).
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from iossim.schedule.batch import StageBatch
from iossim.schedule.problem import ScheduleProblem

if TYPE_CHECKING:
    from iossim.cost.stage_facts import StageFacts
    from iossim.execution.engine import Engine
    from iossim.execution.timeline import Span
    from iossim.hardware.lowering.kernel import Candidate
    from iossim.hardware.profile import DeviceProfile
    from iossim.ir.network import Network
    from iossim.schedule.planned_stage import PlannedStage
    from iossim.schedule.schedule import Schedule, Stage

Prices = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class CostModelIdentity:
    """What a price depends on besides the stage: the key under which prices may be kept."""

    name: str
    device: str = ""
    precision: str = ""
    engine: str = ""
    version: str = ""

    def to_json(self) -> dict[str, str]:
        return asdict(self)


@dataclass(frozen=True, eq=False)
class StageBounds:
    """Numbers from which a search bounds the prices of stages from below, without asking for them.

    For every *concurrent* stage of the problem, with ``U`` its units and groups its connected components, in the order of
    their lowest units:

    - ``price >= sum(work_us[u, r] for u in U)`` for every resource ``r``, since no resource serves faster than it can
      (``work_us[u, r]``: microseconds for which unit ``u`` alone would fill resource ``r``);
    - for a stage of a single group ``price >= sum(single_us[u] for u in U)``, with ``single_us >= serial_us``;
    - for every group ``price >= sum(issue_us[u] for u in groups before) + sum(serial_us[u] for u in group)``, since the host
      issues group after group, and a group runs one unit after another;
    - for a stage of two to ``late.most_groups[r]`` groups ``price >= sum(late.work_us[u, r] for u in U) + idle_us`` for every
      resource ``r`` of ``late``, which is idle until it is asked for (:class:`LateWork`).

    ``serial_us``, ``single_us`` and ``issue_us`` have shape ``[n]``, ``work_us`` shape ``[n, resources]``; all are finite and
    not negative. Without ``issue_us`` the host issues for nothing, without ``late`` no work is. Merged stages are not covered: a search that may merge
    prices the few merged stages first.
    """

    serial_us: NDArray[np.float64]
    single_us: NDArray[np.float64]
    work_us: NDArray[np.float64]
    issue_us: NDArray[np.float64] | None = None
    late: LateWork | None = None


@dataclass(frozen=True, eq=False)
class LateWork:
    """Work that a resource cannot have begun with when a stage begins.

    ``lead_us[u]``: for so long after the host begins to issue a group whose lowest unit is ``u``, the group asks for none of these
    resources. Each group asks for at most the largest ``share[u, r]`` of its units at any time. So a resource is idle for

        first_us + (1 - share of the first group) * (second_us - first_us),

    with ``first_us`` the least of what is issued before a group and its lead, over all groups, and ``second_us`` the same over
    all but the first. ``lead_us`` has shape ``[n]``, ``share`` (at most 1) and ``work_us`` shape ``[n, resources]``, ``most_groups``
    (int64) shape ``[resources]``.
    """

    lead_us: NDArray[np.float64]
    share: NDArray[np.float64]
    work_us: NDArray[np.float64]
    most_groups: NDArray[np.int64]


class CostModel(Protocol):
    """Prices stages in batches."""

    @property
    def identity(self) -> CostModelIdentity: ...

    def price_stages(self, batch: StageBatch) -> Prices:
        """Microseconds of each stage, shape ``[len(batch)]``; a stage's price leaves its boundaries out."""
        ...

    def price_boundary(self, left_concurrent: bool, right_concurrent: bool) -> float:
        """Microseconds between two neighbouring stages; never negative."""
        ...

    def bounds(self, problem: ScheduleProblem) -> StageBounds | None:
        """Lower bounds for a problem's stages, or None where the model knows none."""
        ...


class MeasuredBy(StrEnum):
    """Where the prices of a cost model that measures come from."""

    DEVICE = "device"  #: each may take a run of the stage
    STORE = "store"  #: they were measured, and what was not has none
    STAND_IN = "stand-in"  #: computed, and asked for as if they were measured


#: The signature of a stage that launches nothing: it takes no time.
FREE = "free"
#: The signature of units that do not merge: they cannot run as one.
IMPOSSIBLE = "impossible"


@runtime_checkable
class MeasuringCostModel(CostModel, Protocol):
    """A cost model to which each distinct stage is an expense: it measures them."""

    @property
    def measured_by(self) -> MeasuredBy: ...

    def signatures(self, batch: StageBatch) -> list[Hashable]:
        """For each stage what its price depends on: stages of equal signature share one measurement.

        :data:`FREE` and :data:`IMPOSSIBLE` are known without one.
        """
        ...


# What a cost model may know besides. A wrapper has other prices than what it wraps, so it passes none of this on.


@runtime_checkable
class ProvidesTimeline(Protocol):
    """Knows when each kernel of a schedule runs."""

    def timeline(self, network: Network, schedule: Schedule) -> tuple[Span, ...]:
        """In us from the schedule's start; the last end is its latency, boundaries included."""
        ...


class Way(NamedTuple):
    """A variant of a unit: what it takes alone, and the memory that its kernels need besides their tensors while they run."""

    variant: str
    alone_us: float
    workspace_bytes: int


@runtime_checkable
class KnowsWorkspaces(CostModel, Protocol):
    """Knows what else units can run as, and the workspace of each."""

    def ways(self, problem: ScheduleProblem) -> tuple[tuple[Way, ...], ...]:
        """For each unit its variants, :data:`~iossim.schedule.batch.FASTEST` first."""
        ...

    def merged_workspace_bytes(self, problem: ScheduleProblem, mask: int) -> int:
        """What the units need as one stacked convolution; none where they do not merge."""
        ...

    def bounds(self, problem: ScheduleProblem, *, of_any_variant: bool = False) -> StageBounds | None:
        """Bounds that hold of stages whose units run as the fastest variants, or, ``of_any_variant``, as any."""
        ...


@runtime_checkable
class ChoosesVariants(Protocol):
    """Prices a stage as what its units had best run as, where the stage leaves that open."""

    @property
    def inner(self) -> CostModel:
        """What prices the stages that say it, and has the same price for what was chosen."""
        ...

    def chosen(self, problem: ScheduleProblem, stage: PlannedStage) -> PlannedStage:
        """The stage with the variants that its price is of."""
        ...


@runtime_checkable
class PredictsDevice(Protocol):
    """Computes its prices from a device's profile, whose provenance says how far they may be off: bands and resamples."""

    @property
    def profile(self) -> DeviceProfile: ...


@runtime_checkable
class ChangesSetting(Protocol):
    """Can be had of another profile, or under another engine."""

    @property
    def engine(self) -> Engine: ...

    def at(self, profile: DeviceProfile | None = None, engine: Engine | None = None) -> CostModel:
        """The same model with these instead of its own, where they are given."""
        ...


@runtime_checkable
class ChangesConcurrency(ChangesSetting, Protocol):
    """Prices stages a little off, to tell how a latency follows from the parameters of concurrency."""

    def price_changed(self, batch: StageBatch, interference: float, launches: float) -> Prices:
        """Prices in us, ``[len(batch)]``, if kernels interfere so much and each launch takes ``launches`` times as long."""
        ...


@runtime_checkable
class PricesCandidates(PredictsDevice, Protocol):
    """Knows what each kernel candidate takes alone, not of the fastest only."""

    def price_candidates(self, candidates: Sequence[Candidate]) -> Prices:
        """Microseconds of each as a stage of its own, ``[len(candidates)]``; inf of one that the device or its libraries have not."""
        ...


@runtime_checkable
class ExplainsStages(Protocol):
    """Knows what holds a stage up."""

    def stage_facts(self, network: Network, stage: Stage) -> StageFacts:
        """Of a stage of a schedule; raises ScheduleError if its units are to merge and do not."""
        ...


@dataclass(eq=False)
class WrappedCostModel:
    """The contract as ``inner`` meets it; a wrapper says what is otherwise."""

    inner: CostModel

    @property
    def identity(self) -> CostModelIdentity:
        return self.inner.identity

    def price_stages(self, batch: StageBatch) -> Prices:
        return self.inner.price_stages(batch)

    def price_boundary(self, left_concurrent: bool, right_concurrent: bool) -> float:
        return self.inner.price_boundary(left_concurrent, right_concurrent)

    def bounds(self, problem: ScheduleProblem) -> StageBounds | None:
        return self.inner.bounds(problem)
