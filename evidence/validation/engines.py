"""The analytic stage prices against the event-driven simulator's, and the effect of a wrong price on a search.

The simulators agree if their prices are near each other, and if each rates the other's best schedule nearly as good as
its own. The second needs every stage's price by the event-driven engine, so it is left out where stages are sampled.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import numpy as np
from numpy.typing import NDArray

from iossim.backends.simulator.cost_model import SimulatorCostModel
from iossim.backends.simulator.events.program import KernelLibrary
from iossim.backends.simulator.events.run import stage_us
from iossim.base.compiled import Floats
from iossim.base.errors import Progress, ignore
from iossim.cost.model import CostModelIdentity, Prices, StageBounds
from iossim.execution.engine import Engine
from iossim.hardware.profile import DeviceProfile
from iossim.ir.network import Network
from iossim.schedule.batch import StageBatch, Strategy
from iossim.schedule.problem import ScheduleProblem
from iossim.search.assemble import reprice
from iossim.search.counting import distinct_stages
from iossim.search.options import SearchOptions, StageSpace
from iossim.search.scheduler import schedule

#: Devices and network that are compared by default.
DEVICES = ("v100-sxm2", "a100-sxm-40gb", "t4")
NETWORK = "inception_v3"
SPACE = StageSpace("general", 3, 8)
_SCHEDULER = "ios-parallel"


@dataclass(frozen=True, eq=False)
class EngineAgreement:
    """Stages priced by both engines, one entry per stage, in us; ``total`` is the number of distinct stages.

    The last two are the relative excess of each engine's best schedule over the other's, at the other's prices; None
    where not all stages were priced.
    """

    network: str
    device: str
    total: int
    groups: NDArray[np.int64]
    analytic_us: Floats
    events_us: Floats
    analytic_optimum_by_events: float | None = None
    events_optimum_by_analytic: float | None = None
    #: Engine under which both run a schedule.
    engine: Engine = Engine.PAPER

    @property
    def difference(self) -> Floats:
        """Event-driven over analytic, less 1; 0 of a stage that launches nothing."""
        ratio = np.ones_like(self.analytic_us)
        return np.divide(self.events_us, self.analytic_us, out=ratio, where=self.analytic_us > 0) - 1.0

    @property
    def median(self) -> float:
        return float(np.median(np.abs(self.difference)))

    @property
    def percentile_95(self) -> float:
        return float(np.quantile(np.abs(self.difference), 0.95))

    @property
    def bias(self) -> float:
        return float(np.median(self.difference))

    def to_json(self) -> dict[str, Any]:
        several = self.groups > 1
        return {
            "network": self.network,
            "device": self.device,
            "engine": str(self.engine),
            "stages": self.total,
            "priced": len(self.groups),
            "median_difference": self.median,
            "percentile_95_difference": self.percentile_95,
            "median_signed_difference": self.bias,
            "median_difference_of_concurrent_stages": (
                float(np.median(np.abs(self.difference[several]))) if several.any() else None
            ),
            "analytic_optimum_by_events": self.analytic_optimum_by_events,
            "events_optimum_by_analytic": self.events_optimum_by_analytic,
        }


@dataclass
class EventDrivenStages:
    """A cost model whose stages are simulated block by block, each once; boundaries are the analytic simulator's."""

    network: Network
    analytic: SimulatorCostModel
    told: Callable[[], None] = lambda: None
    _prices: dict[tuple[str, int], float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._library = KernelLibrary(self.analytic.profile, self.analytic.engine, self.analytic.in_place)

    @property
    def identity(self) -> CostModelIdentity:
        own = self.analytic.identity
        return CostModelIdentity("events", own.device, own.precision, own.engine, own.version)

    def price_stages(self, batch: StageBatch) -> Prices:
        """Microseconds of each concurrent stage, shape ``[len(batch)]``; merged ones are not priced: inf."""
        return np.array(
            [
                self._price(batch.problem, mask) if strategy is Strategy.CONCURRENT else np.inf
                for mask, strategy in batch.stages()
            ]
        )

    def _price(self, problem: ScheduleProblem, mask: int) -> float:
        key = (problem.key, mask)
        if key not in self._prices:
            self._prices[key] = stage_us(problem, mask, self.network, self._library)
            self.told()
        return self._prices[key]

    def price_boundary(self, left_concurrent: bool, right_concurrent: bool) -> float:
        return self.analytic.price_boundary(left_concurrent, right_concurrent)

    def bounds(self, problem: ScheduleProblem) -> StageBounds | None:
        return None


def compare_prices(
    network: Network,
    profile: DeviceProfile,
    sample: int | None = None,
    seed: int = 0,
    progress: Progress = ignore,
    engine: str = Engine.PAPER,
) -> EngineAgreement:
    """Price the distinct stages of a network's blocks by both simulators, as ``engine`` runs them.

    With ``sample``, that many of them, drawn with ``seed``; without, all, and the best schedules of each by the other.
    ``progress`` is called with finished and total stages.
    """
    analytic = SimulatorCostModel(profile, network.precision, Engine.named(engine))
    blocks = (ScheduleProblem.of_block(network, block) for block in network.blocks)
    problems = {problem.key: problem for problem in blocks}.values()
    masks = [distinct_stages(problem, SPACE) for problem in problems]
    total = priced = sum(map(len, masks))
    if sample is not None and sample < total:
        priced = sample
        chosen = np.zeros(total, dtype=np.bool_)
        chosen[np.random.default_rng(seed).choice(total, sample, replace=False)] = True
        parts = np.split(chosen, np.cumsum([len(own) for own in masks])[:-1])
        masks = [own[part] for own, part in zip(masks, parts, strict=True)]
    done = count(1)
    events = EventDrivenStages(network, analytic, lambda: progress(min(next(done), priced), priced))
    batches = [StageBatch.concurrent(*each) for each in zip(problems, masks, strict=True) if len(each[1])]
    events_us, analytic_us = (
        np.concatenate([model.price_stages(batch) for batch in batches]) for model in (events, analytic)
    )
    groups = [len(batch.problem.groups(mask)) for batch in batches for mask, _ in batch.stages()]
    optima = _optima(network, analytic, events) if priced == total else (None, None)
    return EngineAgreement(
        network.name,
        profile.name,
        total,
        np.array(groups, dtype=np.int64),
        analytic_us,
        events_us,
        optima[0],
        optima[1],
        analytic.engine,
    )


def _optima(network: Network, analytic: SimulatorCostModel, events: EventDrivenStages) -> tuple[float, float]:
    """Relative excess of each engine's best schedule over the other's, at the other's prices."""
    options = SearchOptions(SPACE)
    best_analytic = schedule(network, analytic, _SCHEDULER, options)
    best_events = schedule(network, events, _SCHEDULER, options)
    return (
        reprice(best_analytic, network, events).latency_us / best_events.latency_us - 1.0,
        reprice(best_events, network, analytic).latency_us / best_analytic.latency_us - 1.0,
    )
