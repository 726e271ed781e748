"""Uncertainty of a schedule's latency, and of the difference of two schedules on one device.

To first order the relative error of a latency is a sum over its parts, each the part's share of the latency times the
part's relative error. The parts are: *units*, equal ones together, by the bands of their kinds of operators, of which
:data:`COMMON_PART` is common to the kind (residuals that no fit saw: what the parameters' uncertainty adds is in
them); *concurrent stages* (:func:`stage_error`); *boundaries* (:data:`BOUNDARY_ERROR`, all together); and the
*parameters of concurrency*, by their standard deviation times the slope of the latency (:class:`ConcurrencySlopes`).

In the difference of two schedules the shares are subtracted first, so that errors of what both contain cancel;
measurements do not repeat either (:data:`REPEAT_NOISE`). Intervals contain nine in ten cases, assuming normal
logarithms with a deviation of their own on each side; where networks of the device were measured, in fp32, the interval
of one is as narrow as they justify (:attr:`~iossim.hardware.provenance.Provenance.network_width`): errors of parts
cancel in a sum that was fitted. The noise of differences is not narrowed: of 34 pairs of published ones 31 are in it.

A slope is found by pricing a schedule's stages with a changed parameter, without choosing kernels anew. On streams the
host's launches are priced anew, in a graph the gap between its nodes; boundaries are counted.

A schedule of streams is one concurrent stage for the part of its time in which launches of several streams run; its
slopes are those of its whole plan. No network was measured in streams, so nothing narrows their intervals.
"""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from functools import cache
from itertools import islice, pairwise
from math import exp, fsum, hypot, log, sqrt
from typing import TYPE_CHECKING, TypeVar

from iossim.backends.simulator.cost_model import SimulatorCostModel
from iossim.backends.simulator.device_rates import device_rates
from iossim.cost.capabilities import DeviceCostModel
from iossim.cost.model import CostModel, Prices
from iossim.execution.engine import Engine
from iossim.execution.in_place import in_place_buffers
from iossim.hardware.compute_capability import SINCE_HOPPER
from iossim.hardware.lowering.step import Step
from iossim.hardware.lowering.target import step_candidates
from iossim.hardware.lowering.unit import copy_step, merged_step, unit_steps
from iossim.hardware.profile import DeviceProfile, with_values
from iossim.ir.network import Network
from iossim.ir.types import Precision
from iossim.prediction.bands import kind_of, measured_over_predicted
from iossim.prediction.candidate_table import CandidateTable
from iossim.schedule.batch import StageBatch, Strategy
from iossim.schedule.planned_stage import PlannedStage, batches_of, planned
from iossim.schedule.problem import ScheduleProblem
from iossim.schedule.schedule import AnySchedule, Schedule, Stage, StreamSchedule

if TYPE_CHECKING:
    from iossim.execution.execution import Span

Judged = TypeVar("Judged", Schedule, StreamSchedule, AnySchedule)

#: Parameters on which a latency may depend.
COSTS = ("interference", "bare_launch_us", "synchronise_us", "graph_gap_factor", "fork_us", "join_us")
#: Step of a parameter, relative to its value, and its minimum: a longer one may change which kernel is the fastest.
_STEP, _LEAST_STEP = 0.001, 0.0001


