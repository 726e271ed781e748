"""Co-scheduling several networks on one device: one schedule for all of them, beside the ways of common servers.

The networks form a union (:func:`iossim.serving.union.union`), and each way of running them is a schedule of it,
priced as a whole plan: *one after another*, each by its own best streams; *time slicing*, as processes share a GPU;
*one stream a model*, as in an inference server; *partitions*, each on its own SMs; *stages side by side*, the first
stages of all in one, then the second; and *streams*, searched over all of them from the best of these, for an
objective (:mod:`iossim.serving.union`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise, zip_longest

from iossim.base.errors import OptionError, Progress, ignore
from iossim.cost.capabilities import DeviceCostModel, RemarkingCostModel, StreamCostModel
from iossim.cost.model import CostModel
from iossim.execution.engine import Engine
from iossim.execution.execution import Span
from iossim.execution.lower import lower_schedule
from iossim.execution.plan import Plan
from iossim.hardware.green_contexts import part_sizes
from iossim.ir.network import Network
from iossim.prediction.schedule_interval import schedule_errors
from iossim.schedule.batch import Strategy
from iossim.schedule.problem import ScheduleProblem, bits
from iossim.schedule.schedule import AnySchedule, BlockSchedule, ModelReference, Schedule, Stage, StreamSchedule
from iossim.schedule.streams import IssuedLaunch, as_streams, in_streams, issue_order
from iossim.search.anytime import Clock, Steps
from iossim.search.options import SearchOptions
from iossim.search.scheduler import STREAM_SCHEDULER as NAME
from iossim.search.scheduler import schedule, schedule_any, without_search
from iossim.search.streams.bounds import stream_bound_us
from iossim.search.streams.search import problem_of, search_launches
from iossim.serving.arrivals import Ends, Request, Served, serve_in_turns, serve_side_by_side
from iossim.serving.union import BEHIND, Objective, label_of, union

ONE_AFTER_ANOTHER, TIME_SLICING, ONE_STREAM_EACH = "one after another", "time slicing", "one stream a model"
PARTITIONS, STAGES_BESIDE, STREAMS = "partitions", "stages side by side", "streams"
#: Time slice of a process on the GPU, us. NVIDIA does not publish it: assumed, as are free context switches.
SLICE_US = 2000.0
#: Loads of randomly arriving requests, relative to the capacity of one after another.
LOADS = (0.3, 0.5, 0.7, 0.9, 1.1)


@dataclass(frozen=True)
class Way:
    """One way of running all: its makespan, also event by event (None if there was no time for that), the end of each
    model, and the interval of nine in ten measurements of the makespan; us.

    Models that do not run concurrently have no schedule in common.
    """

    name: str
    schedule: AnySchedule | None
    makespan_us: float
    simulated_us: float | None
    ends_us: Mapping[str, float]
    spans: tuple[Span, ...]
    interval_us: tuple[float, float] | None = None


@dataclass(frozen=True)
class Coschedule:
    """Ways of running several networks concurrently, and a lower bound on all of them, us, where known.

    Interrupted, it is not ``complete``: it has the ways searched by then. ``notes``: on prices, and what lacked time.
    """

    network: Network
    labels: tuple[str, ...]
    device: str
    engine: str
    bound_us: float | None
    ways: tuple[Way, ...]
    objective: Objective = field(default_factory=Objective)
    complete: bool = True
    notes: tuple[str, ...] = ()

    @property
    def best(self) -> Way:
        return min(self.ways, key=lambda way: self.objective.order(way.ends_us))

    @property
    def baseline(self) -> Way:
        return self.ways[0]

    def to_json(self) -> dict[str, object]:
        return {
            "models": list(self.labels),
            "device": self.device,
            "engine": self.engine,
            "bound_us": self.bound_us,
            "complete": self.complete,
            "notes": list(self.notes),
            "objective": self.objective.to_json(),
            "ways": [
                {
                    "way": way.name,
                    "makespan_us": way.makespan_us,
                    "interval_us": way.interval_us,
                    "event_by_event_us": way.simulated_us,
                    "ends_us": dict(way.ends_us),
                    "objective_us": self.objective.value_us(way.ends_us),
                    "over_limits_us": self.objective.over_us(way.ends_us),
                    "schedule": None if way.schedule is None else way.schedule.model_dump(mode="json"),
                }
                for way in self.ways
            ],
        }


def coschedule(
    networks: Mapping[str, Network],
    prices: CostModel,
    options: SearchOptions | None = None,
    progress: Progress = ignore,
    objective: Objective | None = None,
) -> Coschedule:
    """Run networks (by label) concurrently, in each way; ``progress`` reports each network, and the search.

    Streams are searched for the ``objective``, by default the makespan. The options' limit in seconds covers all of it;
    KeyboardInterrupt ends it with the ways known so far (:mod:`iossim.search.anytime`). Labels have no slash. Raises
    OptionError for prices without streams, or an objective of other models; GraphError for networks of different
    precisions.
    """
    options, objective = options or SearchOptions(), objective or Objective()
    objective.check(networks)
    if not isinstance(prices, StreamCostModel):
        raise OptionError(f"cost model {prices.identity.name!r} prices no streams; give `cost_model` simulator")
    try:
        steps = Steps(Clock(options.seconds))
        return _coscheduled(networks, union(networks), prices, options, progress, objective, steps)
    except KeyboardInterrupt:  # between two steps: no search was running
        steps = Steps(interrupted=True)
        return _coscheduled(networks, union(networks), prices, options, progress, objective, steps)


def _coscheduled(
    networks: Mapping[str, Network],
    whole: Network,
    prices: StreamCostModel,
    options: SearchOptions,
    progress: Progress,
    objective: Objective,
    steps: Steps,
) -> Coschedule:
    """Each way that time permits. The remaining time is divided equally among the remaining searches: one for each
    model's streams, one for the joint streams, and one for the stages of all.
    """
    own: dict[str, AnySchedule] = {}
    for label, network in networks.items():
        progress(len(own), len(networks) + 1)
        if not steps.interrupted:
            seconds = steps.clock.part_s(1 / (len(networks) - len(own) + 2))
            own[label] = schedule_any(network, prices, NAME, replace(options, seconds=seconds))
            steps.interrupted |= not own[label].complete
        else:
            own[label] = without_search(network, prices, NAME)
    progress(len(own), len(networks) + 1)
    launches = {label: _issued(label, own[label], network) for label, network in networks.items()}
    first = 0
    beside_of: dict[str, list[IssuedLaunch]] = {}
    for label, order in launches.items():
        beside_of[label] = [replace(launch, stream=first + launch.stream) for launch in order]
        first += 1 + max(launch.stream for launch in order)
    alone_of = {
        label: [replace(launch, stream=number) for launch in order]
        for number, (label, order) in enumerate(launches.items())
    }
    beside, alone = _alternating(beside_of), _alternating(alone_of)
    in_turn = _one_after_another(networks, own, prices, steps)
    starts = [beside, alone, [launch for order in beside_of.values() for launch in order]]
    if not objective.is_plain:
        # All of a model before the next one, in the same streams: first what may not wait, then the short and weighty.
        ranked = sorted(networks, key=lambda label: _rank(label, in_turn, objective))
        starts.append([launch for label in ranked for launch in launches[label]])
    found = search_launches(whole, prices, starts, options.seed, steps, steps.clock.part_s(1 / 2), objective.of)
    weights = {label: objective.weight(label) for label in launches} if objective.weights else {}

    def bound_us() -> float:
        check = steps.clock.check
        if weights:
            return sum(weight * _bound_us(whole, prices, launches[label], check) for label, weight in weights.items())
        return _bound_us(whole, prices, starts[0], check)

    least_us = steps.take(None, bound_us)
    ways = [in_turn, time_sliced(in_turn), _way(ONE_STREAM_EACH, _streams(whole, prices, alone), whole, prices, steps)]
    divided = steps.take(None, _partitions, whole, prices, steps)
    ways += divided or []
    stages = steps.take(None, _stages_beside, whole, networks, prices, options, steps)
    if stages is not None:
        ways.append(_way(STAGES_BESIDE, stages, whole, prices, steps))
    candidates: list[Way] = []
    for order in found:  # the best in the fluid model first, the starts last
        if candidates and len(found) > len(starts) and steps.ended:
            break
        candidates.append(_way(STREAMS, _streams(whole, prices, order), whole, prices, steps))
    ways.append(min(candidates, key=lambda way: _fitness(way, objective)))
    progress(len(networks) + 1, len(networks) + 1)
    identity = prices.identity
    ways, remarks = _with_intervals(ways, whole, prices)
    notes = [*(prices.remarks(whole) if isinstance(prices, RemarkingCostModel) else ()), *remarks]
    if least_us is None:
        notes.append(f"no lower bound, so that the gap is not known: {steps.cause}")
    if any(way.simulated_us is None for way in ways):
        notes.append(f"not every way was run event by event: {steps.cause}")
    skipped = [name for name, made in ((PARTITIONS, divided), (STAGES_BESIDE, stages)) if made is None]
    if skipped:
        notes.append(f"not looked at: {' and '.join(skipped)}; {steps.cause}")
    return Coschedule(
        whole, tuple(networks), identity.device, identity.engine, least_us, tuple(ways), objective,
        not steps.interrupted, tuple(notes),
    )  # fmt: skip


def _with_intervals(ways: Sequence[Way], whole: Network, prices: CostModel) -> tuple[list[Way], list[str]]:
    """Ways with the intervals of their makespans, and remarks on these. Slices take as long as one after another."""
    errors = schedule_errors(whole, prices)
    if errors is None:
        return list(ways), []
    by_slices = {TIME_SLICING: ways[0].spans}
    found = [errors.interval_of_spans(by_slices.get(way.name, way.spans), way.makespan_us) for way in ways]
    judged = [replace(way, interval_us=(one.low_us, one.high_us)) for way, one in zip(ways, found, strict=True)]
    return judged, list(filter(None, [found[-1].remark]))


def _rank(label: str, in_turn: Way, objective: Objective) -> tuple[bool, float]:
    weight = objective.weight(label) if objective.weights else 1.0
    return label not in objective.limits_us, _alone_us(in_turn)[label] / weight if weight else float("inf")


def _fitness(way: Way, objective: Objective) -> tuple[float, float]:
    """Order of a way; if events are slower than the fluid model, every model's end is scaled by the same factor."""
    slower = max(1.0, (way.simulated_us or 0.0) / way.makespan_us) if way.makespan_us else 1.0
    return objective.order({label: slower * end_us for label, end_us in way.ends_us.items()})


