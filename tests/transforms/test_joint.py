"""The joint search: exhaustive search's result on small networks, never above any ingredient, and the same outputs."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from itertools import product
from math import inf
from pathlib import Path
from random import Random

import numpy as np
import pytest
from command_line import printed, printed_json
from quantised_networks import QUANTISED
from random_networks import random_inputs, unscheduled

from iossim import api
from iossim.base.errors import GraphError, OptionError
from iossim.cost.random import RandomCostModel
from iossim.execution.backends import create_backend
from iossim.execution.happens_before import check_happens_before
from iossim.execution.lower import lower_schedule
from iossim.ir.builder import GraphBuilder
from iossim.ir.graph import Graph
from iossim.ir.network import Network
from iossim.ir.ops.nary import Add
from iossim.ir.ops.unary import Relu
from iossim.microbatching.divided_blocks import divide_blocks
from iossim.microbatching.divisible import divisible
from iossim.microbatching.micro_batches_transform import TRIED, DivisionChoices
from iossim.microbatching.training_pass import training_network
from iossim.models.load import load
from iossim.models.onnx.export import write_onnx
from iossim.models.passes.joins import joins_of, with_joins
from iossim.models.random_graphs import seeded_network
from iossim.schedule.schedule import AnySchedule, Schedule
from iossim.search.anytime import Clock, TimeIsUp
from iossim.search.memo import SearchMemo
from iossim.search.options import SearchOptions
from iossim.search.scheduler import schedule
from iossim.tasks.measured_schedules import for_backend
from iossim.tasks.stream_explain import search_streams
from iossim.transforms.choices import BySchedule, GraphCost
from iossim.transforms.fused_joins import JoinChoices
from iossim.transforms.joint import JointlyFound, JointSearch
from iossim.transforms.replay import network_of
from iossim.transforms.rewriting.application import apply
from iossim.transforms.rewriting.backtracking import RewriteBudget
from iossim.transforms.rewriting.graph_costs import OptimalSchedule
from iossim.transforms.rewriting.matching import find_matches
from iossim.transforms.rewriting.parts import search_in_parts
from iossim.transforms.rewriting.rewritten import rewritten_network
from iossim.transforms.rewriting.rule import Rule
from iossim.transforms.rewriting.rule_sets import rule_set
from iossim.transforms.rewriting.scheduled import Rewrite
from iossim.transforms.transform import Setting

RULES = (*rule_set("metaflow"), *rule_set("simplify"))
#: Graphs that are all looked at.
MOST_GRAPHS = 60
#: Rules of which only so many graphs can be made.
FEW = tuple(rule for rule in RULES if rule.name in ("merge-convolutions", "enlarge-1x1-to-3x3", "relu-of-relu"))


def residual_network(blocks: int = 2, batch: int = 2) -> Network:
    """Blocks of two branches of convolutions and the sum of both, which the second may compute."""
    b = GraphBuilder("residual")
    x = b.input("x", (batch, 8, 14, 14))
    for block in range(blocks):
        with b.block(f"block{block}"):
            left, right = (b.conv(x, 8, 3, padding=1, name=f"block{block}.{side}") for side in ("left", "right"))
            x = b.add(Relu(), b.add(Add(), left, right, name=f"block{block}.sum"), name=f"block{block}.relu")
    return b.network([x])


class EveryWay(GraphCost):
    """The least cost over all joins and all divisions of a network, each scheduled anew."""

    def __init__(self, prices: RandomCostModel) -> None:
        self.prices = prices

    def us(self, network: Network) -> float:
        joins = joins_of(network)
        names = [*joins.apart, *joins.fused]
        best_us = inf
        for kept in product((False, True), repeat=len(names)):
            changed = {name for name, change in zip(names, kept, strict=True) if change}
            made = with_joins(network, changed & set(joins.apart), changed & set(joins.fused)) if changed else network
            tried = [(1, *(count for count in TRIED if divisible(made, block, count))) for block in made.blocks]
            for counts in product(*tried):
                parts = {block.name: count for block, count in zip(made.blocks, counts, strict=True) if count > 1}
                try:
                    divided = divide_blocks(made, parts)
                except GraphError:
                    continue
                best_us = min(best_us, schedule(divided, self.prices, "ios-both").latency_us)
        return best_us


def every_graph(graph: Graph, rules: Sequence[Rule]) -> list[Graph]:
    """All graphs that the rules make of one; the one alone if they are more than :data:`MOST_GRAPHS`."""
    found, place = {graph.hash: graph}, 0
    while place < len(found) <= MOST_GRAPHS:
        now = list(found.values())[place]
        for made in (apply(now, match) for rule in rules for match in find_matches(now, rule)):
            if made is not None:
                found.setdefault(made.graph.hash, made.graph)
        place += 1
    return list(found.values()) if len(found) <= MOST_GRAPHS else [graph]


@pytest.mark.parametrize("seed", [2, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(3, 303))])
def test_it_finds_what_exhaustive_search_finds(seed: int) -> None:
    """With random rules, on batches that are divided in various ways, at random prices."""
    prices, random = RandomCostModel(seed=seed), Random(seed)
    network = (
        residual_network(1) if seed % 3 == 0 else seeded_network(seed, 4, blocks=1, batch=random.choice((2, 3, 4)))
    )
    rules: Sequence[Rule] = FEW if seed % 2 == 0 else random.sample(RULES, 4)
    graphs = every_graph(network.graph, rules)
    rules = rules if len(graphs) > 1 else ()
    best_us = min(EveryWay(prices).us(rewritten_network(network, graph)) for graph in graphs)
    own = BySchedule(prices, "ios-both", SearchOptions(), SearchMemo(prices))
    divisions = DivisionChoices(own, own)
    joins = JoinChoices(divisions, own)
    divisions.exhausts = joins.exhausts = True
    found = search_in_parts(network, rules, joins, alpha=inf)
    assert found.best.cost_us == pytest.approx(best_us)
    # Each block is solved once: all networks that were scheduled have fewer solutions than blocks.
    scheduled = sum(len(each.blocks) for each in own._found)
    assert len({question.block for question in own.memo._solutions}) <= scheduled


def jointly(network: Network, *, company: bool = False, scheduler: str = "ios-both") -> JointlyFound:
    prices = api.cost_model("simulator", "v100-sxm2", engine="graph")
    rewrite = Rewrite(RULES, budget=RewriteBudget(graphs=6))
    return JointSearch(rewrite).apply(network, Setting(prices, scheduler, SearchOptions(company=company)))


@pytest.mark.slow
@pytest.mark.parametrize("network", [residual_network(), seeded_network(1, 5, blocks=1, batch=2)], ids=str)
def test_it_is_never_above_an_ingredient_or_any_without_one(network: Network) -> None:
    found = jointly(network, company=True)
    assert {"rewriting", "micro_batches", "company"} <= set(found.ingredients)
    assert set(found.alone_us) == set(found.without_us) == set(found.ingredients)
    assert found.us <= min(*found.alone_us.values(), *found.without_us.values(), found.tried[frozenset()].us)
    # One after the other, in the order in which they can be.
    in_turn = api.task(
        network, None, cost_model=api.cost_model("simulator", "v100-sxm2", engine="graph"), rewrite=RULES,
        rewrite_budget="6", micro_batch="auto", choose_joins=True, options=SearchOptions(company=True),
    )  # fmt: skip
    assert found.us <= in_turn.run().schedule.latency_us * (1 + 1e-9)


def test_its_network_is_made_again_and_computes_the_same(tmp_path: Path) -> None:
    network = residual_network()
    write_onnx(network.graph, tmp_path / "model.onnx", name="residual", network=network)
    command = f"optimize {tmp_path}/model.onnx -d v100-sxm2 --search joint --rewrite metaflow --rewrite-budget 2"
    said = " ".join(printed(f"{command} --out {tmp_path} --onnx {tmp_path}/chosen.onnx --no-plot --no-trace").split())
    assert "note: Joint search: " in said
    saved = Schedule.read(tmp_path / "schedule.json")
    joint = saved.options["joint"]
    assert {"rewriting", "joins", "micro_batches", "company"} == set(joint["without_us"]) == set(joint["alone_us"])
    assert saved.latency_us == pytest.approx(joint["us"])
    assert saved.latency_us < joint["given_us"]
    assert printed_json(f"explain {tmp_path}/schedule.json --json")["joint"] == joint
    assert "Joint search: " in printed(f"explain {tmp_path}/schedule.json")
    changed = network_of(saved)
    assert changed.graph.hash == saved.graph_hash
    inputs = random_inputs(changed)
    made = unscheduled(load(tmp_path / "chosen.onnx"), inputs).values()
    for value, wanted in zip(made, unscheduled(load(tmp_path / "model.onnx"), inputs).values(), strict=True):
        np.testing.assert_allclose(value, wanted, rtol=1e-3, atol=1e-4)


def trained() -> Network:
    """Two convolutions of four images, with the gradients of both weights and of what is between them."""
    b = GraphBuilder("trained")
    x = b.input("x", (4, 3, 14, 14))
    with b.block("maps"):
        x = b.conv(b.conv(x, 8, 3, padding=1, name="first"), 8, 3, stride=2, name="second")
    return training_network(b.network([x]))


@pytest.mark.parametrize("by", ["ios-both", "ios-streams"])
@pytest.mark.parametrize("made", [residual_network, trained, QUANTISED["chain"]])
def test_what_it_finds_is_free_of_races_and_computes_the_same(made: Callable[[], Network], by: str) -> None:
    """Of sums of branches, training steps and products of whole numbers; in stages and in streams."""
    network = made()
    prices = api.cost_model("simulator", "t4", network.precision, "graph")
    task = api.task(network, None, cost_model=prices, rewrite=RULES, rewrite_budget="2", search="joint")
    found: AnySchedule
    if by == "ios-streams":
        changed, found = search_streams(task, by)
    else:
        done = task.run()
        changed, found = done.network, done.schedule
    joint = found.options["joint"]
    assert ("streams" in joint["alone_us"]) == (by == "ios-streams")
    assert found.latency_us == pytest.approx(joint["us"])
    assert joint["us"] <= min(joint["given_us"], *joint["alone_us"].values(), *joint["without_us"].values())
    inputs = random_inputs(network)
    expected = unscheduled(network, inputs)
    for backend in ("numpy_reference", *["onnxruntime_cpu"][: find_spec("onnxruntime") is not None]):
        runs_on = create_backend(backend)
        plan = lower_schedule(for_backend(found, changed, runs_on)[0], changed, found.engine)
        check_happens_before(plan)
        for name, value in runs_on.execute(changed, plan, inputs).items():
            largest = float(np.abs(expected[name].astype(np.float64)).max())
            np.testing.assert_allclose(value, expected[name], rtol=1e-3, atol=1e-4 * max(1.0, largest))


def test_it_ends_in_time_with_the_best_so_far() -> None:
    network = residual_network()
    prices = api.cost_model("simulator", "v100-sxm2")
    soon = JointSearch(Rewrite(RULES)).apply(network, Setting(prices, "ios-both", SearchOptions(seconds=0.1)))
    assert not soon.interrupted
    assert soon.us <= soon.tried[frozenset()].us
    assert "the time was up" in soon.sentence()
    told = iter(range(3))

    def stops(label: str) -> object:
        def bar(done: int, total: int) -> None:
            if next(told, None) is None:
                raise KeyboardInterrupt

        return bar

    cut = JointSearch(Rewrite(RULES)).apply(network, Setting(prices, "ios-both", SearchOptions(), stops))  # type: ignore[arg-type]
    assert cut.interrupted
    assert cut.us <= cut.tried[frozenset()].us
    assert json.loads(json.dumps(cut.to_json()))["seen"] > 0


def test_a_block_that_takes_too_long_is_left_in_time() -> None:
    network = seeded_network(1, 6, blocks=1)
    clock = Clock(1e-9)
    prices = RandomCostModel()
    memo = SearchMemo(prices)
    for cost in (
        OptimalSchedule(prices, check=clock.check),
        BySchedule(prices, "ios-both", SearchOptions(), memo, clock.check),
    ):
        with pytest.raises(TimeIsUp):
            cost.us(network)
    assert BySchedule(prices, "ios-both", SearchOptions(), memo).us(network) == OptimalSchedule(prices).us(network)


def test_what_it_cannot_do_is_refused() -> None:
    for named, said in (
        ({"scheduler": "greedy"}, "needs a `scheduler` that searches"),
        ({"cost_model": "onnxruntime_cpu"}, "measures"),
        ({"micro_batch": 2}, "leave `micro_batch`"),
    ):
        device = None if "cost_model" in named else "t4"
        with pytest.raises(OptionError, match=said):
            api.task("squeezenet", device, search="joint", **named)
    for given, said in (
        ({"cost_model": RandomCostModel()}, "prices stages alone"),
        ({"device": "t4", "options": api.search_options(workspace_limit="1MiB")}, "is for stages"),
    ):
        with pytest.raises(OptionError, match=said):
            api.optimize_streams(residual_network(), **{"device": None, **given}, search="joint")  # type: ignore[arg-type]
    with pytest.raises(OptionError, match="`search` 'all' is not known"):
        api.task("squeezenet", "t4", search="all")  # type: ignore[arg-type]
