"""The contract between a search and the cost model that prices its stages.

A cost model never sees the search, and a search never sees the origin of the prices: a simulator, a measured device,
a table. Prices are microseconds as float64; ``inf`` means that the stage cannot run.

An engine with one stream per group synchronises between two stages unless both have a single group. So the price
of a stage excludes the boundary, a boundary is priced by one bit of each adjacent stage (*concurrent*: several
groups?), and the latency of a schedule is

        sum of stage prices + sum over adjacent pairs of price_boundary(left, right)

:class:`CostModel` is all that a search needs; :mod:`iossim.cost.capabilities` has further capabilities of some cost
models. Backends price whole plans (:class:`iossim.execution.backend.Backend`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from itertools import chain
from typing import Protocol, runtime_checkable

from iossim.base.compiled import Floats
from iossim.ir.network import Block, Network
from iossim.schedule.batch import StageBatch
from iossim.schedule.planned_stage import PlannedStage, batches_of
from iossim.schedule.problem import ScheduleProblem

Prices = Floats
#: Factor on lower bounds, so that rounding never lifts one above a price.
SAFE = 1.0 - 1e-9


@dataclass(frozen=True, slots=True)
class CostModelIdentity:
    """Everything that a price depends on besides the stage: the key under which prices may be stored."""

    name: str
    device: str = ""
    precision: str = ""
    engine: str = ""
    version: str = ""

    def to_json(self) -> dict[str, str]:
        return asdict(self)


@dataclass(frozen=True, eq=False)
class StageBounds:
    """Parameters of lower bounds on the prices of *concurrent* stages, for a search to avoid pricing them.

    For a stage of units ``U`` whose groups are its connected components, in the order of their lowest units:

    - ``price >= sum(work_us[u, r] for u in U)`` for every resource ``r``, which unit ``u`` alone occupies for
      ``work_us[u, r]``;
    - for a stage of a single group ``price >= sum(single_us[u] for u in U)``, with ``single_us >= serial_us``;
    - for every group ``price >= sum(issue_us[u] for u in groups before) + sum(serial_us[u] for u in group)``.

    ``serial_us``, ``single_us`` and ``issue_us`` have shape ``[n]``, ``work_us`` shape ``[n, resources]``; all are
    finite and not negative. Without ``issue_us`` issuing costs nothing. Stages are of units that run as fastest alone
    (:class:`~iossim.cost.facts.VariantBounds` are of others). Merged stages are not covered: a search that may merge
    prices the few merged stages first.
    """

    serial_us: Floats
    single_us: Floats
    work_us: Floats
    issue_us: Floats | None = None


@runtime_checkable
class CostModel(Protocol):
    """Prices stages in batches.

    A model may have a method ``price_keys`` that takes a problem and returns a text for each unit: stages of units with
    equal texts, in equal positions, have equal prices in all problems, so that equal blocks are solved once. Without it
    units are distinguished by name, and every block is solved separately.
    """

    @property
    def identity(self) -> CostModelIdentity: ...

    def price_stages(self, batch: StageBatch) -> Prices:
        """Microseconds of each stage, shape ``[len(batch)]``; a stage's price excludes its boundaries."""
        ...

    def price_boundary(self, left_concurrent: bool, right_concurrent: bool) -> float:
        """Microseconds between two adjacent stages; never negative."""
        ...

    def bounds(self, problem: ScheduleProblem) -> StageBounds | None:
        """Lower bounds for a problem's stages, or None if the model has none; the problem may be wide."""
        ...


def price_keys(cost_model: CostModel, problem: ScheduleProblem) -> Sequence[str]:
    """Key of each unit of a problem that determines its prices, equal for units with equal prices."""
    by_work = getattr(cost_model, "price_keys", None)
    if by_work is not None:
        return tuple(by_work(problem))
    return tuple(f"{work} {name}" for work, name in zip(problem.works, problem.unit_names, strict=True))


def problem_of(network: Network, block: Block, cost_model: CostModel) -> ScheduleProblem:
    """The problem of a block of a network, with units distinguished as far as the cost model's prices may differ."""
    problem = ScheduleProblem.of_block(network, block)
    return problem.priced_by(price_keys(cost_model, problem))


def problems_of(network: Network, cost_model: CostModel) -> list[ScheduleProblem]:
    """:func:`problem_of` each block that has units: a piece of a graph in a search of rewritings may have none."""
    return [problem_of(network, block, cost_model) for block in network.blocks if block.units]


@dataclass(eq=False)
class WrappedCostModel:
    """A cost model that prices as ``inner`` does; a subclass overrides its changes.

    Its prices may differ from those of ``inner``, so it passes on none of the capabilities of ``inner``. A subclass
    whose prices may be lower overrides ``bounds``.
    """

    inner: CostModel

    @property
    def identity(self) -> CostModelIdentity:
        return self.inner.identity

    def price_keys(self, problem: ScheduleProblem) -> Sequence[str]:
        return price_keys(self.inner, problem)

    def price_stages(self, batch: StageBatch) -> Prices:
        return self.inner.price_stages(batch)

    def price_boundary(self, left_concurrent: bool, right_concurrent: bool) -> float:
        return self.inner.price_boundary(left_concurrent, right_concurrent)

    def bounds(self, problem: ScheduleProblem) -> StageBounds | None:
        return self.inner.bounds(problem)


#: Replaces the previous stage's bit for the first stage of a network.
START = 2


@dataclass(frozen=True, slots=True)
class PricedPath:
    """The prices of consecutive stages and of the boundary before each, us; ``leaving`` is the last stage's bit."""

    prices_us: tuple[float, ...]
    boundaries_us: tuple[float, ...]
    leaving: int

    def cost_us(self, before_us: float = 0.0) -> float:
        """The sum in the order in which the stages run, starting from ``before_us``; inf if a stage cannot run."""
        return total_us(zip(self.boundaries_us, self.prices_us, strict=True), before_us)


def price_path(
    problem: ScheduleProblem, stages: Sequence[PlannedStage], cost_model: CostModel, entry: int = START
) -> PricedPath:
    """Price stages of one problem that run in this order.

    ``entry`` says whether the preceding stage runs several groups (0 or 1), or that there is none (:data:`START`).
    """
    prices = [price for batch in batches_of(problem, stages) for price in cost_model.price_stages(batch).tolist()]
    boundaries, leaving = [], entry
    for stage in stages:
        bit = stage.is_concurrent(problem)
        boundaries.append(0.0 if leaving == START else cost_model.price_boundary(bool(leaving), bit))
        leaving = int(bit)
    return PricedPath(tuple(prices), tuple(boundaries), leaving)


def total_us(pairs: Iterable[tuple[float, float]], before_us: float = 0.0) -> float:
    """The sum of boundaries and prices in a fixed order, so that it is identical everywhere."""
    total = before_us
    for part_us in chain.from_iterable(pairs):
        total += part_us
    return total
