"""What the command line does, as typed functions: compare, optimize, simulate.

Networks and devices may be given as values or by name. Every function raises a subclass of
:class:`iossim.errors.IossimError` for a mistake in what it was given.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from iossim.cost.create import create_cost_model
from iossim.cost.model import ChangesSetting, CostModel, MeasuredBy, MeasuringCostModel, PredictsDevice
from iossim.devices.load import device as load_device
from iossim.devices.profile import DeviceProfile
from iossim.errors import DeviceError, OptionError, did_you_mean
from iossim.execution.engine import Engine
from iossim.execution.execution import Execution
from iossim.ir.network import Network
from iossim.ir.types import Precision
from iossim.measurements.published_figures import published_latency_us
from iossim.models.load import load, load_source
from iossim.prediction.left_out import without_network
from iossim.prediction.schedule_interval import ScheduleErrors, schedule_errors
from iossim.reporting.comparison import ComparisonRow
from iossim.schedule.batch import StageBatch
from iossim.schedule.fit import fit
from iossim.schedule.problem import ScheduleProblem
from iossim.schedule.schedule import Schedule
from iossim.schedule.strategy import Strategy
from iossim.scheduling.assemble import reprice
from iossim.scheduling.ios import STRATEGIES
from iossim.scheduling.measured.budget import Budget
from iossim.scheduling.measured.search import MeasuredProgress
from iossim.scheduling.measured.search import ignore as ignore_measuring
from iossim.scheduling.options import SearchOptions, StageSpace
from iossim.scheduling.scheduler import Progress, ignore, schedule, scheduler_names


@dataclass(frozen=True)
class Comparison:
    """Schedules of one network on one device, each by another scheduler, in the order asked for.

    ``complete`` is False if the comparison was interrupted: some schedulers may be missing, and the last one's schedule
    may be the best that it had found so far. Where the device was fitted to published figures of the network,
    ``left_out_us`` is by scheduler what a fit without them says; the schedules' own latencies are then in-sample.
    """

    network: Network
    device: str
    engine: str
    cost_model: dict[str, str]
    schedules: tuple[Schedule, ...]
    complete: bool = True
    left_out_us: Mapping[str, float] = field(default_factory=dict)

    def __repr__(self) -> str:
        best = f"best {self.best.scheduler}, {self.best.latency_us / 1e3:.3f} ms" if self.schedules else "nothing"
        return f"<Comparison {self.title}: {best} of {len(self.schedules)} schedulers>"

    def __str__(self) -> str:
        """The table of the command line, without colour."""
        from iossim.reporting.console import TIE, comparison_table, plain_text

        lines = [self.title]
        if self.schedules:
            lines.append(plain_text(comparison_table("", self.rows)))
            lines += [f"{TIE} a tie with the best: the difference is inside the noise"] * bool(self.best.ties)
        return "\n".join(lines)

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        """What a notebook shows."""
        printer.text(str(self))

    def __getitem__(self, scheduler: str) -> Schedule:
        for found in self.schedules:
            if found.scheduler == scheduler:
                return found
        raise KeyError(scheduler)

    @property
    def batch(self) -> int:
        return self.network.source.batch

    @property
    def title(self) -> str:
        """What was compared: network, device, and all that latencies depend on besides."""
        return (
            f"{self.network.name} on {self.device}, batch {self.batch}, {self.network.precision}, {self.engine} engine, "
            f"priced by {self.cost_model['name']}"
        )

    @property
    def rows(self) -> list[ComparisonRow]:
        """The schedules with their speed-ups and published latencies, as tables and pictures show them."""
        return [
            ComparisonRow.of_schedule(
                found, self.baseline_us, self.published_us(found.scheduler), self.left_out_us.get(found.scheduler)
            )
            for found in self.schedules
        ]

    @property
    def baseline(self) -> Schedule:
        """What speed-ups are against: the sequential schedule, or the slowest where it was not asked for."""
        slowest = max(self.schedules, key=lambda found: found.latency_us)
        return next((found for found in self.schedules if found.scheduler == "sequential"), slowest)

    @property
    def baseline_us(self) -> float:
        return self.baseline.latency_us

    @property
    def best(self) -> Schedule:
        """The fastest; of equals the last, which searched the larger space."""
        least_us = min(found.latency_us for found in self.schedules)
        return next(found for found in reversed(self.schedules) if found.latency_us <= least_us * (1 + 1e-9))

    def published_us(self, scheduler: str) -> float | None:
        """The measured latency that is published for this point, where one is known; random prices predict none."""
        if self.cost_model["name"] == "random":
            return None
        if self.engine != Engine.PAPER or self.network.precision is not Precision.FP32:
            return None
        return published_latency_us(self.network.source.model, self.device, self.batch, scheduler)

    def to_json(self) -> dict[str, Any]:
        """The comparison as JSON values; latencies in us."""
        return {
            "model": self.network.name,
            "device": self.device,
            "batch": self.batch,
            "dtype": str(self.network.precision),
            "engine": self.engine,
            "cost_model": self.cost_model,
            "complete": self.complete,
            "schedules": [
                {
                    "scheduler": found.scheduler,
                    "latency_us": found.latency_us,
                    "interval_us": found.interval_us,
                    "ties": found.ties,
                    "speedup": self.baseline_us / found.latency_us,
                    "stages": len(found.stages),
                    "streams": found.streams,
                    "search_s": found.search_s,
                    "lower_bound_us": found.lower_bound_us,
                    "published_us": self.published_us(found.scheduler),
                    "in_sample": found.scheduler in self.left_out_us,
                    "left_out_us": self.left_out_us.get(found.scheduler),
                    "complete": found.complete,
                    "proven": found.proven,
                    "notes": found.notes,
                    "remarks": found.remarks,
                }
                for found in self.schedules
            ],
        }


def cost_model(
    spec: str = "simulator",
    device: DeviceProfile | str | None = None,
    precision: Precision | str = Precision.FP32,
    engine: str = Engine.PAPER,
    store: Path | str | None = None,
) -> CostModel:
    """A cost model by name for a device, precision and engine.

    ``simulator``, ``random:SEED``, ``table:FILE``; a backend (``onnxruntime_cpu:threads=2``), which measures, and keeps
    measurements in ``store``, by default the user's own; ``replay:STORE``, which takes all from a store.
    """
    profile = load_device(device) if isinstance(device, str) else device
    kept = Path(store) if isinstance(store, str) else store
    return create_cost_model(spec, profile, Precision.named(precision), Engine.named(engine), kept)


def search_options(
    stages: str = "general", max_group_size: int | None = None, max_groups: int | None = None
) -> SearchOptions:
    """Options of the search: definition of stages, and the pruning r (``max_group_size``) and s (``max_groups``)."""
    return SearchOptions(StageSpace(stages, max_group_size, max_groups))  # type: ignore[arg-type]


def known_schedulers(names: str) -> list[str]:
    """``sequential,ios-both`` as a list; raises OptionError for a scheduler that is not known, or none at all."""
    chosen = list(dict.fromkeys(filter(None, names.split(","))))
    for name in chosen:
        if name not in scheduler_names():
            raise OptionError(f"`schedulers` {name!r} is not known; {did_you_mean(name, scheduler_names())}")
    if not chosen:
        raise OptionError(f"`schedulers` names none; known: {', '.join(scheduler_names())}")
    return chosen


def compare(
    model: Network | str,
    device: DeviceProfile | str | None,
    *,
    schedulers: Sequence[str] | None = None,
    engine: str = Engine.PAPER,
    cost_model: str | CostModel = "simulator",
    options: SearchOptions | None = None,
    progress: Callable[[str], Progress] = lambda scheduler: ignore,
) -> Comparison:
    """Schedule a network by several schedulers (default: all), side by side.

    ``progress`` makes for each scheduler what is told of its progress. KeyboardInterrupt ends the comparison with the
    schedules so far, once there is one.
    """
    network = load(model) if isinstance(model, str) else model
    prices = _cost_model(cost_model, device, network, engine)
    _warm_up(network, prices)
    found: list[Schedule] = []
    complete = True
    for name in schedulers or scheduler_names():
        try:
            found.append(schedule(network, prices, name, options, progress(name)))
            complete = found[-1].complete
        except KeyboardInterrupt:
            if not found:
                raise
            complete = False
        if not complete:
            break
    identity = prices.identity
    judged = _with_intervals(network, found, prices)
    comparison = Comparison(network, identity.device, engine, identity.to_json(), tuple(judged), complete)
    return replace(comparison, left_out_us=_left_out(comparison, prices, options)) if complete else comparison


def _left_out(comparison: Comparison, prices: CostModel, options: SearchOptions | None) -> dict[str, float]:
    """What a fit without the network's published figures says of the schedulers that have one; nothing of other networks."""
    network = comparison.network
    published = [each.scheduler for each in comparison.schedules if comparison.published_us(each.scheduler)]
    if not published or not isinstance(prices, PredictsDevice) or not isinstance(prices, ChangesSetting):
        return {}
    profile = without_network(prices.profile, network.source.model)
    if profile is None:
        return {}
    other = prices.at(profile)
    try:
        return {name: schedule(network, other, name, options).latency_us for name in published}
    except KeyboardInterrupt:
        return {}


