"""Prices of whole plans, and of many stream schedules of the same launches, by the fluid of ``plan_model``."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count, pairwise
from weakref import WeakKeyDictionary

import numpy as np

from iossim.backends.simulator.device_sharing import (
    DRAM_DEMAND,
    ISSUE_DEMAND,
    POWER_DEMAND,
    SLOT_KINDS,
    SLOTS,
    SPREAD,
    Fluid,
    KnownSlowdowns,
)
from iossim.backends.simulator.event_costs import EventCosts
from iossim.backends.simulator.plan_model import (
    AWAIT_DEVICE,
    HOST_US,
    KERNEL,
    KIND,
    RECORD,
    REFERENCE,
    STREAM_US,
    WAIT,
    Commands,
    price_streams,
    run_commands,
)
from iossim.backends.simulator.preparation import PreparedProblem
from iossim.backends.simulator.stage_bounds import kernel_work_us, part_of
from iossim.backends.simulator.unit_prices import UnitPrice, UnitPrices
from iossim.base.compiled import Floats
from iossim.base.errors import OptionError
from iossim.cost.facts import LaunchWork, StreamPrices
from iossim.execution.engine import Engine
from iossim.execution.execution import Span
from iossim.execution.plan import Command, Copy, Launch, Plan, Record, Synchronize, Wait, forks_and_joins
from iossim.hardware.profile import DeviceProfile
from iossim.ir.network import Network
from iossim.schedule.streams import MAX_STREAMS, StreamBatch, StreamProblem, Waits


class PlanPricing:
    """Prices plans and stream schedules of networks on one device, under one engine."""

    def __init__(self, profile: DeviceProfile, units: UnitPrices, engine: Engine, max_kernels: int) -> None:
        if engine.facts.divides_sms:
            raise OptionError("`engine` partition divides stages, and streams have none; give paper or graph")
        self.profile, self.units, self.engine, self.max_kernels = profile, units, engine, max_kernels
        self._costs = EventCosts.of(engine, profile)
        self._prepared: WeakKeyDictionary[StreamProblem, PreparedProblem] = WeakKeyDictionary()

    def price(self, batch: StreamBatch) -> StreamPrices:
        """Raises OptionError for more streams than are priced."""
        problem = batch.problem
        if len(batch) and batch.streams.max(initial=0) >= MAX_STREAMS:
            raise OptionError(f"a schedule of more than {MAX_STREAMS} streams is not priced; give fewer")
        fluid, waits = self._fluid(self._prepare(problem)), Waits.of(*problem.flat_reads, MAX_STREAMS)
        commands = Commands.room(len(fluid.spans) + 2 * len(waits.reads) + len(problem), len(problem))
        result = np.empty((len(batch), 2 + len(problem)), dtype=np.float64)
        price_streams(batch.orders, batch.streams, self._costs, batch.ahead_us, waits, commands, fluid, result)
        return StreamPrices(result[:, 0].copy(), result[:, 1].copy(), result[:, 2:])

    def work(self, problem: StreamProblem) -> LaunchWork:
        """Lower bounds of each launch, alone and on each resource."""
        prepared, interference = self._prepare(problem), self.profile.parameters.interference
        numbers = kernel_work_us(prepared, interference)
        return LaunchWork(numbers[:, 0], numbers[:, 1], numbers[:, 2:], _most_shares(prepared, interference))

    def run(self, network: Network, plan: Plan) -> tuple[float, tuple[Span, ...]]:
        """Run a plan of ``network``, of stages or of streams, whose units are launched and not moved: when its last
        kernel ended, us, and its kernels in the order of issue.
        """
        if any(isinstance(command, Copy) for command in plan.commands):
            raise OptionError("the plan moves values in place, and only launches are priced; lower it without")
        prices = [
            self.units.of_launch(network, [network.unit_index[name] for name in one.units], one.algorithm)
            for one in plan.launches
        ]
        fluid = self._fluid(PreparedProblem.of(prices))
        commands = self._commands(plan.commands, prices)
        latency_us = run_commands(len(commands.each), 0.0, commands, fluid)
        kernels = [
            (name, "+".join(launch.units), 0, launch.queue)
            for launch, price in zip(plan.launches, prices, strict=True)
            for name in price.names
        ]
        return latency_us, tuple(
            Span(*kernel, *row[1:]) for kernel, row in zip(kernels, fluid.spans.tolist(), strict=True)
        )

    def _fluid(self, prepared: PreparedProblem) -> Fluid:
        interference, apart = self.profile.parameters.interference, self._costs[-3:]
        known = KnownSlowdowns.room(0)  # parts of blocks that are nearly alike would share an entry
        return Fluid.of(prepared.kernels, interference, self.max_kernels, *apart, known, has_spans=True)

    def _prepare(self, problem: StreamProblem) -> PreparedProblem:
        if problem not in self._prepared:
            self._prepared[problem] = PreparedProblem.of(
                [
                    self.units.of_launch(problem.network, units, variant)
                    for units, variant in zip(problem.launches, problem.variants, strict=True)
                ]
            )
        return self._prepared[problem]

    def _commands(self, given: Sequence[Command], prices: Sequence[UnitPrice]) -> Commands:
        """The commands as the model reads them; ``prices`` are those of the launches."""
        costs = self._costs
        forks, joins = forks_and_joins(given) if self.engine.is_recorded else (set(), set())
        rows: list[tuple[int, int, int, float, float]] = []
        left, kernels, events = iter(prices), count(), 0
        for place, command in enumerate(given):
            match command:
                case Launch():
                    for host_us in next(left).host_us:
                        rows.append((KERNEL, command.queue, next(kernels), host_us, 0.0))
                case Record():
                    fork_us = costs.fork_us if place in forks else 0.0
                    rows.append((RECORD, command.queue, command.event, costs.host_us, fork_us))
                    events = max(events, command.event)
                case Wait():
                    join_us = costs.wait_us + (costs.join_us if place in joins else 0.0)
                    rows.append((WAIT, command.queue, command.event, costs.host_us, join_us))
                case Synchronize():
                    rows.append((AWAIT_DEVICE, 0, 0, self.profile.engine.synchronise_us, 0.0))
        commands = Commands.room(len(rows), events + 1)
        table = np.array(rows, dtype=np.float64).reshape(-1, 5)
        commands.each[:, KIND : REFERENCE + 1], commands.times[:, HOST_US : STREAM_US + 1] = table[:, :3], table[:, 3:]
        return commands


def _most_shares(prepared: PreparedProblem, interference: float) -> Floats:
    """The largest part of issue capacity, DRAM, power and each kind of slots that any kernel of each unit asks for,
    shape ``[units, 3 + kinds]``.
    """
    begin, columns, *_ = prepared.kernels
    parts = part_of(columns[:, [ISSUE_DEMAND, DRAM_DEMAND, POWER_DEMAND]], interference)
    parts = np.column_stack([parts, columns[:, SPREAD, None] * columns[:, SLOTS : SLOTS + SLOT_KINDS]])
    return np.array([parts[a:b].max(axis=0, initial=0.0) for a, b in pairwise(begin.tolist())]).reshape(
        -1, 3 + SLOT_KINDS
    )