def _bound_us(
    whole: Network, prices: StreamCostModel, order: Sequence[IssuedLaunch], check: Callable[[], None]
) -> float:
    """A lower bound on the makespan of these launches in any streams, even with the device to themselves."""
    problem = problem_of(whole, order)
    return stream_bound_us(problem, prices.launch_work(problem), check=check)


def _issued(label: str, found: AnySchedule, network: Network) -> list[IssuedLaunch]:
    """Launches of a network's own schedule in the order of issue, by their names in the union."""
    streams = found if isinstance(found, StreamSchedule) else as_streams(found, network)
    return [
        IssuedLaunch(tuple(f"{label}{BEHIND}{unit}" for unit in launch.units), stream, launch.variant)
        for stream, launch in issue_order(streams)
    ]


def _alternating(orders: Mapping[str, Sequence[IssuedLaunch]]) -> list[IssuedLaunch]:
    """Launches of all models merged by relative progress, each model's in its own order."""
    placed = [
        ((place + 1) / len(order), number, place, launch)
        for number, order in enumerate(orders.values())
        for place, launch in enumerate(order)
    ]
    return [launch for *_, launch in sorted(placed, key=lambda one: one[:3])]


def _saved(whole: Network, prices: CostModel, scheduler: str) -> dict[str, object]:
    """Fields of a schedule of the union apart from its stages or streams."""
    identity = prices.identity
    return {
        "network": whole.name,
        "source": ModelReference(model=whole.source.model, batch=1),
        "graph_hash": whole.graph.hash,
        "device": identity.device,
        "precision": str(whole.precision),
        "engine": identity.engine,
        "cost_model": identity.to_json(),
        "scheduler": scheduler,
        "latency_us": 0.0,
    }


