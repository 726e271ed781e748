"""Timelines made up from a schedule: durations from a unit's work, streams in parallel, a gap between stages."""

from __future__ import annotations

from iossim.execution.timeline import Span
from iossim.ir.network import Network
from iossim.schedule.schedule import Schedule

BOUNDARY_US = 4.0


def fake_timeline(network: Network, schedule: Schedule, kernels: int = 1) -> tuple[Span, ...]:
    """Each unit runs as ``kernels`` kernels of equal length, back to back; a merged stage as one unit."""
    spans: list[Span] = []
    now_us = 0.0
    for number, stage in enumerate(schedule.stages):
        end_us = now_us
        groups = [["+".join(stage.units)]] if stage.strategy == "merge" else stage.groups
        for stream, group in enumerate(groups):
            start_us = now_us + 1.5 * stream
            for name in group:
                members = stage.units if stage.strategy == "merge" else [name]
                kernel_us = sum(unit_us(network, member) for member in members) / kernels
                for index in range(kernels):
                    spans.append(Span(f"kernel{index}", name, number, stream, start_us, start_us + kernel_us))
                    start_us += kernel_us
            end_us = max(end_us, start_us)
        now_us = end_us + BOUNDARY_US
    return tuple(spans)


def unit_us(network: Network, name: str) -> float:
    unit = network.units[network.unit_index[name]]
    return 4 + sum(network.graph.work(node).flops for node in network.unit_nodes(unit)) / 8e6
