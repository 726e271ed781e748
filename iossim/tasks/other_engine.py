"""What the other engine makes of a network whose schedule was found under one: often more than any schedule under the first.

The paper's engine waits for the device between stages of several groups, so that on a fast GPU little is worth running
side by side; one CUDA graph pays for no such wait.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any

from iossim.cost.capabilities import DeviceCostModel
from iossim.cost.model import CostModel
from iossim.execution.engine import Engine
from iossim.ir.network import Network
from iossim.schedule.schedule import Schedule
from iossim.search.assemble import reprice
from iossim.search.block_parts import PAPER_GROUP_SIZE, PAPER_GROUPS
from iossim.search.options import SearchLimits, SearchOptions
from iossim.search.scheduler import schedule

#: The search is there for a line of print: as the paper prunes, and blocks that take long even so are split.
_LIMITS = SearchLimits(max_states=20_000, max_transitions=2_000_000)


@dataclass(frozen=True)
class OtherEngine:
    """Microseconds under ``engine``: of the schedule that was found, of one op after another, of the best of a quick search."""

    engine: str
    same_schedule_us: float
    sequential_us: float
    best_us: float
    max_group_size: int
    max_groups: int

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    def sentence(self) -> str:
        """One line for people: this schedule there, the best of a quick search there, and that over one by one there."""
        return (
            f"With `engine` {self.engine}: {self.same_schedule_us / 1e3:.3f} ms; best found: "
            f"{self.best_us / 1e3:.3f} ms ({self.sequential_us / self.best_us:.2f}x over sequential)"
        )


def under_other_engine(
    network: Network, found: Schedule, prices: CostModel, options: SearchOptions | None = None
) -> OtherEngine | None:
    """What the other engine gives; None where the prices can be had under one engine only, where nothing takes time, or after a
    KeyboardInterrupt.

    Searches with the scheduler that found the schedule (ios-both where that does not search), pruned to r = 3 and s = 8 at
    most, so that it takes a second or two of any network; a block that is too wide is split.
    """
    if not isinstance(prices, DeviceCostModel):
        return None
    engine = Engine.GRAPH if prices.engine is Engine.PAPER else Engine.PAPER
    there = prices.at(engine=engine)
    given = (options or SearchOptions()).space
    space = replace(
        given,
        max_group_size=min(given.max_group_size or PAPER_GROUP_SIZE, PAPER_GROUP_SIZE),
        max_groups=min(given.max_groups or PAPER_GROUPS, PAPER_GROUPS),
    )
    searching = found.scheduler if found.scheduler.startswith("ios") else "ios-both"
    try:
        best = schedule(network, there, searching, SearchOptions(space, _LIMITS))
        same_us = reprice(found, network, there).latency_us
        sequential_us = schedule(network, there, "sequential").latency_us
    except KeyboardInterrupt:
        return None
    if not best.complete or not sequential_us:
        return None
    return OtherEngine(
        engine,
        same_us,
        sequential_us,
        min(best.latency_us, same_us, sequential_us),
        space.max_group_size or PAPER_GROUP_SIZE,
        space.max_groups or PAPER_GROUPS,
    )
