"""Explanation of a schedule of streams: each launch's waits and slack, and the critical path.

The plan is run in the model that priced it. A launch starts when the launch before it in its stream has ended, what it
waits for has, and the host has issued it; it takes longer than alone while others use the same resources. *Slack* is
how much later a launch could end, if all others ran as they did, before the whole takes longer. The critical path leads
from the last launch back through what each had to wait for.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from functools import cached_property

from iossim.base.errors import OptionError, StartProgress, silent
from iossim.cost.capabilities import DeviceCostModel, StreamCostModel
from iossim.cost.model import CostModel
from iossim.execution.engine import Engine
from iossim.execution.execution import Span
from iossim.execution.lower import lower_schedule
from iossim.ir.network import Network
from iossim.prediction.schedule_interval import schedule_errors
from iossim.schedule.fit import fit
from iossim.schedule.schedule import AnySchedule, StreamSchedule
from iossim.schedule.streams import StreamProblem, as_streams, issue_order, with_barriers
from iossim.search.anytime import Clock
from iossim.search.assemble import reprice_streams
from iossim.search.memo import SearchMemo
from iossim.search.scheduler import schedule as schedule_stages
from iossim.search.scheduler import schedule_any
from iossim.tasks.task import Scheduled, Task, soon, under_other_engine
from iossim.transforms.joint import JointlyFound, JointSearch

#: Times that differ by less are equal.
_ROUNDING_US = 1e-6


class Cause(StrEnum):
    """Last event that a launch waited for."""

    BEGIN = "begin"  # start of the schedule
    STREAM = "stream"  #: the launch before it in its stream, whose values it does not read
    DATA = "data"  # an input, from its own stream or another
    HOST = "host or free SMs"  # it was not yet issued, or no SM was free


@dataclass(frozen=True)
class LaunchExplanation:
    """One launch, as it ran. ``behind`` is the launch that it waited for last, if any; ``wait_us`` is the gap from that
    launch's end to its own start; ``alone_us`` its time alone, and ``sharing_us`` the time lost to others.
    """

    unit: str
    stream: int
    start_us: float
    end_us: float
    alone_us: float
    after: tuple[str, ...]
    cause: Cause
    behind: str | None
    wait_us: float
    slack_us: float
    is_critical: bool

    @property
    def sharing_us(self) -> float:
        return max(0.0, self.end_us - self.start_us - self.alone_us)


@dataclass(frozen=True)
class StreamExplanation:
    """A schedule of streams, launch by launch in the order of their starts; ``critical`` are the units of its path."""

    schedule: StreamSchedule
    launches: tuple[LaunchExplanation, ...]
    spans: tuple[Span, ...]

    @property
    def critical(self) -> list[LaunchExplanation]:
        return [one for one in self.launches if one.is_critical]

    @cached_property
    def units_of(self) -> Mapping[str, Sequence[str]]:
        """Units of each launch, by its name; several units are one stacked convolution."""
        return {"+".join(launch.units): launch.units for launch in self.schedule.launches}

    @property
    def waits(self) -> list[tuple[LaunchExplanation, LaunchExplanation]]:
        """Each wait for another stream: the launch that is waited for, and the one that waits."""
        of_unit = {unit: one for one in self.launches for unit in self.units_of[one.unit]}
        both = ((of_unit[unit], one) for one in self.launches for unit in one.after)
        return [(source, one) for source, one in both if source.stream != one.stream]

    @property
    def latency_us(self) -> float:
        return max((one.end_us for one in self.launches), default=0.0)

    @property
    def path_us(self) -> Mapping[str, float]:
        """Parts of the critical path: launches alone, the time that they lost to concurrent others, and waits."""
        path = self.critical
        waits_us = {f"waiting for {cause}": sum(one.wait_us for one in path if one.cause is cause) for cause in Cause}
        alone_us = sum(one.end_us - one.start_us - one.sharing_us for one in path)
        divided = {"kernels as alone": alone_us, "sharing": sum(one.sharing_us for one in path), **waits_us}
        return {name: us for name, us in divided.items() if us > _ROUNDING_US}

    def to_json(self) -> dict[str, object]:
        return {
            "latency_us": self.latency_us,
            "relaxed_bound_us": self.schedule.relaxed_bound_us,
            "streams": len(self.schedule.streams),
            "waits": sum(len(launch.after) for launch in self.schedule.launches),
            "critical_path": [one.unit for one in self.critical],
            "critical_path_us": dict(self.path_us),
            "launches": [{**asdict(one), "sharing_us": one.sharing_us} for one in self.launches],
        }


def explain_streams(
    schedule: StreamSchedule, network: Network, prices: CostModel, spans: Sequence[Span] | None = None
) -> StreamExplanation:
    """Explain a schedule at given prices; ``spans``, if given, are another run of it, such as one event by event.

    Raises ScheduleError if it does not fit the network, OptionError for prices without streams.
    """
    if not isinstance(prices, StreamCostModel) or not isinstance(prices, DeviceCostModel):
        raise OptionError(
            f"cost model {prices.identity.name!r} prices stages alone, and this schedule has streams; give "
            "`cost_model` simulator"
        )
    fit(schedule, network)
    order = issue_order(schedule)
    names = ["+".join(launch.units) for _, launch in order]
    units = [[network.unit_index[unit] for unit in launch.units] for _, launch in order]
    problem = StreamProblem.of(network, units, [launch.variant for _, launch in order])
    spans = prices.timeline(network, schedule) if spans is None else spans
    alone_us = prices.launch_work(problem).serial_us.tolist()
    place = {unit: number for number, (_, launch) in enumerate(order) for unit in launch.units}
    kernels: dict[str, list[Span]] = {}
    for span in spans:
        kernels.setdefault(span.unit, []).append(span)
    last: dict[int, int] = {}
    times: list[tuple[float, float]] = []
    awaited: list[list[int]] = []
    causes: list[tuple[Cause, int | None]] = []
    for number, (stream, launch) in enumerate(order):
        before = [last[stream]] if stream in last else []
        last[stream] = number
        waited, reads = sorted({place[unit] for unit in launch.after}), problem.reads[number]
        times.append(_extent(kernels.get(names[number], ()), [times[one][1] for one in (*reads, *before)]))
        awaited.append(waited + before)
        causes.append(_cause(number, times, awaited[-1], {*waited, *reads}, reads, prices.engine.is_recorded))
    slack_us = _slack_us(times, awaited, causes)
    critical = _critical(times, [latest for _, latest in causes])
    found = []
    for number, (stream, launch) in enumerate(order):
        cause, latest = causes[number]
        start_us, end_us = times[number]
        found.append(
            LaunchExplanation(
                names[number],
                stream,
                start_us,
                end_us,
                alone_us[number],
                tuple(launch.after),
                cause,
                behind=None if latest is None else names[latest],
                wait_us=start_us - (0.0 if latest is None else times[latest][1]),
                slack_us=slack_us[number],
                is_critical=number in critical,
            )
        )
    return StreamExplanation(
        schedule, tuple(sorted(found, key=lambda one: (one.start_us, one.end_us, one.stream))), tuple(spans)
    )


def explain_plan(schedule: AnySchedule, network: Network, prices: CostModel) -> StreamExplanation:
    """Explain the plan of a schedule, of stages too: a group is in the stream of its number, after a barrier.

    Raises the errors of :func:`explain_streams`.
    """
    if isinstance(schedule, StreamSchedule):
        return explain_streams(schedule, network, prices)
    engine = Engine.named(prices.identity.engine)
    if not engine.has_barriers or not isinstance(prices, StreamCostModel):
        return explain_streams(as_streams(schedule, network), network, prices)
    spans = prices.plan_spans(network, lower_schedule(schedule, network, engine))
    return explain_streams(with_barriers(schedule), network, prices, spans)


def _extent(kernels: Sequence[Span], awaited_us: Sequence[float]) -> tuple[float, float]:
    """Start and end of a launch; one without kernels starts and ends when all has ended that it reads, and that its
    stream did before.
    """
    if kernels:
        return min(one.start_us for one in kernels), max(one.end_us for one in kernels)
    there_us = max(awaited_us, default=0.0)
    return there_us, there_us


def _cause(
    number: int,
    times: Sequence[tuple[float, float]],
    awaited: Sequence[int],
    data: Container[int],
    reads: Container[int],
    in_graph: bool,
) -> tuple[Cause, int | None]:
    """Last event that a launch waited for: the latest of the ``awaited``, unless the host was later; ``data`` are those
    with inputs, or with an event, and ``reads`` those whose values it reads.
    """
    start_us = times[number][0]
    if not awaited:
        return (Cause.HOST if start_us > _ROUNDING_US else Cause.BEGIN), None
    latest = max(awaited, key=lambda one: (times[one][1], one in reads))
    if not in_graph and start_us > times[latest][1] + _ROUNDING_US:
        return Cause.HOST, latest
    return (Cause.DATA if latest in data else Cause.STREAM), latest


def _slack_us(
    times: Sequence[tuple[float, float]], awaited: Sequence[Sequence[int]], causes: Sequence[tuple[Cause, int | None]]
) -> list[float]:
    """Slack of each launch: how much later it could end before a successor would start later."""
    end_us = max((end for _, end in times), default=0.0)
    slack = [end_us - end for _, end in times]
    for number in reversed(range(len(times))):
        cause, latest = causes[number]
        # The time that a stream takes to wait is no slack.
        due_us = times[number][0] if cause is Cause.HOST or latest is None else times[latest][1]
        for one in awaited[number]:
            slack[one] = min(slack[one], slack[number] + max(0.0, due_us - times[one][1]))
    return slack


def _critical(times: Sequence[tuple[float, float]], latest: Sequence[int | None]) -> set[int]:
    found: set[int] = set()
    at: int | None = max(range(len(times)), key=lambda number: times[number][1], default=None)
    while at is not None:
        found.add(at)
        at = latest[at]
    return found


def run_streams(task: Task, scheduler: str, progress: StartProgress = silent) -> Scheduled[AnySchedule]:
    """The network as the transforms of a task leave it, and its streams by a scheduler of these, which a joint search
    includes: with their interval, a tie with sequential execution where they are within the noise, and a remark on the
    other engine. KeyboardInterrupt ends it with the best so far.
    """
    clock, memo = Clock(task.options.seconds), SearchMemo(task.prices)
    own = [replace(one, streams=scheduler) if isinstance(one, JointSearch) else one for one in task.transforms]
    changed = replace(task, transforms=tuple(own)).change(progress, memo)
    joint = next((one for one in changed.outcomes if isinstance(one, JointlyFound)), None)
    found = None if joint is None else joint.best.schedule
    if found is None:
        options = replace(task.options, seconds=clock.rest_s())
        options = soon(options) if changed.interrupted else options
        by = scheduler
        if joint is not None and not joint.ended:  # what is best of all are stages, with their fastest kernels
            by, options = task.scheduler, replace(options, company=False)
        found = schedule_any(changed.network, task.prices, by, options, progress(scheduler), memo)
    if changed.interrupted:
        found = found.model_copy(update={"complete": False, "proven": False})
    return Scheduled(_judged(changed.network, changed.remarked(found), task.prices), changed)


def _judged(network: Network, found: AnySchedule, prices: CostModel) -> AnySchedule:
    """The schedule beside sequential execution and the other engine, as far as no KeyboardInterrupt ends that."""
    if (errors := schedule_errors(network, prices)) is None or not found.complete:
        return found
    try:
        baseline = in_sequence(network, prices, found)
        found = errors.judged_beside(found, [(baseline.scheduler, baseline)])
        there = under_other_engine(network, found, prices)
    except KeyboardInterrupt:
        return found
    return found if there is None else found.model_copy(update={"remarks": [*found.remarks, there.sentence()]})


def in_sequence(network: Network, prices: CostModel, like: AnySchedule) -> AnySchedule:
    """The sequential schedule, of stages or of streams ``like`` another; streams have the price of their whole plan."""
    stages = schedule_stages(network, prices, "sequential")
    return reprice_streams(as_streams(stages, network), network, prices) if isinstance(like, StreamSchedule) else stages
