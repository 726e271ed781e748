"""Costs of a graph: the sum of its operators, or its optimal schedule.

The searches over graphs (:mod:`iossim.transforms.rewriting.backtracking`) compare networks by one of these, at the
prices of any cost model. Graphs of one search differ in a few units, so that what is known of units and blocks is
kept: an object here belongs to one cost model, and prices each distinct unit, and solves each distinct block, once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf

from iossim.base.errors import ScheduleError
from iossim.cost.model import START, CostModel, price_path, problems_of
from iossim.ir.network import Block, Network
from iossim.schedule.batch import StageBatch, Strategy
from iossim.schedule.planned_stage import PlannedStage
from iossim.schedule.problem import MAX_UNITS, ScheduleProblem, bits
from iossim.search.assemble import block_lower_bound_us
from iossim.search.ios import solve
from iossim.search.lattice import no_merges, price_merges
from iossim.search.memo import SearchMemo
from iossim.search.options import SearchOptions
from iossim.search.solver import Solution
from iossim.transforms.choices import GraphCost

#: A schedule that took more prices to find than this is not found anew for each graph that differs by a step.
MANY = 3_000


@dataclass(eq=False)
class SumOfOperators(GraphCost):
    """The units one after another: what MetaFlow and TASO minimise, and what the ``sequential`` schedule takes."""

    cost_model: CostModel
    _known_us: dict[str, float] = field(default_factory=dict, repr=False)

    def us(self, network: Network) -> float:
        between_us = self.cost_model.price_boundary(False, False) * (len(network.units) - 1)
        return float(sum(self.of_units(network))) + between_us

    def of_units(self, network: Network) -> list[float]:
        """Microseconds of each unit as a stage of its own; units that the cost model prices alike are priced once."""
        keys = [key for problem in problems_of(network, self.cost_model) for key in problem.signatures]
        keys = [key for _, key in sorted(zip((u for b in network.blocks for u in b.units), keys, strict=True))]
        new = {key: unit for unit, key in enumerate(keys) if key not in self._known_us}
        ordered = sorted(new.values())
        for begin in range(0, len(ordered), MAX_UNITS):
            units = tuple(ordered[begin : begin + MAX_UNITS])
            problem = ScheduleProblem.of_block(network, Block("units", units))
            prices = self.cost_model.price_stages(StageBatch.alone(problem))
            self._known_us |= zip((keys[unit] for unit in units), prices.tolist(), strict=True)
        return [self._known_us[key] for key in keys]


@dataclass(eq=False)
class OptimalSchedule(GraphCost):
    """The network's schedule by IOS, of the stages of the options' space. Blocks are solved once for all networks.

    A schedule whose blocks were pruned or split, since they are too large to be solved as a whole, counts as it is.
    """

    cost_model: CostModel
    options: SearchOptions = field(default_factory=SearchOptions)
    #: Called regularly; raises to end a search that takes too long.
    check: Callable[[], None] = lambda: None
    _memo: SearchMemo = field(init=False, repr=False)
    #: The stages of networks that are solved, by hash of the graph.
    _known: dict[str, Transferred] = field(default_factory=dict, repr=False)
    _bounds: dict[tuple[str, bool], float] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        self._memo = SearchMemo(self.cost_model)

    def us(self, network: Network) -> float:
        try:
            problems = problems_of(network, self.cost_model)
            found = solve(
                problems, self.cost_model, self.options, progress=lambda done, total: self.check(), memo=self._memo
            )
        except ScheduleError:
            return inf  # a unit that the cost model has no price for
        if not found.complete:
            self.check()
            raise KeyboardInterrupt
        self._known[network.graph.hash] = Transferred.of(network, problems, found)
        return found.cost_us

    def near_us(self, network: Network, like: Network, most_us: float = inf) -> float:
        """Cost of the transferred stages of ``like``, if finding them took more than :data:`MANY` prices."""
        least_us, known = self.at_least_us(network), self._known.get(like.graph.hash)
        if least_us > most_us:
            return least_us
        if known is None or known.prices <= MANY:
            return self.us(network)
        space, total_us, leaving = self.options.space, 0.0, START
        for problem in problems_of(network, self.cost_model):
            stages = known.stages(problem, network)
            others = [each for each in stages if each.strategy is not Strategy.MERGE and each.mask.bit_count() > 1]
            if not all(space.concurrent and space.holds(problem, each.mask) for each in others):
                return self.us(network)
            path = price_path(problem, stages, self.cost_model, leaving)
            total_us, leaving = path.cost_us(total_us), path.leaving
        return total_us

    def at_least_us(self, network: Network) -> float:
        """The bounds of its blocks (critical path; least work over capacity); 0 where the cost model knows none."""
        return sum(
            self._block_at_least_us(problem, not index)
            for index, problem in enumerate(problems_of(network, self.cost_model))
        )

    def _block_at_least_us(self, problem: ScheduleProblem, first: bool) -> float:
        key = problem.key, first
        if key not in self._bounds:
            space, most = self.options.space, self.options.space.max_groups or len(problem)
            merges = price_merges(problem, self.cost_model, most) if space.merge else no_merges()
            found = block_lower_bound_us(problem, merges, self.cost_model, space.concurrent, first)
            self._bounds[key] = found or 0.0
        return self._bounds[key]


@dataclass(frozen=True, eq=False)
class Transferred:
    """The stages of a network's schedule, by the values that they make, to be transferred to a similar network.

    ``stage_of``: by value. ``merged`` are the values that merged stages make, by stage. ``prices``: the number of
    prices that it took to find them.
    """

    stage_of: Mapping[str, int]
    merged: Mapping[int, frozenset[str]]
    prices: int

    @staticmethod
    def of(network: Network, problems: Sequence[ScheduleProblem], found: Solution) -> Transferred:
        stage_of: dict[str, int] = {}
        merged: dict[int, frozenset[str]] = {}
        planned = [(problem, stage) for problem, plan in zip(problems, found.plans, strict=True) for stage in plan]
        for number, (problem, stage) in enumerate(planned, 1):
            made = [value for unit in bits(stage.mask) for value in network.units[problem.units[unit]].outputs]
            stage_of.update(dict.fromkeys(made, number))
            if stage.strategy is Strategy.MERGE:
                merged[number] = frozenset(made)
        return Transferred(stage_of, merged, found.priced_stages)

    def stages(self, problem: ScheduleProblem, network: Network) -> list[PlannedStage]:
        """Stages of a block of the other network: a unit runs in the stage that made its values, or, if these are new,
        with their first reader; never before what it reads.
        """
        outputs = [network.units[unit].outputs for unit in problem.units]
        wanted: list[int | None] = [
            max((self.stage_of[value] for value in own if value in self.stage_of), default=None) for own in outputs
        ]
        for unit in reversed(range(len(problem))):
            if wanted[unit] is None:
                after = (wanted[reader] for reader in bits(int(problem.successors[unit])))
                wanted[unit] = min((each for each in after if each is not None), default=None)
        members: dict[int, int] = {}
        number: list[int] = []
        for unit, own in enumerate(wanted):
            before = max((number[each] for each in bits(int(problem.predecessors[unit]))), default=0)
            number.append(max(before, own or 0))
            members[number[unit]] = members.get(number[unit], 0) | 1 << unit
        planned = []
        for stage, mask in sorted(members.items()):
            made = frozenset(value for unit in bits(mask) for value in outputs[unit])
            strategy = Strategy.MERGE if self.merged.get(stage) == made else Strategy.CONCURRENT
            planned.append(PlannedStage(mask, strategy))
        return planned
