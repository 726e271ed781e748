"""Explanations of schedules, of streams, of plans of edge devices, and of what rewriting was worth."""

import json
from dataclasses import replace
from itertools import pairwise

import pytest
from edge_devices import made
from graph_builders import builder_with
from hypothesis import given, settings
from hypothesis import strategies as st
from random_networks import issued_streams, random_network, random_schedule, random_stream_batch

from iossim import api, related
from iossim.backends.simulator.cost_model import SimulatorCostModel
from iossim.base.errors import OptionError
from iossim.cost.facts import Limit
from iossim.cost.random import RandomCostModel
from iossim.cost.table import BoundaryPrices, PriceTable, StagePrice, TableCostModel
from iossim.edge.explain import PAIRS, explain_dataflow, explanation_lines, explanation_overview
from iossim.edge.plan import Variant
from iossim.edge.simulator.events import simulate
from iossim.execution.engine import Engine
from iossim.hardware.load import device
from iossim.hardware.override import derive
from iossim.ir.network import Network
from iossim.ir.ops.slice import Concat
from iossim.ir.ops.unary import Relu
from iossim.models.load import load
from iossim.models.random_graphs import seeded_network
from iossim.report.explanation import long_lines, overview, rewriting_lines, short_lines
from iossim.report.traces import stream_trace
from iossim.schedule.schedule import Schedule
from iossim.schedule.streams import as_streams
from iossim.search.scheduler import schedule
from iossim.tasks.explain import Choice, Explanation, explain
from iossim.tasks.explain_rewriting import explain_rewriting
from iossim.tasks.stream_explain import Cause, StreamExplanation, explain_streams
from iossim.transforms.rewriting.application import Step, apply
from iossim.transforms.rewriting.matching import find_matches
from iossim.transforms.rewriting.rewritten import rewritten_network, with_rewriting
from iossim.transforms.rewriting.rule_file import read_rules

FACTS = {"sm_count": 5, "dram_bandwidth_gbps": 40.0, "l2_mib": 0.5, "board_power_w": 10.0, "dram_gib": 2.0}
SMALL = derive("small-gpu", device("t4"), FACTS)


@pytest.fixture(scope="module")
def fork() -> Network:
    """Two convolutions of one input, which merge, and their concat."""
    b, x = builder_with("fork", x=(1, 4, 8, 8))
    with b.block("all"):
        b.add(Concat(), b.conv(x, 8, name="a"), b.conv(x, 8, name="b"), name="c")
    return b.network(["c"])


def table(merged_us: float | None = None, boundary_us: float = 0.0) -> TableCostModel:
    """Prices of concurrent stages by the letters of their units, and of ``a`` and ``b`` merged."""
    prices_us = {"a": 5, "b": 5, "ab": 6, "c": 1}
    stages = [StagePrice(units=list(units), latency_us=price) for units, price in prices_us.items()]
    if merged_us is not None:
        stages.append(StagePrice(units=["a", "b"], strategy="merge", latency_us=merged_us))
    boundary = BoundaryPrices(single_to_concurrent=boundary_us, concurrent_to_single=boundary_us)
    return TableCostModel(PriceTable(boundary_us=boundary, stages=stages))


def explained(network: Network, prices: TableCostModel, scheduler: str = "ios-both") -> Explanation:
    return explain(schedule(network, prices, scheduler), network, prices)


def more_us(choice: Choice | None) -> float | None:
    return None if choice is None else choice.more_us


def test_a_merge_by_hand(fork: Network) -> None:
    found = explained(fork, table(merged_us=4.5))
    assert (found.schedule.latency_us, found.sequential_us, found.could_save_us) == (5.5, 11, 0)
    merge, concat = found.stages
    assert (merge.share, merge.saves_us, more_us(merge.next_best)) == (4.5 / 5.5, 5.5, 1.5)
    assert merge.next_best is not None
    assert merge.next_best.instead == (0,)
    assert [stage.groups for stage in merge.next_best.stages] == [[["a"], ["b"]]]
    assert merge.own is not None
    assert merge.own.stages == merge.next_best.stages
    # Nothing else that has the concat in it has a price.
    assert (concat.next_best, concat.own) == (None, None)
    assert short_lines(concat)[-1] == "  there is no alternative"


