"""What else a stage could have been: against brute force with the stage forbidden, and by hand."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import combinations

import numpy as np
import pytest
from brute_force import ScrambledTable, cheapest, problems, spaces
from graph_builders import builder_with
from hypothesis import example, given, settings
from hypothesis import strategies as st

from iossim import api
from iossim.cost.model import START, CostModel, Prices, WrappedCostModel, problem_of
from iossim.cost.random import RandomCostModel
from iossim.cost.table import PriceTable, StagePrice, TableCostModel
from iossim.ir.network import BATCH_VIEW
from iossim.ir.ops.unary import Relu
from iossim.models.random_graphs import seeded_network
from iossim.schedule.batch import StageBatch, Strategy
from iossim.schedule.planned_stage import PlannedStage
from iossim.schedule.problem import ScheduleProblem, bits
from iossim.search.ios import solve
from iossim.search.options import SearchOptions, StageSpace
from iossim.search.scheduler import schedule
from iossim.tasks.alternatives import Alternatives, BlockContext, block_contexts, is_small, one_by_one


@dataclass(eq=False)
class Forbidding(WrappedCostModel):
    """Prices of another table, without the stages that are forbidden: units, strategy and number of groups say which."""

    is_forbidden: Callable[[int, Strategy, int], bool]

    def price_stages(self, batch: StageBatch) -> Prices:
        given = ((mask, strategy, len(batch.problem.groups(mask))) for mask, strategy in batch.stages())
        return np.where([self.is_forbidden(*each) for each in given], np.inf, self.inner.price_stages(batch))


@dataclass(eq=False)
class ByName(WrappedCostModel):
    """Prices by the names of units, in a problem without a network."""

    def price_stages(self, batch: StageBatch) -> Prices:
        named = replace(batch.problem, signatures=batch.problem.unit_names)
        return self.inner.price_stages(replace(batch, problem=named))

    def bounds(self, problem: ScheduleProblem) -> None:
        return None


choices = st.builds(replace, spaces, concurrent=st.booleans(), merge=st.booleans())


def optimal(problem: ScheduleProblem, prices: CostModel, space: StageSpace) -> BlockContext:
    solution = solve([problem], prices, SearchOptions(space))
    return BlockContext(problem, solution.plans[0], START, (0.0, 0.0))


@settings(max_examples=20)
@given(problems(6), choices, st.integers(0, 99))
def test_the_next_best_equals_brute_force(problem: ScheduleProblem, space: StageSpace, seed: int) -> None:
    prices = ScrambledTable(seed)
    context = optimal(problem, prices, space)
    best_us = context.cost_us(context.plan, prices)
    ask = Alternatives(prices, space)
    for index, stage in enumerate(context.plan):

        def is_it(mask: int, strategy: Strategy, groups: int, stage: PlannedStage = stage) -> bool:
            return (mask, strategy) == (stage.mask, stage.strategy)

        without = Forbidding(prices, is_it)
        expected_us = cheapest(problem, without, space, space.concurrent, space.merge)
        found = ask.next_best(context, index)
        if found is None:
            assert expected_us == np.inf
            continue
        assert stage not in found
        assert context.cost_us(found, prices) == pytest.approx(expected_us, rel=1e-9)
        assert expected_us >= best_us * (1 - 1e-9)


@given(problems(6), st.integers(0, 99))
def test_the_best_that_runs_beside_others_equals_brute_force(problem: ScheduleProblem, seed: int) -> None:
    prices, space = ScrambledTable(seed), StageSpace()
    context = optimal(problem, prices, space)
    ask = Alternatives(prices, space)
    for index, stage in enumerate(context.plan):
        if stage.strategy is Strategy.MERGE or stage.is_concurrent(context.problem):
            continue
        expected_us = np.inf
        for unit in bits(stage.mask):

            def is_alone(mask: int, strategy: Strategy, groups: int, unit: int = unit) -> bool:
                return strategy is Strategy.CONCURRENT and groups == 1 and bool(mask >> unit & 1)

            without = Forbidding(prices, is_alone)
            expected_us = min(expected_us, cheapest(problem, without, space, True, True))
        found = ask.next_best_beside(context, index)
        cost_us = np.inf if found is None else context.cost_us(found, prices)
        assert cost_us == pytest.approx(expected_us, rel=1e-9)


#: After a stage of several groups, what would be the best first stages of a network cost more than one unit at a time.
_AFTER_SEVERAL = ScheduleProblem.of_edges(7, [(1, 2), (2, 3), (1, 4), (0, 5), (3, 5), (1, 6), (3, 6)])


@example(_AFTER_SEVERAL, StageSpace(), 3)
@given(problems(6), choices, st.integers(0, 99))
def test_other_stages_of_the_same_units_are_a_schedule_and_none_is_cheaper(
    problem: ScheduleProblem, space: StageSpace, seed: int
) -> None:
    prices = ByName(RandomCostModel(seed))  # the same in a part of the block
    context = optimal(problem, prices, space)
    best_us = context.cost_us(context.plan, prices)
    for index in range(len(context.plan)):
        alone, split = one_by_one(context, index), Alternatives(prices, space).split(context, index)
        for plan in (alone, split or context.plan):
            done = 0
            for stage in plan:
                assert all(int(problem.predecessors[unit]) & ~(done | stage.mask) == 0 for unit in bits(stage.mask))
                done |= stage.mask
            assert done == problem.full
            assert context.cost_us(plan, prices) >= best_us * (1 - 1e-9)
        assert split is None or context.cost_us(split, prices) <= context.cost_us(alone, prices) * (1 + 1e-9)


def test_the_blocks_of_a_schedule_cost_what_it_costs() -> None:
    network = seeded_network(5, units=7, blocks=3)
    prices = ScrambledTable(3)
    found = schedule(network, prices, "ios-both")
    contexts = block_contexts(found, network, prices)
    assert contexts[0].entry == START
    between_us = sum(
        prices.price_boundary(left.stages[-1].concurrent, right.stages[0].concurrent)
        for left, right in zip(found.blocks, found.blocks[1:], strict=False)
    )
    # A boundary between two blocks belongs to both of them.
    total_us = sum(context.cost_us(context.plan, prices) for context in contexts)
    assert total_us == pytest.approx(found.latency_us + between_us)
    for context, block in zip(contexts, found.blocks, strict=True):
        named = [stage.named(context.problem).groups for stage in context.plan]
        assert named == [stage.groups for stage in block.stages]


def test_small_blocks_are_known_by_their_transitions() -> None:
    # Three independent units: 27 ordered pairs of a state and a stage after it, less the eight empty stages.
    problem = ScheduleProblem.of_edges(3, [])
    space = StageSpace()
    assert is_small(problem, space, 19)
    assert not is_small(problem, space, 18)
    assert is_small(problem, StageSpace(concurrent=False), 1)


def test_a_stage_of_equal_units_is_left_out_and_not_those_like_it() -> None:
    problem = replace(ScheduleProblem.of_edges(4, [], merge_class=[0] * 4), signatures=("conv",) * 4)
    rows = [StagePrice(units=[unit], latency_us=5) for unit in problem.unit_names]
    rows += [StagePrice(units=list(pair), strategy="merge", latency_us=6) for pair in combinations("0123", 2)]
    prices = TableCostModel(PriceTable(stages=rows))
    context, ask = optimal(problem, prices, StageSpace()), Alternatives(prices, StageSpace())
    assert [stage.mask for stage in context.plan] == [0b0011, 0b1100]
    assert [context.cost_us(ask.next_best(context, index) or (), prices) for index in range(2)] == [16, 16]


def test_a_stage_with_a_view_is_left_out_wherever_the_view_is() -> None:
    b, x = builder_with("views", x=(1, 4, 8, 8))
    with b.block("all"):
        made, other = b.conv(x, 8, name="a"), b.add(Relu(), x, name="b")
        with b.unit("view", BATCH_VIEW):
            half = b.add(Relu(), made, name="view")
    network, prices = b.network([half, other]), api.cost_model("simulator", "t4")
    context = optimal(problem_of(network, network.blocks[0], prices), prices, StageSpace())
    view = 1 << network.unit_index["view"]
    (index,) = (place for place, stage in enumerate(context.plan) if stage.mask & view)
    for find in (Alternatives.next_best, Alternatives.next_best_beside):
        found = find(Alternatives(prices, StageSpace()), context, index)
        assert context.cost_us(found or (), prices) > context.cost_us(context.plan, prices)
