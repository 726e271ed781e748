"""Rows and schedules of one point of a study, and prices of other points' schedules there, away from home.

A process loads what points share only once: networks, devices and prices.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

from iossim.base.registry import needed_part
from iossim.base.threads import limit_threads
from iossim.cost.capabilities import DeviceCostModel
from iossim.cost.create import create_cost_model
from iossim.cost.model import CostModel
from iossim.cost.random import RandomCostModel
from iossim.execution.engine import Engine
from iossim.execution.execution import Span
from iossim.execution.lower import lower_schedule
from iossim.execution.memory import plan_memory
from iossim.hardware.lowering.target import target_of
from iossim.hardware.lowering.unit import unit_steps
from iossim.hardware.lowering.unit_summary import unit_bytes
from iossim.hardware.profile import DeviceProfile
from iossim.ir.network import Network
from iossim.prediction.published import comparable_published_us, is_in_sample
from iossim.prediction.schedule_interval import ScheduleErrors, schedule_errors
from iossim.schedule.batch import Strategy
from iossim.schedule.problem import ScheduleProblem
from iossim.schedule.schedule import Schedule
from iossim.search.assemble import reprice
from iossim.search.ios import solve
from iossim.search.memo import SearchMemo
from iossim.search.options import SearchOptions
from iossim.study.axes import MEASURES
from iossim.study.points import Point, device_of, device_of_kind, network_of
from iossim.study.study_kind import StudyKind
from iossim.study.study_run import BlockTime, CrossDone, CrossPrice, Failures, Row
from iossim.study.workers import LruCache
from iossim.tasks.task import Task, bounded_by_searches
from iossim.transforms.replay import replayed, split_source
from iossim.transforms.rewriting.backtracking import RewriteBudget
from iossim.transforms.rewriting.rewritten import applied_rules
from iossim.transforms.rewriting.rule_sets import rules_named
from iossim.transforms.rewriting.scheduled import Rewrite
from iossim.transforms.transform import Transform

# Points of one network are consecutive. Networks load their weights only on demand.
_NETWORKS: LruCache[Network] = LruCache(2)
_PROFILES: LruCache[DeviceProfile] = LruCache(64)
_CONTEXTS: LruCache[EvaluationContext] = LruCache(2)


@dataclass(frozen=True, eq=False)
class EvaluationContext:
    """Inputs for making and pricing the schedules of a point; ``errors`` is None if prices predict no device."""

    point: Point
    network: Network
    profile: DeviceProfile
    prices: CostModel
    errors: ScheduleErrors | None

    @cached_property
    def network_facts(self) -> dict[str, Any]:
        """Facts of the scheduled network for a row."""
        network = self.network
        return {
            **_size_of(network),
            "kernels": sum(len(unit_steps(network, unit)) for unit in network.units),
            "traffic_mib": sum(unit_bytes(network, unit) for unit in network.units) / _MIB,
            "rules": applied_rules(network),
        }

    @property
    def engine(self) -> Engine:
        """Engine of the point: ``auto`` is that of the device."""
        return Engine.named(self.point.engine, self.profile)

    def published_ms(self, schedule: Schedule) -> float | None:
        """Measured latency published for this point, if known."""
        point = self.point
        is_whole = point.model.block is None and not point.model.shapes and not point.device.set
        is_whole = is_whole and not point.rewrite.rewrites and point.micro_batch == 1
        if not is_whole or self.errors is None:
            return None
        found_us = comparable_published_us(schedule, point.model.model, point.search.space)
        return None if found_us is None else found_us / 1e3


def context_of(point: Point) -> EvaluationContext:
    """Load a point; raises a subclass of IossimError if that fails."""
    return _CONTEXTS.get(point.key, lambda: _load(point))


def _load(point: Point) -> EvaluationContext:
    device = point.device.model_dump_json()
    profile = _PROFILES.get(device, lambda: device_of(point.device))
    network = given_network(point)
    spec = f"random:{point.seed}" if point.cost_model == "random" else point.cost_model
    prices = create_cost_model(spec, profile, network.precision, Engine.named(point.engine, profile))
    if point.rewrite.rewrites or point.micro_batch != 1:
        network = _changed(point, network, prices)
    return EvaluationContext(point, network, profile, prices, schedule_errors(network, prices))


def given_network(point: Point) -> Network:
    """The point's network before its transforms."""
    key = (point.model.model_dump_json(), point.batch, point.dtype, point.seed)
    return _NETWORKS.get(key, lambda: network_of(point))


