"""Explanation of each stage of a schedule: what limits it, its alternatives, and what those would cost.

The limits of a stage come from the simulator (:mod:`iossim.backends.simulator.stage_facts`); its alternatives from
:mod:`iossim.tasks.alternatives`, at the prices by which the schedule is explained. ``unknown`` lists what cannot be
determined: prices that predict no device have no noise, and without prices there are no alternatives.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from math import fsum, isfinite

from iossim.base.display import Printed, counted
from iossim.base.errors import OptionError, Progress, ignore
from iossim.cost.capabilities import DeviceCostModel, MeasuredBy, MeasuringCostModel, VariantChoosing
from iossim.cost.facts import Limit, StageFacts
from iossim.cost.model import START, CostModel, problems_of
from iossim.ir.network import Network
from iossim.prediction.schedule_interval import ScheduleErrors, schedule_errors
from iossim.schedule.batch import Strategy
from iossim.schedule.schedule import BlockSchedule, SavedSchedule, Schedule, Stage
from iossim.search.assemble import price_blocks
from iossim.search.scheduler import within_workspace
from iossim.search.unsearched import sequential_stages
from iossim.tasks.alternatives import Alternatives, BlockContext, Plan, block_contexts, is_small, one_by_one, space_of

#: Blocks of up to this many transitions are solved anew for each of their stages when all stages are explained ...
FEW_TRANSITIONS = 60_000
#: ... and of up to this many once.
MANY_TRANSITIONS = 400_000
#: Costs that differ by a smaller part of a schedule are equal up to rounding.
_ROUNDING = 1e-9


@dataclass(frozen=True, slots=True)
class Choice:
    """Stages that could replace others.

    ``instead`` are the numbers of the schedule's stages that would be replaced, ``stages`` their replacements,
    ``more_us`` the added latency of the whole schedule. ``tie`` says whether that is within the noise, None where the
    noise is unknown.
    """

    way: str
    instead: tuple[int, ...]
    stages: tuple[Stage, ...]
    more_us: float
    tie: bool | None = None

    def to_json(self) -> dict[str, object]:
        return {
            "way": self.way,
            "instead_of_stages": list(self.instead),
            "stages": [{"strategy": stage.strategy, "groups": stage.groups} for stage in self.stages],
            "more_us": self.more_us,
            "tie": self.tie,
        }


@dataclass(frozen=True)
class StageExplanation:
    """One stage. ``share`` is its fraction of the schedule's latency, its boundary included.

    ``next_best`` is the cheapest schedule without the stage, ``own`` the cheapest in which its units run otherwise and
    all other stages are as they are; of a stage of one group, ``beside`` is the cheapest in which one of its units runs
    beside others. ``exact`` is False where the block has no prices, or was too wide to be solved for each of its
    stages: then ``next_best`` and ``beside`` are unknown.
    """

    number: int
    block: str
    stage: Stage
    share: float
    facts: StageFacts | None = None
    saves_us: float | None = None
    next_best: Choice | None = None
    own: Choice | None = None
    beside: Choice | None = None
    exact: bool = False

    @property
    def cost_us(self) -> float:
        return self.stage.latency_us + self.stage.boundary_us

    def to_json(self) -> dict[str, object]:
        stage = self.stage
        return {
            "stage": self.number,
            "block": self.block,
            **{name: getattr(stage, name) for name in ("strategy", "groups", "latency_us", "boundary_us")},
            "share": self.share,
            "saves_us": self.saves_us,
            "next_best": self.next_best and self.next_best.to_json(),
            "own_units_otherwise": self.own and self.own.to_json(),
            "beside": self.beside and self.beside.to_json(),
            "exact": self.exact,
            **({"variants": stage.variants} if stage.variants else {}),
            **({} if self.facts is None else _facts_json(self.facts)),
        }


@dataclass(frozen=True)
class Explanation(Printed):
    """A schedule, stage by stage. ``limits_us`` divides its latency, boundaries as ``synchronisation``.

    ``could_save_us`` is the saving of the cheapest stages of each block, one block at a time; None unless all blocks
    could be solved. ``sequential_us`` is that of the units one by one, with the joins that the model has.
    """

    schedule: Schedule
    stages: tuple[StageExplanation, ...]
    sequential_us: float | None
    limits_us: Mapping[str, float]
    could_save_us: float | None
    unknown: tuple[str, ...]

    def __repr__(self) -> str:
        return f"<Explanation of {counted(len(self.stages), 'stage')}: {self.schedule!r}>"

    @property
    def by_importance(self) -> list[StageExplanation]:
        return sorted(self.stages, key=lambda one: (-one.cost_us, one.number))

    def to_json(self) -> dict[str, object]:
        return {
            **schedule_facts(self.schedule),
            "sequential_us": self.sequential_us,
            "could_save_us": self.could_save_us,
            "limits_us": dict(self.limits_us),
            "unknown": list(self.unknown),
            "stages": [stage.to_json() for stage in self.stages],
        }


def explain(
    schedule: Schedule,
    network: Network,
    prices: CostModel | None,
    stages: Sequence[int] | None = None,
    progress: Progress = ignore,
) -> Explanation:
    """Explain a schedule that fits the network and was priced by ``prices``; None where those are unavailable.

    ``stages`` are the numbers of those to explain, in full: by default all, each in short. Raises OptionError for a
    nonexistent stage, and for a cost model that would have to measure.
    """
    count = len(schedule.stages)
    for number in stages or ():
        if not 0 <= number < count:
            raise OptionError(f"`stage` {number}: the schedule has stages 0 to {count - 1}; give one of them")
    if isinstance(prices, MeasuringCostModel) and prices.measured_by is MeasuredBy.DEVICE:
        reason = f"`cost_model` {prices.identity.name!r} would have to measure what a stage could have been"
        remedy = "give replay:STORE, which knows what was measured, or `device` for the simulator"
        raise OptionError(f"{reason}; {remedy}")
    name = schedule.cost_model["name"] if prices is None else prices.identity.name
    unknown = [] if isinstance(prices, DeviceCostModel) else [f"what limits a stage, which prices by {name!r} lack"]
    if prices is None:
        unknown.append(f"what alternatives would cost, since cost model {name!r} is not given")
        told = [
            StageExplanation(number, block, stage, _share(stage, schedule))
            for number, (block, stage) in enumerate(schedule.named_stages)
            if stages is None or number in stages
        ]
        return Explanation(schedule, tuple(told), None, {}, None, tuple(unknown))
    return _Explainer(schedule, network, prices, stages is not None).explain(stages, unknown, progress)


def _share(stage: Stage, schedule: Schedule) -> float:
    return (stage.latency_us + stage.boundary_us) / schedule.latency_us if schedule.latency_us else 0.0


class _Explainer:
    def __init__(self, schedule: Schedule, network: Network, prices: CostModel, in_full: bool) -> None:
        self.schedule, self.network, self.in_full = schedule, network, in_full
        self.unlimited = self.prices = prices
        with suppress(OptionError):  # alternatives are under the limit of the search, where these prices can keep it
            self.prices = within_workspace(prices, network, schedule.options.get("workspace_limit_bytes"))
        self.space = space_of(schedule)
        self.ask = Alternatives(self.prices, self.space)
        self.errors: ScheduleErrors | None = schedule_errors(network, prices)

    def explain(self, stages: Sequence[int] | None, unknown: Sequence[str], progress: Progress) -> Explanation:
        contexts = block_contexts(self.schedule, self.network, self.prices)
        told: list[StageExplanation] = []
        saved: list[float | None] = []
        first = 0
        for done, (context, block) in enumerate(zip(contexts, self.schedule.blocks, strict=True), 1):
            numbers = range(first, first + len(block.stages))
            chosen = [number for number in numbers if stages is None or number in stages]
            exact = bool(chosen) and (self.in_full or is_small(context.problem, self.space, FEW_TRANSITIONS))
            told += [self._stage(context, block, number, first, exact) for number in chosen]
            if stages is None:
                once = exact or is_small(context.problem, self.space, MANY_TRANSITIONS)
                saved.append(self._saved_us(context) if once else None)
            first += len(block.stages)
            progress(done, len(contexts))
        sequential_us = _sequential_us(self.network.given or self.network, self.prices)
        limits = self._limits(told) if stages is None else {}
        known = [us for us in saved if us is not None]
        could_save_us = fsum(known) if stages is None and len(known) == len(saved) else None
        return Explanation(self.schedule, tuple(told), sequential_us, limits, could_save_us, tuple(unknown))

    def _stage(
        self, context: BlockContext, block: BlockSchedule, number: int, first: int, exact: bool
    ) -> StageExplanation:
        index = number - first
        stage = block.stages[index]

        def choice(way: str, plan: Plan | None) -> Choice | None:
            return self._choice(way, context, block, plan, first)

        alone = choice("sequential", one_by_one(context, index))
        next_best = beside = None
        if exact:
            next_best = choice("second best", self.ask.next_best(context, index))
            if len(stage.groups) == 1 and stage.strategy is Strategy.CONCURRENT and self.space.concurrent:
                beside = choice("concurrent with others", self.ask.next_best_beside(context, index))
        return StageExplanation(
            number,
            block.name,
            stage,
            _share(stage, self.schedule),
            self.unlimited.stage_facts(self.network, stage) if isinstance(self.unlimited, DeviceCostModel) else None,
            alone.more_us if alone else 0.0 if len(stage.units) == 1 else None,
            next_best,
            choice("same units rearranged", self.ask.split(context, index)),
            beside,
            exact,
        )

    def _choice(
        self, way: str, context: BlockContext, block: BlockSchedule, plan: Plan | None, first: int
    ) -> Choice | None:
        """A plan of the block as what it changes; None for the plan itself, and for one without a price."""
        plan = plan or context.plan
        if isinstance(self.prices, VariantChoosing):
            plan = tuple(self.prices.chosen(context.problem, stage) for stage in plan)
        was, now = set(context.plan), set(plan)
        if was == now:
            return None
        planned_us = context.cost_us(plan, self.prices)
        if not isfinite(planned_us):
            return None
        more_us = planned_us - context.cost_us(context.plan, self.prices)
        if abs(more_us) <= _ROUNDING * self.schedule.latency_us:
            more_us = 0.0
        instead = tuple(first + index for index, stage in enumerate(context.plan) if stage not in now)
        stages = tuple(stage.named(context.problem) for stage in plan if stage not in was)
        if self.errors is None:
            return Choice(way, instead, stages, more_us)
        # A tie requires that the changed stages alone differ by less than the noise.
        gone = [block.stages[number - first] for number in instead]
        come = [stage for stage in self._priced(context, plan) if _key(stage) in {_key(one) for one in stages}]
        # Changes of the boundaries of unchanged stages are attributed to the changed ones.
        left_us = cost_us(gone) + more_us - cost_us(come)
        side = come if left_us > 0 else gone
        side[-1] = side[-1].model_copy(update={"boundary_us": side[-1].boundary_us + abs(left_us)})
        tie = self.errors.is_tie(_only(self.schedule, gone), _only(self.schedule, come))
        return Choice(way, instead, stages, more_us, tie)

    def _priced(self, context: BlockContext, plan: Plan) -> list[Stage]:
        """Stages of a plan with their prices and the boundaries before them."""
        (priced,) = price_blocks([context.problem], [plan], self.prices)
        if context.entry == START:
            return priced.stages
        head = priced.stages[0]
        boundary_us = self.prices.price_boundary(bool(context.entry), head.concurrent)
        return [head.model_copy(update={"boundary_us": boundary_us}), *priced.stages[1:]]

    def _saved_us(self, context: BlockContext) -> float | None:
        if (best := self.ask.best(context)) is None:
            return None
        saved_us = context.cost_us(context.plan, self.prices) - context.cost_us(best, self.prices)
        return saved_us if saved_us > _ROUNDING * self.schedule.latency_us else 0.0

    def _limits(self, told: Sequence[StageExplanation]) -> dict[str, float]:
        """Limits of the whole schedule; empty where the simulator reports none."""
        if any(one.facts is None for one in told):
            return {}
        limits = {str(limit): fsum(one.facts.limits_us.get(limit, 0.0) for one in told if one.facts) for limit in Limit}
        limits["synchronisation"] = fsum(one.stage.boundary_us for one in told)
        return {name: us for name, us in limits.items() if us > 0}


def _key(stage: Stage) -> tuple[str, frozenset[str]]:
    return stage.strategy, frozenset(stage.units)


def _only(schedule: Schedule, stages: Sequence[Stage]) -> Schedule:
    """Some stages of a schedule as a schedule of their own."""
    block = BlockSchedule(name="stages", stages=list(stages))
    return schedule.model_copy(update={"blocks": [block], "latency_us": cost_us(stages)})


def schedule_facts(found: SavedSchedule) -> dict[str, object]:
    """Facts of a schedule as JSON values: its network, scheduler and prices, and its latency."""
    own = ("engine", "cost_model", "scheduler", "latency_us")
    return {
        "network": found.network,
        "device": found.device,
        "batch": found.source.batch,
        "dtype": found.precision,
        **{name: getattr(found, name) for name in own},
    }


def cost_us(stages: Sequence[Stage]) -> float:
    """Total time of stages, their boundaries included."""
    return fsum(stage.latency_us + stage.boundary_us for stage in stages)


def _sequential_us(network: Network, prices: CostModel) -> float | None:
    """Sum of all units one by one; None if one of them has no price."""
    total_us = 0.0
    for position, problem in enumerate(problems_of(network, prices)):
        alone = BlockContext(problem, (), START if position == 0 else 0, (0.0, 0.0))
        total_us += alone.cost_us(sequential_stages(problem), prices)
    return total_us if isfinite(total_us) else None


def _facts_json(facts: StageFacts) -> dict[str, object]:
    return {
        "bound": facts.bound,
        "limits_us": facts.limits_us,
        "longest_group_us": facts.chain_us,
        **({"sms": list(facts.sms)} if facts.sms else {}),
        "host_us": facts.host_us,
        "occupancy": facts.occupancy,
        "arithmetic_of_peak": facts.arithmetic,
        "dram_of_peak": facts.dram,
        "kernels": [asdict(kernel) for kernel in facts.kernels],
    }
