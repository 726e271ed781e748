"""Rows and schedules of one point of a study, and prices of other points' schedules there, away from home.

A process loads what points share only once: networks, devices and prices.
"""

from __future__ import annotations

import hashlib
import traceback
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from typing import Any

from iossim.base.errors import IossimError
from iossim.cost.capabilities import DeviceCostModel
from iossim.cost.create import create_cost_model
from iossim.cost.model import CostModel
from iossim.cost.random import RandomCostModel
from iossim.execution.engine import Engine
from iossim.execution.lower import lower_schedule
from iossim.execution.memory import memory_remarks, plan_memory
from iossim.hardware.lowering.target import target_of
from iossim.hardware.lowering.unit import unit_bytes, unit_steps
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
from iossim.study.axes import CHOSEN, MEASURES
from iossim.study.points import Point, device_of, device_of_kind, hash_of, network_of, slug
from iossim.study.run_directory import Done, crossing
from iossim.study.scenario import CrossAxis
from iossim.study.study_kind import StudyKind
from iossim.study.study_run import DEFECTS, SCHEDULES, CrossPrice, Row
from iossim.study.workers import LruCache
from iossim.tasks.task import Task, bounded_by_searches
from iossim.transforms.fused_joins import ChooseJoins
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
        network, memory_bytes = self.network, self.profile.datasheet.dram_bytes.value
        is_large = sum(value.bytes for value in network.graph.types.values()) > memory_bytes
        return {
            "remark": "; ".join(memory_remarks(network, memory_bytes, self.profile.name) if is_large else ()),
            **_size_of(network),
            "kernels": sum(len(unit_steps(network, unit)) for unit in network.units),
            "traffic_mib": sum(unit_bytes(network, unit) for unit in network.units) / _MIB,
            "rules": applied_rules(network),
        }

    @cached_property
    def sequential_us(self) -> float | None:
        """Latency of the units one by one with the joins as the model has them; None where none were changed."""
        given = self.network.given
        return None if given is None else Task(given, self.prices, "sequential").search().latency_us

    @property
    def engine(self) -> Engine:
        """Engine of the point: ``auto`` is that of the device."""
        return Engine.named(self.point.engine, self.profile)

    def published_ms(self, schedule: Schedule) -> float | None:
        """Measured latency published for this point, if known."""
        point = self.point
        is_whole = point.model.block is None and not point.model.shapes and not point.device.set
        is_whole = is_whole and not point.rewrite.rewrites and self.network.given is None
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
    if point.model.units == CHOSEN and isinstance(prices, DeviceCostModel):
        transforms.append(ChooseJoins())
    changed = Task(network, prices, asked.scheduler, options, tuple(transforms)).change()
    if changed.interrupted:
        raise KeyboardInterrupt
    return changed.network


@dataclass
class Failures:
    """Failures in one piece of work; ``tracebacks`` are texts by the name of their file in the run's folder."""

    tracebacks: dict[str, str] = field(default_factory=dict)

    def reason(self, error: Exception) -> str:
        """Reason in one line; of other errors than :class:`IossimError` with the class, and the traceback's file."""
        text = " ".join(str(error).split())
        if isinstance(error, IossimError):
            return text
        told = "".join(traceback.format_exception(error))
        name = f"{DEFECTS}/{hashlib.sha256(told.encode()).hexdigest()[:12]}.txt"
        self.tracebacks[name] = told
        return f"{type(error).__name__}: {text} (a defect of iossim; its traceback is in {name})"


_MIB = 1 << 20
#: Texts of files by name in the run's folder.
Texts = dict[str, str]


def evaluate_point(point: Point, schedulers: Sequence[str], measures: Sequence[str] = ()) -> tuple[Done, Texts]:
    """Schedule a point by all schedulers: its rows, without seconds, which differ from run to run, and its files.

    A failure is a row with its reason, and a file of its traceback unless it was the user's. An interrupt is passed on.
    """
    failures, texts, search_s = Failures(), Texts(), dict[str, float]()
    try:
        if (kind := point.kind) is not None:
            rows, search_s = _rows_of_kind(kind, point, schedulers)
        else:
            rows, search_s = _rows(point, schedulers, measures, failures, texts)
    except Exception as error:  # any error of a point becomes the reason of its rows, and the others continue
        reason = failures.reason(error)
        rows = [_failed(point, name, reason) for name in schedulers]
    files = {name: hash_of(text.encode()) for name, text in texts.items()}
    entry = Done(key=point.key, rows=rows, files=files, search_s=search_s)
    return entry, texts | failures.tracebacks


def _rows(
    point: Point, schedulers: Sequence[str], measures: Sequence[str], failures: Failures, texts: Texts
) -> tuple[list[Row], dict[str, float]]:
    """Rows of a point, and the seconds of each search; texts of schedules are added to ``texts``."""
    _load_compiled_code()
    context = context_of(point)
    found: dict[str, Schedule] = {}
    rows: dict[str, Row] = {}
    options = SearchOptions(point.search.space, workspace_limit_bytes=point.workspace.limit_bytes)
    memo = SearchMemo(context.prices)
    for name in schedulers:
        try:
            found[name] = Task(context.network, context.prices, name, options).search(memo=memo)
        except Exception as error:  # likewise, for one scheduler
            rows[name] = _failed(point, name, failures.reason(error))
        else:
            if not found[name].complete:
                raise KeyboardInterrupt
    search_s = {name: one.search_s for name, one in found.items()}
    bounded = bounded_by_searches(list(found.values()), point.search.space)
    found = {one.scheduler: one.model_copy(update={"search_s": 0.0}) for one in bounded}
    for one in context.errors.judged(list(found.values())) if context.errors else found.values():
        file = f"{SCHEDULES}/{point.file_stem}-{slug(one.scheduler)}.json"
        try:
            row = _row(context, one, found, measures)
            texts[file] = one.model_dump_json(indent=1) + "\n"
            rows[one.scheduler] = row.model_copy(update={"schedule": file})
        except Exception as error:  # likewise, for one row
            rows[one.scheduler] = _failed(point, one.scheduler, failures.reason(error))
    in_order = [rows[name] for name in schedulers]
    return in_order, {row.scheduler: search_s[row.scheduler] for row in in_order if row.schedule}


