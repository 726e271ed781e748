"""Networks of rewritten graphs: rules that ship are of use in them, and saved schedules carry rules and steps."""

import json
from collections import Counter
from pathlib import Path

import pytest
from place_rules import DEFAULT, NAMED, SHIPPED
from random_places import check_outputs

import iossim
from iossim import api
from iossim.base.errors import IossimError, OptionError
from iossim.cost.random import RandomCostModel
from iossim.ir.graph import Graph
from iossim.ir.network import Network
from iossim.models.load import load
from iossim.models.random_graphs import seeded_network
from iossim.transforms.replay import split_source
from iossim.transforms.rewriting.application import ReplayError, Step, apply, replay
from iossim.transforms.rewriting.backtracking import RewriteBudget
from iossim.transforms.rewriting.graph_costs import SumOfOperators
from iossim.transforms.rewriting.matching import find_matches
from iossim.transforms.rewriting.parts import search_in_parts
from iossim.transforms.rewriting.rewritten import OPTION, rewritten_again, rewritten_network, with_rewriting
from iossim.transforms.rewriting.rule import Rule

#: Convolutions of one input become one, and the ops that follow run after it.
MERGED = ("merge-convolutions", "relus-of-split", "concat-of-split", "split-of-part", "concat-of-one")
MERGE = [rule for rule in SHIPPED if rule.name.startswith(MERGED)]


def rewritten(graph: Graph, rules: list[Rule], most: int = 200) -> tuple[Graph, list[Step]]:
    """The graph after the first match of the first rule that has one, again and again."""
    steps = []
    while len(steps) < most:
        found = (apply(graph, match) for rule in rules for match in find_matches(graph, rule))
        applied = next((each for each in found if each is not None), None)
        if applied is None:
            break
        graph = applied.graph
        steps.append(applied.step)
    return graph, steps


def check_network(network: Network) -> None:
    """Units are convex and in topological order, as are blocks."""
    block_of = {unit: index for index, block in enumerate(network.blocks) for unit in block.units}
    for index, predecessors in enumerate(network.predecessors):
        assert all(before < index for before in predecessors)
        assert all(block_of[before] <= block_of[index] for before in predecessors)


def test_the_same_graph_is_the_same_network() -> None:
    network = load("squeezenet")
    assert rewritten_network(network, network.graph) is network


def test_untouched_units_stay_and_a_relu_joins_its_convolution() -> None:
    network = load("squeezenet")
    enlarge = NAMED["enlarge-1x1-to-3x3"]
    place = next(match for match in find_matches(network.graph, enlarge) if "expand1x1" in match.nodes[0])
    applied = apply(network.graph, place)
    assert applied is not None
    made = rewritten_network(network, applied.graph)
    check_network(made)
    before = {unit.name: unit.kind for unit in network.units}
    after = {unit.name: unit.kind for unit in made.units}
    broken = network.units[network.unit_of_value[place.nodes[0]]]
    assert before.items() - after.items() <= {(broken.name, broken.kind)}
    assert Counter(before.values()) == Counter(after.values())
    assert sum(len(block.units) for block in made.blocks) == len(made.units)


def test_blocks_stay_as_small_as_they_were_asked_for() -> None:
    network = load("squeezenet", max_block=3)
    applied = apply(network.graph, find_matches(network.graph, NAMED["enlarge-1x1-to-3x3"])[0])
    assert applied is not None
    made = rewritten_network(network, applied.graph)
    assert max(len(block.units) for block in made.blocks) == 3


@pytest.mark.parametrize("seed", range(12))
def test_units_and_blocks_of_random_networks(seed: int) -> None:
    network = seeded_network(seed, units=9)
    rules = [SHIPPED[(seed * 5 + place * 3) % len(SHIPPED)] for place in range(12)]
    graph, _ = rewritten(network.graph, [*MERGE, *rules], most=15)
    check_network(rewritten_network(network, graph))


