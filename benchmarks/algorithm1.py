"""Algorithm 1 of the IOS thesis, transcribed literally: the reference of the search.

A recursion over sets with a memo; endings are enumerated group by group (a root with all its descendants), stage
latencies are requested one by one and cached. Plain Python, no bounds, no batches.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator

from iossim.schedule.problem import ScheduleProblem, bits

StageLatency = Callable[[int], tuple[float, str]]


class InterOperatorScheduler:
    """``generate_stage(mask)`` returns the latency of a stage and its strategy; r and s prune as in section 3.4."""

    def __init__(
        self, problem: ScheduleProblem, generate_stage: StageLatency, max_group_size: int, max_groups: int
    ) -> None:
        self.problem = problem
        self.successors = problem.successors.tolist()
        self.generate_stage = generate_stage
        self.max_group_size, self.max_groups = max_group_size, max_groups
        self.cost: dict[int, float] = {0: 0.0}
        self.choice: dict[int, tuple[int, str]] = {}
        self.stages: dict[int, tuple[float, str]] = {}
        self.transitions = 0

    def run(self) -> tuple[float, list[tuple[int, str]]]:
        """The least latency and the stages of a schedule that reaches it (lines 3-12)."""
        sys.setrecursionlimit(10_000)
        todo = self.problem.full
        self.schedule(todo)
        stages: list[tuple[int, str]] = []
        while todo:
            ending, strategy = self.choice[todo]
            stages.insert(0, (ending, strategy))
            todo &= ~ending
        return self.cost[self.problem.full], stages

    def schedule(self, todo: int) -> float:
        """The least latency of the units ``todo`` (lines 13-22)."""
        if todo in self.cost:
            return self.cost[todo]
        best = float("inf")
        for ending in self.endings(todo):
            self.transitions += 1
            if ending not in self.stages:
                self.stages[ending] = self.generate_stage(ending)
            latency, strategy = self.stages[ending]
            latency += self.schedule(todo & ~ending)
            if latency < best:
                best = latency
                self.choice[todo] = (ending, strategy)
        self.cost[todo] = best
        return best

    def endings(self, todo: int) -> Iterator[int]:
        """Unions of disjoint, unconnected groups, each a unit of ``todo`` with all its descendants in it."""
        groups = []
        for root in bits(todo):
            group = self.with_descendants(root, todo)
            if group.bit_count() <= self.max_group_size:
                groups.append(group)

        def extend(chosen: int, first: int, count: int) -> Iterator[int]:
            for index in range(first, len(groups)):
                if not groups[index] & chosen:
                    union = chosen | groups[index]
                    yield union
                    if count + 1 < self.max_groups:
                        yield from extend(union, index + 1, count + 1)

        yield from extend(0, 0, 0)

    def with_descendants(self, root: int, todo: int) -> int:
        """``root`` and everything in ``todo`` that follows it."""
        group, frontier = 0, 1 << root
        while frontier:
            group |= frontier
            frontier = sum({1 << after for unit in bits(frontier) for after in bits(self.successors[unit] & todo)})
            frontier &= ~group
        return group
