"""Random prices: repeatable, and within the bounds that they promise."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from iossim.cost.random import RandomCostModel
from iossim.schedule.batch import StageBatch, Strategy
from iossim.schedule.problem import ScheduleProblem, bits


@st.composite
def problems(draw: st.DrawFn) -> ScheduleProblem:
    count = draw(st.integers(1, 6))
    pairs = [(low, high) for high in range(count) for low in range(high)]
    edges = [pair for pair in pairs if draw(st.booleans())]
    merge_class = [draw(st.integers(-1, 1)) for _ in range(count)]
    return ScheduleProblem.of_edges(count, edges, merge_class)


def every_stage(problem: ScheduleProblem) -> StageBatch:
    """All sets of units, valid endings or not."""
    return StageBatch.concurrent(problem, np.arange(1, problem.full + 1, dtype=np.uint64))


@settings(max_examples=30, deadline=None)
@given(problem=problems(), seed=st.integers(0, 10))
def test_bounds_hold(problem: ScheduleProblem, seed: int) -> None:
    model = RandomCostModel(seed)
    batch = every_stage(problem)
    prices = model.price_stages(batch)
    bounds = model.bounds(problem)
    for mask, price in zip(batch.masks.tolist(), prices.tolist(), strict=True):
        groups = problem.groups(mask)
        units = bits(mask)
        floor = max(
            *(sum(bounds.serial_us[bits(group)]) for group in groups), *bounds.work_us[units].sum(axis=0).tolist()
        )
        assert price >= floor * (1 - 1e-12)
        if len(groups) == 1:
            assert price >= sum(bounds.single_us[units]) * (1 - 1e-12)
        assert price > 0


@settings(max_examples=30, deadline=None)
@given(problem=problems(), seed=st.integers(0, 10))
def test_prices_do_not_depend_on_the_batch(problem: ScheduleProblem, seed: int) -> None:
    model = RandomCostModel(seed)
    batch = every_stage(problem)
    together = model.price_stages(batch)
    backwards = model.price_stages(StageBatch.concurrent(problem, batch.masks[::-1].copy()))
    assert backwards[::-1].tolist() == together.tolist()
    assert RandomCostModel(seed).price_stages(batch).tolist() == together.tolist()


@settings(max_examples=30, deadline=None)
@given(problem=problems())
def test_merges_of_one_class_only(problem: ScheduleProblem) -> None:
    batch = every_stage(problem)
    merged = RandomCostModel(1).price_stages(
        StageBatch(problem, batch.masks, np.full(len(batch), Strategy.MERGE.code, dtype=np.uint8))
    )
    serial_us = RandomCostModel(1).bounds(problem).serial_us
    for mask, price in zip(batch.masks.tolist(), merged.tolist(), strict=True):
        units = bits(mask)
        classes = set(problem.merge_class[units].tolist())
        if len(units) > 1 and len(classes) == 1 and classes != {-1}:
            assert 0 < price <= serial_us[units].sum()
        else:
            assert price == np.inf


@settings(max_examples=20, deadline=None)
@given(problem=problems(), seed=st.integers(0, 10), data=st.data())
def test_a_stage_costs_the_same_in_a_part_of_its_block(
    problem: ScheduleProblem, seed: int, data: st.DataObject
) -> None:
    """Else a block that is solved in parts, or prices kept by signature, would not cost what the schedule says."""
    model = RandomCostModel(seed)
    mask = data.draw(st.integers(1, problem.full))
    part = problem.restrict(bits(mask))
    for strategy in Strategy:
        strategies = np.array([strategy.code], dtype=np.uint8)
        whole = model.price_stages(StageBatch(problem, np.array([mask], dtype=np.uint64), strategies))
        alone = model.price_stages(StageBatch(part, np.array([part.full], dtype=np.uint64), strategies))
        assert alone.tolist() == whole.tolist()


def test_seeds_differ() -> None:
    problem = ScheduleProblem.of_edges(3, [])
    first, second = (RandomCostModel(seed).price_stages(every_stage(problem)).tolist() for seed in (0, 1))
    assert first != second
    assert RandomCostModel(7).identity != RandomCostModel(8).identity