def test_alternatives_are_within_the_workspace_limit_of_the_search() -> None:
    """Without it the kernels that are fastest alone would save 0.2 ms."""
    network, limited = load("squeezenet", batch=8), api.search_options(workspace_limit="64KiB")
    found = api.optimize(network, "p100-sxm2", options=limited)
    sequential = api.optimize(network, "p100-sxm2", scheduler="sequential", options=limited)
    told = api.explain(found, network)
    assert sum(len(stage.variants) for stage in found.stages) > 3
    assert (told.schedule.latency_us, told.could_save_us) == (found.latency_us, 0)
    assert told.sequential_us == pytest.approx(sequential.latency_us, rel=1e-9)
    offers = [offer for one in told.stages for offer in (one.next_best, one.own, one.beside) if offer is not None]
    assert min(offer.more_us for offer in offers) >= 0
    assert max(len(offer.instead) for offer in offers) <= 3  # stages that stay keep their kernels
    free = explain(found.model_copy(update={"options": {}}), network, api.cost_model("simulator", "p100-sxm2"))
    assert free.could_save_us is not None
    assert free.could_save_us > 200


def test_boundaries_count_on_both_sides(fork: Network) -> None:
    first, _ = explained(fork, table(merged_us=7.5, boundary_us=1)).stages
    assert first.stage.groups == [["a"], ["b"]]
    # 6 + 1 + 1 together; one by one it is 11, merged 7.5 + 1.
    assert (first.saves_us, more_us(first.next_best)) == (3, 0.5)


def test_stages_that_are_not_the_best_have_cheaper_ones(fork: Network) -> None:
    prices = table(merged_us=4.5)
    found = explained(fork, prices, "greedy")
    assert found.could_save_us == 1.5
    assert more_us(found.stages[0].next_best) == -1.5
    assert "would save 1.5 us (21.4%)" in overview(found)[1]
    assert more_us(explained(fork, prices, "sequential").stages[0].beside) == -5.5


def test_the_search_of_the_schedule_is_that_of_its_alternatives(fork: Network) -> None:
    firsts = [explained(fork, table(merged_us=4.5), name).stages[0] for name in ("ios-merge", "ios-parallel")]
    assert [more_us(one.own) for one in firsts] == [5.5, 4]


def test_tables_tell_no_limits_and_no_noise_and_no_prices_nothing(fork: Network) -> None:
    found = explained(fork, table())
    assert found.unknown == ("what limits a stage, which prices by 'table' lack",)
    assert found.limits_us == {}
    assert all(stage.facts is None for stage in found.stages)
    assert all(stage.next_best is None or stage.next_best.tie is None for stage in found.stages)
    saved = explain(found.schedule, fork, None)
    assert len(saved.unknown) == 2
    assert [(stage.cost_us, stage.next_best) for stage in saved.stages] == [(6, None), (1, None)]
    assert (saved.sequential_us, saved.could_save_us) == (None, None)


def test_a_stage_that_is_not_there(fork: Network) -> None:
    prices = table()
    saved = schedule(fork, prices, "sequential")
    with pytest.raises(OptionError, match=r"`stage` 3: the schedule has stages 0 to 2; give one of them"):
        explain(saved, fork, prices, [3])
    assert [one.number for one in explain(saved, fork, prices, [2]).stages] == [2]


def test_a_wait_for_dram_is_no_arithmetic() -> None:
    network, prices = load("alexnet", dtype="bf16"), api.cost_model("simulator", "h100-sxm", "bf16")
    stages = explain(schedule(network, prices, "sequential"), network, prices).stages
    limits = [kernel.limits_us for stage in stages if stage.facts for kernel in stage.facts.kernels]
    waits = [us[Limit.DRAM] for us in limits if {Limit.ARITHMETIC, Limit.DRAM} <= us.keys()]
    assert waits == pytest.approx([0.35] * 4)


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
        choices = [choice for choice in (stage.next_best, stage.own, stage.beside) if choice is not None]
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


AND_BACK = """
rule: relu-of-relu
origin: a test
source:
  - y = relu(x)
target:
  - r = relu(x)
  - z = relu(r)
outputs: {y: z}
---
rule: relu-once
origin: a test
source:
  - r = relu(x)
  - y = relu(r)
target:
  - z = relu(x)
outputs: {y: z}
"""


