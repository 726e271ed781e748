"""Summary of a network before anything is priced: its memory, and how much of it could run concurrently."""

from __future__ import annotations

from dataclasses import dataclass

from iossim.execution.lower import lower_stage
from iossim.execution.memory import memory_lower_bound_bytes
from iossim.ir.network import Network
from iossim.schedule.batch import Strategy
from iossim.schedule.problem import ScheduleProblem
from iossim.search.counting import width


@dataclass(frozen=True)
class Summary:
    """Facts of a network that need no device.

    ``activation_bytes`` is a lower bound on every memory plan of one unit after another; ``width`` the largest
    antichain of units within a block. ``parallelism``, the average parallelism, is all arithmetic over that of the
    critical path. It bounds no gain on a device, where time is not proportional to arithmetic.
    """

    activation_bytes: int
    weight_bytes: int
    flops: int
    critical_path_flops: int
    width: int
    block_widths: tuple[int, ...]

    @property
    def parallelism(self) -> float:
        return self.flops / self.critical_path_flops if self.critical_path_flops else 1.0


def summarise(network: Network) -> Summary:
    """Summarise a network without reading its weights."""
    graph = network.graph
    flops = [sum(graph.work(node).flops for node in network.unit_nodes(unit)) for unit in network.units]
    longest: list[int] = []
    for unit, before in enumerate(network.predecessors):
        longest.append(flops[unit] + max((longest[other] for other in before), default=0))
    sequential = lower_stage(network, [range(len(network.units))], Strategy.CONCURRENT, in_place=True)
    widths = tuple(width(ScheduleProblem.of_block(network, block)) for block in network.blocks)
    return Summary(
        memory_lower_bound_bytes(sequential),
        sum(constant.type.bytes for constant in graph.constants.values()),
        sum(flops),
        max(longest, default=0),
        max(widths, default=0),
        widths,
    )