class ConcurrencySlopes:
    """Slopes of the schedules of one network on one device; ``names`` are the requested parameters.

    ``model`` has priced them, or a similar one is made for the engine of a schedule.
    """

    def __init__(
        self, network: Network, profile: DeviceProfile, names: Sequence[str], model: DeviceCostModel | None = None
    ) -> None:
        self._network = network
        self._profile = profile
        self._names = tuple(name for name in COSTS if name in names)
        self._models: dict[str, DeviceCostModel] = {} if model is None else {str(model.engine): model}
        #: Models with one changed parameter, by its name, for graphs alone: on streams nothing is lowered anew.
        self._changed: dict[str, CostModel] = {}
        self._problem = cache(lambda block: ScheduleProblem.of_block(network, network.blocks[block]))
        self._block_us: dict[tuple[str, str, int, tuple[PlannedStage, ...]], float] = {}
        self._block_of = {
            network.units[unit].name: index for index, block in enumerate(network.blocks) for unit in block.units
        }

    def of_network(self, network: Network) -> ConcurrencySlopes:
        """Slopes for schedules of another network on the same device."""
        other = ConcurrencySlopes(network, self._profile, self._names)
        other._models, other._changed = self._models, self._changed
        return other

    def of(self, schedule: AnySchedule) -> dict[str, float]:
        """Relative change of the latency per change of each parameter."""
        if not self._names or not schedule.latency_us:
            return {}
        model = self.model(schedule.engine)
        if isinstance(schedule, StreamSchedule):
            from iossim.prediction.stream_parts import plan_changes_us  # loaded for streams only

            changes_us = plan_changes_us(self._network, schedule, model, self._profile, self._steps())
        else:
            changes_us = {name: self._change_us(name, schedule, model) for name in self._names}
        return {name: change_us / schedule.latency_us for name, change_us in changes_us.items()}

    def _steps(self) -> dict[str, float]:
        """The step of each parameter by which a slope is found."""
        values = self._profile.parameter_values
        return {name: max(_STEP * values[name], _LEAST_STEP) for name in self._names}

    def model(self, engine: str) -> DeviceCostModel:
        """The simulator under an engine."""
        if engine not in self._models:
            self._models[engine] = SimulatorCostModel(self._profile, self._network.precision, Engine.named(engine))
        return self._models[engine]

    def _change_us(self, name: str, schedule: Schedule, model: DeviceCostModel) -> float:
        """Change of the latency when a parameter changes by 1."""
        is_graph = schedule.engine == Engine.GRAPH
        concurrent = [stage.concurrent for stage in schedule.stages]
        if name == "synchronise_us":
            waits = not is_graph and Engine.named(schedule.engine).has_barriers
            return float(sum(left or right for left, right in pairwise(concurrent))) if waits else 0.0
        if name in ("fork_us", "join_us"):
            return float(sum(concurrent[1:] if name == "fork_us" else concurrent[:-1])) if is_graph else 0.0
        if name == ("bare_launch_us" if is_graph else "graph_gap_factor"):
            return 0.0
        own, step = self._profile.parameter_values[name], self._steps()[name]
        if name == "bare_launch_us":
            factor = 1.0 + step / own if own else 1.0
            changed_us = self._sum_us(name, schedule, lambda batch: model.price_changed(batch, factor))
        else:
            if name not in self._changed:
                self._changed[name] = model.at(with_values(self._profile, {name: own + step}))
            changed_us = self._sum_us(name, schedule, self._changed[name].price_stages)
        base_us = self._sum_us("", schedule, lambda batch: model.price_changed(batch, 1.0))
        return (changed_us - base_us) / step

    def _sum_us(self, changed: str, schedule: Schedule, price: Callable[[StageBatch], Prices]) -> float:
        """Prices of the stages of all blocks; equal blocks of several schedules are priced once."""
        blocks_us: list[float] = []
        for block in schedule.blocks:
            if block.stages:
                index = self._block_of[block.stages[0].units[0]]
                problem = self._problem(index)
                key = schedule.engine, changed, index, (stages := planned(problem, block))
                if key not in self._block_us:
                    self._block_us[key] = sum(float(price(batch).sum()) for batch in batches_of(problem, stages))
                blocks_us.append(self._block_us[key])
        return sum(blocks_us, 0.0)


Part = Hashable

