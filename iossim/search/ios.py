"""IOS: the optimal stages of every block by dynamic programming (IOS thesis, chapter 3).

Blocks are solved one by one and joined by the one bit that boundaries depend on: whether the last stage of a block,
and the first of the next, run several groups. Blocks with the same units in the same places are solved once. A block
with too many states or transitions is improved in windows, as the schedule's notes say. The windows begin from the
better of greedy stages and the block's runs solved one by one; for ios-both from the results of ios-parallel and
ios-merge, so that ios-both is never worse than these. With a limit in seconds pruned searches come first, and blocks
that the last search does not reach keep the result of the one before.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

from iossim.base.compile_time import working_s
from iossim.base.errors import Progress, ignore
from iossim.cost.model import START, CostModel
from iossim.ir.network import Network
from iossim.schedule.planned_stage import PlannedStage
from iossim.schedule.problem import ScheduleProblem
from iossim.schedule.schedule import Schedule
from iossim.search.anytime import PRUNINGS, finished, within
from iossim.search.assemble import build_schedule
from iossim.search.block_parts import notes_of_blocks, shown_in_notes
from iossim.search.memo import SearchMemo
from iossim.search.options import SearchOptions, StageSpace
from iossim.search.solver import Prefix, Solution, Solver
from iossim.search.unsearched import greedy_stages

#: For each scheduler: a stage may run several groups; it may merge convolutions.
STRATEGIES = {"ios-merge": (False, True), "ios-parallel": (True, False), "ios-both": (True, True)}
_TIME_IS_UP = "the search was ended after {:g} s: not all stages were considered"


def options_of(name: str, options: SearchOptions) -> SearchOptions:
    """The options of a search by the scheduler ``name``: their space, of stages by its strategies alone."""
    concurrent, merge = STRATEGIES[name]
    return replace(options, space=replace(options.space, concurrent=concurrent, merge=merge))


def _schedule(
    name: str,
    network: Network,
    cost_model: CostModel,
    options: SearchOptions,
    progress: Progress,
    memo: SearchMemo | None,
) -> Schedule:
    started = working_s()
    options = options_of(name, options)
    space, memo = options.space, SearchMemo.of(memo, cost_model)
    problems = memo.problems(network)
    is_greedy = space.concurrent and options.seconds is not None

    def search(asked: SearchOptions, told: Progress, found: Solution | None) -> Solution:
        before = found.searched if found else _greedily(problems, space) if is_greedy else {}
        try:
            return solve(problems, cost_model, asked, progress=told, memo=memo, before=before)
        except KeyboardInterrupt:  # before it had looked at anything
            if found is None:
                raise
            return replace(found, complete=False, time_is_up=False)

    solution = within(options, progress, search, PRUNINGS if space.concurrent else ())
    # Bounds of the parts of a block that was split before are none of the whole.
    proven = solution.complete and not network.notes and not solution.notes
    bounds_all = not network.notes and solution.space == space

    def build(goes_on: bool) -> Schedule:
        return build_schedule(
            network,
            problems,
            solution.plans,
            cost_model,
            name,
            options=options.to_json() | {"concurrent": space.concurrent, "merge": space.merge},
            lower_bound_us=solution.lower_bound_us if bounds_all else solution.relaxed_bound_us,
            relaxed_bound_us=solution.relaxed_bound_us,
            notes=[*network.notes, *shown_in_notes(network, solution.notes)],
            complete=goes_on and (solution.complete or solution.time_is_up),
            proven=proven and goes_on,
            search_s=working_s() - started + solution.saved_s,
        )

    found = finished(build)
    return found.model_copy(update={"lower_bound_us": found.latency_us}) if proven else found


ios_merge, ios_parallel, ios_both = (partial(_schedule, name) for name in STRATEGIES)


def solve(
    problems: Sequence[ScheduleProblem],
    cost_model: CostModel,
    options: SearchOptions,
    *,
    progress: Progress = ignore,
    entry: int = START,
    leaving_us: tuple[float, float] = (0.0, 0.0),
    memo: SearchMemo | None = None,
    before: Mapping[str, Sequence[PlannedStage]] | None = None,
) -> Solution:
    """The cheapest schedule of blocks that run one after another.

    For blocks within a schedule, ``entry`` is the bit of the stage before them (0, or 1 for several groups, or
    :data:`START`), and ``leaving_us`` the cost of the boundary after them if their last stage runs one group, and if it
    runs several. ``memo`` holds results of earlier searches at these prices. ``before`` has stages of blocks by their
    keys, as :attr:`Solution.searched`, which remain if the search finds none better, or ends first.

    Raises ScheduleError if the cost model can run no schedule at all.
    """
    memo = SearchMemo.of(memo, cost_model)
    saved_before_s = memo.saved_s
    problems = [problem.in_order() for problem in problems]
    progress = _rising(progress)

    def solve_by(name: str) -> Solution:
        told, asked = (lambda units, of: progress(0, of)), options_of(name, options)
        return solve(problems, cost_model, asked, progress=told, entry=entry, leaving_us=leaving_us, memo=memo)

    has_both = options.space.concurrent and options.space.merge
    by_one_strategy = (lambda: [solve_by("ios-parallel"), solve_by("ios-merge")]) if has_both else list
    solver = Solver(cost_model, options, memo, by_one_strategy, before or {})
    best = solver.join(problems, {entry: Prefix(0.0)}, progress)
    last = min(best, key=lambda bit: best[bit].cost_us + leaving_us[bit])
    plans, cost_us = best[last].plans, best[last].cost_us + leaving_us[last]
    solved = solver.solutions.values()
    for other in solver.found_by_one_strategy:
        if other.cost_us < cost_us:
            plans, cost_us = other.plans, other.cost_us
    lower_bound_us, relaxed_us = solver.lower_bounds_us(problems)
    if solver.complete and not solver.notes:
        lower_bound_us = best[last].cost_us
    timed = solver.time_is_up and options.seconds is not None  # by its own clock, not by that of its caller
    return Solution(
        plans,
        cost_us,
        lower_bound_us,
        relaxed_us,
        sum(solution.priced_stages for solution in solved),
        sum(solution.endings for solution in solved),
        solver.complete,
        (*notes_of_blocks(solver.notes), *([_TIME_IS_UP.format(options.seconds)] if timed else [])),
        memo.saved_s - saved_before_s,
        {problem.key: stages for problem, stages in zip(reversed(problems), reversed(plans), strict=True)},
        solver.time_is_up,
        options.space,
    )


def _greedily(problems: Sequence[ScheduleProblem], space: StageSpace) -> dict[str, list[PlannedStage]]:
    """The greedy stages of the space, of each block by key."""
    return {each.key: greedy_stages(each, space.max_groups) for each in (problem.in_order() for problem in problems)}


def _rising(progress: Progress) -> Progress:
    """The progress, told numbers that never fall."""
    most = 0

    def told(done: int, total: int) -> None:
        nonlocal most
        most = max(most, done)
        progress(most, total)

    return told