def optimize(
    model: Network | str,
    device: DeviceProfile | str | None,
    *,
    scheduler: str = "ios-both",
    engine: str = Engine.PAPER,
    cost_model: str | CostModel = "simulator",
    options: SearchOptions | None = None,
    progress: Progress = ignore,
    budget: Budget | str | None = None,
    measuring: MeasuredProgress = ignore_measuring,
) -> Schedule:
    """The schedule that one scheduler finds; by default the optimal one over both strategies of IOS.

    Its ``ties`` say whether it differs from the sequential schedule by more than the noise.

    With a ``budget`` (:class:`Budget`, or its text: ``1000`` measurements, ``60s``, ``all``) the stages of a cost model that
    measures are measured only as far as they matter; the simulator proposes them, on ``device`` or the one that is
    measured, and ``measuring`` is told of the progress. Without a budget every stage is priced, whatever that takes.

    KeyboardInterrupt ends a search of IOS with the best schedule so far, which then is not ``complete``.
    """
    network = load(model) if isinstance(model, str) else model
    prices = _cost_model(cost_model, device, network, engine)
    if budget is not None and scheduler in STRATEGIES:
        return _optimize_measured(network, device, prices, scheduler, options, budget, measuring)
    _warm_up(network, prices)
    found = schedule(network, prices, scheduler, options, progress)
    if scheduler == "sequential" or not found.complete:
        return _with_intervals(network, [found], prices)[0]
    return _with_intervals(network, [found], prices, "sequential")[0]


