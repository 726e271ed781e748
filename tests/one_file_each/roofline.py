"""A cost model of devices: each unit alone takes the longer of its arithmetic and its traffic at the datasheet's peaks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from iossim.base.errors import OptionError
from iossim.cost.facts import KernelFacts, Limit, StageFacts
from iossim.cost.model import CostModelIdentity, Prices, StageBounds
from iossim.execution.engine import Engine
from iossim.execution.execution import Span
from iossim.hardware.lowering.kernel import Candidate
from iossim.hardware.profile import DeviceProfile
from iossim.ir.network import Network
from iossim.ir.types import Precision
from iossim.schedule.batch import StageBatch, Strategy
from iossim.schedule.problem import ScheduleProblem, bits
from iossim.schedule.schedule import Schedule, Stage


@dataclass(frozen=True)
class Roofline:
    profile: DeviceProfile
    precision: Precision
    engine: Engine
    efficiency: str = ""

    @property
    def identity(self) -> CostModelIdentity:
        version = "+".join(filter(None, ("1", self.profile.fingerprint, self.efficiency)))
        return CostModelIdentity("roofline", self.profile.name, str(self.precision), self.engine, version)

    def at(self, profile: DeviceProfile | None = None, engine: Engine | None = None) -> Roofline:
        return replace(self, profile=profile or self.profile, engine=engine or self.engine)

    def limits_us(self, network: Network, unit: int) -> dict[Limit, float]:
        work = [network.graph.work(node) for node in network.unit_nodes(network.units[unit])]
        arithmetic_us = sum(one.flops for one in work) / (self.profile.fp32_tflops * 1e6)
        traffic_us = sum(one.bytes for one in work) / (self.profile.dram_bandwidth_gbps * 1e3)
        limit = Limit.ARITHMETIC if arithmetic_us > traffic_us else Limit.DRAM
        return {limit: max(arithmetic_us, traffic_us) / float(self.efficiency or 1), Limit.START: 1.0}

    def unit_us(self, network: Network, unit: int) -> float:
        return sum(self.limits_us(network, unit).values())

    def price_keys(self, problem: ScheduleProblem) -> Sequence[str]:
        return problem.signatures

    def price_stages(self, batch: StageBatch) -> Prices:
        """The longest group, each as long as alone; merged stages cannot run."""
        problem, network = batch.problem, batch.problem.network
        assert network is not None
        us = [self.unit_us(network, unit) for unit in problem.units]
        found = [
            max(sum(us[unit] for unit in bits(group)) for group in problem.groups(mask))
            if strategy is Strategy.CONCURRENT
            else np.inf
            for mask, strategy in batch.stages()
        ]
        return np.array(found, dtype=np.float64)

    def price_changed(self, batch: StageBatch, launches: float) -> Prices:
        return self.price_stages(batch)

    def price_candidates(self, candidates: Sequence[Candidate]) -> Prices:
        return np.array([float(len(one.kernels)) for one in candidates])

    def price_boundary(self, left_concurrent: bool, right_concurrent: bool) -> float:
        return 2.0 if left_concurrent or right_concurrent else 0.0

    def bounds(self, problem: ScheduleProblem) -> StageBounds | None:
        return None

    def runs(self, network: Network, stage: Stage) -> Iterator[tuple[str, int, float, float, dict[Limit, float]]]:
        """Each unit of a stage with its stream, start and end, and what limits it."""
        for stream, group in enumerate(stage.groups):
            end_us = 0.0
            for name in group:
                limits = self.limits_us(network, network.unit_index[name])
                start_us, end_us = end_us, end_us + sum(limits.values())
                yield name, stream, start_us, end_us, limits

    def timeline(self, network: Network, schedule: Schedule) -> tuple[Span, ...]:
        spans, at_us = [], 0.0
        for number, stage in enumerate(schedule.stages):
            at_us += stage.boundary_us
            for name, stream, start_us, end_us, _ in self.runs(network, stage):
                spans.append(Span("roofline", name, number, stream, at_us + start_us, at_us + end_us))
            at_us += stage.latency_us
        return tuple(spans)

    def stage_facts(self, network: Network, stage: Stage) -> StageFacts:
        kernels = tuple(
            KernelFacts("roofline", name, stream, start_us, end_us, end_us - start_us, 1, 1, 1.0, 1.0, limits)
            for name, stream, start_us, end_us, limits in self.runs(network, stage)
        )
        longest = max(kernels, key=lambda one: one.end_us).stream
        chain = [one for one in kernels if one.stream == longest]
        limits = {limit: sum(one.limits_us.get(limit, 0.0) for one in chain) for limit in Limit}
        limits = {limit: us for limit, us in limits.items() if us}
        return StageFacts(stage.latency_us, limits, stage.latency_us, 0.0, 1.0, 0.5, 0.5, kernels)


def create(device: DeviceProfile | None, precision: Precision, engine: str, argument: str) -> Roofline:
    if device is None:
        raise OptionError("`cost_model` roofline needs a device; give `device` NAME")
    return Roofline(device, precision, Engine.named(engine, device), argument)
