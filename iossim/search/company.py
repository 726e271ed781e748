"""Schedules whose kernels are chosen for the stage that they run in (:mod:`iossim.cost.company`).

Two schedules are compared: the stages found at prices of the fastest kernels, and those found at prices of kernels
chosen for them. A choice is kept if its stage is no slower event by event either: it was made at prices of the fluid
model, and the best of hundreds by a model is also the one with the most favourable error. If neither schedule is then
faster in both models, the first is returned unchanged.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from iossim.cost.capabilities import StreamCostModel
from iossim.cost.model import CostModel, problems_of
from iossim.execution.engine import Engine
from iossim.ir.network import Network
from iossim.schedule.planned_stage import PlannedStage, planned
from iossim.schedule.problem import ScheduleProblem, bits
from iossim.schedule.schedule import Schedule
from iossim.search.anytime import Clock, Steps
from iossim.search.assemble import price_blocks, reprice, total_latency_us
from iossim.search.options import SearchOptions

#: Maximum number of kernels that a note names.
MOST_NAMED = 4


def with_company(
    network: Network,
    cost_model: CostModel,
    options: SearchOptions,
    search: Callable[[CostModel, SearchOptions], Schedule],
) -> Schedule:
    """The schedule that is found at prices of the fastest kernels, or a better one whose kernels are chosen for their
    stage.

    ``search`` finds one at given prices; both searches and the event-driven runs share the seconds of the options.
    For chosen kernels only the bounds over all variants are proven. Raises OptionError for a cost model that knows no
    variants.
    """
    from iossim.cost.company import chosen_for_company  # loaded on request only

    steps = Steps(Clock(options.seconds))
    chosen = chosen_for_company(cost_model)
    found = search(cost_model, replace(options, seconds=steps.clock.part_s(1 / 3)))
    first = steps.take(None, lambda: found.model_copy(update={"blocks": reprice(found, network, chosen).blocks}))
    offers = [] if first is None else [first]
    bound_us, search_s = None, found.search_s
    if found.complete and not steps.ended:
        searched = search(chosen, replace(options, seconds=steps.clock.part_s(1 / 2)))
        offers.append(searched)
        bound_us, search_s = searched.relaxed_bound_us, search_s + searched.search_s
    seen = None
    if isinstance(cost_model, StreamCostModel) and cost_model.identity.engine != Engine.PARTITION:
        seen = _EventByEvent(network, cost_model, steps.clock.check)
    problems = problems_of(network, cost_model)

    def with_kept_choices(offer: Schedule) -> Schedule:
        plans = [
            [seen.kept(problem, stage) if seen else stage for stage in planned(problem, block)]
            for problem, block in zip(problems, offer.blocks, strict=True)
        ]
        blocks = price_blocks(problems, plans, cost_model)
        return offer.model_copy(update={"blocks": blocks, "latency_us": total_latency_us(blocks)})

    def seen_us(schedule: Schedule) -> float:
        return seen.schedule_us(schedule) if seen else 0.0

    best, best_seen_us = found, steps.take(None, seen_us, found)
    judged = best_seen_us is not None
    for offer in offers:
        if best_seen_us is None:
            break
        better = steps.take(None, with_kept_choices, offer)
        if better is not None and better.complete and better.latency_us < best.latency_us:
            better_us = steps.take(None, seen_us, better)
            if better_us is None:
                judged = False
            elif better_us <= best_seen_us:
                best, best_seen_us = better, better_us
        judged &= better is not None
    said = {
        "options": {**best.options, "company": True},
        "lower_bound_us": bound_us,
        "relaxed_bound_us": bound_us,
        "proven": False,
        "complete": not steps.interrupted and all(each.complete for each in (found, *offers)),
        "search_s": search_s,
        "notes": [*best.notes, _said(best) if judged else f"not all choices of kernels were judged: {steps.cause}"],
    }
    return best.model_copy(update=said)


def _said(schedule: Schedule) -> str:
    """Sentence on the stages whose kernels were chosen, with the first of these kernels."""
    stages = [stage for block in schedule.blocks for stage in block.stages if len(stage.groups) > 1]
    named = [f"{unit} {variant}" for stage in stages for unit, variant in stage.variants.items()]
    changed = sum(bool(stage.variants) for stage in stages)
    if not changed:
        return "no kernels are faster concurrently than those that are fastest alone, by either simulator"
    more = f" and {len(named) - MOST_NAMED} more" if len(named) > MOST_NAMED else ""
    return (
        f"kernels were chosen for concurrency in {changed} of {len(stages)} stages of several "
        f"groups: {', '.join(named[:MOST_NAMED])}{more}; not all choices were considered"
    )


@dataclass(frozen=True)
class _EventByEvent:
    """Prices of stages and schedules, event by event."""

    network: Network
    cost_model: StreamCostModel
    check: Callable[[], None]

    def schedule_us(self, schedule: Schedule) -> float:
        from iossim.execution.lower import lower_schedule

        plan = lower_schedule(schedule, self.network, self.cost_model.identity.engine)
        return self.cost_model.simulated_plan_us(self.network, plan, self.check)

    def kept(self, problem: ScheduleProblem, stage: PlannedStage) -> PlannedStage:
        """The stage with its variants if it is no slower so than with its fastest kernels, else without."""
        plain = replace(stage, variants=())
        if not stage.variants or self._stage_us(problem, stage) <= self._stage_us(problem, plain):
            return stage
        return plain

    def _stage_us(self, problem: ScheduleProblem, stage: PlannedStage) -> float:
        from iossim.execution.lower import lower_stage

        groups = [[problem.units[unit] for unit in bits(group)] for group in stage.groups(problem)]
        variants = {problem.unit_names[unit]: name for unit, name in stage.variants}
        engine = self.cost_model.identity.engine
        plan = lower_stage(self.network, groups, stage.strategy, engine, variants=variants)
        return self.cost_model.simulated_plan_us(self.network, plan, self.check)
