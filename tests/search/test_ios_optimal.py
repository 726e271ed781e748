"""The search against brute force over all schedules, and the bounded search against the plain one."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest
from brute_force import ScrambledTable, Unbounded, boundaries, cheapest, layered, problems, spaces
from hypothesis import example, given, settings
from hypothesis import strategies as st

from iossim.cost.model import START, CostModel, Prices, StageBounds, WrappedCostModel, price_path
from iossim.cost.random import RandomCostModel
from iossim.cost.table import BoundaryPrices, PriceTable, StagePrice, TableCostModel
from iossim.schedule.batch import StageBatch, Strategy
from iossim.schedule.masks import count_groups
from iossim.schedule.planned_stage import PlannedStage
from iossim.schedule.problem import ScheduleProblem, bits
from iossim.search.assemble import block_lower_bound_us, price_blocks, total_latency_us
from iossim.search.block_parts import Part
from iossim.search.block_search import BlockSolution, solve_block
from iossim.search.ios import solve
from iossim.search.lattice import MergedStages, build_lattice, price_merges
from iossim.search.memo import SearchMemo
from iossim.search.options import SearchLimits, SearchOptions, StageSpace
from iossim.search.solver import Solution
from iossim.search.windows import improve, parts_bound_us


class Fused(RandomCostModel):
    """A stage of one group of several units takes 0.8 of their time: worth more than none, and less than a boundary."""

    def price_stages(self, batch: StageBatch) -> Prices:
        alone = (count_groups(batch.masks, batch.problem.predecessors) == 1) & (np.bitwise_count(batch.masks) > 1)
        return super().price_stages(batch) * np.where(alone, 0.8, 1.0)

    def bounds(self, problem: ScheduleProblem) -> StageBounds:
        plain = super().bounds(problem)
        return StageBounds(0.8 * plain.serial_us, 0.8 * plain.single_us, 0.8 * plain.work_us)


#: Prices without structure or bounds, and with both.
seeds = st.integers(0, 99)
models = (
    st.builds(ScrambledTable, seeds, boundaries)
    | st.builds(RandomCostModel, seeds)
    | st.builds(Fused, seeds, barrier_us=st.floats(0, 20))
)


#: The best path leaves a state by a single stage that costs more than a concurrent one, and saves more at the boundary.
_SAVES_A_BOUNDARY = ScheduleProblem.of_edges(
    8, [(0, 1), (2, 4), (0, 5), (2, 5), (0, 6), (4, 6), (1, 7), (3, 7), (5, 7), (6, 7)]
)


@settings(max_examples=100)
@example(_SAVES_A_BOUNDARY, StageSpace("general", 3, 3), Fused(88, spread=0.0, barrier_us=12.0), True, False)
@given(problems(8), spaces, models, st.booleans(), st.booleans())
def test_search_equals_brute_force(
    problem: ScheduleProblem, space: StageSpace, cost_model: CostModel, concurrent: bool, merge: bool
) -> None:
    solution = solve([problem], cost_model, SearchOptions(replace(space, concurrent=concurrent, merge=merge)))
    assert solution.cost_us == pytest.approx(cheapest(problem, cost_model, space, concurrent, merge), rel=1e-9)
    assert recomputed([problem], cost_model, solution) == pytest.approx(solution.cost_us, rel=1e-12)


def recomputed(problems: Sequence[ScheduleProblem], cost_model: CostModel, solution: Solution) -> float:
    return total_latency_us(price_blocks(problems, solution.plans, cost_model))


@given(st.lists(problems(14), min_size=1, max_size=4), spaces, st.integers(0, 99), st.floats(0, 1), st.floats(0, 30))
def test_bounded_search_equals_plain_over_several_blocks(
    blocks: list[ScheduleProblem], space: StageSpace, seed: int, spread: float, barrier_us: float
) -> None:
    cost_model = RandomCostModel(seed=seed, spread=spread, barrier_us=barrier_us)
    bounded = solve(blocks, cost_model, SearchOptions(space))
    plain = solve(blocks, Unbounded(cost_model), SearchOptions(space))
    costs = [recomputed(blocks, cost_model, found) for found in (bounded, plain)]
    assert costs[0] == pytest.approx(costs[1], rel=1e-9)
    assert bounded.priced_stages <= plain.priced_stages
    assert bounded.lower_bound_us is not None
    assert bounded.lower_bound_us <= costs[0] * (1 + 1e-12)


@settings(max_examples=20)
@given(problems(7), problems(7), st.integers(0, 99), boundaries)
def test_the_boundary_bit_is_carried_from_block_to_block(
    first: ScheduleProblem, second: ScheduleProblem, seed: int, boundaries_us: tuple[float, float, float, float]
) -> None:
    """Two blocks are as good as the best pair of schedules of theirs, whatever stands between the two."""
    cost_model = ScrambledTable(seed, boundaries_us)
    together = solve([first, second], cost_model, SearchOptions())
    assert recomputed([first, second], cost_model, together) == pytest.approx(together.cost_us, rel=1e-12)
    apart = [solve([block], cost_model, SearchOptions()) for block in (first, second)]
    joined = total_latency_us(price_blocks([first, second], [one.plans[0] for one in apart], cost_model))
    assert together.cost_us <= joined * (1 + 1e-12)
    assert together.cost_us >= sum(one.cost_us for one in apart) * (1 - 1e-12)


def test_a_block_with_too_many_states_is_split_and_says_so() -> None:
    problem = ScheduleProblem.of_edges(40, [])
    options = SearchOptions(limits=SearchLimits(max_states=1 << 11))
    solution = solve([problem], RandomCostModel(), options)
    assert sorted(unit for stage in solution.plans[0] for unit in bits(stage.mask)) == list(range(40))
    assert solution.notes == ("block problem: too wide to be solved as a whole, solved in windows that overlap",)
    assert solution.lower_bound_us is not None
    assert solution.lower_bound_us <= solution.cost_us
    # What its parts cost is what the block costs.
    assert recomputed([problem], RandomCostModel(), solution) == pytest.approx(solution.cost_us, rel=1e-12)


def test_windows_of_a_block_with_too_many_transitions_are_not_pruned() -> None:
    """Five chains of seven have 60 million transitions, and at these prices a stage of few groups of many units wins."""
    problem = ScheduleProblem.of_edges(35, [(u, u + 1) for u in range(34) if u % 7 != 6])
    limits = SearchLimits(max_transitions=20_000_000)

    class LongGroups(RandomCostModel):
        def price_stages(self, batch: StageBatch) -> Prices:
            return np.array([100.0 + mask.bit_count() for mask in batch.masks.tolist()])

        def bounds(self, problem: ScheduleProblem) -> None:
            return None

    solution = solve([problem], LongGroups(), SearchOptions(StageSpace(merge=False), limits))
    assert solution.notes == ("block problem: too wide to be solved as a whole, solved in windows that overlap",)
    groups = [group for stage in solution.plans[0] for group in problem.groups(stage.mask)]
    assert max(group.bit_count() for group in groups) > 3


@given(problems(9), st.integers(0, 99), st.integers(6, 60), st.floats(0, 20))
def test_windows_end_in_a_schedule_that_no_window_improves(
    problem: ScheduleProblem, seed: int, max_states: int, barrier_us: float
) -> None:
    """Each run of stages that is small enough costs what the best schedule of its units does between its neighbours."""
    cost_model = RandomCostModel(seed=seed, spread=0.2, barrier_us=barrier_us)
    options = SearchOptions(limits=SearchLimits(max_states=max_states))
    solution = solve([problem], cost_model, options)
    optimum = solve([problem], cost_model, SearchOptions())
    assert solution.cost_us >= optimum.cost_us * (1 - 1e-12)
    assert recomputed([problem], cost_model, solution) == pytest.approx(solution.cost_us, rel=1e-12)
    if not solution.notes:
        return
    stages = solution.plans[0]
    for first in range(len(stages) - 1):
        pair = stages[first : first + 2]
        units = bits(pair[0].mask | pair[1].mask)
        part = problem.restrict(units)
        if build_lattice(part, max_states) is None:
            continue
        before = START if first == 0 else int(stages[first - 1].is_concurrent(problem))
        behind = stages[first + 2].is_concurrent(problem) if first + 2 < len(stages) else None
        leaving = [0.0 if behind is None else cost_model.price_boundary(bit, behind) for bit in (False, True)]
        best = solve(
            [part], cost_model, SearchOptions(), entry=before,
            leaving_us=(leaving[0], leaving[1]),
        )  # fmt: skip
        own = price_path(problem, pair, cost_model, before)
        assert own.cost_us() + leaving[own.leaving] <= best.cost_us * (1 + 1e-9)


@pytest.mark.parametrize(("after_concurrent_us", "masks"), [(20, [3, 12]), (30, [1, 2, 12])])
def test_a_window_costs_what_it_does_before_the_stage_after_it(after_concurrent_us: float, masks: list[int]) -> None:
    """Two units side by side take 5 us less than one by one; a stage of two groups comes next, after 20 us or more."""
    problem = ScheduleProblem.of_edges(4, [(0, 2), (0, 3), (1, 2), (1, 3)])
    prices_us = {"0": 10, "1": 10, "01": 15, "23": 15}
    stages = [StagePrice(units=list(units), latency_us=price) for units, price in prices_us.items()]
    boundary = BoundaryPrices(single_to_concurrent=20, concurrent_to_concurrent=after_concurrent_us)
    prices = TableCostModel(PriceTable(boundary_us=boundary, stages=stages))

    def prepare(units: Sequence[int]) -> Part | None:
        own, options = tuple(range(len(units))), SearchOptions(StageSpace(merge=False))
        return Part.of(problem.restrict(units), own, prices, options) if len(units) < 3 else None

    def solve_part(part: Part, entry: int) -> BlockSolution:
        return solve_block(part, prices, entry=entry)

    found = [PlannedStage(mask, Strategy.CONCURRENT) for mask in (1, 2, 12)]
    improve(problem, found, prices, START, prepare, solve_part, lambda done: None)
    assert [stage.mask for stage in found] == masks


def test_the_end_of_a_window_is_looked_for_where_the_one_before_ended() -> None:
    """Windows of 12 units hold 6 stages: two questions each, not one for every stage."""
    problem = layered(np.random.default_rng(0), 40, 2)
    asked, solved = list[tuple[int, ...]](), list[tuple[int, ...]]()

    def prepare(units: Sequence[int]) -> Part | None:
        asked.append(tuple(units))
        fits = len(units) <= 12
        return Part.of(problem.restrict(units), asked[-1], RandomCostModel(), SearchOptions()) if fits else None

    def solve_part(part: Part, entry: int) -> BlockSolution | None:
        solved.append(part.units)
        return None

    stages = [PlannedStage(3 << 2 * layer, Strategy.CONCURRENT) for layer in range(40)]
    improve(problem, stages, RandomCostModel(), START, prepare, solve_part, lambda done: None)
    assert solved == [tuple(range(first, min(first + 12, 80))) for first in [*range(0, 72, 6), 72, 76]]
    assert len(asked) <= 2 * len(solved) + 4


def test_a_search_prepares_a_window_once_and_several_bound_a_block_once(monkeypatch: pytest.MonkeyPatch) -> None:
    counts, bounded = Counter[tuple[int, ...]](), Counter[tuple[str, tuple[bytes, bytes]]]()
    restrict = ScheduleProblem.restrict

    def counted(problem: ScheduleProblem, units: Sequence[int]) -> ScheduleProblem:
        counts[tuple(units)] += 1
        return restrict(problem, units)

    def bound_us(problem: ScheduleProblem, merges: MergedStages, cost_model: CostModel) -> float:
        bounded[problem.key, merges.key] += 1
        return parts_bound_us(problem, merges, cost_model)

    monkeypatch.setattr(ScheduleProblem, "restrict", counted)
    monkeypatch.setattr("iossim.search.windows.parts_bound_us", bound_us)
    options, prices = SearchOptions(limits=SearchLimits(max_states=200)), RandomCostModel()
    memo, problem = SearchMemo(prices), layered(np.random.default_rng(1), 10, 4)
    found = solve([problem], prices, options, memo=memo)
    assert found.notes
    # Three searches (merges, groups, both) each prepare a set of units at most twice: as a run, and as a window.
    assert max(counts.values()) <= 6
    assert solve([problem], prices, replace(options, space=StageSpace(merge=False)), memo=memo).relaxed_bound_us
    assert set(bounded.values()) == {1}


def test_what_was_done_to_several_blocks_is_one_note() -> None:
    blocks = [replace(ScheduleProblem.of_edges(size, []), name=f"block{size}") for size in (12, 14)]
    options = SearchOptions(StageSpace(merge=False), SearchLimits(max_states=1 << 6))
    solution = solve(blocks, RandomCostModel(), options)
    (note,) = solution.notes
    assert note == "2 blocks, block12 the first: too wide to be solved as a whole, solved in windows that overlap"


def test_many_convolutions_of_one_input_are_said_not_to_merge_in_all_sets() -> None:
    few, many = (ScheduleProblem.of_edges(count, [], [0] * count) for count in (10, 11))
    notes = [solve([p], RandomCostModel(), SearchOptions()).notes for p in (few, many)]
    assert notes[0] == ()
    assert "11 convolutions of one input merge in pairs, in runs and as a whole" in notes[1][0]
    assert not solve([many], RandomCostModel(), SearchOptions(StageSpace(merge=False))).notes


class Impatient(WrappedCostModel):
    """Random prices, with an interrupt where ``ends`` holds for what is asked for, and how often it was."""

    def __init__(self, ends: Callable[[StageBatch | ScheduleProblem, int], bool]) -> None:
        super().__init__(RandomCostModel())
        self.ends, self.asked = ends, Counter[type]()

    def price_stages(self, batch: StageBatch) -> Prices:
        self._count(batch)
        return super().price_stages(batch)

    def bounds(self, problem: ScheduleProblem) -> StageBounds | None:
        self._count(problem)
        return super().bounds(problem)

    def _count(self, asked: StageBatch | ScheduleProblem) -> None:
        self.asked[type(asked)] += 1
        if self.ends(asked, self.asked[type(asked)]):
            raise KeyboardInterrupt


def test_an_interrupted_search_returns_the_best_schedule_so_far() -> None:
    generator = np.random.default_rng(7)
    blocks = [layered(generator, layers=5, width=4), layered(generator, layers=4, width=4)]
    impatient = Impatient(lambda asked, times: isinstance(asked, StageBatch) and times == 12)
    solution = solve(blocks, impatient, SearchOptions(StageSpace(merge=False)))
    assert not solution.complete
    for block, plan in zip(blocks, solution.plans, strict=True):
        assert sorted(unit for stage in plan for unit in bits(stage.mask)) == list(range(len(block)))
    best = solve(blocks, RandomCostModel(), SearchOptions(StageSpace(merge=False)))
    assert best.complete
    assert best.cost_us <= solution.cost_us


def test_a_search_interrupted_while_it_prices_its_bound_keeps_its_schedule() -> None:
    """With few groups the bound, which holds for any number of them, asks for prices that the search did not."""
    problem = ScheduleProblem.of_edges(5, [], [0] * 5)
    impatient = Impatient(
        lambda asked, _: isinstance(asked, StageBatch) and bool(np.bitwise_count(asked.masks).max() > 2)
    )
    options = SearchOptions(StageSpace(max_groups=2))
    solution, best = (solve([problem], each, options) for each in (impatient, RandomCostModel()))
    assert (solution.complete, solution.lower_bound_us) == (False, None)
    assert solution.plans == best.plans


def test_an_interrupted_block_is_noted_once() -> None:
    impatient = Impatient(lambda asked, times: isinstance(asked, ScheduleProblem) and times == 2)
    options = SearchOptions(StageSpace(merge=False), SearchLimits(max_states=1 << 9))
    solution = solve([ScheduleProblem.of_edges(20, [])], impatient, options)
    assert not solution.complete
    assert len(solution.notes) == 1


def test_equal_blocks_are_solved_once() -> None:
    block = layered(np.random.default_rng(3), layers=4, width=3)
    once = solve([block, block], RandomCostModel(), SearchOptions(StageSpace(merge=False)))
    many = solve([block] * 6, RandomCostModel(), SearchOptions(StageSpace(merge=False)))
    assert once.priced_stages == many.priced_stages


@settings(max_examples=40)
@given(st.lists(problems(6), min_size=2, max_size=4), st.integers(0, 99), st.floats(0, 20), st.integers(4, 64))
def test_a_block_solved_as_a_whole_counts_in_the_bound_with_what_it_costs(
    blocks: list[ScheduleProblem], seed: int, barrier_us: float, max_states: int
) -> None:
    """Blocks of more states than allowed are split, and count with their relaxation."""
    cost_model = RandomCostModel(seed=seed, spread=0.2, barrier_us=barrier_us)
    limited = SearchOptions(limits=SearchLimits(max_states=max_states))
    best = solve(blocks, cost_model, SearchOptions())
    found = solve(blocks, cost_model, limited)
    assert best.lower_bound_us == best.cost_us
    assert found.lower_bound_us is not None
    assert found.relaxed_bound_us is not None
    assert found.relaxed_bound_us <= found.lower_bound_us * (1 + 1e-12)
    assert found.lower_bound_us <= best.cost_us * (1 + 1e-12)
    assert best.cost_us <= found.cost_us * (1 + 1e-12)
    if not barrier_us:
        least_us = [solve([block], cost_model, limited).lower_bound_us or 0.0 for block in blocks]
        assert found.lower_bound_us >= sum(least_us) * (1 - 1e-12)


@settings(max_examples=200)
@given(problems(), st.integers(0, 99), st.sampled_from([0.0, 3.0, 11.0]))
@example(ScheduleProblem.of_edges(7, [(0, 1), (0, 2), (1, 3), (2, 3), (3, 4), (3, 5), (4, 6), (5, 6)]), -1, 3.0)
def test_parts_in_series_bound_a_block(problem: ScheduleProblem, seed: int, barrier_us: float) -> None:
    prices = RandomCostModel(seed=abs(seed), spread=0.2, barrier_us=barrier_us)
    merges = price_merges(problem, prices, len(problem))
    bound_us = parts_bound_us(problem, merges, prices)
    best = solve([problem], prices, SearchOptions())
    assert bound_us <= best.cost_us * (1 + 1e-12)
    if seed < 0:
        assert bound_us > (block_lower_bound_us(problem, merges, prices, True, True) or 0.0)