def _rows_of_kind(kind: StudyKind, point: Point, schedulers: Sequence[str]) -> tuple[list[Row], dict[str, float]]:
    """Rows of a point of a kind, and the seconds of each search. Raises a subclass of IossimError."""
    network, device = given_network(point), device_of_kind(kind, point.device)
    found, search_s = kind.rows(network, device, getattr(point, kind.axis.name), schedulers)
    size = _size_of(network)
    rows = [_row_of(point, one.scheduler, one.latency_us, one.baseline_us, **size, **one.figures) for one in found]
    return rows, search_s


def _row(context: EvaluationContext, one: Schedule, found: dict[str, Schedule], measures: Sequence[str]) -> Row:
    point, profile = context.point, context.profile
    baseline_us = max(other.latency_us for other in found.values())
    if "sequential" in found:
        baseline_us = context.sequential_us or found["sequential"].latency_us
    low_us, high_us = one.interval_us or (None, None)
    measured: dict[str, object] = {}
    for name in measures:
        measured |= MEASURES[name].figures(context) if name in MEASURES else {}
    if "peak_memory" in measures:  # weights, and the arena of the plan with values in place, as backends run it
        plan = lower_schedule(one, context.network, context.engine, in_place=True)
        arena_mib = plan_memory(plan).arena_bytes / _MIB
        measured["peak_memory_mib"] = context.network_facts["weights_mib"] + arena_mib
    if "active_warps" in measures and target_of(profile).has_warps:  # on all SMs together; a CPU has none
        from iossim.backends.simulator.events import run_schedule

        measured["active_warps"] = run_schedule(context.network, one, profile, engine=context.engine).mean_active_warps
    published_ms, power = context.published_ms(one), profile.datasheet.board_power_w
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
        **measured,
        board_power_w=power.value if power else None,  # a CPU's profile has none
        peak_tflops=profile.fp32_tflops,
        published_ms=published_ms,
        in_sample=None if published_ms is None else is_in_sample(profile, point.model.model, one.scheduler),
        time_by_kind_us=context.errors.time_by_kind_us(found[one.scheduler]) if context.errors else {},
    )


def _row_of(point: Point, scheduler: str, latency_us: float, baseline_us: float, **figures: object) -> Row:
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


def _size_of(network: Network) -> dict[str, object]:
    weights = sum(constant.type.bytes for constant in network.graph.constants.values())
    return {"weights_mib": weights / _MIB, "gmacs": network.statistics()["macs"] / 1e9}


def _failed(point: Point, scheduler: str, reason: str) -> Row:
    return Row(point=point.index, **point.labels, scheduler=scheduler, status="failed", reason=reason)


@cache
def _load_compiled_code() -> None:
    """Search once at no cost, so that the time to load compiled code is in no search's time."""
    problem = ScheduleProblem.of_edges(3, [(0, 2), (1, 2)], merge_class=[0, 0, -1])
    solve([problem], RandomCostModel(), SearchOptions())


#: Where a schedule was made, its scheduler, its text, and the reason where there is none.
Made = tuple[int, str, str | None, str]


def evaluate_cross(axis: CrossAxis, point: Point, made: Sequence[Made]) -> tuple[Done, Texts]:
    """Price at a point the schedules ``made`` for its neighbours on an axis, and for itself; one that cannot be priced
    has a reason. Files as of a point.
    """
    failures, here = Failures(), point.index
    own = {scheduler: text for made_for, scheduler, text, _ in made if made_for == here}
    prices = []
    for made_for, scheduler, text, reason in made:
        if made_for == here:
            continue
        found: dict[str, object] = {"reason": reason}
        try:
            if text is not None:
                found = _priced(point, text, own[scheduler])
        except Exception as error:  # any error becomes the reason of its price, and the others continue
            found = {"reason": failures.reason(error)}
        prices.append(CrossPrice(axis=axis, scheduler=scheduler, made_for=made_for, run_at=here, **found))
    return Done(key=crossing(axis, here), prices=prices), failures.tracebacks


def _priced(point: Point, made: str, own: str | None) -> dict[str, object]:
    """Latency of another point's schedule at this one, and whether it ties with its ``own``."""
    context, schedule = context_of(point), Schedule.model_validate_json(made)
    network = network_as(context, schedule)
    found, tie = reprice(schedule, network, context.prices), False
    # A network that was rewritten differently has no schedule here to tie with.
    if network is context.network and context.errors is not None and own is not None:
        tie = context.errors.is_tie(found, Schedule.model_validate_json(own))
    return {"latency_ms": found.latency_us / 1e3, "tie": tie}
