"""A schedule of a block that is too wide to be solved as a whole, made better window by window.

A *window* is a run of stages. Its units are a problem of their own, small enough to be solved exactly between the
stages before and after it, and the solution replaces the run if it costs less. Windows overlap by half, and passes go
on until none of them improves: so no stage is bound by where the block happened to be split. This is large
neighbourhood search (Shaw, CP 1998) with the dynamic programming of a block as the search of a neighbourhood.

The lower bound of the block is the most that parts in series add up to (:func:`parts_bound_us`).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from functools import reduce
from itertools import accumulate
from operator import or_

import numpy as np

from iossim.cost.model import CostModel, price_path
from iossim.schedule.planned_stage import PlannedStage
from iossim.schedule.problem import ScheduleProblem, bits
from iossim.search.block_parts import Part
from iossim.search.block_search import BlockPath, BlockSolution, UnitProgress
from iossim.search.lattice import MergedStages, bounds_with_merges

#: Some units of the block as a problem that can be solved, None if they are too many.
Prepare = Callable[[Sequence[int]], Part | None]
#: The solution of such a problem after a stage of a bit (or START).
Solve = Callable[[Part, int], BlockSolution | None]

#: A window improves if it costs less by more than this part: sums in another order differ by rounding.
_LEAST_GAIN = 1e-9


def improve(
    problem: ScheduleProblem,
    stages: list[PlannedStage],
    cost_model: CostModel,
    entry: int,
    prepare: Prepare,
    solve: Solve,
    progress: UnitProgress,
) -> None:
    """Replace stages of a block, which runs after a stage of bit ``entry`` (or START), by cheaper ones.

    ``stages`` is a schedule of the block at any time, also when an interrupt ends this. ``progress`` is told the number
    of units that were processed in each pass.
    """
    tried: set[tuple[tuple[int, ...], int, int | None]] = set()
    improved = True
    while improved:
        improved, first, done, size = False, 0, 0, 0
        while first < len(stages) - 1:
            before = entry if first == 0 else int(stages[first - 1].is_concurrent(problem))
            last, units, part = _largest_window(stages, first, size, prepare)
            after = int(stages[last].is_concurrent(problem)) if last < len(stages) else None
            if part is not None and (units, before, after) not in tried:
                tried.add((units, before, after))
                own = price_path(problem, stages[first:last], cost_model, before)
                own_us = own.cost_us() + _boundary_us(cost_model, own.leaving, after)
                found = _cheapest(solve(part, before), cost_model, after)
                if found is not None and found[0] < own_us * (1.0 - _LEAST_GAIN):
                    stages[first:last] = [stage.spread(units) for stage in found[1].stages]
                    last = first + len(found[1].stages)
                    improved = True
            size = len(units)
            # The next window begins in the middle of this one and includes its last stage.
            passed = stages[first].mask.bit_count()
            first += 1
            while first < last - 1 and 2 * passed < len(units):
                passed += stages[first].mask.bit_count()
                first += 1
            done += passed
            progress(done)


def _largest_window(
    stages: Sequence[PlannedStage], first: int, size: int, prepare: Prepare
) -> tuple[int, tuple[int, ...], Part | None]:
    """The longest run of stages from ``first`` on that can be solved: its end, its units, and the problem.

    A run has no fewer states and transitions than a part of it, so that the end is looked for from any run on: from the
    longest of at most ``size`` units.
    """

    def units(end: int) -> tuple[int, ...]:
        return tuple(bits(reduce(or_, (stage.mask for stage in stages[first:end]))))

    sizes = list(accumulate(stage.mask.bit_count() for stage in stages[first:]))
    last = first + max(2, bisect_right(sizes, size))
    part = longer = prepare(units(last))
    while part is None and last > first + 1:
        last -= 1
        part = prepare(units(last)) if last > first + 1 else None
    while longer is not None and last < len(stages) and (longer := prepare(units(last + 1))) is not None:
        last, part = last + 1, longer
    return last, units(last), part


def _cheapest(
    solution: BlockSolution | None, cost_model: CostModel, after: int | None
) -> tuple[float, BlockPath] | None:
    """Cheapest path including its trailing boundary, and its cost, us."""
    paths = () if solution is None else enumerate(solution.paths)
    costs = [(path.cost_us + _boundary_us(cost_model, bit, after), path) for bit, path in paths if path is not None]
    return min(costs, key=lambda each: each[0], default=None)


def _boundary_us(cost_model: CostModel, left: int, after: int | None) -> float:
    return 0.0 if after is None else cost_model.price_boundary(bool(left), bool(after))


def parts_bound_us(problem: ScheduleProblem, merges: MergedStages, cost_model: CostModel) -> float:
    """Lower bound of all schedules of a block, us: the most that parts in series add up to, other units left out.

    A part is all that lies between two units, including the second. A stage with units of two parts holds the unit
    between them, so that all its units of parts are one group and run one after the other. Otherwise some stage has
    several groups of one part and units of no other, and a boundary before it, unless the part is the first. The units
    of a part take at least their longest path, and their work.
    """
    known = cost_model.bounds(problem)
    if known is None:
        return 0.0
    bounds = bounds_with_merges(known, problem, merges)
    boundary_us = min(cost_model.price_boundary(left, True) for left in (False, True))
    count, serial_us = len(problem), np.append(bounds.serial_us, 0.0)
    # The host may issue the rest of a unit that takes less than its issue beside another part.
    work_us = np.minimum(np.vstack([bounds.work_us, np.zeros(bounds.work_us.shape[1])]), serial_us[:, None])
    work_us = np.column_stack([work_us, serial_us])
    # The last row and column stand for no unit: the first part is behind it, and the last one ends with it.
    behind, path_us = np.zeros((2, count + 1, count + 1))
    behind[-1] = 1.0
    until_us, entered_us = np.zeros(count + 1), np.append(np.full(count, boundary_us), 0.0)
    for last in range(count + 1):
        before = list(bits(int(problem.ancestors[last]))) if last < count else list(range(count))
        reads = list(bits(int(problem.predecessors[last]))) if last < count else before
        behind[before, last] = 1.0
        path_us[:, last] = behind[:, last] * (path_us[:, reads].max(axis=1, initial=0.0) + serial_us[last])
        firsts = [*before, count]
        works_us = behind[np.ix_(firsts, before)] @ work_us[before] + work_us[last]
        several_us = np.maximum(works_us[:, :-1].max(axis=1, initial=0.0), path_us[firsts, last]) + entered_us[firsts]
        until_us[last] = (until_us[firsts] + np.minimum(works_us[:, -1], several_us)).max()
    return float(until_us[-1])
