"""What one point of a study comes to: its rows and schedules. This is what workers do, each point by itself."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from iossim.backends.simulator.parallel_pricing import set_pricing_threads
from iossim.cost.model import ProvidesTimeline
from iossim.cost.random import RandomCostModel
from iossim.execution.lower import lower_schedule
from iossim.execution.memory import plan_memory
from iossim.lowering.target import target_of
from iossim.schedule.problem import ScheduleProblem
from iossim.schedule.schedule import Schedule
from iossim.schedule.strategy import Strategy
from iossim.scheduling.ios import solve
from iossim.scheduling.memo import SearchMemo
from iossim.scheduling.options import SearchOptions, StageSpace
from iossim.scheduling.scheduler import schedule
from iossim.study.failures import Failures
from iossim.study.points import Point
from iossim.study.setting import Setting, setting_of, with_intervals
from iossim.study.study_run import BlockTime, Row

_MIB = 1 << 20


@dataclass(frozen=True)
class PointTask:
    """A point, and what is wanted of it."""

    point: Point
    schedulers: tuple[str, ...]
    measures: tuple[str, ...] = ()
    traces: bool = False
    #: Whether other processes have the other cores.
    one_of_many: bool = False


@dataclass(frozen=True)
class PointResult:
    """A row for each scheduler; by scheduler the texts of schedules and traces, and the seconds that searches took.

    No row or schedule tells seconds: they are no two times the same.
    """

    point: Point
    rows: tuple[Row, ...]
    schedules: dict[str, str]
    traces: dict[str, str]
    search_s: dict[str, float]
    #: Tracebacks of what was no mistake of the user's, by the name of the file that they go to.
    tracebacks: dict[str, str]


def evaluate_point(task: PointTask) -> PointResult:
    """Schedule a point by every scheduler; what fails is a row with its reason.

    Raises KeyboardInterrupt where a search was interrupted: half a point is none.
    """
    set_pricing_threads(1 if task.one_of_many else None)
    _load_compiled_code()
    failures = Failures()
    try:
        setting = setting_of(task.point)
    except Exception as error:  # whatever a point dies of is the reason of its rows, and the others go on
        reason = failures.reason(error)
        rows_failed = tuple(_failed(task.point, name, reason) for name in task.schedulers)
        return PointResult(task.point, rows_failed, {}, {}, {}, failures.tracebacks)
    found: dict[str, Schedule] = {}
    reasons: dict[str, str] = {}
    search = task.point.search
    space = StageSpace(search.stages, search.max_group_size, search.max_groups)
    options, memo = SearchOptions(space), SearchMemo(setting.prices)
    for name in task.schedulers:
        try:
            found[name] = schedule(setting.network, setting.prices, name, options, memo=memo)
        except Exception as error:  # as above, of one scheduler
            reasons[name] = failures.reason(error)
        else:
            if not found[name].complete:
                raise KeyboardInterrupt
    search_s = {name: one.search_s for name, one in found.items()}
    found = {name: one.model_copy(update={"search_s": 0.0}) for name, one in found.items()}
    rows: dict[str, Row] = {}
    traces: dict[str, str] = {}
    schedules: dict[str, str] = {}
    for one in with_intervals(list(found.values()), setting.errors):
        try:
            rows[one.scheduler] = _row(setting, one, found, task.measures)
            if task.traces and (trace := _trace(setting, one)):
                traces[one.scheduler] = trace
            schedules[one.scheduler] = one.model_dump_json(indent=1) + "\n"
        except Exception as error:  # as above, of one row
            reasons[one.scheduler] = failures.reason(error)
    return PointResult(
        task.point,
        tuple(
            _failed(task.point, name, reasons[name]) if name in reasons else rows[name] for name in task.schedulers
        ),
        schedules,
        traces,
        {name: search_s[name] for name in schedules},
        failures.tracebacks,
    )


def _row(setting: Setting, one: Schedule, found: dict[str, Schedule], measures: tuple[str, ...]) -> Row:
    """The row of one schedule among those that were ``found`` at its point."""
    point = setting.point
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
    own = found[one.scheduler]
    published_ms = setting.published_ms(one.scheduler)
    return Row(
        point=point.index,
        **point.labels,  # type: ignore[arg-type]
        scheduler=one.scheduler,
        latency_ms=one.latency_us / 1e3,
        low_ms=None if low_us is None else low_us / 1e3,
        high_ms=None if high_us is None else high_us / 1e3,
        throughput_per_s=point.batch / one.latency_us * 1e6 if one.latency_us else None,
        speedup=baseline_us / one.latency_us if one.latency_us else None,
        ties=one.ties,
        stages=len(one.stages),
        streams=one.streams,
        merged_stages=sum(stage.strategy is Strategy.MERGE for stage in one.stages),
        gap=one.gap,
        weights_mib=setting.weights_mib,
        peak_memory_mib=_peak_memory_mib(setting, one) if "peak_memory" in measures else None,
        active_warps=_active_warps(setting, one) if "active_warps" in measures else None,
        board_power_w=setting.board_power_w,
        peak_tflops=setting.profile.fp32_tflops,
        published_ms=published_ms,
        in_sample=None if published_ms is None else setting.is_in_sample,
        blocks=blocks,
        time_by_kind_us=setting.errors.time_by_kind_us(own) if setting.errors else {},
    )


def _failed(point: Point, scheduler: str, reason: str) -> Row:
    return Row(
        point=point.index,
        **point.labels,  # type: ignore[arg-type]
        scheduler=scheduler,
        status="failed",
        reason=reason,
    )


def _peak_memory_mib(setting: Setting, one: Schedule) -> float:
    """Weights, and the arena of the plan with values in place, as backends run it."""
    plan = lower_schedule(one, setting.network, setting.point.engine, in_place=True)
    return setting.weights_mib + plan_memory(plan).arena_bytes / _MIB


def _active_warps(setting: Setting, one: Schedule) -> float | None:
    """Warps that are resident on all SMs together, on average over the run; a CPU has none."""
    from iossim.backends.simulator.events import run_schedule

    if not target_of(setting.profile).has_warps:
        return None
    execution = run_schedule(setting.network, one, setting.profile, engine=setting.point.engine)
    return execution.mean_active_warps


def _trace(setting: Setting, one: Schedule) -> str | None:
    """The schedule's timeline for a trace viewer; None where the cost model knows none."""
    from iossim.reporting.perfetto_trace import perfetto_trace

    if not isinstance(setting.prices, ProvidesTimeline):
        return None
    return perfetto_trace(setting.network, one, setting.prices.timeline(setting.network, one))


@cache
def _load_compiled_code() -> None:
    """Search once where it costs nothing: loading compiled code is part of no search's time."""
    problem = ScheduleProblem.of_edges(3, [(0, 2), (1, 2)], merge_class=[0, 0, -1])
    solve([problem], RandomCostModel(), SearchOptions(), concurrent=True, merge=True)
