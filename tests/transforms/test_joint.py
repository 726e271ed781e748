"""The joint search, and joins fused or apart by price: never above any ingredient, saved and found again, the same outputs."""

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from importlib.util import find_spec
from itertools import product
from math import inf
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from command_line import printed, printed_json, refused
from graph_builders import builder_with
from place_rules import DEFAULT, every_graph
from quantised_networks import QUANTISED
from random_networks import random_inputs

from iossim import api
from iossim.api import cost_model
from iossim.backends.numpy_reference.backend import evaluate_graph
from iossim.base.errors import GraphError, OptionError, ScheduleError
from iossim.cost.random import RandomCostModel
from iossim.execution.backend import create_backend
from iossim.execution.lower import lower_schedule
from iossim.execution.memory import check_happens_before
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
from iossim.schedule.schedule import Schedule
from iossim.search import anytime
from iossim.search.anytime import Clock, TimeIsUp
from iossim.search.memo import BlockQuestion, SearchMemo
from iossim.search.options import SearchOptions
from iossim.search.scheduler import schedule
from iossim.tasks.measured_schedules import for_backend
from iossim.tasks.stream_explain import run_streams
from iossim.tasks.task import Scheduled, Task
from iossim.transforms.choices import BySchedule, GraphCost
from iossim.transforms.fused_joins import ChooseJoins, JoinChoices
from iossim.transforms.joint import JointlyFound, JointSearch
from iossim.transforms.replay import joined_again, network_of
from iossim.transforms.rewriting.backtracking import RewriteBudget
from iossim.transforms.rewriting.graph_costs import OptimalSchedule
from iossim.transforms.rewriting.parts import search_in_parts
from iossim.transforms.rewriting.rewritten import rewritten_network
from iossim.transforms.rewriting.rule import Rule
from iossim.transforms.rewriting.scheduled import Rewrite
from iossim.transforms.transform import Changed, Setting

#: Graphs that are all looked at.
MOST_GRAPHS = 60
#: Rules of which only so many graphs can be made.
FEW = tuple(rule for rule in DEFAULT if rule.name in ("merge-convolutions", "enlarge-1x1-to-3x3", "relu-of-relu"))


def residual_network(blocks: int = 2, batch: int = 2) -> Network:
    """Blocks of two branches of convolutions and the sum of both, which the second may compute."""
    b, x = builder_with("residual", x=(batch, 8, 14, 14))
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


@pytest.mark.parametrize("seed", [2, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(3, 303))])
def test_it_finds_what_exhaustive_search_finds(seed: int) -> None:
    """With random rules, on batches that are divided in various ways, at random prices."""
    prices, random = RandomCostModel(seed=seed), Random(seed)
    network = (
        residual_network(1) if seed % 3 == 0 else seeded_network(seed, 4, blocks=1, batch=random.choice((2, 3, 4)))
    )
    rules: Sequence[Rule] = FEW if seed % 2 == 0 else random.sample(DEFAULT, 4)
    graphs = every_graph(network.graph, rules, MOST_GRAPHS)
    rules = rules if len(graphs) > 1 else ()
    best_us = min(EveryWay(prices).us(rewritten_network(network, graph)) for graph in graphs)
    own = BySchedule(prices, "ios-both", SearchOptions(), SearchMemo(prices))
    divisions = DivisionChoices(own, own.scheduler)
    joins = JoinChoices(divisions, own)
    divisions.exhausts = joins.exhausts = True
    found = search_in_parts(network, rules, joins, alpha=inf)
    assert found.best.cost_us == pytest.approx(best_us)
    # Each block is solved once: all networks that were scheduled have fewer solutions than blocks.
    scheduled = sum(len(each.blocks) for each in own._found)
    assert len({key.block for key in own.memo._found if isinstance(key, BlockQuestion)}) <= scheduled


def jointly(network: Network, *, company: bool = False, scheduler: str = "ios-both") -> JointlyFound:
    prices = api.cost_model("simulator", "v100-sxm2", engine="graph")
    rewrite = Rewrite(DEFAULT, budget=RewriteBudget(graphs=6))
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
        network, None, cost_model=api.cost_model("simulator", "v100-sxm2", engine="graph"), rewrite=DEFAULT,
        rewrite_budget="6", micro_batch="auto", choose_joins=True, options=SearchOptions(company=True),
    )  # fmt: skip
    assert found.us <= in_turn.run().schedule.latency_us * (1 + 1e-9)


def test_its_network_is_made_again_and_computes_the_same(tmp_path: Path) -> None:
    network = residual_network()
    write_onnx(network.graph, tmp_path / "model.onnx", name="residual", network=network)
    command = f"optimize {tmp_path}/model.onnx -d v100-sxm2 --search joint --rewrite metaflow --rewrite-budget 2"
    said = " ".join(printed(f"{command} --out {tmp_path} --onnx {tmp_path}/chosen.onnx --no-plot --no-trace").split())
    assert "note: Joint search: " in said
    assert "the time was up" not in said
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
    made = evaluate_graph(load(tmp_path / "chosen.onnx").graph, inputs).values()
    for value, wanted in zip(made, evaluate_graph(load(tmp_path / "model.onnx").graph, inputs).values(), strict=True):
        np.testing.assert_allclose(value, wanted, rtol=1e-3, atol=1e-4)


