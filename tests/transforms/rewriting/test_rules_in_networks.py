"""The rules that ship are of use: they are found in real networks, and lead together where none leads alone."""

from __future__ import annotations

import numpy as np
import pytest

from iossim.ir.builder import GraphBuilder
from iossim.ir.graph import Graph
from iossim.ir.ops.conv import Conv
from iossim.ir.ops.slice import Concat
from iossim.ir.ops.unary import Relu
from iossim.models.load import load
from iossim.proving.refute import evaluate_real
from iossim.transforms.rewriting.application import apply
from iossim.transforms.rewriting.matching import find_matches
from iossim.transforms.rewriting.rule_sets import rule_set

RULES = {rule.name: rule for name in ("metaflow", "simplify") for rule in rule_set(name)}


@pytest.mark.parametrize(
    ("model", "names"),
    [
        ("squeezenet", ["enlarge-1x1-to-3x3", "merge-convolutions", "merge-relus-of-concat", "relus-of-concat-of-2"]),
        (
            "inception_v3",
            [
                "enlarge-1xk-to-3xk",
                "enlarge-kx1-to-kx3",
                "average-pool-into-1x1",
                "merge-convolutions",
                "relu-behind-max-pool",
                "relus-of-concat-of-4",
            ],
        ),
        ("resnet50", ["enlarge-1x1-to-3x3", "identity-beside-sum", "sum-of-convolutions", "merge-convolutions"]),
    ],
)
def test_they_are_found(model: str, names: list[str]) -> None:
    graph = load(model).graph
    for name in names:
        matches = find_matches(graph, RULES[name])
        assert matches, name
        assert apply(graph, matches[0]) is not None, name


def fire_module() -> Graph:
    """Squeeze, then 3x3 beside 1x1, joined."""
    builder = GraphBuilder("fire")
    x = builder.input("x", (1, 6, 7, 7))
    wide = builder.add(Relu(), convolution(builder, x, "3x3", (4, 6, 3, 3)))
    narrow = builder.add(Relu(), convolution(builder, x, "1x1", (5, 6, 1, 1)))
    return builder.network([builder.add(Concat(1), wide, narrow)]).graph


def convolution(builder: GraphBuilder, x: str, name: str, weight: tuple[int, ...]) -> str:
    pads = tuple(size // 2 for size in weight[2:])
    parameters = (builder.constant(f"w{name}", weight), builder.constant(f"b{name}", weight[:1]))
    return builder.add(Conv(pads=pads * 2), x, *parameters, name=name)


def test_a_fire_module_becomes_one_convolution() -> None:
    """Enlarging costs at first; merged with its neighbour, the 1x1 is gone, and so are split and concat."""
    graph = before = fire_module()
    steps = [
        "enlarge-1x1-to-3x3",
        "merge-convolutions",
        "relus-of-split-into-2",
        "concat-of-split-into-2",
        "concat-of-one",
    ]
    for name in steps:
        applied = apply(graph, find_matches(graph, RULES[name])[0])
        assert applied is not None, name
        graph = applied.graph
    assert [node.op.kind for node in graph.nodes] == ["conv", "relu"]
    assert graph.input_types(graph.nodes[0])[1].shape == (9, 6, 3, 3)
    x = {"x": np.random.default_rng(0).standard_normal((1, 6, 7, 7))}
    np.testing.assert_allclose(
        evaluate_real(graph, x)[graph.outputs[0]], evaluate_real(before, x)[before.outputs[0]], rtol=1e-5, atol=1e-6
    )
