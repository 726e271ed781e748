"""Timelines made up from a schedule: durations from a unit's work, streams in parallel, a gap between stages."""

from collections.abc import Sequence

import numpy as np

from iossim.execution.execution import Execution, Span
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


def fake_execution(spans: Sequence[Span]) -> Execution:
    """Two SMs: idle for 1 us, both busy up to the middle of the timeline, one of them up to its end."""
    end_us = max(span.end_us for span in spans)
    sms_by_warps = np.zeros((3, 9), dtype=np.int64)
    sms_by_warps[0, 0] = sms_by_warps[1, 8] = 2
    sms_by_warps[2, [0, 8]] = 1
    issue = np.array([0.0, 0.5, 0.125])
    return Execution(
        end_us,
        tuple(spans),
        np.array([0.0, 1.0, end_us / 2, end_us]),
        sms_by_warps @ np.arange(9),
        sms_by_warps,
        issue,
        issue / 2,
        issue / 4,
        issue / 8,
    )


def unit_us(network: Network, name: str) -> float:
    unit = network.unit(name)
    return 4 + sum(network.graph.work(node).flops for node in network.unit_nodes(unit)) / 8e6
