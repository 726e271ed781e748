"""A point of a study, loaded: its network, device and prices. A process loads what points share only once."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

from iossim.base.registry import needed_part
from iossim.cost.create import create_cost_model
from iossim.cost.model import CostModel
from iossim.execution.engine import Engine
from iossim.hardware.lowering.unit import unit_bytes, unit_steps
from iossim.hardware.profile import DeviceProfile
from iossim.ir.network import Network
from iossim.prediction.published import comparable_published_us
from iossim.prediction.schedule_interval import ScheduleErrors, schedule_errors
from iossim.schedule.schedule import Schedule
from iossim.search.options import SearchOptions
from iossim.study.points import Point, device_of, network_of
from iossim.study.workers import LruCache
from iossim.tasks.task import Task
from iossim.transforms.replay import replayed, split_source
from iossim.transforms.rewriting.backtracking import RewriteBudget
from iossim.transforms.rewriting.rewritten import applied_rules
from iossim.transforms.rewriting.rule_sets import rules_named
from iossim.transforms.rewriting.scheduled import Rewrite
from iossim.transforms.transform import Transform

_MIB = 1 << 20

# Points of one network are consecutive. Networks load their weights only on demand.
_NETWORKS: LruCache[Network] = LruCache(2)
_PROFILES: LruCache[DeviceProfile] = LruCache(64)
_CONTEXTS: LruCache[EvaluationContext] = LruCache(2)


@dataclass(frozen=True, eq=False)
class EvaluationContext:
    """Inputs for making and pricing the schedules of a point; ``errors`` is None if prices predict no device."""

    point: Point
    network: Network
    profile: DeviceProfile
    prices: CostModel
    errors: ScheduleErrors | None

    @cached_property
    def network_facts(self) -> dict[str, Any]:
        """Facts of the scheduled network for a row."""
        network = self.network
        return {
            "weights_mib": sum(constant.type.bytes for constant in network.graph.constants.values()) / _MIB,
            "kernels": sum(len(unit_steps(network, unit)) for unit in network.units),
            "gmacs": network.statistics()["macs"] / 1e9,
            "traffic_mib": sum(unit_bytes(network, unit) for unit in network.units) / _MIB,
            "rules": applied_rules(network),
        }

    @property
    def engine(self) -> Engine:
        """Engine of the point: ``auto`` is that of the device."""
        return Engine.named(self.point.engine, self.profile)

    def published_ms(self, schedule: Schedule) -> float | None:
        """Measured latency published for this point, if known."""
        point = self.point
        is_whole = point.model.block is None and not point.model.shapes and not point.device.set
        is_whole = is_whole and not point.rewrite.rewrites and point.micro_batch == 1
        if not is_whole or self.errors is None:
            return None
        found_us = comparable_published_us(schedule, point.model.model, point.search.space)
        return None if found_us is None else found_us / 1e3


def context_of(point: Point) -> EvaluationContext:
    """Load a point; raises a subclass of IossimError if that fails."""
    return _CONTEXTS.get(point.key, lambda: _load(point))


def _load(point: Point) -> EvaluationContext:
    device = point.device.model_dump_json()
    profile = _PROFILES.get(device, lambda: device_of(point.device))
    network = given_network(point)
    spec = f"random:{point.seed}" if point.cost_model == "random" else point.cost_model
    prices = create_cost_model(spec, profile, network.precision, Engine.named(point.engine, profile))
    if point.rewrite.rewrites or point.micro_batch != 1:
        network = _changed(point, network, prices)
    return EvaluationContext(point, network, profile, prices, schedule_errors(network, prices))


def given_network(point: Point) -> Network:
    """The point's network before its transforms."""
    key = (point.model.model_dump_json(), point.batch, point.dtype, point.seed)
    return _NETWORKS.get(key, lambda: network_of(point))


def network_as(context: EvaluationContext, schedule: Schedule) -> Network:
    """The point's network, rewritten as for a schedule of another point. Raises ReplayError if that is impossible."""
    (_, wanted), (_, own) = split_source(schedule.source.to_source()), split_source(context.network.source)
    return context.network if wanted == own else replayed(given_network(context.point), wanted)


def _changed(point: Point, network: Network, prices: CostModel) -> Network:
    """The network after the point's transforms; raises KeyboardInterrupt if they were interrupted."""
    asked = point.rewrite
    options = SearchOptions(point.search.space, workspace_limit_bytes=point.workspace.limit_bytes)
    transforms: list[Transform] = []
    if asked.rewrites:
        budget = RewriteBudget(graphs=asked.graphs)
        transforms.append(Rewrite(rules_named(asked.rules), asked.search, asked.alpha, budget, asked.unproved))
    if point.micro_batch != 1:
        transforms.append(needed_part("transform", "micro_batches", "MicroBatch", "micro_batches")(point.micro_batch))
    changed = Task(network, prices, asked.scheduler, options, tuple(transforms)).change()
    if changed.interrupted:
        raise KeyboardInterrupt
    return changed.network
