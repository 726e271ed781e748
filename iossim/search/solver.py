"""Solves the blocks of a network one by one, each distinct one once, and joins the best stages of each.

A block that is too wide begins as the better of greedy stages and of its runs solved one by one, and is improved in
windows. Once a search is stopped, what is not solved yet runs greedily, unit by unit, or as a search before found it.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from math import inf, isfinite

from iossim.base.errors import Progress, ScheduleError, ignore
from iossim.cost.model import START, CostModel, price_path
from iossim.schedule.planned_stage import PlannedStage
from iossim.schedule.problem import ScheduleProblem
from iossim.search.anytime import TimeIsUp
from iossim.search.assemble import block_lower_bounds_us, sum_of_bounds_us
from iossim.search.block_parts import WINDOWS, BlockNote, Part, prepare_block
from iossim.search.block_search import BlockSolution, UnitProgress, solve_block
from iossim.search.lattice import MergedStages, no_merges, price_merges
from iossim.search.memo import BlockQuestion, SearchMemo
from iossim.search.options import SearchOptions, StageSpace
from iossim.search.unsearched import greedy_stages, sequential_stages


@dataclass(frozen=True, slots=True)
class Solution:
    """The best stages of each block, their total cost, and lower bounds of all schedules.

    ``lower_bound_us`` is proven by the search for all schedules of its space: the sum over blocks of the optimum, if a
    block was solved as a whole, else of its bound. ``relaxed_bound_us`` is the sum of the bounds alone. Either is None
    if no bound is known. ``endings`` counts the pairs of states that were considered. ``complete`` is False if the
    search was interrupted, ``time_is_up`` True if by its own clock: then the stages may cost less than ``cost_us``,
    since the last improvement was not carried to the end. ``saved_s`` is the time saved by results of earlier searches
    (``memo``).
    """

    plans: tuple[tuple[PlannedStage, ...], ...]
    cost_us: float
    lower_bound_us: float | None
    relaxed_bound_us: float | None
    priced_stages: int
    endings: int
    complete: bool
    notes: tuple[str, ...]
    saved_s: float = 0.0
    #: The stages of each distinct problem as it was searched, by its key: those of the first block.
    searched: Mapping[str, Sequence[PlannedStage]] = field(default_factory=dict)
    time_is_up: bool = False
    #: The space that was searched: smaller than requested if the time was up before.
    space: StageSpace = field(default_factory=StageSpace)


@dataclass(frozen=True, slots=True)
class Prefix:
    """The best schedule found of all blocks so far that ends in a stage of a given bit."""

    cost_us: float
    plans: tuple[tuple[PlannedStage, ...], ...] = ()

    def followed_by(self, cost_us: float, stages: Iterable[PlannedStage], units: Sequence[int]) -> Prefix:
        """The prefix with further stages in its last block, at a new cost; ``units`` are the block's."""
        spread = [stage.spread(units) for stage in stages]
        return Prefix(cost_us, (*self.plans[:-1], (*self.plans[-1], *spread)))


#: The best prefixes, by the bit of their last stage.
Prefixes = dict[int, Prefix]