def _streams(whole: Network, prices: CostModel, order: Sequence[IssuedLaunch]) -> StreamSchedule:
    return StreamSchedule(**_saved(whole, prices, STREAMS), **in_streams(whole, order))


def _stages_beside(
    whole: Network, networks: Mapping[str, Network], prices: CostModel, options: SearchOptions, steps: Steps
) -> Schedule:
    """The best stages of each model without merges, side by side: all first stages are one, then all second, and so on.

    Raises KeyboardInterrupt where a search was interrupted.
    """
    of_model: dict[str, Schedule] = {}
    for label, network in networks.items():
        seconds = steps.clock.part_s(1 / (len(networks) - len(of_model) + 1))
        of_model[label] = schedule(network, prices, "ios-parallel", replace(options, seconds=seconds))
        if not of_model[label].complete:
            raise KeyboardInterrupt
    named = [
        [[[f"{label}{BEHIND}{unit}" for unit in group] for group in stage.groups] for stage in found.stages]
        for label, found in of_model.items()
    ]
    stages = [
        Stage(
            strategy=Strategy.CONCURRENT, groups=[group for groups in together for group in groups or ()], latency_us=0
        )
        for together in zip_longest(*named)
    ]
    (block,) = whole.blocks
    return Schedule(**_saved(whole, prices, STAGES_BESIDE), blocks=[BlockSchedule(name=block.name, stages=stages)])