def network_as(context: EvaluationContext, schedule: Schedule) -> Network:
    """The point's network, rewritten as for a schedule of another point. Raises ReplayError if that is impossible."""
    (_, wanted), (_, own) = split_source(schedule.source.to_source()), split_source(context.network.source)
    return context.network if wanted == own else replayed(given_network(context.point), wanted)


def _changed(point: Point, network: Network, prices: CostModel) -> Network:
    """The network after the point's transforms; raises KeyboardInterrupt if they were interrupted."""
    asked = point.rewrite
    options = SearchOptions(point.search.space, workspace_limit_bytes=point.workspace.limit_bytes)
    transforms: list[Transform] = []
    if asked.rewrites:
        budget = RewriteBudget(graphs=asked.graphs)
        transforms.append(Rewrite(rules_named(asked.rules), asked.search, asked.alpha, budget, asked.unproved))
    if point.micro_batch != 1:
        transforms.append(needed_part("transform", "micro_batches", "MicroBatch", "micro_batches")(point.micro_batch))
    changed = Task(network, prices, asked.scheduler, options, tuple(transforms)).change()
    if changed.interrupted:
        raise KeyboardInterrupt
    return changed.network


_MIB = 1 << 20
#: Formatter of a schedule's timeline as text.
TraceFormat = Callable[[Network, Schedule, Sequence[Span]], str]


@dataclass(frozen=True)
class PointTask:
    """A point, and the outputs requested for it."""

    point: Point
    schedulers: tuple[str, ...]
    measures: tuple[str, ...] = ()
    trace: TraceFormat | None = None
    #: True where other processes use the other cores.
    one_of_many: bool = False


@dataclass(frozen=True)
class PointResult:
    """One row per scheduler; the texts of schedules and traces by scheduler, and the seconds of searches.

    Rows and schedules omit seconds, which differ from run to run.
    """

    point: Point
    rows: tuple[Row, ...]
    schedules: dict[str, str]
    traces: dict[str, str]
    search_s: dict[str, float]
    #: Tracebacks of errors that were not the user's, by the name of their file.
    tracebacks: dict[str, str]


def evaluate_point(task: PointTask) -> PointResult:
    """Schedule a point by all schedulers; a failure is a row with its reason. An interrupt is passed on."""
    limit_threads(1 if task.one_of_many else None)
    failures = Failures()
    try:
        if (kind := task.point.kind) is not None:
            rows_of_it, search_s = rows_of_kind(kind, task.point, task.schedulers)
            return PointResult(task.point, tuple(rows_of_it), {}, {}, search_s, failures.tracebacks)
        _load_compiled_code()
        context = context_of(task.point)
    except Exception as error:  # any error of a point becomes the reason of its rows, and the others continue
        reason = failures.reason(error)
        rows_failed = tuple(_failed(task.point, name, reason) for name in task.schedulers)
        return PointResult(task.point, rows_failed, {}, {}, {}, failures.tracebacks)
    found: dict[str, Schedule] = {}
    reasons: dict[str, str] = {}
    limit = task.point.workspace.limit_bytes
    options, memo = SearchOptions(task.point.search.space, workspace_limit_bytes=limit), SearchMemo(context.prices)
    for name in task.schedulers:
        try:
            found[name] = Task(context.network, context.prices, name, options).search(memo=memo)
        except Exception as error:  # likewise, for one scheduler
            reasons[name] = failures.reason(error)
        else:
            if not found[name].complete:
                raise KeyboardInterrupt
    search_s = {name: one.search_s for name, one in found.items()}
    found = {
        one.scheduler: one.model_copy(update={"search_s": 0.0})
        for one in bounded_by_searches(list(found.values()), task.point.search.space)
    }
    rows: dict[str, Row] = {}
    traces, schedules = dict[str, str](), dict[str, str]()
    judged = context.errors.judged(list(found.values())) if context.errors else list(found.values())
    for one in judged:
        try:
            rows[one.scheduler] = _row(context, one, found, task.measures)
            if task.trace is not None and isinstance(context.prices, DeviceCostModel):
                spans = context.prices.timeline(context.network, one)
                traces[one.scheduler] = task.trace(context.network, one, spans)
            schedules[one.scheduler] = one.model_dump_json(indent=1) + "\n"
        except Exception as error:  # likewise, for one row
            reasons[one.scheduler] = failures.reason(error)
    rows |= {name: _failed(task.point, name, reason) for name, reason in reasons.items()}
    in_order, kept_s = tuple(rows[name] for name in task.schedulers), {name: search_s[name] for name in schedules}
    return PointResult(task.point, in_order, schedules, traces, kept_s, failures.tracebacks)


