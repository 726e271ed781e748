"""Networks of rewritten graphs."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from place_rules import SHIPPED

from iossim.api import optimize
from iossim.backends.numpy_reference.execute import evaluate_graph, execute
from iossim.execution.lower import lower_schedule
from iossim.execution.memory import plan_memory
from iossim.ir.graph import Graph
from iossim.ir.network import Network
from iossim.models.load import load
from iossim.models.onnx.export import write_onnx
from iossim.models.random_graphs import seeded_network
from iossim.transforms.rewriting.application import Step, apply, replay
from iossim.transforms.rewriting.matching import find_matches
from iossim.transforms.rewriting.rewritten import rewritten_network
from iossim.transforms.rewriting.rule import Rule

BY_NAME = {rule.name: rule for rule in SHIPPED}
#: Convolutions of one input become one, and what follows is pushed behind it.
MERGE = [
    rule
    for rule in SHIPPED
    if rule.name.startswith(
        ("merge-convolutions", "relus-of-split", "concat-of-split", "split-of-part", "concat-of-one")
    )
]


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
    enlarge = BY_NAME["enlarge-1x1-to-3x3"]
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
    applied = apply(network.graph, find_matches(network.graph, BY_NAME["enlarge-1x1-to-3x3"])[0])
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
    onnxruntime = pytest.importorskip("onnxruntime")
    network = seeded_network(12, units=16) if model == "seeded" else load(model)
    graph, steps = rewritten(network.graph, MERGE)
    if model == "squeezenet":
        enlarge = BY_NAME["enlarge-1x1-to-3x3"]
        for fire in ("fire2", "fire5", "fire9"):
            place = next(match for match in find_matches(graph, enlarge) if f"{fire}.expand1x1" in match.nodes[0])
            applied = apply(graph, place)
            assert applied is not None
            graph, more = rewritten(applied.graph, MERGE)
            steps += [applied.step, *more]
    assert len(steps) >= least
    assert replay(network.graph, steps, BY_NAME).nodes == graph.nodes
    made = rewritten_network(network, graph)
    check_network(made)
    random = np.random.default_rng(0)
    given = {name: random.standard_normal(graph.types[name].shape, np.float32) for name in graph.inputs}
    expected, found = evaluate_graph(network.graph, given), evaluate_graph(made.graph, given)
    schedule = optimize(made, "v100-sxm2")
    planned = execute(plan_memory(lower_schedule(schedule, made, in_place=True)), made, given, seed=1)
    write_onnx(made.graph, tmp_path / "model.onnx")
    session = onnxruntime.InferenceSession(tmp_path / "model.onnx", providers=["CPUExecutionProvider"])
    ran = dict(zip(graph.outputs, session.run(list(graph.outputs), given), strict=True))
    for name, value in expected.items():
        size = np.abs(value).max()
        for array in (found[name], planned[name], ran[name]):
            assert np.abs(array - value).max() <= 1e-4 * size
