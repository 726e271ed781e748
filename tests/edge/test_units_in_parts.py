"""Branches side by side on parts of the units: how units are dealt, what a plan of lanes computes, and what it may not do."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from edge_devices import made, outputs_equal
from hypothesis import given
from hypothesis import strategies as st
from random_networks import random_network

from iossim.base.errors import PlanError
from iossim.edge import parts
from iossim.edge.capacity import check
from iossim.edge.optimize import plan
from iossim.edge.parts import PartsCostModel, dealt, in_parts
from iossim.edge.plan import EdgePlan, Lane, one_by_one
from iossim.edge.simulator.events import Timed, simulate
from iossim.ir.builder import GraphBuilder
from iossim.ir.network import Network
from iossim.ir.ops.nary import Add
from iossim.schedule.batch import StageBatch, Strategy
from iossim.schedule.problem import ScheduleProblem
from iossim.search.scheduler import schedule


@given(st.lists(st.lists(st.floats(0, 100), min_size=6, max_size=6), min_size=2, max_size=4))
def test_no_other_deal_has_a_shorter_longest_group(times: list[list[float]]) -> None:
    curves = np.minimum.accumulate(np.array(times), axis=1)
    levels = dealt(curves)
    assert levels.sum() == curves.shape[1]
    assert levels.min() >= 1

    def longest(chosen: tuple[int, ...]) -> float:
        return max(float(curve[level - 1]) for curve, level in zip(curves, chosen, strict=True))

    everything = product(range(1, curves.shape[1] + 1), repeat=len(curves))
    assert longest(tuple(levels)) == min(longest(each) for each in everything if sum(each) <= curves.shape[1])


def branches() -> Network:
    """Two convolutions with few output channels on one map: neither can use eight units well by itself."""
    b = GraphBuilder("branches")
    x = b.input("x", (1, 32, 16, 16))
    with b.unit("left", "Conv"):
        left = b.conv(x, 4, 3, padding=1)
    with b.unit("right", "Conv"):
        right = b.conv(x, 4, 3, padding=1)
    with b.unit("after", "Conv"):
        after = b.conv(left, 4, 1)
    return b.network([after, right])


def rows_of_branches() -> Network:
    """Two blocks of two such convolutions each, and their sums."""
    b = GraphBuilder("rows")
    x = b.input("x", (1, 32, 16, 16))
    for row in "01":
        with b.block(row):
            sides = [b.conv(x, 4, 3, padding=1, name=f"{row} {side}") for side in ("left", "right")]
            x = b.add(Add(), *sides, name=f"{row} sum")
    return b.network([x])


def lanes_of(network: Network, **device: int) -> EdgePlan:
    """``left`` and ``after`` beside ``right``."""
    own = made(**device)
    stages = ((Lane((0, 2), 0, 5), Lane((1,), 5, 3)),)
    return plan(network, own, stages=stages)


@pytest.mark.parametrize("shared", [4 << 20, 30_000])
def test_lanes_compute_what_the_network_does(shared: int) -> None:
    network = branches()
    found = lanes_of(network, shared__bytes=shared)
    outputs_equal(found)
    timed = simulate(found)
    assert timed.steps[0][0] == timed.steps[1][0] == 0.0
    assert timed.steps[2][0] == timed.steps[0][1]
    assert {unit for span in timed.spans if span.step == 1 for unit in span.units} <= {5, 6, 7}


def test_what_lanes_may_not_do_is_found() -> None:
    found = lanes_of(branches())
    for lane in (Lane((1,), 5, 3), Lane((1,), 6, 3)):
        with pytest.raises(PlanError, match="'right' runs on units of another lane, or on units that do not exist"):
            check(replace(found, stages=((Lane((0, 2), 0, 6), lane),)))
    too_early = replace(found, stages=((Lane((0,), 0, 4), Lane((2,), 4, 2), Lane((1,), 6, 2)),))
    with pytest.raises(PlanError, match=r"'after' reads .* before it is made"):
        check(too_early)
    sliced = lanes_of(branches(), shared__bytes=30_000)
    clashing = [
        replace(
            step,
            slices=tuple(
                replace(part, inputs=tuple(replace(each, address=0) for each in part.inputs)) for part in step.slices
            ),
        )
        for step in sliced.steps
    ]
    with pytest.raises(PlanError, match="overlap"):
        check(replace(sliced, steps=tuple(clashing)))


@given(st.integers(0, 1000))
def test_bounds_hold_and_a_group_alone_takes_all_units(seed: int) -> None:
    network = random_network(seed, blocks=1)
    model = PartsCostModel(plan(network, made(cache_bytes=256)), "priority")
    problem = ScheduleProblem.of_block(network, network.blocks[0])
    masks = np.arange(1, min(256, 1 << len(problem)), dtype=np.uint64)
    prices, bounds = model.price_stages(StageBatch.concurrent(problem, masks)), model.bounds(problem)
    assert bounds is not None
    held = (masks[:, None] >> np.arange(len(problem), dtype=np.uint64) & np.uint64(1)).astype(float)
    assert (prices >= (held @ bounds.work_us).max(axis=1) * (1 - 1e-9)).all()
    alone = held.sum(axis=1) == 1
    assert prices[alone] == pytest.approx(held[alone] @ bounds.single_us)
    batch = StageBatch.concurrent(problem, masks)
    assert np.isinf(model.price_stages(replace(batch, strategies=np.full(len(batch), Strategy.MERGE.code)))).all()


def test_the_search_finds_branches_that_had_better_run_side_by_side() -> None:
    network, device = branches(), made()
    whole = plan(network, device)
    timed = simulate(whole)
    found = in_parts(whole, timed, "priority")
    outputs_equal(found.plan)
    assert found.total_us <= timed.total_us
    assert found.proposed >= len(found.rows)
    by_search = schedule(network, PartsCostModel(whole, "priority"), "ios-parallel")
    alone = schedule(network, PartsCostModel(whole, "priority"), "sequential")
    assert by_search.latency_us <= alone.latency_us
    assert whole.stages == one_by_one(range(3), 8)
    assert sorted(step for stage in found.plan.stages for lane in stage for step in lane.steps) == [0, 1, 2]


@pytest.mark.parametrize(
    ("prices_us", "best_us"),
    [((9, 8, 7, 6), 6), ((9, 8, 4, 6), 4), ((9, 4, 8, 7), 4), ((5, 9, 9, 6), 5), ((5, 3, 9, 6), 3), ((5, 9, 2, 6), 2)],
)
def test_a_block_is_in_parts_where_the_whole_plan_gains(
    prices_us: tuple[int, ...], best_us: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The prices of no block, the second, the first, and both: from the better of none and both, block by block."""
    network, device = rows_of_branches(), made()
    whole = plan(network, device)

    def timed(found: EdgePlan) -> Timed:
        wide = {
            found.steps[step].operator.name[0]
            for stage in found.stages
            if len(stage) > 1
            for lane in stage
            for step in lane.steps
        }
        return replace(simulate(found), total_us=prices_us[2 * ("0" in wide) + ("1" in wide)])

    monkeypatch.setattr(parts, "simulate", timed)
    assert in_parts(whole, timed(whole), "priority").total_us == best_us


@given(st.integers(0, 500))
def test_parts_are_never_slower_and_fit(seed: int) -> None:
    network = random_network(seed, blocks=2)
    whole = plan(network, made(units=5))
    timed = simulate(whole)
    found = in_parts(whole, timed, "priority")
    check(found.plan)
    assert found.total_us <= timed.total_us