def _way(name: str, found: AnySchedule, whole: Network, prices: StreamCostModel, steps: Steps) -> Way:
    plan = lower_schedule(found, whole, prices.identity.engine)
    spans = prices.plan_spans(whole, plan)
    makespan_us = max((span.end_us for span in spans), default=0.0)
    found = found.model_copy(update={"latency_us": makespan_us})
    return Way(name, found, makespan_us, _run_us(whole, plan, prices, steps), _ends_us(whole, spans), spans)


def _run_us(network: Network, plan: Plan, prices: StreamCostModel, steps: Steps) -> float | None:
    """Latency of a plan event by event, us; None where there was no time for it."""
    return steps.take(None, prices.simulated_plan_us, network, plan, steps.clock.check)


def _ends_us(whole: Network, spans: Sequence[Span]) -> dict[str, float]:
    ends_us = {label_of(unit.name): 0.0 for unit in whole.units}  # a model without kernels has no span
    for span in spans:
        label = label_of(span.unit)
        ends_us[label] = max(ends_us.get(label, 0.0), span.end_us)
    return ends_us


def _one_after_another(
    networks: Mapping[str, Network], own: Mapping[str, AnySchedule], prices: StreamCostModel, steps: Steps
) -> Way:
    """Each model in its own streams, after the one before it has ended."""
    spans: list[Span] = []
    ends_us: dict[str, float] = {}
    makespan_us = 0.0
    simulated_us: float | None = 0.0
    for label, network in networks.items():
        plan = lower_schedule(own[label], network, prices.identity.engine)
        spans += [
            replace(
                span,
                unit="+".join(f"{label}{BEHIND}{unit}" for unit in _units_of(span, network)),
                start_us=span.start_us + makespan_us,
                end_us=span.end_us + makespan_us,
            )
            for span in prices.plan_spans(network, plan)
        ]
        ends_us[label] = makespan_us = max((span.end_us for span in spans), default=0.0)
        run_us = _run_us(network, plan, prices, steps)
        simulated_us = None if simulated_us is None or run_us is None else simulated_us + run_us
    return Way(ONE_AFTER_ANOTHER, None, makespan_us, simulated_us, ends_us, tuple(spans))


def _units_of(span: Span, network: Network) -> list[str]:
    return [span.unit] if span.unit in network.unit_index else span.unit.split("+")


def _alone_us(in_turn: Way) -> dict[str, float]:
    """Time of each model alone, from the way that runs one after another."""
    ends_us = list(in_turn.ends_us.values())
    return dict(zip(in_turn.ends_us, (end - begin for begin, end in pairwise([0.0, *ends_us])), strict=True))


def time_sliced(in_turn: Way) -> Way:
    """Each model in its own streams, for one time slice; then the next has the device."""
    left_us, ends_us, spans, now_us = _alone_us(in_turn), dict[str, float](), list[Span](), 0.0
    number = {label: place for place, label in enumerate(left_us)}
    while left_us:
        for label in list(left_us):
            taken_us = min(SLICE_US, left_us[label])
            spans.append(Span("slice", f"{label}{BEHIND}slice", 0, number[label], now_us, now_us + taken_us))
            now_us += taken_us
            left_us[label] -= taken_us
            if left_us[label] <= 0.0:
                ends_us[label] = now_us
                del left_us[label]
    ends_us = {label: ends_us[label] for label in in_turn.ends_us}
    return Way(TIME_SLICING, None, in_turn.makespan_us, in_turn.simulated_us, ends_us, tuple(spans))