def test_a_step_and_its_inverse_are_left_out() -> None:
    """Also with a step elsewhere between them; what builds on one another is told in one line with its place."""
    network = load("ios_sample")
    there, back = read_rules(AND_BACK, "rules")
    graph, steps = network.graph, list[Step]()
    first, second, *_ = (node.name for node in graph.nodes if node.op.kind == "relu")
    for rule, place in ((there, first), (there, second), (back, first), *[(there, second)] * 3):
        (match, *_) = (one for one in find_matches(graph, rule) if one.nodes[0].startswith(place))
        applied = apply(graph, match)
        assert applied is not None
        graph = applied.graph
        steps.append(applied.step)
    changed = with_rewriting(rewritten_network(network, graph), steps, (there, back))
    prices = api.cost_model("simulator", "v100-sxm2")
    kept = explain_rewriting(schedule(changed, prices, "sequential"), prices)
    assert [(step.number, step.change) for step in kept] == [(2, 2), (4, 2), (5, 2), (6, 2)]
    lines = list(rewriting_lines(kept, whole=False, latency_us=1.0))
    assert lines[0] == "the network was rewritten by 4 substitutions in 1 place (--all shows each)"
    assert lines[1].endswith(" into 1.0 us")
    assert lines[2].startswith(f"at {second}: relu-of-relu, relu-of-relu, relu-of-relu, relu-of-relu: costs ")
    assert lines[3:] == []


SEEDS = st.integers(0, 2**20)
ENGINES = st.sampled_from([Engine.PAPER, Engine.GRAPH])


def explained_streams(seed: int, engine: Engine) -> tuple[Network, StreamExplanation]:
    network = random_network(seed)
    batch = random_stream_batch(network, seed, count=1, most=3)
    model = SimulatorCostModel(device("v100-sxm2"), network.precision, engine)
    found = explain_streams(issued_streams(network, batch), network, model)
    assert found.latency_us == pytest.approx(model.price_streams(batch).latency_us[0], rel=1e-9)
    return network, found


@given(SEEDS, ENGINES)
def test_the_critical_path_adds_up_to_the_latency_and_has_no_slack(seed: int, engine: Engine) -> None:
    _, found = explained_streams(seed, engine)
    assert sum(found.path_us.values()) == pytest.approx(found.latency_us, rel=1e-6)
    path = found.critical
    assert path[-1].end_us == found.latency_us
    assert [one.behind for one in path] == [None, *(one.unit for one in path[:-1])]
    assert path[0].cause in (Cause.BEGIN, Cause.HOST)
    for one in found.launches:
        assert 0.0 <= one.slack_us <= found.latency_us - one.end_us + 1e-6
        assert one.slack_us <= 1e-6 or not one.is_critical or engine is Engine.PAPER  # whose host holds launches back
        assert one.sharing_us >= 0.0


@settings(max_examples=20)
@given(SEEDS, ENGINES)
def test_a_trace_has_a_track_a_stream_and_an_arrow_a_wait(seed: int, engine: Engine) -> None:
    network, found = explained_streams(seed, engine)
    events = json.loads(stream_trace(network, found))["traceEvents"]
    tracks = [event["args"]["name"] for event in events if event["name"] == "thread_name"]
    assert tracks == [f"stream {number}" for number in range(len(found.schedule.streams))]
    kernels = [event for event in events if event["ph"] == "X"]
    assert len(kernels) == len(found.spans)
    begins, ends = ({event["id"]: event for event in events if event["ph"] == phase} for phase in "sf")
    assert begins.keys() == ends.keys()
    assert all(begins[number]["ts"] <= ends[number]["ts"] + 1e-3 for number in begins)
    waits = sum(len(one.after) for one in found.launches)
    inside = sum(one.is_critical and one.behind is not None and one.behind not in one.after for one in found.launches)
    assert len(begins) == waits + inside
    critical = sum(event["cat"] == "critical path" for event in begins.values())
    assert critical == len(found.critical) - 1


def test_prices_of_stages_alone_explain_no_streams() -> None:
    network = random_network(1)
    schedule = as_streams(random_schedule(network, 1), network)
    with pytest.raises(OptionError, match="cost model 'random' prices stages alone"):
        explain_streams(schedule, network, RandomCostModel(0))


def two_convs(channels: int = 64, size: int = 16) -> Network:
    b, x = builder_with("two", x=(1, channels, size, size))
    for name in ("first", "second"):
        with b.unit(name, "Conv-Relu"):
            x = b.add(Relu(), b.conv(x, channels, name=name))
    return b.network([x])