def _row(context: EvaluationContext, one: Schedule, found: dict[str, Schedule], measures: tuple[str, ...]) -> Row:
    point = context.point
    slowest_us = max(other.latency_us for other in found.values())
    baseline_us = found["sequential"].latency_us if "sequential" in found else slowest_us
    low_us, high_us = one.interval_us or (None, None)
    blocks = [
        BlockTime(
            name=block.name,
            latency_us=sum(stage.boundary_us + stage.latency_us for stage in block.stages),
            stages=len(block.stages),
        )
        for block in one.blocks
    ]
    peak_mib = None
    if "peak_memory" in measures:  # weights, and the arena of the plan with values in place, as backends run it
        plan = lower_schedule(one, context.network, context.engine, in_place=True)
        peak_mib = context.network_facts["weights_mib"] + plan_memory(plan).arena_bytes / _MIB
    published_ms, power = context.published_ms(one), context.profile.datasheet.board_power_w
    return _row_of(
        point,
        one.scheduler,
        one.latency_us,
        baseline_us,
        low_ms=None if low_us is None else low_us / 1e3,
        high_ms=None if high_us is None else high_us / 1e3,
        ties=one.ties,
        stages=len(one.stages),
        streams=one.streams,
        merged_stages=sum(stage.strategy is Strategy.MERGE for stage in one.stages),
        gap=one.gap,
        **context.network_facts,
        peak_memory_mib=peak_mib,
        **{
            name: value
            for each in measures
            if each in MEASURES
            for name, value in MEASURES[each].figures(context).items()
        },
        active_warps=_active_warps(context, one) if "active_warps" in measures else None,
        board_power_w=power.value if power else None,  # a CPU's profile has none
        peak_tflops=context.profile.fp32_tflops,
        published_ms=published_ms,
        in_sample=None if published_ms is None else is_in_sample(context.profile, point.model.model, one.scheduler),
        blocks=blocks,
        time_by_kind_us=context.errors.time_by_kind_us(found[one.scheduler]) if context.errors else {},
    )


def _row_of(point: Point, scheduler: str, latency_us: float, baseline_us: float, **figures: Any) -> Row:
    """Row with the labels of its point, and the figures that follow from its latency."""
    return Row(
        point=point.index,
        **point.labels,
        scheduler=scheduler,
        latency_ms=latency_us / 1e3,
        throughput_per_s=point.batch / latency_us * 1e6 if latency_us else None,
        speedup=baseline_us / latency_us if latency_us else None,
        **figures,
    )


def _size_of(network: Network) -> dict[str, Any]:
    weights = sum(constant.type.bytes for constant in network.graph.constants.values())
    return {"weights_mib": weights / _MIB, "gmacs": network.statistics()["macs"] / 1e9}


def _failed(point: Point, scheduler: str, reason: str) -> Row:
    return Row(point=point.index, **point.labels, scheduler=scheduler, status="failed", reason=reason)


