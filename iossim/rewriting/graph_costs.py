"""What a graph costs: its operators one by one, its critical path, or its optimal schedule.

The searches over graphs (:mod:`iossim.rewriting.backtracking`) compare networks by one of these, at the prices of any cost
model. Graphs of one search differ in a few units, so that what is known of units and blocks is kept: an object here belongs to one cost
model, and prices each distinct unit, and solves each distinct block, once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Protocol

import numpy as np

from iossim.cost.model import CostModel
from iossim.errors import ScheduleError
from iossim.ir.network import Block, Network
from iossim.schedule.batch import StageBatch
from iossim.schedule.problem import MAX_UNITS, ScheduleProblem
from iossim.scheduling.assemble import block_lower_bound_us
from iossim.scheduling.ios import solve
from iossim.scheduling.memo import SearchMemo
from iossim.scheduling.merges import no_merges, price_merges
from iossim.scheduling.options import SearchOptions


class GraphCost(Protocol):
    """Microseconds of a network; ``inf`` for one that cannot run."""

    def us(self, network: Network) -> float: ...

    def at_least_us(self, network: Network) -> float:
        """Never more than :meth:`us`, and cheaper to tell where that is dear."""
        ...


@dataclass(eq=False)
class UnitPrices:
    """What each unit takes as a stage of its own; units of equal signatures are priced once."""

    cost_model: CostModel
    _known_us: dict[str, float] = field(default_factory=dict, repr=False)

    def of(self, network: Network) -> list[float]:
        """Microseconds of each unit of the network. All new ones are asked for together."""
        new = {
            signature: unit for unit, signature in enumerate(network.signatures) if signature not in self._known_us
        }
        for units in _runs(sorted(new.values()), MAX_UNITS):
            problem = ScheduleProblem.of_block(network, Block("units", units))
            alone = np.left_shift(np.uint64(1), np.arange(len(units), dtype=np.uint64))
            prices = self.cost_model.price_stages(StageBatch.concurrent(problem, alone))
            self._known_us |= zip(problem.signatures, prices.tolist(), strict=True)
        return [self._known_us[signature] for signature in network.signatures]


@dataclass(eq=False)
class SumOfOperators:
    """The units one after another: what MetaFlow and TASO minimise, and what the ``sequential`` schedule takes."""

    cost_model: CostModel
    units: UnitPrices = field(init=False)

    def __post_init__(self) -> None:
        self.units = UnitPrices(self.cost_model)

    def us(self, network: Network) -> float:
        between_us = self.cost_model.price_boundary(False, False) * (len(network.units) - 1)
        return float(sum(self.units.of(network))) + between_us

    def at_least_us(self, network: Network) -> float:
        return self.us(network)


@dataclass(eq=False)
class CriticalPath:
    """The longest way through the units: what a device would take that runs anything beside anything for nothing."""

    cost_model: CostModel
    units: UnitPrices = field(init=False)

    def __post_init__(self) -> None:
        self.units = UnitPrices(self.cost_model)

    def us(self, network: Network) -> float:
        done_us: list[float] = []
        for before, unit_us in zip(network.predecessors, self.units.of(network), strict=True):
            done_us.append(max((done_us[unit] for unit in before), default=0.0) + unit_us)
        return max(done_us)

    def at_least_us(self, network: Network) -> float:
        return self.us(network)


@dataclass(eq=False)
class OptimalSchedule:
    """The network's schedule by IOS, by default ``ios-both``. Blocks that were in an earlier network are not solved again.

    A schedule whose blocks were pruned or split, since they are too large to be solved as a whole, counts as it is.
    """

    cost_model: CostModel
    options: SearchOptions = field(default_factory=SearchOptions)
    concurrent: bool = True
    merge: bool = True
    _memo: SearchMemo = field(init=False, repr=False)
    _bounds: dict[tuple[str, bool], float] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        self._memo = SearchMemo(self.cost_model)

    def us(self, network: Network) -> float:
        try:
            found = solve(
                _problems(network),
                self.cost_model,
                self.options,
                concurrent=self.concurrent,
                merge=self.merge,
                memo=self._memo,
            )
        except ScheduleError:
            return inf  # a unit that the cost model has no price for
        if not found.complete:
            raise KeyboardInterrupt
        return found.cost_us

    def at_least_us(self, network: Network) -> float:
        """The bounds of its blocks (critical path; least work over capacity); 0 where the cost model knows none."""
        return sum(
            self._block_at_least_us(problem, first=not index) for index, problem in enumerate(_problems(network))
        )

    def _block_at_least_us(self, problem: ScheduleProblem, first: bool) -> float:
        key = problem.key, first
        if key not in self._bounds:
            most = self.options.space.max_groups or len(problem)
            merges = price_merges(problem, self.cost_model, most) if self.merge else no_merges()
            found = block_lower_bound_us(problem, merges, self.cost_model, self.concurrent, first)
            self._bounds[key] = found or 0.0
        return self._bounds[key]


def _problems(network: Network) -> list[ScheduleProblem]:
    return [ScheduleProblem.of_block(network, block) for block in network.blocks]


def _runs(units: Sequence[int], most: int) -> Iterator[tuple[int, ...]]:
    for begin in range(0, len(units), most):
        yield tuple(units[begin : begin + most])
