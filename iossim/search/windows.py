"""A schedule of a block that is too wide to be solved as a whole, made better window by window.

A *window* is a run of stages. Its units are a problem of their own, small enough to be solved exactly between the
stages before and behind it, and take the place of the run where they cost less. Windows overlap by half, and the block
is gone through until none of them improves: so no stage is held to where the block happened to be split. This is large
neighbourhood search (Shaw, CP 1998) with the dynamic programming of a block as the search of a neighbourhood.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from operator import or_

from iossim.cost.model import CostModel, price_path
from iossim.schedule.planned_stage import PlannedStage
from iossim.schedule.problem import ScheduleProblem, bits
from iossim.search.block_parts import Part
from iossim.search.block_search import BlockPath, BlockSolution

#: Some units of the block as a problem that can be solved, None where they are too many.
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
    report: Callable[[int], None],
) -> None:
    """Put cheaper stages in place of those of a block, which runs after a stage of bit ``entry`` (or START).

    ``stages`` is a schedule of the block at any time, also when an interrupt ends this. ``report`` is told how many
    units were gone through, each time.
    """
    tried: set[tuple[tuple[int, ...], int, int | None]] = set()
    improved = True
    while improved:
        improved, first, done = False, 0, 0
        while first < len(stages) - 1:
            before = entry if first == 0 else int(stages[first - 1].is_concurrent(problem))
            last, units, part = _largest_window(stages, first, prepare)
            behind = int(stages[last].is_concurrent(problem)) if last < len(stages) else None
            if part is not None and (units, before, behind) not in tried:
                tried.add((units, before, behind))
                own = price_path(problem, stages[first:last], cost_model, before)
                own_us = own.cost_us() + _boundary_us(cost_model, own.leaving, behind)
                found = _cheapest(solve(part, before), cost_model, behind)
                if found is not None and found[0] < own_us * (1.0 - _LEAST_GAIN):
                    stages[first:last] = [stage.spread(units) for stage in found[1].stages]
                    last = first + len(found[1].stages)
                    improved = True
            # The next window begins in the middle of this one, and holds its last stage: each two neighbours share one.
            passed = stages[first].mask.bit_count()
            first += 1
            while first < last - 1 and 2 * passed < len(units):
                passed += stages[first].mask.bit_count()
                first += 1
            done += passed
            report(done)


def _largest_window(
    stages: Sequence[PlannedStage], first: int, prepare: Prepare
) -> tuple[int, tuple[int, ...], Part | None]:
    """The longest run of stages from ``first`` on that can be solved: where it ends, its units, and as a problem."""
    last, units, part = first + 1, tuple(bits(stages[first].mask)), None
    for end in range(first + 2, len(stages) + 1):
        longer = tuple(bits(reduce(or_, (stage.mask for stage in stages[first:end]))))
        found = prepare(longer)
        if found is None:
            break
        last, units, part = end, longer, found
    return last, units, part


def _cheapest(
    solution: BlockSolution | None, cost_model: CostModel, behind: int | None
) -> tuple[float, BlockPath] | None:
    """The path that costs least with the boundary behind it, and that cost."""
    paths = () if solution is None else enumerate((solution.single, solution.concurrent))
    costs = [(path.cost_us + _boundary_us(cost_model, bit, behind), path) for bit, path in paths if path is not None]
    return min(costs, key=lambda each: each[0], default=None)


def _boundary_us(cost_model: CostModel, left: int, behind: int | None) -> float:
    return 0.0 if behind is None else cost_model.price_boundary(bool(left), bool(behind))