@pytest.mark.parametrize(
    ("model", "least"),
    [
        ("seeded", 5),
        pytest.param("squeezenet", 12, marks=pytest.mark.slow),
        pytest.param("inception_v3", 35, marks=pytest.mark.slow),
        pytest.param("resnet50", 1, marks=pytest.mark.slow),
    ],
)
def test_whole_networks_compute_the_same(model: str, least: int, tmp_path: Path) -> None:
    network = seeded_network(12, units=16) if model == "seeded" else load(model)
    graph, steps = rewritten(network.graph, MERGE)
    if model == "squeezenet":
        enlarge = NAMED["enlarge-1x1-to-3x3"]
        for fire in ("fire2", "fire5", "fire9"):
            place = next(match for match in find_matches(graph, enlarge) if f"{fire}.expand1x1" in match.nodes[0])
            applied = apply(graph, place)
            assert applied is not None
            graph, more = rewritten(applied.graph, MERGE)
            steps += [applied.step, *more]
    assert len(steps) >= least
    assert replay(network.graph, steps, NAMED).nodes == graph.nodes
    made = rewritten_network(network, graph)
    check_network(made)
    check_outputs(network, made, "v100-sxm2", tmp_path)


SQUEEZENET = ("enlarge-1x1-to-3x3", "merge-convolutions", "merge-relus-of-concat", "relus-of-concat-of-2")
INCEPTION = (
    "enlarge-1xk-to-3xk",
    "enlarge-kx1-to-kx3",
    "average-pool-into-1x1",
    "relu-behind-max-pool",
    "relus-of-concat-of-4",
)
RESNET = ("enlarge-1x1-to-3x3", "identity-beside-sum", "sum-of-convolutions", "merge-convolutions")


@pytest.mark.parametrize(
    ("model", "names"), [("squeezenet", SQUEEZENET), ("inception_v3", INCEPTION), ("resnet50", RESNET)]
)
def test_they_are_found(model: str, names: tuple[str, ...]) -> None:
    graph = load(model).graph
    for name in names:
        matches = find_matches(graph, NAMED[name])
        assert matches, name
        assert apply(graph, matches[0]) is not None, name


def given_and_rewritten() -> tuple[Network, Network]:
    network = seeded_network(1, units=6, blocks=2)
    best = search_in_parts(network, DEFAULT, SumOfOperators(RandomCostModel(1)), budget=RewriteBudget(graphs=12)).best
    return network, with_rewriting(best.network, best.steps, DEFAULT)


def test_a_network_is_rewritten_again_from_its_source() -> None:
    network, made = given_and_rewritten()
    source, texts = split_source(made.source)
    assert source == network.source
    text = texts[OPTION]
    again = rewritten_again(network, text)
    assert (again.graph.nodes, again.graph.types) == (made.graph.nodes, made.graph.types)
    for part in ("units", "blocks", "source", "reading"):
        assert getattr(again, part) == getattr(made, part)
    assert "The graph is rewritten by" in made.remarks[-1]
    applied = {step["rule"] for step in json.loads(text)["steps"]}
    assert all((rule.name in text) == (rule.name in applied) for rule in DEFAULT)


def test_what_is_no_rewriting_is_refused() -> None:
    network, made = given_and_rewritten()
    text = dict(made.source.options)[OPTION]
    for broken in ("", "[]", "{}", '{"rules": 3, "steps": []}', text[:-5], text.replace('"nodes"', '"notes"')):
        with pytest.raises(IossimError):
            rewritten_again(network, broken)
    with pytest.raises(ReplayError, match="take the steps from the graph"):
        rewritten_again(seeded_network(3, units=6, blocks=1), text)
    steps = [Step.from_json(step) for step in json.loads(text)["steps"]]
    with pytest.raises(OptionError, match="rewritten already"):
        with_rewriting(made, steps, DEFAULT)
    assert with_rewriting(network, (), DEFAULT) is network


def test_a_schedule_of_a_rewritten_network_is_read_as_any_other(tmp_path: Path) -> None:
    path = tmp_path / "schedule.json"
    given = iossim.load("inception_v3", block=3)
    found = iossim.optimize(given, "v100-sxm2", rewrite="metaflow,simplify", rewrite_budget="12", unproved=True)
    found.save(path)
    assert api.simulate(path).latency_us == pytest.approx(found.latency_us)
    saved, network = api.read_any_schedule(path)
    assert network.graph.hash == saved.graph_hash != given.graph.hash