@pytest.mark.parametrize(
    ("device", "bound"),
    [
        ({"multiply_adds_per_cycle__fp32": 0.01}, "arithmetic"),
        ({"cache_bytes": 0, "shared__line_bytes": 1024}, "waiting for lines"),
        ({"port_gbps": 0.01, "cache_bytes": 10**9}, "ports of units"),
        ({"shared__bandwidth_gbps": 0.05, "cache_bytes": 10**9}, "shared memory"),
        ({"external__bandwidth_gbps": 0.001}, "external memory"),
        ({"dma__setup_us": 1200.0, "cache_bytes": 10**9}, "DMA"),
    ],
)
def test_what_a_device_lacks_bounds(device: dict[str, float], bound: str) -> None:
    # One unit alone needs no DMA, and takes longer only with much arithmetic.
    network = two_convs(256 if bound == "DMA" else 64)
    explanation = explain_dataflow(related.dataflow(network, made(**device)))
    first = explanation.operators[0]
    assert first.bound == bound
    assert first.saves_us[bound] > 0.8 * first.time_us
    assert bound in explanation_overview(explanation)[1]
    assert f"bound by {bound}" in explanation_lines(first)[2]


def test_what_it_says_is_what_the_simulator_says() -> None:
    found = related.dataflow("ios_sample", "c6678")
    explanation = explain_dataflow(found)
    assert sum(one.share for one in explanation.operators) == pytest.approx(1)
    faster = found.device.changed({"port_gbps": 20e6, "multiply_adds_per_cycle.fp32": 8e6})
    again = simulate(replace(found.plans[Variant.FULL], device=faster))
    saved_us = found.total_us(Variant.FULL) - again.total_us
    assert explanation.saves_us["arithmetic and ports"] == pytest.approx(saved_us)
    for one in explanation.operators:
        for pair, parts in PAIRS.items():
            assert one.saves_us[pair] >= max(one.saves_us[part] for part in parts) - 0.01 * one.time_us
        assert all(-0.01 * one.time_us <= us <= one.time_us for us in one.saves_us.values())


def test_linking_and_other_splits_are_told() -> None:
    found = related.dataflow("mobilenet_v1", "c6678")
    rows = {row.operator: row for row in found.operators}
    explained = {one.operator: one for one in explain_dataflow(found, ["conv13.pointwise"]).operators}
    reader, writer = explained["conv2.pointwise"], explained["conv2.depthwise"]
    assert reader.reads_linked == ("conv2.depthwise",)
    assert reader.linking_us == rows["conv2.pointwise"].horizontal_us - rows["conv2.pointwise"].full_us > 0
    assert writer.linked is not None
    assert writer.linked.readers == ("conv2.pointwise",)
    assert writer.linked.bytes < writer.linked.unlinked_bytes
    # Only what is searched has the best of all grids for each axis by itself.
    splits = {name: [other.partition for other in one.others] for name, one in explained.items()}
    assert splits["conv2.pointwise"] == ["outC 8", "inH 8", "inW 8"]
    assert splits["conv13.pointwise"] == ["outC 8", "inH 7", "inW 7", "outC 4, inW 2"]
    assert splits["fc"] == ["outC 8"]
    *along_one, best = explained["conv13.pointwise"].others
    assert best.priced_us < min(other.priced_us for other in along_one)
    searched = related.dataflow("mobilenet_v1", "c6678", policy="exhaustive").operators
    assert best.partition in [row.partition for row in searched if row.operator == "conv13.pointwise"]
    text = "\n".join(explanation_lines(reader))
    assert "in 2 slices" in text
    assert "reads in sequence what conv2.depthwise wrote for it" in text
    with pytest.raises(OptionError, match="'conv99' is not in the network"):
        explain_dataflow(found, ["conv99"])


@pytest.mark.parametrize("loaded", [False, True])
def test_the_baseline_has_the_joins_of_the_model_as_in_a_comparison(loaded: bool) -> None:
    """Fused sums make the sequential schedule faster, too: that is part of the gain over the model as it is."""
    found = api.optimize("resnet18", "t4")
    assert "joins" in found.source.options
    expected = api.compare("resnet18", "t4", schedulers=["sequential"]).baseline_us
    explained = api.explain(found, load("resnet18") if loaded else None)
    assert explained.sequential_us == pytest.approx(expected)
