"""A plan as the engine issues it: kernels instead of units, and what each command costs the host and its stream."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from iossim.backends.simulator.event_costs import EventCosts, kernels_at_a_time, runs_on_cores
from iossim.backends.simulator.events.demand import BlockDemand
from iossim.backends.simulator.kernel_work import kernel_work
from iossim.backends.simulator.unit_prices import UnitKey, UnitPrice, UnitPrices
from iossim.execution.engine import Engine
from iossim.execution.made_inputs import check_graph
from iossim.execution.plan import Copy, Launch, Plan, Queue, Record, Synchronize, Wait, forks_and_joins
from iossim.hardware.lowering.kernel import Libraries
from iossim.hardware.profile import DeviceProfile
from iossim.ir.network import Network
from iossim.ir.types import TensorType
from iossim.schedule.batch import FASTEST, Strategy


@dataclass(frozen=True, slots=True)
class IssuedKernel:
    """A kernel, and what the host needs to issue it; it starts ``beside_us`` later while other streams have work, and
    ``apart_us`` after another kernel of its device at the soonest, ``code_us`` more if none that runs has its ``code``,
    and ``follow_us`` after its predecessor in the stream while others run.
    """

    demand: BlockDemand
    host_us: float
    beside_us: float = 0.0
    apart_us: float = 0.0
    code_us: float = 0.0
    follow_us: float = 0.0
    code: float = 0.0


@dataclass(frozen=True, slots=True)
class IssueKernel:
    """The host issues a kernel of ``unit`` to a stream; ``sms`` are the SMs that it may use, None for all."""

    kernel: IssuedKernel
    queue: Queue
    unit: str
    stage: int
    sms: range | None = None


@dataclass(frozen=True, slots=True)
class _IssueEvent:
    event: int
    queue: Queue
    host_us: float
    stream_us: float


class IssueRecord(_IssueEvent):
    """The host issues the record of an event; the stream needs ``stream_us`` before it fires."""


class IssueWait(_IssueEvent):
    """The host makes a stream wait for an event; the stream goes on ``stream_us`` after it."""


@dataclass(frozen=True, slots=True)
class AwaitDevice:
    """The host waits for all streams, and issues the next command ``host_us`` after the last has ended."""

    host_us: float


Instruction = IssueKernel | IssueRecord | IssueWait | AwaitDevice


class KernelLibrary:
    """The kernels that units run as on a device, block by block: each step's fastest candidate, or a variant's.

    Equal units are lowered once, in whatever network they come. Values lie ``in_place`` by default where they do under
    the engine, and ``libraries`` are its own by default.
    """

    def __init__(
        self,
        profile: DeviceProfile,
        engine: Engine = Engine.PAPER,
        in_place: bool | None = None,
        libraries: Libraries | None = None,
    ) -> None:
        self.profile, self.engine = profile, Engine(engine)
        in_place = self.engine.facts.in_place if in_place is None else in_place
        self.units = UnitPrices(profile, None, self.engine, in_place, libraries=libraries)
        self.costs = EventCosts.of(self.engine, profile)
        self._issued: dict[tuple[UnitKey, str, int | None], tuple[IssuedKernel, ...]] = {}

    def unit(
        self, network: Network, unit: int, variant: str = FASTEST, sms: int | None = None
    ) -> tuple[IssuedKernel, ...]:
        """Kernels of a unit, in order, on all SMs or ``sms`` of them; none for a unit of views.

        Raises PlanError for a variant that it does not have.
        """
        key = self.units.keys_of(network)[unit], variant, sms
        if key not in self._issued:
            self._issued[key] = self._kernels(self.units.price_unit(network, unit, variant, sms), sms)
        return self._issued[key]

    def launched(self, command: Launch, network: Network, copies: bool) -> tuple[IssuedKernel, ...]:
        """Kernels of a launch; ``copies`` of the parts of a stacked convolution are among them where the plan has none
        itself.

        Raises ScheduleError for units that do not merge, PlanError as :meth:`unit`.
        """
        units = [network.unit_index[name] for name in command.units]
        if command.strategy is Strategy.MERGE:
            return self._kernels(self.units.merged(network, units, copies))
        sms = len(command.sms) if command.sms else None  # a unit of views has no kernels, and SMs of its own neither
        return self.unit(network, units[0], command.algorithm, sms)

    def copy(self, moved: TensorType, sms: int | None = None) -> tuple[IssuedKernel, ...]:
        """The kernel that copies a tensor."""
        return self._kernels(self.units.copy(moved, sms), sms)

    def _kernels(self, price: UnitPrice, sms: int | None = None) -> tuple[IssuedKernel, ...]:
        model = self.units.model(sms)
        works = [kernel_work(model, kernel) for kernel in price.kernels]
        return tuple(
            IssuedKernel(BlockDemand.of(work, self.profile, sms), host_us, 0.0, *self.costs[-3:], own.code)
            for work, own, host_us in zip(works, price.prices, price.host_us, strict=True)
        )


def instructions(
    plan: Plan, network: Network, library: KernelLibrary, stages: Mapping[str, int] | None = None
) -> list[Instruction]:
    """Instructions of the host for a plan.

    ``stages`` are the stage numbers of units, 0 where left out. Raises ScheduleError for a plan of another network.
    """
    check_graph(plan, network)
    copied = {command.unit for command in plan.commands if isinstance(command, Copy)}
    forks, joins = forks_and_joins(plan.commands) if library.engine.is_recorded else (set(), set())
    cores, costs = _cores(library), library.costs
    found: list[Instruction] = []
    for place, command in enumerate(plan.commands):
        match command:
            case Synchronize():
                found.append(AwaitDevice(library.profile.engine.synchronise_us))
            case Launch() | Copy():
                if isinstance(command, Launch):
                    units = command.units
                    kernels = library.launched(command, network, copied.isdisjoint(units))
                else:
                    units, sms = (command.unit,), len(command.sms) if command.sms else None
                    kernels = library.copy(plan.buffers[command.target].type, sms)
                where = "+".join(units), (stages or {}).get(units[0], 0), command.sms or cores
                found += [IssueKernel(kernel, command.queue, *where) for kernel in kernels]
            case Record():
                fork_us = costs.fork_us if place in forks else 0.0
                found.append(IssueRecord(command.event, command.queue, costs.host_us, fork_us))
            case Wait():
                join_us = costs.wait_us + (costs.join_us if place in joins else 0.0)
                found.append(IssueWait(command.event, command.queue, costs.host_us, join_us))
    return found


def _cores(library: KernelLibrary) -> range | None:
    """The cores that kernels of a session on a CPU may use; None for all there are."""
    free = kernels_at_a_time(library.engine, library.profile)
    return range(free) if free < library.profile.sm_count and runs_on_cores(library.profile) else None