def trained() -> Network:
    """Two convolutions of four images, with the gradients of both weights and of what is between them."""
    b, x = builder_with("trained", x=(4, 3, 14, 14))
    with b.block("maps"):
        x = b.conv(b.conv(x, 8, 3, padding=1, name="first"), 8, 3, stride=2, name="second")
    return training_network(b.network([x]))


@pytest.mark.parametrize("by", ["ios-both", "ios-streams"])
@pytest.mark.parametrize("made", [residual_network, trained, QUANTISED["chain"]])
def test_what_it_finds_is_free_of_races_and_computes_the_same(made: Callable[[], Network], by: str) -> None:
    """Of sums of branches, training steps and products of whole numbers; in stages and in streams."""
    network = made()
    prices = api.cost_model("simulator", "t4", network.precision, "graph")
    task = api.task(network, None, cost_model=prices, rewrite=DEFAULT, rewrite_budget="2", search="joint")
    done: Scheduled[Any] = run_streams(task, by) if by == "ios-streams" else task.run()
    changed, found = done.network, done.schedule
    joint = found.options["joint"]
    assert ("streams" in joint["alone_us"]) == (by == "ios-streams")
    assert found.latency_us == pytest.approx(joint["us"])
    assert joint["us"] <= min(joint["given_us"], *joint["alone_us"].values(), *joint["without_us"].values())
    inputs = random_inputs(network)
    expected = evaluate_graph(network.graph, inputs)
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
    soon = JointSearch(Rewrite(DEFAULT)).apply(network, Setting(prices, "ios-both", SearchOptions(seconds=0.1)))
    assert not soon.interrupted
    assert soon.us <= soon.tried[frozenset()].us
    assert "the time was up" in soon.sentence()
    told = iter(range(3))

    def stops(label: str) -> object:
        def bar(done: int, total: int) -> None:
            if next(told, None) is None:
                raise KeyboardInterrupt

        return bar

    cut = JointSearch(Rewrite(DEFAULT)).apply(network, Setting(prices, "ios-both", SearchOptions(), stops))  # type: ignore[arg-type]
    assert cut.interrupted
    assert cut.us <= cut.tried[frozenset()].us
    assert json.loads(json.dumps(cut.to_json()))["seen"] > 0


def test_steps_that_take_all_the_time_leave_a_quarter_to_the_schedule(monkeypatch: pytest.MonkeyPatch) -> None:
    """A proven schedule counts within whatever seconds."""
    asked, now = [], [0.0]
    network, prices = residual_network(), RandomCostModel()
    memo = SearchMemo(prices)
    proven = schedule(network, prices, "ios-both", SearchOptions(), memo=memo)
    assert schedule(network, prices, "ios-both", SearchOptions(seconds=1e-3), memo=memo) is proven
    monkeypatch.setattr(anytime, "perf_counter", lambda: now[0])
    monkeypatch.setattr(Task, "change", lambda task, *given: now.append(now.pop() + 60) or Changed(task.network))
    monkeypatch.setattr(Task, "search", lambda task, *given: asked.append(task.options.seconds) or proven)
    for seconds in (4.0, 80.0):
        Task(network, prices, options=SearchOptions(seconds=seconds), transforms=(JointSearch(None),)).run()
    assert asked == [1.0, 20.0]


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


def written(network: Network, folder: Path) -> Path:
    """The network in a file that does not say its units, as other exporters write them."""
    path, *_ = write_onnx(network.graph, folder / f"{network.name}.onnx")
    return path


def best_us(model: str | Path, device: str = "t4", **options: str) -> float:
    return api.compare(str(model), device, schedulers=["sequential", "ios-both"], **options).best.latency_us  # type: ignore[arg-type]


@pytest.mark.parametrize(("name", "device"), [("squeezenet", "t4"), ("resnet18", "t4"), ("resnet18", "h100-sxm")])
def test_a_network_and_a_file_of_it_without_units_take_the_same(name: str, device: str, tmp_path: Path) -> None:
    assert best_us(written(load(name), tmp_path), device) == pytest.approx(best_us(name, device), rel=2e-3)


