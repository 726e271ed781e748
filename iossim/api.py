"""The Python API: typed functions that do what the command line does (compare, optimize, simulate).

Networks and devices may be given as values or by name. Every function raises a subclass of
:class:`iossim.base.errors.IossimError` for invalid arguments.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict, Unpack, overload

from iossim.base.errors import OptionError, StartProgress, ignore, public, silent, takes
from iossim.cost.model import CostModel, problems_of
from iossim.execution.engine import AUTO, Engine
from iossim.hardware.load import device as load_device
from iossim.hardware.lowering.residence import Weights
from iossim.hardware.profile import DeviceProfile
from iossim.ir.network import Network
from iossim.prediction.tables import NetworkTable, predict_network
from iossim.schedule.fit import OwnStage, fit_stages
from iossim.schedule.planned_stage import planned
from iossim.schedule.schedule import AnySchedule, SavedSchedule, Schedule, read_schedule
from iossim.search.assemble import build_schedule, reprice_any
from iossim.search.options import SearchOptions
from iossim.search.scheduler import STREAM_SCHEDULER, MeasuredProgress
from iossim.tasks.explain import Explanation
from iossim.tasks.explain import explain as explain_schedule
from iossim.tasks.own_prices import prices_of_schedule
from iossim.tasks.requests import (
    ChangeOptions,
    TaskOptions,
    compare,
    cost_model,
    network_of,
    prices_of,
    search_options,
    task,
)
from iossim.tasks.task import Scheduled, judged
from iossim.transforms.replay import at_batch, in_units_of
from iossim.transforms.replay import network_of as network_of_schedule

if TYPE_CHECKING:  # each function loads what it needs
    from iossim.execution.execution import Execution
    from iossim.search.measured import Budget

__all__ = [
    "compare",
    "cost_model",
    "explain",
    "optimize",
    "optimize_streams",
    "predict",
    "price",
    "read_any_schedule",
    "scheduled",
    "search_options",
    "simulate",
    "simulate_events",
    "task",
]


@public
@takes(TaskOptions, task)
def optimize(
    model: Network | str | Path,
    device: DeviceProfile | str | Path | None,
    *,
    progress: StartProgress = silent,
    measuring: MeasuredProgress = ignore,
    **asked: Unpack[TaskOptions],
) -> Schedule:
    """The schedule that one scheduler finds; by default the optimal one over both strategies of IOS.

    Takes the arguments of :func:`task`, and raises as it does; ScheduleError for a stage without a price. The
    schedule's ``ties`` say whether it differs from the sequential one by more than the noise.

    KeyboardInterrupt ends the search with the best schedule so far, whose ``complete`` is then False.
    """
    return task(model, device, **asked).run(progress, measuring).schedule


@public
@takes(ChangeOptions, task)
def optimize_streams(
    model: Network | str | Path,
    device: DeviceProfile | str | Path | None,
    *,
    scheduler: str = STREAM_SCHEDULER,
    progress: StartProgress = silent,
    **asked: Unpack[ChangeOptions],
) -> AnySchedule:
    """The stream schedule that a scheduler finds, or the stages that it started from if no streams are faster.

    The other options are those of :func:`task`: ``search="joint"`` searches streams together with all else, and in turn
    the network is rewritten for ``ios-both`` first. Raises OptionError for a cost model without streams, and for an
    unknown scheduler.
    KeyboardInterrupt ends the search with the best schedule so far, whose ``complete`` is then False.
    """
    return scheduled(model, device, scheduler=scheduler, progress=progress, **asked).schedule


def scheduled(
    model: Network | str | Path,
    device: DeviceProfile | str | Path | None,
    *,
    scheduler: str = "ios-both",
    progress: StartProgress = silent,
    measuring: MeasuredProgress = ignore,
    budget: Budget | str | None = None,
    **asked: Unpack[ChangeOptions],
) -> Scheduled[AnySchedule]:
    """The schedule by any scheduler, of stages or of streams, and its network, as :func:`task` with these options runs.

    Streams are searched for the network that is changed for ``ios-both``; raises OptionError for a budget of theirs.
    """
    if scheduler != STREAM_SCHEDULER:
        return task(model, device, scheduler=scheduler, budget=budget, **asked).run(progress, measuring)
    from iossim.tasks.stream_explain import run_streams  # loaded for streams only

    if budget is not None:
        reason = "searches at prices that are known, and measures none"
        raise OptionError(f"`scheduler` {scheduler} {reason}; leave `budget` out, and a `cost_model` that measures")
    asked["choose_joins"] = False
    return run_streams(task(model, device, **asked), scheduler, progress)


class _SimulateOptions(TypedDict, total=False):
    network: Network | None
    engine: str | None
    cost_model: str | CostModel | None


@overload
def simulate(
    saved: Schedule, device: DeviceProfile | str | Path | None = None, **options: Unpack[_SimulateOptions]
) -> Schedule: ...


@overload
def simulate(
    saved: AnySchedule | str | Path,
    device: DeviceProfile | str | Path | None = None,
    **options: Unpack[_SimulateOptions],
) -> AnySchedule: ...


@public
def simulate(
    saved: AnySchedule | str | Path,
    device: DeviceProfile | str | Path | None = None,
    *,
    network: Network | None = None,
    engine: str | None = None,
    cost_model: str | CostModel | None = None,
) -> AnySchedule:
    """Price a saved schedule on another device, or on its own by default: stage by stage, or streams as a whole.

    The network is loaded from the schedule's record unless given; ``engine`` and ``cost_model`` are by default the
    schedule's. Raises ScheduleError if the schedule does not fit it, OptionError if it was priced for no device and
    none is given.
    """
    read, network = _with_network(saved, network)
    prices = _prices(read, device, engine, cost_model)
    return judged(network, [reprice_any(read, network, prices)], prices)[0]


def read_any_schedule(
    path: str | Path, model: str | None = None, batch: int | None = None
) -> tuple[AnySchedule, Network]:
    """A saved schedule of stages or streams, and its network; both for another ``batch`` size, if given."""
    read = read_schedule(Path(path))
    return (read, network_of_schedule(read, model)) if batch is None else at_batch(read, batch, model)


@public
def price(
    model: Network | str | Path,
    stages: Iterable[OwnStage],
    device: DeviceProfile | str | Path | None,
    *,
    scheduler: str = "own",
    engine: str = AUTO,
    cost_model: str | CostModel = "simulator",
) -> Schedule:
    """The schedule of ``stages`` of one's own, in execution order, at the prices of a device or cost model.

    A stage is a list of unit names (``unit.name for unit in network.units``): units that read each other run in order
    as one group, and the groups run concurrently. A list of such lists gives the groups, which are then checked;
    ``{"merge": names}`` runs convolutions of one input as one; a stage of another schedule is taken without its price.
    Every unit is in one stage, and a stage within one block. ``scheduler`` is the name that the result carries.

    Raises ScheduleError, naming the stage (counted from 0) and the unit, for stages that are no schedule of the
    network, and where the cost model has no price for one.
    """
    network = network_of(model)
    prices = prices_of(cost_model, device, network, engine)
    problems = problems_of(network, prices)
    blocks = fit_stages(network, problems, stages)
    plans = [planned(problem, block) for problem, block in zip(problems, blocks, strict=True)]
    return judged(network, [build_schedule(network, problems, plans, prices, scheduler)], prices)[0]


@public
def explain(
    schedule: Schedule | Network | str | Path,
    network: Network | DeviceProfile | str | Path | None = None,
    device: DeviceProfile | str | Path | None = None,
    *,
    stages: Sequence[int] | None = None,
    scheduler: str = "ios-both",
    engine: str = AUTO,
    options: SearchOptions | None = None,
) -> Explanation:
    """Why each stage of a ``schedule`` is as it is, and what its alternatives cost; by default on the schedule's own
    device and network.

    Given a model and a device, ``explain("squeezenet", "t4")``, it explains the schedule that :func:`iossim.optimize`
    finds with this ``scheduler``, ``engine`` and ``options``.

    ``stages`` are the numbers of the stages to explain in full. Raises OptionError for a number that no stage has, and
    for a measured schedule if no device is given.
    """
    if not isinstance(schedule, Schedule):
        if network is None or isinstance(network, Network):
            raise OptionError("of a model, explain takes the device as second argument; of a schedule, the network")
        asked = task(schedule, network, scheduler=scheduler, engine=engine, options=options)
        done = asked.run()
        return explain_schedule(done.schedule, done.network, asked.prices, stages)
    if network is not None and not isinstance(network, Network):
        raise OptionError("of a schedule, explain takes its network as second argument, or none, and `device` by name")
    network = in_units_of(schedule, network)
    prices = _prices(schedule, device)
    return explain_schedule(simulate(schedule, network=network, cost_model=prices), network, prices, stages)


@public
def simulate_events(
    saved: AnySchedule | str | Path,
    device: DeviceProfile | str | Path | None = None,
    *,
    network: Network | None = None,
    engine: str | None = None,
) -> Execution:
    """Run a saved schedule as a whole, block by block, on the event-driven simulator, on ``device`` or its own.

    The network is loaded from the schedule's record unless given; ``engine`` is by default the schedule's. Raises
    ScheduleError if the schedule does not fit it, OptionError if it was priced for no device and none is given.
    """
    from iossim.backends.simulator.cost_model import SimulatorCostModel
    from iossim.backends.simulator.events import run_schedule

    read, network = _with_network(saved, network)
    prices = _prices(read, device, engine)
    profile = load_device(read.device if device is None else device)
    how = (prices.in_place, prices.units.whole.libraries) if isinstance(prices, SimulatorCostModel) else ()
    return run_schedule(network, read, profile, Engine.named(engine or read.engine or AUTO, profile), *how)


@public
def predict(
    model: Network | str | Path, device: DeviceProfile | str | Path, *, engine: str = AUTO, weights: str = Weights.AUTO
) -> NetworkTable:
    """GPU time of each unit of a network alone, with its interval; of each op if the network is a name or file.

    ``weights``: where kernels find theirs, ``warm`` (in L2, as far as they fit), ``cold`` (in DRAM) or ``auto`` (by
    the network's sizes). Raises DeviceError for a precision that the device lacks, OptionError for other ``weights``.
    """
    profile = load_device(device)
    network = network_of(model, units="none")
    profile.require(network.precision)
    return predict_network(network, profile, Engine.named(engine, profile), Weights.named(weights))


def _with_network(saved: AnySchedule | str | Path, network: Network | None) -> tuple[AnySchedule, Network]:
    """A schedule, read if given as a file, and its network, loaded unless given; the two fit."""
    read = read_schedule(Path(saved)) if isinstance(saved, str | Path) else saved
    if not isinstance(read, SavedSchedule):
        raise OptionError(f"{read!r} is no schedule; give one of optimize, or the file that it was saved to")
    return read, in_units_of(read, network)


def _prices(
    read: AnySchedule,
    device: DeviceProfile | str | Path | None,
    engine: str | None = None,
    given: str | CostModel | None = None,
) -> CostModel:
    """The given prices, or those of a schedule; raises OptionError if it was priced for no device and none is given."""
    if given is not None and not isinstance(given, str):
        return given
    if (prices := prices_of_schedule(read, device, engine, given)) is None:
        reason = f"the schedule was priced by {read.cost_model.get('name')!r}, not for a device"
        raise OptionError(f"{reason}; say which with `device` or `cost_model`")
    return prices