#: Half the width of the interval of log(time) of repeated measurements: on a V100 they differ by 2 to 4 percent.
REPEAT_NOISE = 0.03
#: Common part of the variance of a kind's residuals, which moves all its operators at once.
COMMON_PART = 0.25
#: Standard deviation of the relative error of a stage of several groups, beyond that of its kernels alone.
STAGE_ERROR = 0.05
#: The same since Hopper, and for each group: nine in ten of 192 sets of two to eight convolutions are inside, in bf16
#: on an H100 (in-sample: ``python -m evidence hopper``), and of 529 stages in fp32 on an H200, by which neither was
#: chosen. :data:`COMMON_PART` of it is common to stages.
HOPPER_STAGE_ERROR, HOPPER_GROUP_ERROR = 0.17, 0.018
#: Standard deviation of the relative error of the cost of synchronising.
BOUNDARY_ERROR = 0.2
#: Nine in ten cases of a normal distribution are within this many standard deviations.
NINE_OF_TEN = 1.645
#: Name of the gaps between stages, as a part of a latency and among the kinds of ops.
BOUNDARIES = "boundaries"
#: Name of the stages of several groups, whose errors are common in part.
STAGES = "stages"
#: Sides of a deviation.
_BELOW, _BOTH, _ABOVE = range(3)
#: Number of schedules whose shares are kept: those of one comparison are used repeatedly.
_KEPT = 32


@dataclass(frozen=True)
class LatencyInterval:
    """Interval of nine in ten measurements, microseconds; ``remark`` says where most of it was not measured."""

    low_us: float
    high_us: float
    remark: str = ""


class PlacedSteps:
    """The steps of a network's units as its values lie, ``in_place`` or in buffers of their own."""

    def __init__(self, network: Network, in_place: bool) -> None:
        self._network = network
        self._place = in_place_buffers(network) if in_place else None

    def parts(self) -> dict[str, str]:
        """By unit the key of its steps, equal for equal ones."""
        placed = self._place.signature if self._place is not None else lambda unit: ""
        network = self._network
        return {one.name: network.signatures[unit] + placed(unit) for unit, one in enumerate(network.units)}

    def of(self, units: Sequence[int], strategy: Strategy = Strategy.CONCURRENT) -> list[Step]:
        """The steps of a unit, or of several that are merged, with what is copied to its place."""
        network, place = self._network, self._place
        if strategy is Strategy.MERGE:
            own = [merged_step(network, units)]
        else:
            own = [] if place and units[0] in place.moves else unit_steps(network, network.units[units[0]])
        return own + [copy_step(one, network.precision) for one in (place.copies(units) if place else ())]


def stage_error(profile: DeviceProfile, groups: int) -> float:
    """Standard deviation of the relative error of a stage of so many groups, beyond that of its kernels alone."""
    return HOPPER_STAGE_ERROR + HOPPER_GROUP_ERROR * groups if profile.architecture in SINCE_HOPPER else STAGE_ERROR


def schedule_errors(network: Network, cost_model: CostModel) -> ScheduleErrors | None:
    """Errors of the schedules that a cost model prices; None for one that simulates no device."""
    if not isinstance(cost_model, DeviceCostModel):
        return None
    return ScheduleErrors(network, cost_model.profile, cost_model)


@dataclass(frozen=True, eq=False)
class _UnitError:
    """Time alone, and the parts of its relative error: ``kinds`` are deviations shared with others of a kind. Each has
    one below the prediction, one of both sides and one above: measurements are seldom far below, but may be far above.
    """

    alone_us: float
    own: list[float]
    kinds: dict[str, list[float]]
    #: Part of its time in kinds of operators that were not measured on the device in this precision.
    unmeasured: float
    #: Time alone by kind of op.
    kind_us: dict[str, float]


