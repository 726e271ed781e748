"""A memo that several searches at the same prices share: lattices, the solutions of blocks, and proven schedules.

A block has the same solution in every search that asks the same of it, whatever network it is part of. For example,
``ios-both`` and ``ios-parallel`` ask the same of a block in which nothing merges; and a study compares schedulers on
hundreds of points.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, TypeVar

from iossim.base.compile_time import working_s
from iossim.cost.model import CostModel, problems_of
from iossim.ir.network import Network
from iossim.schedule.problem import ScheduleProblem
from iossim.schedule.schedule import Schedule
from iossim.search.lattice import Lattice, MergedStages, build_lattice
from iossim.search.options import SearchOptions, StageSpace

V = TypeVar("V")


class BlockQuestion(NamedTuple):
    """All that the solution of a block depends on, at the prices of one cost model.

    ``block`` is :attr:`~iossim.schedule.problem.ScheduleProblem.key`, ``merges`` that of its merged stages; whether the
    space has any is not asked besides.
    """

    block: str
    entry: int
    space: StageSpace
    merges: tuple[bytes, bytes]

    @staticmethod
    def of(problem: ScheduleProblem, entry: int, space: StageSpace, merges: MergedStages) -> BlockQuestion:
        return BlockQuestion(problem.key, entry, replace(space, merge=True), merges.key)


@dataclass(eq=False)
class SearchMemo:
    """Belongs to one cost model; a search at other prices does not use it.

    Each entry is kept with the seconds that it took; ``saved_s`` adds them up whenever an entry is used again, so
    that a search can say what it would have taken alone. Lattices are kept by the order of the problem.
    """

    cost_model: CostModel
    saved_s: float = 0.0
    #: Schedules proven to be optimal, within whatever limits, by network, scheduler and options.
    schedules: dict[tuple[Network, str, SearchOptions], Schedule] = field(default_factory=dict, repr=False)
    #: The problems of the last network only: a search of rewritings asks for those of hundreds.
    _problems: tuple[Network, list[ScheduleProblem]] | None = field(default=None, repr=False)
    _found: dict[Hashable, tuple[Any, float]] = field(default_factory=dict, repr=False)

    @staticmethod
    def of(memo: SearchMemo | None, cost_model: CostModel) -> SearchMemo:
        """The memo if it belongs to the cost model, else a new one."""
        return memo if memo is not None and memo.cost_model is cost_model else SearchMemo(cost_model)

    def problems(self, network: Network) -> list[ScheduleProblem]:
        """The problems of a network's blocks (:func:`~iossim.cost.model.problems_of`)."""
        if self._problems is None or self._problems[0] is not network:
            self._problems = network, problems_of(network, self.cost_model)
        return self._problems[1]

    def lattice(self, problem: ScheduleProblem, max_states: int) -> Lattice | None:
        """The lattice of a problem (:func:`~iossim.search.lattice.build_lattice`)."""
        key = tuple(problem.order.tolist()), max_states
        return self.found(key, lambda: build_lattice(problem, max_states))

    def found(self, key: Hashable, make: Callable[[], V]) -> V:
        """The value of ``make``, kept by a key of all that it depends on: a :class:`BlockQuestion` for a solution."""
        if key not in self._found:
            started = working_s()
            value = make()
            self._found[key] = value, working_s() - started
            return value
        value, taken_s = self._found[key]
        self.saved_s += taken_s
        return value
