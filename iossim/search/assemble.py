"""From planned stages to a schedule: prices recomputed in stage order, and the lower bound that goes with them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import isfinite

from iossim.base.errors import PlanError, ScheduleError
from iossim.base.values import LONGEST_US
from iossim.cost.capabilities import RemarkingCostModel, StreamCostModel, VariantChoosing, pricing_streams
from iossim.cost.model import START, CostModel, price_path, problems_of, total_us
from iossim.ir.network import Network
from iossim.schedule.batch import Strategy
from iossim.schedule.planned_stage import PlannedStage, planned
from iossim.schedule.problem import ScheduleProblem, bits
from iossim.schedule.schedule import AnySchedule, BlockSchedule, ModelReference, Schedule, Stage, StreamSchedule
from iossim.search.lattice import MergedStages, bounds_with_merges


def price_blocks(
    problems: Sequence[ScheduleProblem], plans: Sequence[Sequence[PlannedStage]], cost_model: CostModel
) -> list[BlockSchedule]:
    """Stages and boundaries of all blocks in execution order, each with its price.

    Raises ScheduleError naming the first stage that the cost model cannot price, or that ends too late.
    """
    blocks: list[BlockSchedule] = []
    before, end_us = START, 0.0
    for problem, plan in zip(problems, plans, strict=True):
        path = price_path(problem, plan, cost_model, before)
        stages: list[Stage] = []
        for stage, price_us, boundary_us in zip(plan, path.prices_us, path.boundaries_us, strict=True):
            end_us += price_us + boundary_us
            if not end_us <= LONGEST_US:
                raise ScheduleError(_no_price(problem, stage, cost_model, end_us))
            stages.append(stage.named(problem, price_us, boundary_us))
        before = path.leaving
        blocks.append(BlockSchedule(name=problem.name, stages=stages))
    return blocks


def _no_price(problem: ScheduleProblem, planned: PlannedStage, cost_model: CostModel, end_us: float) -> str:
    kind = "merged " if planned.strategy is Strategy.MERGE else ""
    names = ", ".join(repr(problem.unit_names[unit]) for unit in bits(planned.mask))
    name, what = cost_model.identity.name, f"the {kind}stage of {names}"
    if isfinite(end_us):
        return f"by cost model {name!r} {what} ends after {end_us / 8.64e10:,.0f} days; check the sizes of its operands"
    return f"cost model {name!r} has no price for {what}; add it, or choose another scheduler or cost model"


def build_schedule(
    network: Network,
    problems: Sequence[ScheduleProblem],
    plans: Sequence[Sequence[PlannedStage]],
    cost_model: CostModel,
    scheduler: str,
    **fields: object,
) -> Schedule:
    """A schedule of the network, one plan a block; ``fields`` are further fields of :class:`Schedule`.

    Where prices are of variants that a cost model chose, the stages name them, and are priced as such.
    """
    if isinstance(cost_model, VariantChoosing):
        choose = cost_model.chosen
        plans = [[choose(problem, stage) for stage in plan] for problem, plan in zip(problems, plans, strict=True)]
        cost_model = cost_model.inner
    blocks = price_blocks(problems, plans, cost_model)
    own = _of_network(network, cost_model)
    return Schedule(scheduler=scheduler, latency_us=total_latency_us(blocks), blocks=blocks, **own, **fields)


def _of_network(network: Network, cost_model: CostModel) -> dict[str, object]:
    """Fields of a schedule that identify its network and its prices."""
    source, identity = network.source, cost_model.identity
    priced = cost_model.remarks(network) if isinstance(cost_model, RemarkingCostModel) else ()
    return {
        "network": network.name,
        "source": ModelReference(model=source.model, batch=source.batch, options=dict(source.options)),
        "graph_hash": network.graph.hash,
        "device": identity.device,
        "precision": str(network.precision),
        "engine": identity.engine,
        "cost_model": identity.to_json(),
        "remarks": [*network.remarks, *priced],
    }


def reprice(schedule: Schedule, network: Network, cost_model: CostModel) -> Schedule:
    """The same stages priced by another cost model; the schedule must fit the network."""
    problems = problems_of(network, cost_model)
    plans = [planned(problem, block) for problem, block in zip(problems, schedule.blocks, strict=True)]
    return build_schedule(
        network, problems, plans, cost_model, schedule.scheduler, options=schedule.options, notes=list(schedule.notes)
    )


def plan_us(schedule: AnySchedule, network: Network, cost_model: StreamCostModel) -> float:
    """The time of a schedule run as a whole plan, of streams or of stages, us.

    Of stages under an engine that synchronises it is not the sum of their prices, by which they are searched: a sum
    lets the host begin anew after each barrier.
    """
    from iossim.execution.lower import lower_schedule  # loaded for streams only

    return cost_model.plan_us(network, lower_schedule(schedule, network, cost_model.identity.engine))


def reprice_streams(schedule: StreamSchedule, network: Network, cost_model: CostModel) -> StreamSchedule:
    """The same streams at the price of their whole plan by another cost model; bounds at these prices are not known.

    Raises ScheduleError where the schedule does not fit, OptionError for a cost model or an engine without streams.
    """
    streaming = pricing_streams(cost_model, "this schedule has streams", ", or a schedule of stages")
    latency_us = plan_us(schedule, network, streaming)
    kept = {"streams", "issue", "scheduler", "options", "notes", "format_version"}
    fields = {name: getattr(schedule, name) for name in kept}
    return StreamSchedule(latency_us=latency_us, **_of_network(network, cost_model), **fields)


def reprice_any(schedule: AnySchedule, network: Network, cost_model: CostModel) -> AnySchedule:
    """:func:`reprice`, or :func:`reprice_streams`."""
    if isinstance(schedule, StreamSchedule):
        return reprice_streams(schedule, network, cost_model)
    return reprice(schedule, network, cost_model)


def reprice_as_known(schedule: AnySchedule, network: Network, cost_model: CostModel) -> AnySchedule:
    """:func:`reprice_any`, with the fastest kernels where the schedule names some that the cost model does not know."""
    try:
        return reprice_any(schedule, network, cost_model)
    except PlanError:
        from iossim.schedule.fit import with_variants  # loaded for such kernels only

        return reprice_any(with_variants(schedule), network, cost_model)


def total_latency_us(blocks: Sequence[BlockSchedule]) -> float:
    """Stages and boundaries, added in execution order."""
    return total_us((stage.boundary_us, stage.latency_us) for block in blocks for stage in block.stages)


def block_lower_bounds_us(
    problems: Sequence[ScheduleProblem], merges: Sequence[MergedStages], cost_model: CostModel, concurrent: bool
) -> list[float | None]:
    """Lower bound of each block's schedules with the allowed strategies; None if no bounds are known.

    It is the larger of its critical path and its least total work over the capacity of each resource, and the
    boundaries around one stage of several groups; or, if that is less, the sum of its units run one by one.
    """
    known: dict[tuple[str, bool], float | None] = {}
    found: list[float | None] = []
    for index, (problem, merged) in enumerate(zip(problems, merges, strict=True)):
        key = problem.key, index == 0
        if key not in known:
            known[key] = block_lower_bound_us(problem, merged, cost_model, concurrent, first=index == 0)
        found.append(known[key])
    return found


def sum_of_bounds_us(bounds_us: Iterable[float | None]) -> float | None:
    """The sum; None where one is not known."""
    total_us = 0.0
    for bound_us in bounds_us:
        if bound_us is None:
            return None
        total_us += bound_us
    return total_us


def block_lower_bound_us(
    problem: ScheduleProblem, merges: MergedStages, cost_model: CostModel, concurrent: bool, first: bool
) -> float | None:
    """The same of one block; ``first``: does nothing run before it?"""
    bounds = cost_model.bounds(problem)
    if bounds is None:
        return None
    held = bounds_with_merges(bounds, problem, merges)
    # The two bounds of R. L. Graham (Bounds on multiprocessing timing anomalies, SIAM J. Appl. Math. 17, 1969): the
    # critical path, and the least total work of each resource.
    tail_us: list[float] = [0.0] * len(problem)
    for unit in range(len(problem) - 1, -1, -1):
        after_us = max((tail_us[after] for after in bits(int(problem.successors[unit]))), default=0.0)
        tail_us[unit] = after_us + float(held.serial_us[unit])
    any_us: float = max([*tail_us, *(sum(work.tolist()) for work in held.work_us.T)])
    one_us: float = max(sum(held.single_us.tolist()), any_us)
    if not concurrent:
        return one_us
    # A stage of several groups has a boundary before it, unless it is the first, and one after it, unless it may be
    # the last.
    before_us = 0.0 if first else min(cost_model.price_boundary(left, True) for left in (False, True))
    behind_us = min(cost_model.price_boundary(True, right) for right in (False, True)) if problem.one_sink else 0.0
    return min(one_us, any_us + before_us + behind_us)