def _optimize_measured(
    network: Network,
    device: DeviceProfile | str | None,
    truth: CostModel,
    scheduler: str,
    options: SearchOptions | None,
    budget: Budget | str,
    measuring: MeasuredProgress,
) -> Schedule:
    from iossim.scheduling.measured.schedule import schedule_measured

    if not isinstance(truth, MeasuringCostModel):
        raise OptionError(
            f"`budget` is for a cost model that measures, and {truth.identity.name!r} does not; leave it out, or give "
            "a backend as `cost_model`"
        )
    chosen = Budget.parse(budget) if isinstance(budget, str) else budget
    estimate = estimating_model(truth, device, network.precision)
    return schedule_measured(network, estimate, truth, scheduler, options or SearchOptions(), chosen, measuring)


def estimating_model(
    truth: CostModel, device: DeviceProfile | str | None = None, precision: Precision | str = Precision.FP32
) -> CostModel:
    """The simulator that proposes what to measure: of ``device``, or of the one that ``truth`` measures.

    Raises OptionError where that has no profile.
    """
    own = truth.identity.device
    try:
        profile = load_device(own) if device is None else load_device(device) if isinstance(device, str) else device
    except DeviceError:
        if device is not None:
            raise
        raise OptionError(
            f"{own!r} has no profile to estimate its stages with; run 'iossim profile' and 'iossim calibrate', or give "
            "`device` PROFILE.yaml"
        ) from None
    # Backends keep values in place; the stand-in for one is the simulator, which does as the published engine.
    is_stand_in = isinstance(truth, MeasuringCostModel) and truth.measured_by is MeasuredBy.STAND_IN
    spec = "simulator" if is_stand_in else "simulator:in-place"
    return create_cost_model(spec, profile, Precision.named(precision), Engine.named(truth.identity.engine))


