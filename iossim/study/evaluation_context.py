"""A point of a study, loaded: its network, device and prices. A process loads what points share only once."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Hashable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Generic, TypeVar

from iossim.calibration.prediction.published import comparable_published_us
from iossim.calibration.prediction.schedule_interval import ScheduleErrors, schedule_errors
from iossim.cost.create import create_cost_model
from iossim.cost.model import CostModel
from iossim.execution.engine import Engine
from iossim.hardware.lowering.unit import unit_bytes, unit_steps
from iossim.hardware.profile import DeviceProfile
from iossim.ir.network import Network
from iossim.schedule.schedule import Schedule
from iossim.search.options import SearchOptions
from iossim.study.points import Point, device_of, network_of
from iossim.tasks.task import Task
from iossim.transforms.microbatching.blocks_in_micro_batches import MicroBatch
from iossim.transforms.microbatching.convolutions_in_micro_batches import Benchmarks, benchmarks
from iossim.transforms.replay import replayed, split_source
from iossim.transforms.rewriting.backtracking import RewriteBudget
from iossim.transforms.rewriting.rewritten import applied_rules
from iossim.transforms.rewriting.rule_sets import rules_named
from iossim.transforms.rewriting.scheduled import Rewrite
from iossim.transforms.transform import Transform

V = TypeVar("V")


class LruCache(threading.local, Generic[V]):
    """The ``maxsize`` most recently used values, per thread; a value that cannot be made is tried again.

    A Dask worker may have several threads, and cost models are not thread-safe.
    """

    def __init__(self, maxsize: int) -> None:
        self._made = functools.lru_cache(maxsize)(lambda key: self._make())

    def get(self, key: Hashable, make: Callable[[], V]) -> V:
        self._make = make
        value: V = self._made(key)
        return value


_MIB = 1 << 20

# Points of one network are consecutive. Networks load their weights only on demand.
_NETWORKS: LruCache[Network] = LruCache(2)
_PROFILES: LruCache[DeviceProfile] = LruCache(64)
_CONTEXTS: LruCache[EvaluationContext] = LruCache(2)
_BENCHMARKS: LruCache[Benchmarks] = LruCache(4)


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

    @cached_property
    def micro_batch_facts(self) -> dict[str, Any]:
        """Facts of the convolutions in micro-batches for a row; raises OptionError if a limit is too small."""
        asked = self.point.workspace
        # Points that differ only in their limits share the known kernels.
        unlimited = self.point.workspace.model_copy(update={"limit": None, "total": None, "label": ""})
        key = replace(self.point, index=0, workspace=unlimited, key="")
        kernels = _BENCHMARKS.get(
            repr(key), lambda: benchmarks(self.network, self.prices, asked.policy, asked.training)
        )
        found = kernels.divided(asked.limit_bytes, asked.total_bytes)
        whole_us = found.undivided_us
        return {
            "convolutions_ms": found.time_us / 1e3,
            "undivided_ms": None if whole_us is None else whole_us / 1e3,
            "micro_batch_gain": found.gain,
            "largest_gain": max((one.gain for one in found.kernels if one.gain is not None), default=None),
            "workspace_mib": found.workspace_bytes / _MIB,
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
        transforms.append(MicroBatch(point.micro_batch))
    changed = Task(network, prices, asked.scheduler, options, tuple(transforms)).change()
    if changed.interrupted:
        raise KeyboardInterrupt
    return changed.network
