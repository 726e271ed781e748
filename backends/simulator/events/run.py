"""Plans and schedules, run block by block."""

from __future__ import annotations

from collections.abc import Mapping

from iossim.backends.simulator.events.engine import execute
from iossim.backends.simulator.events.program import KernelLibrary, instructions
from iossim.devices.profile import DeviceProfile
from iossim.errors import OptionError
from iossim.execution.engine import Engine
from iossim.execution.execution import Execution
from iossim.execution.lower import lower_schedule
from iossim.execution.plan import Plan
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
    """Run a plan of ``network`` on a device under the ``paper`` or ``graph`` engine.

    ``stages`` gives the number of the stage that each unit is in, for the spans; without it all are in stage 0. Raises
    ScheduleError for a plan of another network or a kernel that fits no SM, OptionError for a plan of several devices.
    """
    library = KernelLibrary(profile, Engine.named(engine))
    return execute(instructions(plan, network, library, stages), profile)


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
    return run_plan(lower_schedule(schedule, network, engine), network, profile, engine, stages)