def _part_progress(progress: UnitProgress, before: int, rounds: int) -> UnitProgress:
    """Progress of units that follow ``before`` others, if all are processed ``rounds`` times."""
    return lambda units: progress((before + units) // rounds)


class Solver:
    """Solves blocks, each distinct one once, and joins their solutions.

    Once it is no longer ``complete``, it stops searching: what is not solved yet runs greedily or unit by unit.
    """

    def __init__(
        self,
        cost_model: CostModel,
        options: SearchOptions,
        memo: SearchMemo,
        by_one_strategy: Callable[[], list[Solution]],
        before: Mapping[str, Sequence[PlannedStage]],
    ) -> None:
        self.cost_model, self.options, self.space = cost_model, options, options.space
        self.complete, self.time_is_up = True, False
        self.notes: list[tuple[str, BlockNote]] = []
        self._memo = memo
        self._parts: dict[str, tuple[list[Part], list[BlockNote]]] = {}
        #: The solutions of distinct blocks, by key and entry.
        self.solutions: dict[tuple[str, int], BlockSolution] = {}
        self._windows: dict[Hashable, Part | None] = {}
        self._by_one_strategy, self._before = by_one_strategy, before

    def stop(self, by: KeyboardInterrupt) -> None:
        """Stop searching."""
        self.complete, self.time_is_up = False, isinstance(by, TimeIsUp)

    @cached_property
    def found_by_one_strategy(self) -> list[Solution]:
        """Results of searches without merging, and without concurrency: for ``ios-both`` if a block is too wide."""
        is_asked = self.complete and any(len(parts) > 1 for parts, _ in self._parts.values())
        found = self._by_one_strategy() if is_asked else []
        if ended := [each for each in found if not each.complete]:
            self.complete, self.time_is_up = False, all(each.time_is_up for each in ended)
        return found

    def join(self, problems: Sequence[ScheduleProblem], best: Prefixes, progress: Progress) -> Prefixes:
        """The best schedules of all blocks, one after another, by the bits of their last stages.

        ``best`` is what comes before them. Raises ScheduleError for a block without a price, and KeyboardInterrupt if
        the search is stopped before such a block.
        """
        done, total = 0, sum(len(problem) for problem in problems)
        for problem in problems:
            try:
                best = self._extend(best, problem, lambda units, done=done: progress(done + units, total))  # type: ignore[misc]
            except KeyboardInterrupt as stop:
                # Nothing is searched from here on, so that a whole schedule is available soon.
                self.stop(stop)
                best = self._extend(best, problem)
            if not best and not self.complete:
                raise KeyboardInterrupt
            if not best:
                raise ScheduleError(
                    f"block {problem.name!r} has no schedule that {self.cost_model.identity.name!r} can price; "
                    "price at least every unit alone"
                )
            done += len(problem)
            if self.complete:
                try:
                    progress(done, total)
                except KeyboardInterrupt as stop:
                    self.stop(stop)
        return best

    def _extend(self, best: Prefixes, problem: ScheduleProblem, progress: UnitProgress = ignore) -> Prefixes:
        """Append a block to the best schedules of all that comes before it."""
        found = self._extend_by_search(best, problem, progress)
        if problem.key not in self._before:
            return found
        return _cheapest(found, self._append(_begun(best), problem, range(len(problem)), self._before[problem.key]))

    def _extend_by_search(self, best: Prefixes, problem: ScheduleProblem, progress: UnitProgress) -> Prefixes:
        begun = _begun(best)
        if problem.key not in self._parts and not self.complete:
            return self._extend_plainly(begun, problem, range(len(problem)))
        if problem.key not in self._parts:
            self._parts[problem.key] = prepare_block(
                problem, self.cost_model, self.options, build=self._memo.lattice, runs=WINDOWS[0]
            )
        parts, notes = self._parts[problem.key]
        self.notes += [(problem.name, note) for note in notes]
        if len(parts) == 1:
            return self._extend_part(begun, parts[0], progress)
        return _cheapest(*(self._extend_wide({entry: best[entry]}, problem, parts, progress) for entry in best))

    def _extend_wide(
        self, best: Prefixes, problem: ScheduleProblem, parts: Sequence[Part], progress: UnitProgress
    ) -> Prefixes:
        """Append a block that is too wide to be solved as a whole, after one prefix."""
        from iossim.search.windows import improve  # few blocks are so wide

        (entry,) = best
        units = range(len(problem))
        begun = _begun(best)
        reached, done = begun, 0
        if found := self.found_by_one_strategy:
            reached = _cheapest(*(self._append(begun, problem, units, each.searched[problem.key]) for each in found))
        else:
            for part in parts:
                reached = self._extend_part(reached, part, _part_progress(progress, done, 1 + len(WINDOWS)))
                done += len(part.problem)
            if self.space.concurrent:  # a split may have lost them
                greedy = greedy_stages(problem, self.space.max_groups)
                reached = _cheapest(reached, self._append(begun, problem, units, greedy))
        if not reached:
            return {}
        stages = list(min(reached.values(), key=lambda each: each.cost_us).plans[-1])
        try:
            for number, limits in enumerate(WINDOWS if self.complete else (), 1):
                told = _part_progress(progress, number * len(problem), 1 + len(WINDOWS))
                options = replace(self.options, limits=limits.least(self.options.limits))
                prepare = partial(self._window, problem, options)
                improve(problem, stages, self.cost_model, entry, prepare, self._solve, told)
        except KeyboardInterrupt as stop:
            self.stop(stop)  # what was improved so far stands
        return _cheapest(reached, self._append(begun, problem, units, stages))

    def _window(self, problem: ScheduleProblem, options: SearchOptions, units: Sequence[int]) -> Part | None:
        """Some units of a block as a part of their own, unpruned; None if they are too many."""
        key = problem.key, options.space, options.limits, tuple(units)
        if key not in self._windows:  # what a search asks again is not counted as saved by the memo

            def part() -> Part | None:
                own = tuple(range(len(units)))
                return Part.of(problem.restrict(units), own, self.cost_model, options, self._memo.lattice)

            self._windows[key] = self._memo.found(key, part)
        return self._windows[key]

    def _extend_plainly(self, best: Prefixes, problem: ScheduleProblem, units: Sequence[int]) -> Prefixes:
        """Append greedy stages, or all units one by one, which need no search."""
        ways = [sequential_stages(problem)]
        if self.space.concurrent:
            ways.append(greedy_stages(problem, self.space.max_groups))
        return _cheapest(*(self._append(best, problem, units, stages) for stages in ways))

    def _append(
        self, best: Prefixes, problem: ScheduleProblem, units: Sequence[int], stages: Sequence[PlannedStage]
    ) -> Prefixes:
        """Append stages to the last block; ``units`` are the block's."""
        ways: list[Prefixes] = []
        for entry, prefix in best.items():
            path = price_path(problem, stages, self.cost_model, entry)
            cost_us = path.cost_us(prefix.cost_us)
            if isfinite(cost_us):
                ways.append({path.leaving: prefix.followed_by(cost_us, stages, units)})
        return _cheapest(*ways)

    def _extend_part(self, best: Prefixes, part: Part, progress: UnitProgress) -> Prefixes:
        ways: list[Prefixes] = []
        for index, (entry, prefix) in enumerate(best.items()):
            solution = self._solve(part, entry, _part_progress(progress, index * len(part.problem), len(best)))
            for bit, path in enumerate(() if solution is None else solution.paths):
                if path is not None:
                    ways.append({bit: prefix.followed_by(prefix.cost_us + path.cost_us, path.stages, part.units)})
        plainly = {} if self.complete else self._extend_plainly(best, part.problem, part.units)
        return _cheapest(*ways, plainly)

    def _solve(self, part: Part, entry: int, progress: UnitProgress = ignore) -> BlockSolution | None:
        key = (part.problem.key, entry)
        if key not in self.solutions and self.complete:
            question = BlockQuestion.of(part.problem, entry, part.space, part.merges)
            solve = partial(solve_block, part, self.cost_model, entry=entry, progress=progress)
            self.solutions[key] = self._memo.found(question, solve)
        return self.solutions.get(key)

    def lower_bounds_us(self, problems: Sequence[ScheduleProblem]) -> tuple[float | None, float | None]:
        """Lower bounds of all schedules of the blocks: proven by the search for its space, and relaxed.

        The latter holds for split and pruned blocks, too. None where an interrupt ends this, or ended the search before
        and merged stages would have to be priced.
        """
        try:
            return self._lower_bounds_us(problems)
        except KeyboardInterrupt as stop:  # the schedule stands without
            self.stop(stop)
            return None, None

    def _lower_bounds_us(self, problems: Sequence[ScheduleProblem]) -> tuple[float | None, float | None]:
        if not self.complete and not self.time_is_up and self.space.merge:
            unseen = [problem for problem in problems if problem.key not in self._parts]
            if any((problem.merge_class >= 0).any() for problem in unseen):
                return None, None
        merges = [self._merges_of(problem) for problem in problems]
        relaxed = block_lower_bounds_us(problems, merges, self.cost_model, self.space.concurrent)
        for index, problem in enumerate(problems if self.space.concurrent else ()):
            if (least_us := relaxed[index]) is not None and len(self._parts.get(problem.key, ("", ""))[0]) > 1:
                from iossim.search.windows import parts_bound_us  # few blocks are so wide

                bound = partial(parts_bound_us, problem, merges[index], self.cost_model)
                relaxed[index] = max(least_us, self._memo.found((problem.key, merges[index].key), bound))
        exact = [self._exact_us(problem) for problem in problems]
        best = [own if least is None else max(own or 0.0, least) for own, least in zip(relaxed, exact, strict=True)]
        return sum_of_bounds_us(best), sum_of_bounds_us(relaxed)

    def _exact_us(self, problem: ScheduleProblem) -> float | None:
        """Least cost of the block after any stage; None if it was not solved as a whole.

        A block may have been solved after a stage of one bit alone: after the other it costs less by no more than the
        boundary between.
        """
        parts, notes = self._parts.get(problem.key, ([], []))
        solved = {entry: found for (key, entry), found in self.solutions.items() if key == problem.key}
        if len(parts) != 1 or notes or not solved:
            return None
        costs_us = {
            entry: min((path.cost_us for path in found.paths if path is not None), default=inf)
            for entry, found in solved.items()
        }
        price = self.cost_model.price_boundary
        for entry in {0, 1} - costs_us.keys() if START not in costs_us else ():
            spared_us = max(price(not entry, bit) - price(bool(entry), bit) for bit in (False, True))
            costs_us[entry] = costs_us[1 - entry] - max(0.0, spared_us)
        return min(costs_us.values())

    def _merges_of(self, problem: ScheduleProblem) -> MergedStages:
        parts, _ = self._parts.get(problem.key, ([], []))
        if len(parts) == 1 and parts[0].space.max_groups is None:
            return parts[0].merges
        return price_merges(problem, self.cost_model, len(problem)) if self.space.merge else no_merges()


def _begun(best: Prefixes) -> Prefixes:
    """The prefixes with another block, which has no stages yet."""
    return {bit: Prefix(prefix.cost_us, (*prefix.plans, ())) for bit, prefix in best.items()}


def _cheapest(*ways: Prefixes) -> Prefixes:
    """Cheapest of several ways for each bit; the first of equal ones."""
    result: Prefixes = {}
    for bit, prefix in (item for way in ways for item in way.items()):
        if bit not in result or prefix.cost_us < result[bit].cost_us:
            result[bit] = prefix
    return result