def simulate(
    saved: Schedule | str | Path,
    device: DeviceProfile | str | None = None,
    *,
    network: Network | None = None,
    engine: str | None = None,
    cost_model: str | CostModel = "simulator",
) -> Schedule:
    """Price a saved schedule, stage by stage: on another device, or on its own where none is given.

    The network is loaded as the schedule says, unless given. Raises ScheduleError if the schedule does not fit it.
    """
    read, network = _saved(saved, network)
    if device is None and cost_model == "simulator":
        device = _own_device(read)
    prices = _cost_model(cost_model, device, network, engine or read.engine or Engine.PAPER)
    return _with_intervals(network, [reprice(read, network, prices)], prices)[0]


def simulate_events(
    saved: Schedule | str | Path,
    device: DeviceProfile | str | None = None,
    *,
    network: Network | None = None,
    engine: str | None = None,
) -> Execution:
    """Run a saved schedule as a whole, block by block, on the event-driven simulator: on another device, or on its own.

    The network is loaded as the schedule says, unless given. Raises ScheduleError if the schedule does not fit it.
    """
    from iossim.backends.simulator.events import run_schedule

    read, network = _saved(saved, network)
    chosen = _own_device(read) if device is None else device
    profile = load_device(chosen) if isinstance(chosen, str) else chosen
    return run_schedule(network, read, profile, engine=engine or read.engine or Engine.PAPER)


def read_schedule(path: str | Path, model: str | None = None) -> tuple[Schedule, Network]:
    """A saved schedule and its network, which it fits; ``model`` is where the model is now, if its file has moved."""
    return _saved(path, None, model)


def _saved(
    saved: Schedule | str | Path, network: Network | None, model: str | None = None
) -> tuple[Schedule, Network]:
    """A schedule, read where it is a file, and its network, loaded where it is not given; the two fit."""
    read = saved if isinstance(saved, Schedule) else Schedule.read(Path(saved))
    if network is None:
        network = load_source(read.source.to_source(model))
    fit(read, network)
    return read, network


def _own_device(read: Schedule) -> str:
    priced_by = read.cost_model.get("name")
    if priced_by != "simulator":
        raise OptionError(
            f"the schedule was priced by {priced_by!r}, not for a device; say which with `device` or `cost_model`"
        )
    return read.device


def summary(found: Schedule) -> str:
    """A schedule in a few words: latency, stages, how far from the bound, what was noted."""
    merged = sum(stage.strategy is Strategy.MERGE for stage in found.stages)
    several = sum(stage.concurrent for stage in found.stages)
    lines = [
        f"{found.latency_us / 1e3:.3f} ms in {len(found.stages)} stages: {several} run several groups "
        f"(at most {found.streams}), {merged} merge convolutions"
    ]
    if found.lower_bound_us is not None and found.gap is not None:
        lines.append(
            f"no schedule takes less than {found.lower_bound_us / 1e3:.3f} ms: this one is {100 * found.gap:.1f}% above"
        )
    if expected := expectation(found):
        lines.append(f"measured, {expected} are expected (nine times of ten)")
    lines += _measured_summary(found)
    if "sequential" in found.ties:
        lines.append("a tie with sequential: the difference is inside the noise")
    lines += [f"note: {note}" for note in found.notes]
    claim = optimality(found)
    return "\n".join([*lines, claim] if claim else lines)


