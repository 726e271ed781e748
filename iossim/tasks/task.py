"""One task: a network is transformed, scheduled and judged; API, command line and studies run this.

Invalid combinations are refused where the task is made, so that all three refuse them alike.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Generic

import numpy as np

from iossim.base.errors import IossimError, OptionError, Progress, StartProgress, ignore, silent, warn_once
from iossim.base.registry import PluginError
from iossim.cost.capabilities import DeviceCostModel, MeasuringCostModel, StreamCostModel
from iossim.cost.model import CostModel
from iossim.execution.engine import Engine
from iossim.hardware.profile import DeviceProfile
from iossim.ir.network import Network
from iossim.prediction.published import SEQUENTIAL, without_network
from iossim.prediction.schedule_interval import Judged, ScheduleErrors, schedule_errors
from iossim.schedule.batch import StageBatch
from iossim.schedule.planned_stage import batches_of, planned
from iossim.schedule.problem import ScheduleProblem
from iossim.schedule.schedule import AnySchedule, Schedule, StreamSchedule
from iossim.search.anytime import Clock, Steps
from iossim.search.assemble import plan_us, reprice_as_known
from iossim.search.block_parts import PAPER_GROUP_SIZE, PAPER_GROUPS
from iossim.search.ios import STRATEGIES
from iossim.search.memo import SearchMemo
from iossim.search.options import SearchLimits, SearchOptions, StageSpace
from iossim.search.scheduler import (
    SCHEDULERS,
    MeasuredProgress,
    schedule,
    stage_scheduler,
    within_workspace,
    without_search,
)
from iossim.tasks.comparison import Comparison, Entry, Found_co, OtherEngine
from iossim.transforms.transform import Changed, Outcome, Setting, Transform, change

if TYPE_CHECKING:
    from iossim.search.measured import Budget

#: The search serves one printed line: it prunes as the paper does, and splits blocks that still take long; its share of
#: a limit in seconds is a quarter.
_LIMITS, _PART = SearchLimits(max_states=20_000, max_transitions=2_000_000), 0.25
#: The part of a schedule's time that sequential execution has to be under to be called faster.
_WORTH_TELLING = 0.97
#: Time for scheduling the network left by an interrupted transform.
_AFTER_INTERRUPT_S = 1.0


def under_other_engine(
    network: Network, found: AnySchedule, prices: CostModel, options: SearchOptions | None = None
) -> OtherEngine | None:
    """Latencies under the other engine; None if prices support only one, the workspace limit is too low for the other,
    or after a KeyboardInterrupt.

    Searches with the scheduler that found the schedule (ios-both if that does not search stages), pruned to r = 3 and
    s = 8 at most, so that it takes a second or two for any network; a block that is too wide is split. Beside streams,
    stages have the latency of their whole plan.
    """
    if not isinstance(prices, DeviceCostModel):
        return None
    engine = Engine.GRAPH if prices.engine is Engine.PAPER else Engine.PAPER
    options = options or SearchOptions()
    given = options.space
    size = min(given.max_group_size or PAPER_GROUP_SIZE, PAPER_GROUP_SIZE)
    groups = min(given.max_groups or PAPER_GROUPS, PAPER_GROUPS)
    space = replace(given, max_group_size=size, max_groups=groups)
    of_streams = isinstance(found, StreamSchedule)
    searching = found.scheduler if found.scheduler in STRATEGIES else "ios-both"
    try:
        there = within_workspace(prices.at(engine=engine), network, options.workspace_limit_bytes)
        seconds = None if options.seconds is None else _PART * options.seconds
        best = schedule(network, there, searching, SearchOptions(space, _LIMITS, seconds=seconds))
        same_us = reprice_as_known(found, network, there).latency_us
        sequential = schedule(network, there, "sequential")
    except (KeyboardInterrupt, OptionError):
        return None
    if not (best.complete and sequential.complete and sequential.latency_us):
        return None
    both_us = [
        plan_us(one, network, there) if of_streams and isinstance(there, StreamCostModel) else one.latency_us
        for one in (best, sequential)
    ]
    return OtherEngine(engine, same_us, both_us[1], min(*both_us, same_us), size, groups)


def slower_as_plan(network: Network, found: AnySchedule, prices: CostModel) -> list[str]:
    """A sentence if stages are slower than sequential execution once both are priced as whole plans.

    A sum of stages, by which they are searched, has no host that issues a unit before the last one ends. Plans are
    priced only if the device alone would run the units one by one faster than ``found``.
    """
    if not (isinstance(prices, DeviceCostModel) and isinstance(prices, StreamCostModel)):
        return []
    if not prices.engine.synchronises or not isinstance(found, Schedule) or "workspace_limit_bytes" in found.options:
        return []
    alone = schedule(network, prices, SEQUENTIAL)
    device_us = 0.0
    for block, stages in zip(network.blocks, alone.blocks, strict=True):
        problem = ScheduleProblem.of_block(network, block)
        batches = batches_of(problem, planned(problem, stages))
        device_us += sum(float(prices.price_changed(batch, launches=0.0).sum()) for batch in batches)
    if not device_us < _WORTH_TELLING * found.latency_us or alone.latency_us <= found.latency_us:
        return []
    alone_us, found_us = (plan_us(one, network, prices) for one in (alone, found))
    both = f"{SEQUENTIAL} takes {alone_us / 1e3:.3f} ms and {found.scheduler} {found_us / 1e3:.3f} ms"
    said = f"Run as a whole on {found.device}, with the host issuing ahead of the device, {both}"
    said = f"{said}: run it sequentially, or search whole plans (`scheduler` ios-streams)"
    return [said] if alone_us < _WORTH_TELLING * found_us else []


@dataclass(frozen=True, eq=False)
class Scheduled(Generic[Found_co]):
    """Result of a task: the schedule and its network, with the outcomes of the transforms before it."""

    schedule: Found_co
    changed: Changed

    @property
    def network(self) -> Network:
        return self.changed.network

    @property
    def complete(self) -> bool:
        return self.schedule.complete and not self.changed.interrupted


@dataclass(frozen=True, eq=False)
class Task:
    """A network to be scheduled at given prices by one scheduler, after transforms that change it for that.

    With a ``budget``, prices that measure only measure stages that can change the result; the simulator of ``device``,
    by default the measured one, proposes them. Raises OptionError for invalid combinations.
    """

    network: Network
    prices: CostModel
    scheduler: str = "ios-both"
    options: SearchOptions = field(default_factory=SearchOptions)
    transforms: tuple[Transform, ...] = ()
    budget: Budget | None = None
    device: DeviceProfile | str | Path | None = None

    def __repr__(self) -> str:
        return f"<Task: {self.scheduler} of {self.network!r}, priced by {self.prices.identity.name}>"

    def __post_init__(self) -> None:
        stage_scheduler(self.scheduler)
        if self.budget is not None:
            if not isinstance(self.prices, MeasuringCostModel):
                reason = f"`budget` is for a cost model that measures, and {self.prices.identity.name!r} does not"
                raise OptionError(f"{reason}; leave it out, or give a backend as `cost_model`")
            if self.options.workspace_limit_bytes is not None:
                reason = "measurements do not include the workspaces of kernels; leave one out"
                raise OptionError(f"`workspace_limit` does not go with a `budget`: {reason}")
        for transform in self.transforms:
            transform.check(self.prices, self.scheduler)

    def run(self, progress: StartProgress = silent, measuring: MeasuredProgress = ignore) -> Scheduled[Schedule]:
        """Transform and schedule the network, judge the schedule, and note the other engine's latency.

        KeyboardInterrupt ends it with the best schedule so far (:mod:`iossim.search.anytime`): after an interrupted
        transform, the best found in one second.
        """
        try:
            return self._run(progress, measuring, Steps())
        except KeyboardInterrupt:  # between two steps
            return Scheduled(
                without_search(self.network, self.prices, self.scheduler, self.options), Changed(self.network)
            )

    def _run(self, progress: StartProgress, measuring: MeasuredProgress, steps: Steps) -> Scheduled[Schedule]:
        steps.take(None, _warm_up, self.network, self.prices)
        memo = SearchMemo(self.prices)
        clock = Clock(self.options.seconds)
        changed = self.change(progress, memo)
        options = replace(self.options, seconds=clock.rest_s()) if self.transforms else self.options
        task = replace(self, network=changed.network, transforms=(), options=options)
        if changed.interrupted and self.budget is None:
            task = replace(task, options=soon(options))
        made = steps.take(None, lambda: task.search(progress(self.scheduler), measuring, memo))
        if made is None:
            made = without_search(changed.network, self.prices, self.scheduler, self.options)
        alone = [made.model_copy(update={"complete": False, "proven": False} if changed.interrupted else {})]
        beside = "sequential" if alone[0].complete and self.scheduler != "sequential" else ""
        if not self._is_measured:
            alone = steps.take(alone, judged, task.network, alone, task.prices, beside)
        found = changed.remarked(alone[0])
        ended = not found.complete or steps.interrupted
        there = None if ended else under_other_engine(changed.network, found, self.prices, self.options)
        said = [] if ended else steps.take([], slower_as_plan, changed.network, found, self.prices)
        if there is not None:
            said = [*said, there.sentence()]
        found = found.model_copy(update={"remarks": [*found.remarks, *said]})
        return Scheduled(found, changed)

    def change(self, progress: StartProgress = silent, memo: SearchMemo | None = None) -> Changed:
        setting = Setting(self.prices, self.scheduler, self.options, progress, memo)
        return change(self.network, self.transforms, setting)

    def search(
        self, progress: Progress = ignore, measuring: MeasuredProgress = ignore, memo: SearchMemo | None = None
    ) -> Schedule:
        """Schedule of the network as it is, neither transformed nor judged; KeyboardInterrupt ends it with the best so
        far.
        """
        if self._is_measured:
            assert self.budget is not None
            assert isinstance(self.prices, MeasuringCostModel)
            from iossim.tasks.own_prices import estimating_model  # most prices are not measured

            estimate = estimating_model(self.prices, self.device, self.network.precision)
            from iossim.search.measured.search import schedule_measured  # most searches do not use it

            return schedule_measured(
                self.network, estimate, self.prices, self.scheduler, self.options, self.budget, measuring
            )
        return schedule(self.network, self.prices, self.scheduler, self.options, progress, memo)

    @property
    def _is_measured(self) -> bool:
        """True if stages are measured within the budget; schedulers without a search price each of their stages."""
        return self.budget is not None and self.scheduler in STRATEGIES


def compare(task: Task, schedulers: Sequence[str], progress: StartProgress = silent) -> Comparison:
    """A network scheduled as given by several schedulers, and as transformed for the task's scheduler.

    KeyboardInterrupt ends the comparison with the schedules so far, which include at least the first one's.
    """
    try:
        return _compared(task, schedulers, progress, Steps())
    except KeyboardInterrupt:  # between two steps
        return _compared(task, schedulers, progress, Steps(interrupted=True))


def _compared(task: Task, schedulers: Sequence[str], progress: StartProgress, steps: Steps) -> Comparison:
    steps.take(None, _warm_up, task.network, task.prices)
    given = replace(task, transforms=())
    memo, errors = SearchMemo(task.prices), schedule_errors(task.network, task.prices)
    found: list[Schedule] = []

    def searched(scheduler: str) -> Schedule:
        return replace(given, scheduler=scheduler).search(progress(scheduler), memo=memo)

    for name in schedulers:
        try:
            made = steps.take(None, searched, name)
        except IossimError as error:
            broken = isinstance(error, PluginError) or name in SCHEDULERS.plugins()
            if not broken or (not found and name == schedulers[-1]):
                raise
            warn_once(f"scheduler {name!r} is left out: {error}")
            continue
        if made is None and not found:
            made = without_search(task.network, task.prices, name, task.options)
        found += [] if made is None else [made]
        if steps.interrupted or not found[-1].complete:
            steps.interrupted = True
            break
    identity = task.prices.identity
    bounded = bounded_by_searches(found, task.options.space)
    schedules = steps.take(bounded, judged, task.network, bounded, task.prices, errors=errors)
    comparison = Comparison(task.network, identity.device, identity.engine, identity.to_json(), tuple(schedules))
    if errors is not None:
        best = min(schedules, key=lambda one: one.latency_us)
        known = {one.scheduler: one for one in bounded}
        noise = [errors.noise(known[best.scheduler], known[name]) for name in best.ties if name in known]
        comparison = replace(comparison, noise=max(noise, default=0.0))
    comparison = replace(comparison, left_out_us=steps.take({}, _left_out_us, comparison, task))
    if task.transforms:
        comparison = steps.take(comparison, _with_changed, comparison, task, progress, memo)
        if errors is not None:
            comparison = steps.take(comparison, _judged_beside, comparison, bounded, errors)
    comparison = steps.take(comparison, _noted, comparison, task.prices)
    return replace(comparison, complete=comparison.complete and not steps.interrupted)


def _noted(comparison: Comparison, prices: CostModel) -> Comparison:
    """The comparison with what :func:`slower_as_plan` says of the best, among its remarks."""
    best = comparison.best_of_stages
    said = slower_as_plan(best.network, best.schedule, prices)
    noted = best.schedule.model_copy(update={"remarks": [*best.schedule.remarks, *said]})
    given = [noted if one is best.schedule else one for one in comparison.schedules]
    changed = [replace(one, schedule=noted) if one.schedule is best.schedule else one for one in comparison.changed]
    return replace(comparison, schedules=tuple(given), changed=tuple(changed)) if said else comparison


def soon(options: SearchOptions) -> SearchOptions:
    """Options of a search that must end soon, since the one before it was interrupted."""
    return replace(options, seconds=min(options.seconds or _AFTER_INTERRUPT_S, _AFTER_INTERRUPT_S))


def bounded_by_searches(schedules: Sequence[Schedule], space: StageSpace) -> list[Schedule]:
    """The schedules; the greedy one gets the bound that ios-parallel proves over all stages that either may form."""
    parallel = [one for one in schedules if one.scheduler == "ios-parallel" and one.proven and space == StageSpace()]
    proven_us = [one.lower_bound_us for one in parallel if one.lower_bound_us is not None]
    return [
        # Sums over other stages differ by rounding.
        one.model_copy(update={"lower_bound_us": min(*proven_us, one.latency_us)})
        if one.scheduler == "greedy" and proven_us
        else one
        for one in schedules
    ]


def _with_changed(comparison: Comparison, task: Task, progress: StartProgress, memo: SearchMemo) -> Comparison:
    """The comparison extended by the schedules of the networks that the transforms make."""
    outcomes = task.change(progress, memo).outcomes
    interrupted = any(outcome.interrupted for outcome in outcomes)
    options = soon(task.options) if interrupted else task.options
    shown: list[tuple[Outcome, str, Network, str]] = []
    beside = task.scheduler != "sequential" and any(each.scheduler == "sequential" for each in comparison.schedules)
    for outcome in outcomes:
        own = [(outcome, label, network, task.scheduler) for label, network in outcome.alternatives.items()]
        if own and beside:
            shown.append((*own[0][:3], "sequential"))
        shown += own
    schedules: list[Entry[Schedule]] = []
    for outcome, label, network, name in shown:
        found = replace(task, network=network, transforms=(), scheduler=name, options=options).search(memo=memo)
        schedules.append(Entry(network, found, outcome.name, label))
        if not found.complete:
            break
    complete = not interrupted and all(each.schedule.complete for each in schedules)
    return replace(comparison, outcomes=outcomes, changed=tuple(schedules), complete=complete)


def _judged_beside(comparison: Comparison, given: Sequence[Schedule], errors: ScheduleErrors) -> Comparison:
    """The comparison with the intervals of the schedules of changed networks, and their ties with all others, including
    those of the network as ``given``, by the names of their rows.
    """
    for each in comparison.changed:
        errors.include(each.network, [each.schedule])
    rivals = [(one.scheduler, one) for one in given] + [(one.label, one.schedule) for one in comparison.changed]
    judged = (
        errors.judged_beside(each.schedule, [rival for rival in rivals if rival[1] is not each.schedule])
        for each in comparison.changed
    )
    pairs = zip(comparison.changed, judged, strict=True)
    return replace(comparison, changed=tuple(replace(each, schedule=one) for each, one in pairs))


def judged(
    network: Network,
    schedules: Sequence[Judged],
    prices: CostModel,
    beside: str = "",
    errors: ScheduleErrors | None = None,
) -> list[Judged]:
    """Schedules with their intervals, and their ties with each other and with that of a scheduler ``beside`` them, of
    the network before its transforms, under the workspace limit of the first.

    Prices that predict no device have no noise.
    """
    errors = errors or schedule_errors(network, prices)
    if errors is None:
        return list(schedules)
    if not beside:
        return errors.judged(schedules, [])
    limit = SearchOptions(workspace_limit_bytes=schedules[0].options.get("workspace_limit_bytes"))
    rival = _whole(schedule(network.given or network, prices, beside, limit))
    if network.given is not None:
        errors.include(network.given, [rival])
    return errors.judged(schedules, [rival])


def _whole(found: Schedule) -> Schedule:
    """The schedule itself if complete, since a part is worthless; else raises KeyboardInterrupt."""
    if not found.complete:
        raise KeyboardInterrupt
    return found


def _left_out_us(comparison: Comparison, task: Task) -> Mapping[str, float]:
    """Latency by scheduler of a fit without the network's published figures; empty for other networks."""
    network, prices = comparison.network, task.prices
    published = [each.scheduler for each in comparison.schedules if comparison.published_us(each.scheduler)]
    if not published or not isinstance(prices, DeviceCostModel):
        return {}
    profile = without_network(prices.profile, network.source.model)
    if profile is None:
        return {}
    other = prices.at(profile)
    return {name: _whole(schedule(network, other, name, task.options)).latency_us for name in published}


def _warm_up(network: Network, prices: CostModel) -> None:
    """Price one unit: the time to load compiled code is not part of any scheduler's search time."""
    problem = ScheduleProblem.of_block(network, network.blocks[0]).restrict([0])
    prices.price_stages(StageBatch.concurrent(problem, np.ones(1, dtype=np.uint64)))