def _active_warps(context: EvaluationContext, one: Schedule) -> float | None:
    """Resident warps on all SMs together, averaged over the run; None on a CPU."""
    from iossim.backends.simulator.events import run_schedule

    if not target_of(context.profile).has_warps:
        return None
    execution = run_schedule(context.network, one, context.profile, engine=context.engine)
    return execution.mean_active_warps


@cache
def _load_compiled_code() -> None:
    """Search once at no cost, so that the time to load compiled code is in no search's time."""
    problem = ScheduleProblem.of_edges(3, [(0, 2), (1, 2)], merge_class=[0, 0, -1])
    solve([problem], RandomCostModel(), SearchOptions(), concurrent=True, merge=True)


def rows_of_kind(kind: StudyKind, point: Point, schedulers: Sequence[str]) -> tuple[list[Row], dict[str, float]]:
    """Rows of a point of a kind, and the seconds of each search. Raises a subclass of IossimError."""
    network = given_network(point)
    device = device_of_kind(kind, point.device)
    found, search_s = kind.rows(network, device, getattr(point, kind.axis.name), schedulers)
    size = _size_of(network)
    rows = [_row_of(point, one.scheduler, one.latency_us, one.baseline_us, **size, **one.figures) for one in found]
    return rows, search_s


@dataclass(frozen=True)
class MadeElsewhere:
    """A schedule's text, and the point that it was made for; or the reason why there is none."""

    made_for: int
    scheduler: str
    text: str | None
    reason: str = ""


@dataclass(frozen=True)
class CrossTask:
    """A point, and schedules of others to be priced there; ``own`` are the texts of its own schedules by scheduler."""

    axis: str
    point: Point
    own: dict[str, str]
    others: tuple[MadeElsewhere, ...]
    one_of_many: bool = False


@dataclass(frozen=True)
class CrossResult:
    """Prices of other points' schedules at a point, and tracebacks as in a point's own result."""

    entry: CrossDone
    tracebacks: dict[str, str]


def evaluate_cross(task: CrossTask) -> CrossResult:
    """Price the schedules of others at a point; one that cannot be priced has a reason."""
    limit_threads(1 if task.one_of_many else None)
    failures = Failures()
    try:
        context = context_of(task.point)
        own = {name: Schedule.model_validate_json(text) for name, text in task.own.items()}
    except Exception as error:  # any error of a point becomes the reason of its prices, and the others continue
        found: list[_Priced] = [{"reason": failures.reason(error)}] * len(task.others)
    else:
        known: dict[tuple[str, str, str], _Priced] = {}
        found = [_priced(other, context, own.get(other.scheduler), known, failures) for other in task.others]
    prices = [
        CrossPrice(
            axis=task.axis, scheduler=other.scheduler, made_for=other.made_for, run_at=task.point.index, **priced
        )
        for other, priced in zip(task.others, found, strict=True)
    ]
    return CrossResult(CrossDone(axis=task.axis, run_at=task.point.index, prices=prices), failures.tracebacks)


#: Latency and tie of a :class:`CrossPrice`, or the reason why there is none.
_Priced = dict[str, Any]


def _priced(
    other: MadeElsewhere,
    context: EvaluationContext,
    own: Schedule | None,
    known: dict[tuple[str, str, str], _Priced],
    failures: Failures,
) -> _Priced:
    """Price of a schedule; ``known`` are prices by scheduler and stages, since points often share a schedule."""
    if other.text is None:
        return {"reason": other.reason}
    try:
        made = Schedule.model_validate_json(other.text)
        stages = json.dumps([(stage.strategy, stage.groups, stage.variants) for stage in made.stages])
        key = other.scheduler, json.dumps(made.source.options), stages
        if key not in known:
            network = network_as(context, made)
            found = reprice(made, network, context.prices)
            # A network that was rewritten differently has no schedule here to tie with.
            rival = own if network is context.network else None
            tie = rival is not None and context.errors is not None and context.errors.is_tie(found, rival)
            known[key] = {"latency_ms": found.latency_us / 1e3, "tie": tie}
        return known[key]
    except Exception as error:  # likewise, for one schedule
        return {"reason": failures.reason(error)}
