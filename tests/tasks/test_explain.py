"""Explanations of schedules, and of what rewriting was worth."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from iossim import api
from iossim.base.errors import OptionError
from iossim.cost.table import BoundaryPrices, PriceTable, StagePrice, TableCostModel
from iossim.hardware.derive import derive
from iossim.hardware.load import device
from iossim.ir.builder import GraphBuilder
from iossim.ir.network import Network
from iossim.ir.ops.slice import Concat
from iossim.models.random_graphs import seeded_network
from iossim.report.explanation import long_lines, overview, rewriting_dot, rewriting_lines, short_lines
from iossim.schedule.schedule import Schedule
from iossim.search.scheduler import schedule
from iossim.tasks.explain import Explanation, StageExplanation, explain
from iossim.tasks.explain_rewriting import explain_rewriting

SMALL = derive(
    "small-gpu",
    device("t4"),
    {"sm_count": 5, "dram_bandwidth_gbps": 40.0, "l2_mib": 0.5, "board_power_w": 10.0, "dram_gib": 2.0},
)


@pytest.fixture(scope="module")
def fork() -> Network:
    """Two convolutions of one input, which merge, and their concat."""
    b = GraphBuilder("fork")
    x = b.input("x", (1, 4, 8, 8))
    with b.block("all"):
        with b.unit("a", "conv"):
            a = b.conv(x, 8, 1, name="a")
        with b.unit("b", "conv"):
            c = b.conv(x, 8, 1, name="b")
        with b.unit("c", "concat"):
            y = b.add(Concat(), a, c, name="c")
    return b.network([y])


def table(prices_us: Mapping[str, float], merged_us: float | None = None, boundary_us: float = 0.0) -> TableCostModel:
    """Prices of concurrent stages by the letters of their units, and of ``a`` and ``b`` merged."""
    stages = [StagePrice(units=list(units), latency_us=price) for units, price in prices_us.items()]
    if merged_us is not None:
        stages.append(StagePrice(units=["a", "b"], strategy="merge", latency_us=merged_us))
    boundary = BoundaryPrices(single_to_concurrent=boundary_us, concurrent_to_single=boundary_us)
    return TableCostModel(PriceTable(boundary_us=boundary, stages=stages))


def explained(network: Network, prices: TableCostModel, scheduler: str = "ios-both") -> Explanation:
    return explain(schedule(network, prices, scheduler), network, prices)


def ways(one: StageExplanation) -> dict[str, float]:
    return {choice.way: choice.more_us for choice in one.ways}


def test_a_merge_by_hand(fork: Network) -> None:
    prices = table({"a": 5, "b": 5, "ab": 6, "c": 1}, merged_us=4.5)
    found = explained(fork, prices)
    assert found.schedule.latency_us == 5.5
    assert found.sequential_us == 11
    assert found.could_save_us == 0
    merge, concat = found.stages
    assert merge.share == 4.5 / 5.5
    assert merge.saves_us == 5.5
    assert merge.next_best is not None
    assert merge.next_best.more_us == 1.5
    assert merge.next_best.instead == (0,)
    assert [stage.groups for stage in merge.next_best.stages] == [[["a"], ["b"]]]
    assert merge.own is not None
    assert merge.own.stages == merge.next_best.stages
    assert ways(merge) == {"side by side": 1.5, "sequential": 5.5}
    # Nothing else that has the concat in it has a price.
    assert concat.next_best is None
    assert concat.own is None
    assert concat.ways == ()
    assert short_lines(concat)[-1] == "  there is no alternative"


def test_boundaries_count_on_both_sides(fork: Network) -> None:
    prices = table({"a": 5, "b": 5, "ab": 6, "c": 1}, merged_us=7.5, boundary_us=1)
    first, _ = explained(fork, prices).stages
    assert first.stage.groups == [["a"], ["b"]]
    # 6 + 1 + 1 together; one by one it is 11, merged 7.5 + 1.
    assert first.saves_us == 3
    assert ways(first) == {"merged": 0.5, "sequential": 3}
    assert first.next_best is not None
    assert first.next_best.more_us == 0.5


def test_stages_that_are_not_the_best_have_cheaper_ones(fork: Network) -> None:
    prices = table({"a": 5, "b": 5, "ab": 6, "c": 1}, merged_us=4.5)
    found = explained(fork, prices, "greedy")
    assert found.could_save_us == 1.5
    first, _ = found.stages
    assert first.next_best is not None
    assert first.next_best.more_us == -1.5
    assert "would save 1.5 us (21.4%)" in overview(found)[1]
    one_by_one = explained(fork, prices, "sequential")
    a, _, _ = one_by_one.stages
    assert a.beside is not None
    assert a.beside.more_us == -5.5
    assert ways(a) == {"joined with next stage": -4}


def test_the_search_of_the_schedule_is_that_of_its_alternatives(fork: Network) -> None:
    prices = table({"a": 5, "b": 5, "ab": 6, "c": 1}, merged_us=4.5)
    merging, *_ = explained(fork, prices, "ios-merge").stages
    assert ways(merging) == {"sequential": 5.5}
    parallel, *_ = explained(fork, prices, "ios-parallel").stages
    assert ways(parallel) == {"sequential": 4}


def test_tables_tell_no_limits_and_no_noise(fork: Network) -> None:
    found = explained(fork, table({"a": 5, "b": 5, "ab": 6, "c": 1}))
    assert found.unknown == ("what limits a stage, which only the simulator determines",)
    assert found.limits_us == {}
    assert all(stage.facts is None for stage in found.stages)
    assert all(choice.tie is None for stage in found.stages for choice in stage.ways)


def test_without_prices_a_schedule_is_told_as_it_was_saved(fork: Network) -> None:
    prices = table({"a": 5, "b": 5, "ab": 6, "c": 1})
    found = explain(schedule(fork, prices, "ios-both"), fork, None)
    assert len(found.unknown) == 2
    assert [stage.cost_us for stage in found.stages] == [6, 1]
    assert [stage.next_best for stage in found.stages] == [None, None]
    assert found.sequential_us is None
    assert found.could_save_us is None


def test_a_stage_that_is_not_there(fork: Network) -> None:
    prices = table({"a": 5, "b": 5, "ab": 6, "c": 1})
    saved = schedule(fork, prices, "sequential")
    with pytest.raises(OptionError, match=r"`stage` 3: the schedule has stages 0 to 2; give one of them"):
        explain(saved, fork, prices, [3])
    (one,) = explain(saved, fork, prices, [2]).stages
    assert one.number == 2


@pytest.mark.slow
@settings(max_examples=5)
@given(st.integers(0, 999), st.sampled_from(["paper", "graph"]), st.sampled_from(["ios-both", "ios-parallel"]))
def test_nothing_is_cheaper_than_an_optimal_schedule(seed: int, engine: str, scheduler: str) -> None:
    network = seeded_network(seed)
    prices = api.cost_model("simulator", SMALL, network.precision, engine)
    saved = schedule(network, prices, scheduler)
    found = explain(saved, network, prices)
    assert found.could_save_us == 0
    assert sum(found.limits_us.values()) == pytest.approx(saved.latency_us, rel=1e-6)
    for stage in found.stages:
        choices = [choice for choice in (stage.next_best, stage.own, stage.beside, *stage.ways) if choice is not None]
        for choice in choices:
            assert choice.more_us >= 0
            assert set(choice.instead) <= set(range(len(saved.stages)))
            replaced = [unit for number in choice.instead for unit in saved.stages[number].units]
            assert sorted(replaced) == sorted(unit for new in choice.stages for unit in new.units)
            assert stage.number in choice.instead or choice.way == "concurrent with others"
        if stage.next_best is not None:
            assert all(stage.next_best.more_us <= choice.more_us + 1e-6 for choice in choices)
    # In full it is the same, and more.
    (full,) = explain(saved, network, prices, [seed % len(saved.stages)]).stages
    stage = found.stages[full.number]
    assert full.next_best == stage.next_best
    assert {way.way for way in full.ways} >= {way.way for way in stage.ways}
    assert len(long_lines(full)) >= 2


def test_stages_too_wide_to_be_solved_anew_are_told_by_their_own_units(monkeypatch: pytest.MonkeyPatch) -> None:
    network = seeded_network(3, units=8, blocks=1)
    prices = api.cost_model("simulator", SMALL, network.precision)
    saved: Schedule = schedule(network, prices, "ios-both")
    exact = explain(saved, network, prices)
    monkeypatch.setattr("iossim.tasks.explain.FEW_TRANSITIONS", 0)
    monkeypatch.setattr("iossim.tasks.explain.MANY_TRANSITIONS", 0)
    found = explain(saved, network, prices)
    assert found.could_save_us is None
    assert [stage.next_best for stage in found.stages] == [None] * len(saved.stages)
    assert [stage.own for stage in found.stages] == [stage.own for stage in exact.stages]
    assert any(stage.own for stage in found.stages)


@pytest.mark.parametrize("scheduler", ["sequential", "ios-both"])
def test_costs_lead_from_the_network_as_given_to_the_schedule(scheduler: str) -> None:
    prices = api.cost_model("simulator", "v100-sxm2")
    given = api.optimize("ios_sample", None, scheduler=scheduler, cost_model=prices)
    found = api.optimize("ios_sample", None, scheduler=scheduler, cost_model=prices, rewrite="default")
    steps = explain_rewriting(found, prices)
    assert steps
    assert steps[0].before_us == pytest.approx(given.latency_us)
    assert steps[-1].after_us == pytest.approx(found.latency_us)
    assert all(one.after_us == other.before_us for one, other in pairwise(steps))
    for step in steps:
        assert step.saves_us == pytest.approx((step.before_us or 0) - (step.after_us or 0))
        names = {node.name for node in step.before.nodes}
        assert step.before.nodes != step.after.nodes
        assert names or step.after.nodes
    drawn = rewriting_dot("ios_sample", steps)
    assert drawn.count("subgraph cluster_step") == 3 * len(steps)
    assert drawn.count("{") == drawn.count("}")


def test_without_prices_and_without_a_rewriting() -> None:
    found = api.optimize("ios_sample", "v100-sxm2", rewrite="metaflow")
    steps = explain_rewriting(found, None)
    assert [(step.before_us, step.saves_us) for step in steps] == [(None, None)] * len(steps)
    lines = list(rewriting_lines(steps, whole=True))
    assert lines[0] == "the network was rewritten by 1 substitution"
    assert lines[1] == "step 1: merge-relus-of-concat"
    assert "  - b.relu: relu(b.conv) -> fp32[1x750x15x15]" in lines
    assert "  + b.relu~1: relu(concat.concat~1) -> fp32[1x1125x15x15]" in lines
    assert explain_rewriting(api.optimize("ios_sample", "v100-sxm2", scheduler="greedy"), None) == ()
