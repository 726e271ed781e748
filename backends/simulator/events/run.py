"""Plans and schedules, run block by block."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from iossim.backends.simulator.cost_model import SimulatorCostModel
from iossim.backends.simulator.events.engine import execute_on_all
from iossim.backends.simulator.events.program import KernelLibrary, Link, instructions
from iossim.base.errors import OptionError
from iossim.execution.engine import Engine
from iossim.execution.execution import Execution
from iossim.execution.lower import lower_schedule
from iossim.execution.plan import Plan
from iossim.hardware.profile import DeviceProfile
from iossim.ir.network import Network
from iossim.ir.types import Precision
from iossim.schedule.schedule import AnySchedule, Schedule


def run_plan(
    plan: Plan,
    network: Network,
    profile: DeviceProfile,
    engine: str = Engine.PAPER,
    stages: Mapping[str, int] | None = None,
) -> Execution:
    """Run a plan of ``network`` on a device under one of the engines.

    ``stages`` gives the number of the stage that each unit is in, for the spans; without it all are in stage 0. Raises
    ScheduleError for a plan of another network or a kernel that fits no SM, OptionError for a plan of several devices.
    """
    (found,) = run_plan_on(plan, network, (profile,), engine, stages)
    return found


def run_plan_on(
    plan: Plan,
    network: Network,
    profiles: Sequence[DeviceProfile],
    engine: str = Engine.PAPER,
    stages: Mapping[str, int] | None = None,
    link: Link | None = None,
) -> tuple[Execution, ...]:
    """Run a plan on several devices, numbered as ``profiles``: what each of them did, until all had ended.

    Every two are joined by a ``link`` of their own in each direction, which carries one transfer at a time. One host issues to
    all. Raises as :func:`run_plan`, and OptionError for a copy between devices where there is no link.
    """
    libraries = [KernelLibrary(profile, Engine.named(engine)) for profile in profiles]
    return execute_on_all(instructions(plan, network, libraries, stages, link), profiles)


def run_schedule(
    network: Network,
    schedule: AnySchedule,
    profile: DeviceProfile,
    precision: Precision | None = None,
    engine: str = Engine.PAPER,
) -> Execution:
    """Run a schedule of ``network``; ``precision``, where given, must be the network's.

    Raises ScheduleError if the schedule does not fit the network.
    """
    if precision is not None and precision is not network.precision:
        raise OptionError(
            f"network {network.name!r} computes in {network.precision}, not {precision}; load it with that precision"
        )
    stages = (
        {unit: number for number, stage in enumerate(schedule.stages) for unit in stage.units}
        if isinstance(schedule, Schedule)
        else None
    )
    divided = None
    if engine == Engine.PARTITION:
        divided = SimulatorCostModel(profile, network.precision, Engine.PARTITION).divided(network)
    return run_plan(lower_schedule(schedule, network, engine, divided=divided), network, profile, engine, stages)
