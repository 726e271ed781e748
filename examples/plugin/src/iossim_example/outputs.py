"""An output format: a line for each stage."""

from __future__ import annotations

from iossim.ir.network import Network
from iossim.schedule.schedule import Schedule


def csv(network: Network, schedule: Schedule) -> str:
    lines = ["strategy,groups,latency_us"]
    for stage in schedule.stages:
        groups = "|".join(" ".join(group) for group in stage.groups)
        lines.append(f"{stage.strategy},{groups},{stage.latency_us}")
    return "\n".join(lines) + "\n"
