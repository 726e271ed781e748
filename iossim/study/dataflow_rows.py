"""What a point on edge devices comes to: a row for each plan of its network, on one device or several."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from iossim.edge.capacity import uses
from iossim.edge.distributed import distributed
from iossim.edge.plan import EdgePlan, Variant
from iossim.edge.planned import dataflow
from iossim.hardware.lowering.unit import main_kind
from iossim.ir.network import Network
from iossim.study.lru_cache import LruCache
from iossim.study.points import Point, edge_device_of, network_of
from iossim.study.study_run import Row

_MIB = 1 << 20

_NETWORKS: LruCache[Network] = LruCache(2)


def dataflow_rows(point: Point, schedulers: Sequence[str]) -> tuple[list[Row], dict[str, float]]:
    """The row of each plan, and by plan the seconds that finding it took. Raises a subclass of IossimError."""
    model = point.model.model_dump_json()
    network = _NETWORKS.get((model, point.batch, point.dtype, point.seed), lambda: network_of(point))
    common = {
        "point": point.index,
        **point.labels,
        "weights_mib": sum(constant.type.bytes for constant in network.graph.constants.values()) / _MIB,
        "gmacs": network.statistics()["macs"] / 1e9,
    }
    asked, device = point.dataflow, edge_device_of(point.device)
    if asked.devices > 1:
        several = distributed(network, device, asked.devices, asked.link, asked.sync, asked.mix, asked.policy)
        row = Row(
            **common,
            **_times(point, several.latency_us, several.one_us),
            **_peaks(several.plans),
            scheduler=str(Variant.FULL),
            sent_mib=several.distribution.sent_bytes / _MIB,
            waited_ms=several.waited_us / 1e3,
            time_by_kind_us=_by_kind(network, [each.compute_us + each.waited_us for each in several.rows]),
        )
        return [row], {str(Variant.FULL): several.optimise_s}
    found = dataflow(network, device, asked.policy)
    slowest_us = max(found.total_us(Variant(name)) for name in schedulers)
    baseline_us = found.total_us(Variant.VANILLA) if Variant.VANILLA in schedulers else slowest_us
    rows = []
    for variant in map(Variant, schedulers):
        steps = found.times[variant].steps
        own_us = [end - start for start, end in steps]
        rows.append(
            Row(
                **common,
                **_times(point, found.total_us(variant), baseline_us),
                **_peaks([found.plans[variant]]),
                scheduler=str(variant),
                time_by_kind_us=_by_kind(network, own_us),
            )
        )
    return rows, {str(Variant.FULL): found.optimise_s}


def _times(point: Point, latency_us: float, baseline_us: float) -> dict[str, Any]:
    return {
        "latency_ms": latency_us / 1e3,
        "throughput_per_s": point.batch / latency_us * 1e6,
        "speedup": baseline_us / latency_us,
    }


def _peaks(plans: Sequence[EdgePlan]) -> dict[str, Any]:
    """The most of each memory that any device has in use."""
    seen = [use for plan in plans for step in range(len(plan.steps)) for use in uses(plan, step)]
    return {
        "private_mib": max(use.private_bytes for use in seen) / _MIB,
        "shared_mib": max(use.shared_bytes for use in seen) / _MIB,
        "external_mib": max(use.external_bytes for use in seen) / _MIB,
    }


def _by_kind(network: Network, times_us: Sequence[float]) -> dict[str, float]:
    """The time of each operator dealt to kinds, the longest first."""
    found: defaultdict[str, float] = defaultdict(float)
    for unit, us in zip(network.units, times_us, strict=True):
        found[main_kind(network, unit)] += us
    return dict(sorted(found.items(), key=lambda one: -one[1]))