def test_what_is_better_apart_is_apart(tmp_path: Path) -> None:
    """An MLP's gate may run beside what it is multiplied with: 3% of a decoder, which fusing loses."""
    path = written(load("moe_shared"), tmp_path)
    path.with_name(f"{path.name}.weights").unlink()  # two gigabytes, which prices do not need
    found = api.compare(str(path), "t4", schedulers=["ios-both"])
    assert found["ios-both"].latency_us > 1.01 * found.best.latency_us
    assert "joins of branches are apart from products: faster here" in found.outcomes[0].sentence()
    least = {"chosen": 88.9, "fused": 89.2, "apart": 88.9}  # that is written alike
    alike = replace(found.outcomes[0], latency_us=least)
    assert "no slower here (0.089 ms against 0.089 ms" in alike.sentence()


def test_no_way_of_all_blocks_is_better_than_the_best_of_each() -> None:
    network, prices = load("squeezenet"), cost_model("simulator", "t4")
    chosen = ChooseJoins().apply(network, Setting(prices, "ios-both", SearchOptions()))
    names, found = sorted(joins_of(network).apart), {}
    for count in range(2 ** len(names)):
        fused = tuple(name for place, name in enumerate(names) if count >> place & 1)
        found[fused] = schedule(with_joins(network, fused), prices, "ios-both").latency_us
    assert chosen.latency_us["chosen"] == min(found.values())
    assert chosen.fused == min(found, key=lambda way: found[way])
    assert (chosen.fused_count, chosen.latency_us["given"]) == (3, found[()])


def test_a_saved_schedule_brings_its_units_along(tmp_path: Path) -> None:
    path = written(load("squeezenet"), tmp_path)
    for model in (str(path), "squeezenet"):
        said = printed(f"optimize {model} -d t4 --out {tmp_path}/out --no-plot --no-trace")
        assert "3 of 4 adds are fused into convolutions: faster here" in " ".join(said.split())
        saved = Schedule.read(tmp_path / "out" / "schedule.json")
        assert len(network_of(saved).units) == 47
        assert "joins" in saved.source.options
        printed(f"explain {tmp_path}/out/schedule.json")
        assert printed_json(f"simulate {tmp_path}/out/schedule.json --json")["latency_us"] == saved.latency_us
        # Written as a model, it is the network that was scheduled: nothing is left to choose.
        printed(f"optimize {model} -d t4 --onnx {tmp_path}/chosen.onnx")
        again = printed_json(f"compare {tmp_path}/chosen.onnx -d t4 --json")
        assert min(found["latency_us"] for found in again["schedules"]) == saved.latency_us
        assert again["joins"]["schedules"] == []


def test_units_that_are_asked_for_are_kept(tmp_path: Path) -> None:
    path = written(load("squeezenet"), tmp_path)
    units = {}
    for model in ("squeezenet", path):
        for policy in ("model", "fused", "apart"):
            compared = printed_json(f"compare {model} -d t4 --units {policy} --schedulers sequential --json")
            assert compared["joins"] is None
            units[str(model), policy] = compared["schedules"][0]["stages"]
    assert list(units.values()) == [50, 46, 50, 46, 46, 50]
    compared = printed_json(f"compare {path} -d t4 --json")
    assert compared["joins"]["latency_us"].keys() == {"given", "fused", "apart", "chosen"}
    assert [row["way"] for row in compared["joins"]["schedules"]] == ["partly fused"] * 2
    assert "(general stages) for these joins" in " ".join(printed(f"compare {path} -d t4").split())
    # What measures, and what ends in time, takes the units as they are.
    for options in ("--cost-model random:1", "--seconds 5"):
        assert printed_json(f"compare {path} -d t4 {options} --json")["joins"] is None


def test_a_network_that_is_given_is_scheduled_as_it_is() -> None:
    network = load("squeezenet")
    assert api.compare(network, "t4").outcomes == ()
    assert network_units(api.optimize(network, "t4")) == {unit.name for unit in network.units}
    assert network_units(api.optimize(network, "t4", choose_joins=True)) != {unit.name for unit in network.units}


def network_units(found: Schedule) -> set[str]:
    return {unit for stage in found.stages for unit in stage.units}


def test_an_interrupt_keeps_the_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*given: object, **named: object) -> Schedule:
        raise KeyboardInterrupt

    monkeypatch.setattr("iossim.transforms.choices.schedule", interrupted)
    network = load("squeezenet")
    found = ChooseJoins().apply(network, Setting(cost_model("simulator", "t4"), "ios-both", SearchOptions()))
    assert (found.network, found.interrupted, found.sentence()) == (network, True, "")


@pytest.mark.parametrize("text", ["", "[]", '{"fused": 1}', '{"fused": []}'])
def test_a_source_that_names_no_joins(text: str, tmp_path: Path) -> None:
    with pytest.raises(ScheduleError, match="names no joins"):
        joined_again(load("squeezenet"), text)
    found = api.optimize("squeezenet", "t4")
    broken = replace(found.source.to_source(), options=(("joins", text),))
    saved = json.loads(found.model_dump_json()) | {"source": {"model": broken.model, "options": dict(broken.options)}}
    (tmp_path / "schedule.json").write_text(json.dumps(saved))
    refused(f"simulate {tmp_path}/schedule.json")
