"""What several searches at the same prices share: lattices, and blocks that are solved.

A block has the same solution in every search that asks the same of it. Where nothing of a block merges, say, ``ios-both`` and
``ios-parallel`` do; and a study compares schedulers on hundreds of points.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from time import perf_counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from iossim.cost.model import CostModel
    from iossim.schedule.problem import ScheduleProblem
    from iossim.scheduling.block_search import BlockSolution
    from iossim.scheduling.lattice import Lattice


@dataclass(eq=False)
class SearchMemo:
    """Belongs to one cost model; a search at other prices passes it by.

    Solutions are kept by all that they depend on, with the seconds that they took, so that a search can say what it would
    have taken alone. Lattices are kept by the edges of the problem.
    """

    cost_model: CostModel
    solutions: dict[Hashable, tuple[BlockSolution, float]] = field(default_factory=dict)
    lattices: dict[Hashable, tuple[Lattice | None, float]] = field(default_factory=dict)

    def solution(self, key: Hashable, solve: Callable[[], BlockSolution]) -> tuple[BlockSolution, float]:
        """The solution, and the seconds that were saved; one that was interrupted is not kept."""
        if key in self.solutions:
            return self.solutions[key]
        started = perf_counter()
        found = solve()
        if found.complete:
            self.solutions[key] = found, perf_counter() - started
        return found, 0.0

    def lattice(
        self, problem: ScheduleProblem, max_states: int, build: Callable[[ScheduleProblem, int], Lattice | None]
    ) -> tuple[Lattice | None, float]:
        """The lattice, and the seconds that were saved."""
        key = problem.predecessors.tobytes(), max_states
        if key in self.lattices:
            return self.lattices[key]
        started = perf_counter()
        built = build(problem, max_states)
        self.lattices[key] = built, perf_counter() - started
        return built, 0.0
