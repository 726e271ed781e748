"""What several searches at the same prices share: lattices, and blocks that are solved.

A block has the same solution in every search that asks the same of it, whatever network it is part of. Where nothing of a
block merges, say, ``ios-both`` and ``ios-parallel`` do; and a study compares schedulers on hundreds of points.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from time import perf_counter
from typing import NamedTuple

from iossim.cost.model import CostModel
from iossim.schedule.problem import ScheduleProblem
from iossim.search.block_search import BlockSolution
from iossim.search.lattice import Lattice, build_lattice
from iossim.search.options import StageSpace


class BlockQuestion(NamedTuple):
    """All that the solution of a block depends on, at the prices of one cost model.

    ``block`` is what the block is (:attr:`~iossim.schedule.problem.ScheduleProblem.key`: edges, merge classes, and the ops,
    attributes and shapes of each unit), and neither its name nor its network. ``merges`` are the bytes of the masks and
    prices of its merged stages; the others are the arguments of :func:`~iossim.search.block_search.solve_block`.
    """

    block: str
    entry: int
    space: StageSpace
    concurrent: bool
    bounded: bool
    merges: tuple[bytes, bytes]


@dataclass(eq=False)
class SearchMemo:
    """Belongs to one cost model; a search at other prices passes it by.

    Each entry is kept with the seconds that it took, so that a search can say what it would have taken alone. Lattices are
    kept by the order of the problem.
    """

    cost_model: CostModel
    _solutions: dict[BlockQuestion, tuple[BlockSolution, float]] = field(default_factory=dict, repr=False)
    _lattices: dict[tuple[bytes, int], tuple[Lattice | None, float]] = field(default_factory=dict, repr=False)

    def solution(self, question: BlockQuestion, solve: Callable[[], BlockSolution]) -> tuple[BlockSolution, float]:
        """The solution, and the seconds that were saved; one that was interrupted is not kept."""
        if question in self._solutions:
            return self._solutions[question]
        started = perf_counter()
        found = solve()
        if found.complete:
            self._solutions[question] = found, perf_counter() - started
        return found, 0.0

    def lattice(self, problem: ScheduleProblem, max_states: int) -> tuple[Lattice | None, float]:
        """The lattice (:func:`~iossim.search.lattice.build_lattice`), and the seconds that were saved."""
        key = problem.order.tobytes(), max_states
        if key in self._lattices:
            return self._lattices[key]
        started = perf_counter()
        built = build_lattice(problem, max_states)
        self._lattices[key] = built, perf_counter() - started
        return built, 0.0
