"""Prices of whole plans, and of many stream schedules of the same launches, by the fluid of ``plan_model``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from weakref import WeakKeyDictionary

import numpy as np

from iossim.backends.simulator.device_sharing import (
    DRAM_DEMAND,
    ISSUE_DEMAND,
    POWER_DEMAND,
    SLOT_KINDS,
    SLOTS,
    SPREAD,
    Floats,
    Integers,
)
from iossim.backends.simulator.event_costs import EventCosts
from iossim.backends.simulator.plan_model import (
    AWAIT_DEVICE,
    BEGAN_US,
    ENDED_US,
    HOST_US,
    KERNEL,
    KIND,
    RECORD,
    REFERENCE,
    STREAM,
    STREAM_US,
    WAIT,
    price_streams,
    run_plan_commands,
)
from iossim.backends.simulator.preparation import PreparedProblem
from iossim.backends.simulator.stage_bounds import kernel_work_us, part_of
from iossim.backends.simulator.unit_prices import UnitPrice, UnitPrices
from iossim.base.errors import OptionError
from iossim.cost.facts import LaunchWork, StreamPrices
from iossim.execution.engine import Engine
from iossim.execution.execution import Span
from iossim.execution.plan import Command, Copy, Launch, Plan, Record, Synchronize, Wait, forks_and_joins
from iossim.hardware.profile import DeviceProfile
from iossim.ir.network import Network
from iossim.schedule.streams import MAX_STREAMS, StreamBatch, StreamProblem


@dataclass(frozen=True, eq=False)
class PlanRun:
    """A plan as it ran: when its last kernel ended, and its kernels in the order of issue."""

    latency_us: float
    spans: tuple[Span, ...]


class PlanPricing:
    """Prices plans and stream schedules of networks on one device, under one engine."""

    def __init__(self, profile: DeviceProfile, units: UnitPrices, engine: Engine, max_kernels: int) -> None:
        if engine.facts.divides_sms:
            raise OptionError("`engine` partition divides stages, and streams have none; give paper or graph")
        self.profile, self.units, self.engine, self.max_kernels = profile, units, engine, max_kernels
        self._prepared: WeakKeyDictionary[StreamProblem, PreparedProblem] = WeakKeyDictionary()

    def price(self, batch: StreamBatch) -> StreamPrices:
        """Raises OptionError for more streams than are priced."""
        problem = batch.problem
        if len(batch) and batch.streams.max(initial=0) >= MAX_STREAMS:
            raise OptionError(f"a schedule of more than {MAX_STREAMS} streams is not priced; give fewer")
        prepared = self._prepare(problem)
        costs = EventCosts.of(self.engine, self.profile)
        events = np.array([costs.host_us, costs.fork_us, costs.join_us, costs.wait_us, costs.apart_us])
        result = np.empty((len(batch), 2 + len(problem)), dtype=np.float64)
        price_streams(
            np.ascontiguousarray(batch.orders, dtype=np.int64),
            np.ascontiguousarray(batch.streams, dtype=np.int64),
            *problem.flat_reads,
            prepared.kernels.kernel_begin,
            prepared.kernels.columns,
            events,
            self.profile.parameters.interference,
            self.max_kernels,
            batch.ahead_us,
            result,
        )
        return StreamPrices(result[:, 0].copy(), result[:, 1].copy(), result[:, 2:])

    def work(self, problem: StreamProblem) -> LaunchWork:
        """Lower bounds of each launch, alone and on each resource."""
        prepared, interference = self._prepare(problem), self.profile.parameters.interference
        numbers = kernel_work_us(prepared, interference)
        return LaunchWork(numbers[:, 0], numbers[:, 1], numbers[:, 2:], _most_shares(prepared, interference))

    def run(self, network: Network, plan: Plan) -> PlanRun:
        """Run a plan of ``network``, of stages or of streams, whose units are launched and not moved."""
        prices, launched = self._launched(network, plan)
        prepared = PreparedProblem.of(prices)
        commands, times, kernels = self._commands(plan.commands, prepared)
        latency_us = run_plan_commands(
            commands,
            times,
            prepared.kernels.columns,
            1 + max((command.event for command in plan.commands if isinstance(command, Record)), default=0),
            self.profile.parameters.interference,
            self.max_kernels,
            EventCosts.of(self.engine, self.profile).apart_us,
        )
        spans = [
            Span(
                prices[launch].names[kernel],
                "+".join(launched[launch].units),
                0,
                launched[launch].queue.stream,
                float(times[place, BEGAN_US]),
                float(times[place, ENDED_US]),
            )
            for place, launch, kernel in kernels
        ]
        return PlanRun(latency_us, tuple(spans))

    def _prepare(self, problem: StreamProblem) -> PreparedProblem:
        if problem not in self._prepared:
            self._prepared[problem] = PreparedProblem.of(
                [
                    self.units.of_launch(problem.network, units, variant)
                    for units, variant in zip(problem.launches, problem.variants, strict=True)
                ]
            )
        return self._prepared[problem]

    def _launched(self, network: Network, plan: Plan) -> tuple[list[UnitPrice], list[Launch]]:
        if any(isinstance(command, Copy) for command in plan.commands):
            raise OptionError("the plan moves values in place, and only launches are priced; lower it without")
        launches = list(plan.launches)
        prices = [
            self.units.of_launch(network, [network.unit_index[name] for name in one.units], one.algorithm)
            for one in launches
        ]
        return prices, launches

    def _commands(
        self, given: Sequence[Command], prepared: PreparedProblem
    ) -> tuple[Integers, Floats, list[tuple[int, int, int]]]:
        """The commands as the model reads them; for each kernel its place there, its launch, and its place in that."""
        costs = EventCosts.of(self.engine, self.profile)
        forks, joins = forks_and_joins(given) if self.engine.is_recorded else (set(), set())
        rows: list[tuple[int, int, int, float, float]] = []
        kernels: list[tuple[int, int, int]] = []
        begin = prepared.kernels.kernel_begin.tolist()
        launch = 0
        for place, command in enumerate(given):
            match command:
                case Launch():
                    for kernel, host_us in enumerate(prepared.units[launch].host_us):
                        kernels.append((len(rows), launch, kernel))
                        rows.append((KERNEL, command.queue.stream, begin[launch] + kernel, host_us, 0.0))
                    launch += 1
                case Record():
                    fork_us = costs.fork_us if place in forks else 0.0
                    rows.append((RECORD, command.queue.stream, command.event, costs.host_us, fork_us))
                case Wait():
                    join_us = costs.wait_us + (costs.join_us if place in joins else 0.0)
                    rows.append((WAIT, command.queue.stream, command.event, costs.host_us, join_us))
                case Synchronize():
                    rows.append((AWAIT_DEVICE, 0, 0, self.profile.engine.synchronise_us, 0.0))
        commands = np.zeros((len(rows), 4), dtype=np.int64)
        times = np.zeros((len(rows), 5), dtype=np.float64)
        for index, (kind, stream, reference, host_us, stream_us) in enumerate(rows):
            commands[index, KIND], commands[index, STREAM], commands[index, REFERENCE] = kind, stream, reference
            times[index, HOST_US], times[index, STREAM_US] = host_us, stream_us
        return commands, times, kernels


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
