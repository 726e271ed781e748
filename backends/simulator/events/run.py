"""Plans, schedules and single stages, run block by block."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from iossim.backends.simulator.events.device import Observer
from iossim.backends.simulator.events.engine import execute
from iossim.backends.simulator.events.program import Instruction, IssueKernel, KernelLibrary, instructions
from iossim.backends.simulator.stage_pricing import StagePricing
from iossim.backends.simulator.stage_runs import divided_as_priced
from iossim.backends.simulator.unit_prices import UnitPrices
from iossim.execution.backend import Divided
from iossim.execution.engine import Engine
from iossim.execution.execution import Execution
from iossim.execution.lower import lower_schedule
from iossim.execution.plan import Plan
from iossim.hardware.lowering.kernel import Libraries
from iossim.hardware.profile import DeviceProfile
from iossim.ir.network import Network
from iossim.schedule.problem import ScheduleProblem, bits
from iossim.schedule.schedule import AnySchedule, Schedule


def stage_us(
    problem: ScheduleProblem, mask: int, network: Network, library: KernelLibrary, divided: Divided | None = None
) -> float:
    """One concurrent stage by the event-driven engine, on a device that is ``divided`` among its groups, if it is.

    A stage of several groups is run on an idle device, its first kernel not issued yet, as after a synchronisation.
    One of a single group follows others in its stream, where the host may be ahead: it is priced as what a second run
    adds.
    """
    groups = [list(bits(group)) for group in problem.groups(mask)]
    parts: Sequence[range | None] = [None] * len(groups)
    if divided is not None and len(groups) > 1:
        parts = divided([[problem.units[unit] for unit in group] for group in groups], {})
    streams = list(range(len(groups))) if divided is None else [parts.index(sms) for sms in parts]
    issued: list[Instruction] = [
        IssueKernel(kernel, stream, problem.unit_names[unit], 0, sms)
        for stream, group, sms in zip(streams, groups, parts, strict=True)
        for unit in group
        for kernel in library.unit(network, problem.units[unit], sms=None if sms is None else len(sms))
    ]
    once_us = execute(issued, library.profile).latency_us
    return once_us if len(groups) > 1 else execute(issued * 2, library.profile).latency_us - once_us


def run_plan(
    plan: Plan,
    network: Network,
    profile: DeviceProfile,
    engine: str = Engine.PAPER,
    stages: Mapping[str, int] | None = None,
    observer: Observer | None = None,
    in_place: bool | None = None,
    libraries: Libraries | None = None,
) -> Execution:
    """Run a plan of ``network`` on a device under one of the engines.

    ``stages`` gives the number of the stage that each unit is in, for the spans; without it all are in stage 0.
    ``observer`` is called at each change. Concats and splits that the plan launches lie ``in_place`` and ``libraries``
    run as the engine says by default. Raises ScheduleError for another network's plan or a kernel that fits no SM.
    """
    library = KernelLibrary(profile, Engine.named(engine), in_place, libraries)
    return execute(instructions(plan, network, library, stages), profile, observer=observer)


def run_schedule(
    network: Network,
    schedule: AnySchedule,
    profile: DeviceProfile,
    engine: str = Engine.PAPER,
    in_place: bool | None = None,
    libraries: Libraries | None = None,
) -> Execution:
    """Run a schedule of ``network`` as :func:`run_plan` runs a plan.

    Raises ScheduleError if the schedule does not fit the network.
    """
    stages: dict[str, int] | None = None
    divided = None
    if isinstance(schedule, Schedule):
        stages = {unit: number for number, stage in enumerate(schedule.stages) for unit in stage.units}
    chosen = Engine.named(engine)
    if chosen.facts.divides_sms:
        units = UnitPrices(profile, network.precision, chosen, chosen.facts.in_place)
        divided = divided_as_priced(StagePricing(profile, units, chosen), network)
    plan = lower_schedule(schedule, network, chosen, divided=divided)
    return run_plan(plan, network, profile, chosen, stages, in_place=in_place, libraries=libraries)