class ScheduleErrors:
    """Errors of schedules of one network on one device; its units are lowered once.

    ``model`` is what priced the schedules, if it can price changed parameters: it has the kernels ready.
    """

    def __init__(self, network: Network, profile: DeviceProfile, model: DeviceCostModel | None = None) -> None:
        self._network = network
        self._profile = profile
        engine = Engine.PAPER if model is None else model.engine
        self._in_place, self._libraries = engine.facts.in_place, engine.libraries_on(profile.architecture)
        if isinstance(model, SimulatorCostModel):
            self._in_place, self._libraries = model.in_place, model.units.whole.libraries
        self._steps, self._issue = PlacedSteps(network, self._in_place), engine.issue
        narrows = engine is Engine.PAPER and network.precision is Precision.FP32  # as the published networks ran
        self._width = profile.provenance.network_width if narrows else 1.0
        self._units: dict[Part, _UnitError] = {}
        names = [name for name in COSTS if name in profile.spread]
        self._spread: dict[Part, float] = {("parameter", name): profile.spread[name] for name in names}
        self._slopes = ConcurrencySlopes(network, profile, names, model)
        #: Schedules are no keys: they hold lists. They are kept beside the shares, so that no other gets their id.
        self._known: OrderedDict[int, tuple[AnySchedule, dict[Part, float]]] = OrderedDict()
        self._part_of_unit = self._steps.parts()

    def interval(self, schedule: AnySchedule) -> LatencyInterval:
        """Interval of a schedule's latency on the device that it was priced for."""
        width = 1.0 if isinstance(schedule, StreamSchedule) else self._width
        return self._around(schedule.latency_us, self._shares(schedule), width)

    def interval_one_by_one(self, unit_us: Sequence[float]) -> LatencyInterval:
        """Interval of the sum of the times of all units, ``[units]``, each timed alone."""
        units = self._network.units
        self._price({self._part_of_unit[unit.name]: self._steps.of([index]) for index, unit in enumerate(units)})
        total_us = fsum(unit_us)
        shares: dict[Part, float] = defaultdict(float)
        for unit, own_us in zip(units, unit_us, strict=True):
            shares[self._part_of_unit[unit.name]] += own_us / (total_us or 1.0)
        return self._around(total_us, shares, self._width)

    def interval_of_steps(self, timed: Sequence[tuple[Step, float, int]]) -> LatencyInterval:
        """Interval of the sum of steps one after another: each with its time alone, us, and how often it runs."""
        total_us = fsum(own_us * count for _, own_us, count in timed)
        shares: dict[Part, float] = defaultdict(float)
        for step, own_us, count in timed:
            self._units[step, own_us] = self._unit_error([step], iter([own_us]))
            shares[step, own_us] += own_us * count / (total_us or 1.0)
        return self._around(total_us, shares, 1.0)

    def interval_of_spans(self, spans: Sequence[Span], latency_us: float) -> LatencyInterval:
        """Interval of a plan whose kernels run in these spans, without slopes, which add next to nothing in streams."""
        return self._around(latency_us, self._span_shares(spans, latency_us), 1.0)

    def _around(self, latency_us: float, shares: Mapping[Part, float], width: float) -> LatencyInterval:
        below, above = (
            hypot(width * NINE_OF_TEN * self._deviation(shares, side), REPEAT_NOISE / sqrt(2))
            for side in (_BELOW, _ABOVE)
        )
        remark = ""
        if fsum(share * self._units[part].unmeasured for part, share in shares.items() if part in self._units) > 0.5:
            where = f"on {self._profile.name} in {self._network.precision}"
            remark = f"Most of this was not measured {where}: the interval is as wide as errors on other devices"
        return LatencyInterval(latency_us * exp(-below), latency_us * exp(above), remark)

    def noise(self, first: AnySchedule, second: AnySchedule) -> float:
        """Half the width of the interval of the logarithm of the ratio of two schedules' latencies on the device."""
        shares = dict(self._shares(first))
        for part, share in self._shares(second).items():
            shares[part] = shares.get(part, 0.0) - share
        return hypot(NINE_OF_TEN * self._deviation(shares), REPEAT_NOISE)

    def is_tie(self, first: AnySchedule, second: AnySchedule) -> bool:
        """True where two schedules differ by no more than the noise."""
        if min(first.latency_us, second.latency_us) <= 0:
            return first.latency_us == second.latency_us
        return abs(log(first.latency_us / second.latency_us)) <= self.noise(first, second)

    def judged(self, schedules: Sequence[Judged], beside: Sequence[AnySchedule] = ()) -> list[Judged]:
        """Schedules with their intervals and their ties, which differ from each by less than the noise: among one
        another, and with others ``beside`` them.
        """
        every = (*schedules, *beside)
        return [
            self.judged_beside(one, [(other.scheduler, other) for other in every if other is not one])
            for one in schedules
        ]

    def judged_beside(self, one: Judged, rivals: Iterable[tuple[str, AnySchedule]]) -> Judged:
        """The schedule with its interval, and as ties the names of the rivals that differ from it by less than the
        noise.
        """
        interval = self.interval(one)
        ties = [name for name, other in rivals if self.is_tie(one, other)]
        remarks = list(dict.fromkeys(filter(None, (*one.remarks, interval.remark))))
        found = {"interval_us": [interval.low_us, interval.high_us], "ties": ties, "remarks": remarks}
        return one.model_copy(update=found)

    def include(self, network: Network, schedules: Iterable[Schedule]) -> None:
        """Add schedules of another network at the same prices: equal units of both share their error."""
        other = copy(self)
        other._network, other._slopes = network, self._slopes.of_network(network)
        other._steps = PlacedSteps(network, self._in_place)
        other._part_of_unit = other._steps.parts()
        self._known |= {id(one): (one, other._new_shares(one)) for one in schedules}

    def time_by_kind_us(self, schedule: Schedule) -> dict[str, float]:
        """Breakdown of a schedule's latency: by kind of op, the longest first, and the gaps between stages.

        A stage's time is shared among its units, and a unit's among its steps, by their times alone.
        """
        times: dict[str, list[float]] = defaultdict(list)
        for part, share in self._shares(schedule).items():
            if part == BOUNDARIES:
                times[BOUNDARIES].append(share * schedule.latency_us)
            unit = self._units.get(part)
            for kind, kind_us in unit.kind_us.items() if unit else ():
                times[kind].append(share * schedule.latency_us * kind_us / (unit.alone_us if unit else 1.0))
        total_us = {kind: fsum(several) for kind, several in times.items()}
        return dict(sorted(total_us.items(), key=lambda item: (-item[1], item[0])))

    def _shares(self, schedule: AnySchedule) -> dict[Part, float]:
        """Share of the latency of each part (a unit's by its time alone); for a parameter, the slope."""
        if id(schedule) not in self._known:
            self._known[id(schedule)] = schedule, self._new_shares(schedule)
            if len(self._known) > _KEPT:
                self._known.popitem(last=False)
        return self._known[id(schedule)][1]

    def _new_shares(self, schedule: AnySchedule) -> dict[Part, float]:
        if isinstance(schedule, StreamSchedule):
            spans = self._slopes.model(schedule.engine).timeline(self._network, schedule)
            shares = self._span_shares(spans, schedule.latency_us)
        else:
            shares = self._stage_shares(schedule.stages, schedule.latency_us)
        return shares | {("parameter", name): slope for name, slope in self._slopes.of(schedule).items()}

    def _span_shares(self, spans: Sequence[Span], latency_us: float) -> dict[Part, float]:
        from iossim.prediction.stream_parts import spans_as_stages  # loaded for streams only

        stages, streams, shared_us = spans_as_stages(spans, latency_us, self._network.unit_index)
        return {**self._stage_shares(stages, latency_us), ("stage", streams): shared_us / (latency_us or 1.0)}

    def _stage_shares(self, stages: Sequence[Stage], latency_us: float) -> dict[Part, float]:
        total_us = latency_us or 1.0
        shares: dict[Part, float] = defaultdict(float)
        self._lower(stages)
        for stage in stages:
            parts = self._parts(stage)
            alone_us = [self._units[part].alone_us for part in parts]
            together_us = fsum(alone_us) or 1.0
            for part, own_us in zip(parts, alone_us, strict=True):
                shares[part] += stage.latency_us * own_us / together_us / total_us
            if stage.concurrent:
                groups = sorted(tuple(self._part_of_unit[unit] for unit in group) for group in stage.groups)
                shares["stage", tuple(groups)] += stage.latency_us / total_us
            shares[BOUNDARIES] += stage.boundary_us / total_us
        return dict(shares)

    def _parts(self, stage: Stage) -> list[Part]:
        units = [self._part_of_unit[unit] for unit in stage.units]
        return [("merge", *units)] if stage.strategy is Strategy.MERGE else [*units]

    def _lower(self, stages: Sequence[Stage]) -> None:
        steps: dict[Part, list[Step]] = {}
        for stage in stages:
            indices = [self._network.unit_index[unit] for unit in stage.units]
            for position, part in enumerate(self._parts(stage)):
                if part in self._units or part in steps:
                    continue
                own = indices if stage.strategy is Strategy.MERGE else [indices[position]]
                steps[part] = self._steps.of(own, stage.strategy)
        self._price(steps)

    def _price(self, steps: Mapping[Part, Sequence[Step]]) -> None:
        if not steps:
            return
        flat = [step for several in steps.values() for step in several]
        lowered = [step_candidates(step, self._profile) for step in flat]
        table = CandidateTable.of(self._profile, lowered, libraries=self._libraries)
        candidate_us = table.candidate_us(device_rates(self._profile, self._issue))
        chosen = table.fastest(candidate_us + self._profile.engine.dispatch_kernel_us * table.kernel_count)
        own_us = iter(candidate_us[chosen].tolist())
        self._units |= {part: self._unit_error(several, own_us) for part, several in steps.items()}

    def _unit_error(self, steps: Sequence[Step], own_us: Iterator[float]) -> _UnitError:
        """Error of a unit, whose steps take the next of the times."""
        steps_us = list(islice(own_us, len(steps)))
        total_us = fsum(steps_us) or 1.0
        own, unmeasured = [0.0] * 3, 0.0
        kinds: dict[str, list[float]] = defaultdict(lambda: [0.0] * 3)
        kind_us: dict[str, float] = defaultdict(float)
        for step, step_us in zip(steps, steps_us, strict=True):
            kind_us[step.op.kind] += step_us
            band = measured_over_predicted(kind_of(step.op), step.precision, step_us, self._profile)
            unmeasured += step_us / total_us if band.rows == 0 else 0.0
            below, above = log(1 / band.low), log(band.high)
            for side, half in enumerate((below, (below + above) / 2, above)):
                deviation = step_us / total_us * half / NINE_OF_TEN
                own[side] += (1 - COMMON_PART) * deviation**2
                kinds[step.op.kind][side] += sqrt(COMMON_PART) * deviation
        return _UnitError(fsum(steps_us), [sqrt(one) for one in own], dict(kinds), unmeasured, dict(kind_us))

    def _deviation(self, shares: Mapping[Part, float], side: int = _BOTH) -> float:
        """Standard deviation of the sum of the parts' errors, independent of their order."""
        variances: list[float] = []
        kinds: dict[str, list[float]] = defaultdict(list)
        for part, share in shares.items():
            if part in self._spread:
                variances.append((share * self._spread[part]) ** 2)
                continue
            unit = self._units.get(part)
            if unit is None:
                groups = len(part[1]) if isinstance(part, tuple) else 0
                error = share * (stage_error(self._profile, groups) if groups else BOUNDARY_ERROR)
                common = COMMON_PART if groups and self._profile.architecture in SINCE_HOPPER else 0.0
                variances.append((1 - common) * error**2)
                kinds[STAGES].append(sqrt(common) * error)
                continue
            variances.append((share * unit.own[side]) ** 2)
            for kind, deviations in unit.kinds.items():
                kinds[kind].append(share * deviations[side])
        return sqrt(fsum([*variances, *(fsum(several) ** 2 for several in kinds.values())]))