def _partitions(whole: Network, prices: StreamCostModel, steps: Steps) -> list[Way]:
    """Each model on its own SMs, unit by unit, divided so that the longest takes least.

    A model of several disconnected parts has SMs for each. No way if there is only one part, the engine is not a graph,
    or the device cannot be divided.
    """
    (block,) = whole.blocks
    problem = ScheduleProblem.of_block(whole, block)
    groups = [[problem.unit_names[unit] for unit in bits(group)] for group in problem.groups(problem.full)]
    if len(groups) < 2 or not isinstance(prices, DeviceCostModel) or prices.engine is not Engine.GRAPH:
        return []
    try:
        part_sizes(prices.profile)
    except OptionError:
        return []
    divided = prices.at(engine=Engine.PARTITION)
    assert isinstance(divided, StreamCostModel)
    stage = Stage(strategy=Strategy.CONCURRENT, groups=groups, latency_us=0)
    found = Schedule(**_saved(whole, divided, PARTITIONS), blocks=[BlockSchedule(name=block.name, stages=[stage])])
    spans = divided.timeline(whole, found)
    makespan_us = max((span.end_us for span in spans), default=0.0)
    found = found.model_copy(update={"latency_us": makespan_us})
    sms_of = {span.unit: span.sms for span in spans if span.sms is not None}

    def divide(groups: Sequence[Sequence[int]], variants: Mapping[str, str]) -> tuple[range, ...]:
        """SMs of each group as in the spans; a group without kernels needs none."""
        names = [[whole.units[unit].name for unit in group] for group in groups]
        return tuple(next((sms_of[unit] for unit in group if unit in sms_of), range(0)) for group in names)

    plan = lower_schedule(found, whole, Engine.PARTITION, divided=divide)
    return [Way(PARTITIONS, found, makespan_us, _run_us(whole, plan, divided, steps), _ends_us(whole, spans), spans)]


class Server:
    """Serves requests for the models by each policy (:mod:`iossim.serving.arrivals`); sets of models are run once."""

    def __init__(
        self, networks: Mapping[str, Network], prices: CostModel, options: SearchOptions, found: Coschedule
    ) -> None:
        self._networks, self._prices, self._options = networks, prices, options
        self._kinds = {label: network.graph.hash for label, network in networks.items()}
        self._found: dict[tuple[str, ...], tuple[tuple[str, ...], Coschedule]] = {}
        self._keep(found)

    def load(self, requests: Sequence[Request]) -> float:
        """Offered load: the fraction of time that the requests would occupy a device that serves one after another."""
        span_us = max(requests[-1].time_us - requests[0].time_us, 1e-9)
        return sum(self._ends(ONE_AFTER_ANOTHER)(frozenset([one.model]))[one.model] for one in requests[:-1]) / span_us

    def serve(self, requests: Sequence[Request], load: float) -> list[Served]:
        in_turn = serve_in_turns(requests, self._ends(ONE_AFTER_ANOTHER), together=False)
        beside = serve_side_by_side(requests, self._ends(ONE_STREAM_EACH))
        together = serve_in_turns(requests, self._ends(STREAMS), together=True)
        found = ((ONE_AFTER_ANOTHER, in_turn), (ONE_STREAM_EACH, beside), (STREAMS, together))
        return [Served(policy, load, tuple(latencies_us)) for policy, latencies_us in found]

    def _keep(self, found: Coschedule) -> tuple[tuple[str, ...], Coschedule]:
        key = tuple(sorted(self._kinds[label] for label in found.labels))
        self._found[key] = tuple(sorted(found.labels, key=lambda label: self._kinds[label])), found
        return self._found[key]

    def _ends(self, way: str) -> Ends:
        """End times of each set of models, if they start together, in that way."""

        def ends(models: frozenset[str]) -> dict[str, float]:
            ordered = sorted(sorted(models), key=lambda label: self._kinds[label])
            key = tuple(self._kinds[label] for label in ordered)
            known = self._found.get(key)
            if known is None:
                networks = {label: self._networks[label] for label in ordered}
                known = self._keep(coschedule(networks, self._prices, self._options))
                if not known[1].complete:
                    raise KeyboardInterrupt
            labels, found = known
            ends_us = next(one for one in found.ways if one.name == way).ends_us
            return {own: ends_us.get(label, 0.0) for own, label in zip(ordered, labels, strict=True)}

        return ends
