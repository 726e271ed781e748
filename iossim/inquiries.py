"""Functions of values beside :mod:`iossim.api`: explain, predict, price, simulate_events."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from iossim.api import cost_model, network_of, own_device, prices_of, simulate, task, with_network
from iossim.base.errors import OptionError, public
from iossim.cost.model import CostModel, problems_of
from iossim.execution.engine import AUTO, Engine
from iossim.hardware.load import device as load_device
from iossim.hardware.lowering.residence import Weights
from iossim.hardware.profile import DeviceProfile
from iossim.ir.network import Network
from iossim.prediction.network_table import NetworkTable, predict_network
from iossim.schedule.fit import OwnStage, fit_stages
from iossim.schedule.planned_stage import planned
from iossim.schedule.schedule import AnySchedule, Schedule
from iossim.search.assemble import build_schedule
from iossim.search.options import SearchOptions
from iossim.tasks.explain import Explanation
from iossim.tasks.explain import explain as explain_schedule
from iossim.tasks.own_prices import own_prices
from iossim.tasks.task import judged
from iossim.transforms.replay import in_units_of

if TYPE_CHECKING:  # each function loads what it needs
    from iossim.execution.execution import Execution


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
    prices: CostModel | None = own_prices(schedule, device)
    if prices is None:
        if device is None:
            raise OptionError(f"the schedule was priced by {schedule.cost_model.get('name')!r}; say for which `device`")
        prices = cost_model("simulator", device, network.precision, schedule.engine or AUTO)
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
    from iossim.backends.simulator.events import run_schedule

    read, network = with_network(saved, network)
    profile = load_device(own_device(read) if device is None else device)
    return run_schedule(network, read, profile, engine=Engine.named(engine or read.engine or AUTO, profile))


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