def _measured_summary(found: Schedule) -> list[str]:
    """What was measured for a schedule, in words."""
    options = found.options
    if "measurements" not in options:
        return []
    estimated_us = options["estimated_us"]
    if options["everything_measured"]:
        end = "every stage there is"
    elif options["settled"]:
        end = "until no other schedule was likely to be faster"
    else:
        end = f"as far as a budget of {options['budget']} went" if found.complete else "until interrupted"
    return [
        f"{options['measurements']:,} stages measured, {end}; {options['estimate']['name']} of "
        f"{options['estimate']['device']} had said {estimated_us / 1e3:.3f} ms of this schedule "
        f"({100 * (estimated_us / found.latency_us - 1):+.1f}%)"
    ]


def expectation(found: Schedule) -> str | None:
    """Where a schedule's measured latency is expected, in words; None where the prices are no prediction."""
    if found.interval_us is None:
        return None
    low_us, high_us = found.interval_us
    return f"{low_us / 1e3:.3f} to {high_us / 1e3:.3f} ms"


def describe(space: StageSpace) -> str:
    """A space of stages in words."""
    pruning = [
        f"groups of at most {space.max_group_size} units" if space.max_group_size else "",
        f"at most {space.max_groups} groups" if space.max_groups else "",
    ]
    return ", ".join([f"{space.definition} stages", *filter(None, pruning)])


def optimality(found: Schedule) -> str | None:
    """What the search that found a schedule proves about it, in words; None for a scheduler that does not search."""
    if not found.complete:
        return "interrupted: the best schedule found so far, not proven optimal"
    if "stages" not in found.options:
        return None
    if "measurements" in found.options and not found.options["everything_measured"]:
        return None
    if not found.proven:
        return "not proven optimal: not all was searched, as noted"
    space = search_options(*(found.options[name] for name in ("stages", "max_group_size", "max_groups"))).space
    stages = describe(space) if found.options["concurrent"] else "single units and merged ones"
    among = stages if found.options["merge"] else f"{stages}, without merging"
    return f"proven optimal at these prices among all schedules of {among}"


def _with_intervals(
    network: Network, schedules: Sequence[Schedule], prices: CostModel, beside: str = ""
) -> list[Schedule]:
    """The schedules with their intervals, and with the others that differ from them by less than the noise.

    Another scheduler's may be looked at ``beside`` them. Prices that predict no device have no noise.
    KeyboardInterrupt leaves intervals and ties out: schedules that were found are kept.
    """
    try:
        errors = schedule_errors(network, prices)
        if errors is None:
            return list(schedules)
        others = [*schedules, *([schedule(network, prices, beside)] if beside else [])]
        return [_with_interval(found, others, errors) for found in schedules]
    except KeyboardInterrupt:
        return list(schedules)


def _with_interval(found: Schedule, others: Sequence[Schedule], errors: ScheduleErrors) -> Schedule:
    ties = [other.scheduler for other in others if other is not found and errors.is_tie(found, other)]
    interval = errors.interval(found)
    return found.model_copy(update={"interval_us": [interval.low_us, interval.high_us], "ties": ties})


def _warm_up(network: Network, prices: CostModel) -> None:
    """Price one unit: loading compiled code, say, is part of no scheduler's search time."""
    problem = ScheduleProblem.of_block(network, network.blocks[0])
    prices.price_stages(StageBatch.concurrent(problem, np.ones(1, dtype=np.uint64)))


def _cost_model(
    given: str | CostModel, device: DeviceProfile | str | None, network: Network, engine: str
) -> CostModel:
    if not isinstance(given, str):
        return given
    return cost_model(given, device, network.precision, engine)
