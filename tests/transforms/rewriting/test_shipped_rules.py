"""The rules that ship: each computes the same on both sides, at shapes chosen by hand; verification tries many more."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from rule_instances import Instance, instantiate

import iossim
from iossim.proving.refute import evaluate_exact, evaluate_real, is_exact_graph, random_elements
from iossim.search.options import SearchOptions
from iossim.transforms.rewriting.backtracking import RewriteBudget
from iossim.transforms.rewriting.rule import Rule
from iossim.transforms.rewriting.rule_sets import DEFAULT_RULES, RULE_SETS, rule_set, rules_named
from iossim.transforms.rewriting.scheduled import Rewrite
from iossim.transforms.rewriting.verdict import trusted
from iossim.transforms.transform import Setting

PLAIN = {"s": (1, 1), "p": (0, 0, 0, 0), "d": (1, 1)}
STRIDED = {"s": (2, 1), "p": (1, 2, 0, 1), "d": (2, 1)}
X, Y = (2, 4, 9, 8), (2, 4, 9, 8)
Case = tuple[dict[str, Any], dict[str, Any]]


def biases(attributes: dict[str, Any], shapes: dict[str, Any], **sizes: int) -> list[Case]:
    """With each bias given, with all of them, and with none."""
    choices = [(), tuple(sizes), *((name,) for name in sizes if len(sizes) > 1)]
    return [
        (attributes, shapes | {name: (size,) if name in given else None for name, size in sizes.items()})
        for given in choices
    ]


METAFLOW: dict[str, list[Case]] = {
    "enlarge-1x1-to-3x3": [
        *biases({**PLAIN, "g": 1}, {"x": X, "w": (6, 4, 1, 1)}, b=6),
        *biases({**STRIDED, "g": 2}, {"x": X, "w": (6, 2, 1, 1)}, b=6),
    ],
    "enlarge-1xk-to-3xk": [
        *biases({**PLAIN, "g": 1}, {"x": X, "w": (6, 4, 1, 3)}, b=6),
        *biases({**STRIDED, "g": 4}, {"x": X, "w": (4, 1, 1, 7)}, b=4),
    ],
    "enlarge-kx1-to-kx3": [
        *biases({**PLAIN, "g": 1}, {"x": X, "w": (6, 4, 3, 1)}, b=6),
        *biases({**STRIDED, "g": 4}, {"x": X, "w": (4, 1, 2, 1)}, b=4),
    ],
    "enlarge-3x3-to-5x5": [
        *biases({**PLAIN, "g": 1}, {"x": X, "w": (6, 4, 3, 3)}, b=6),
        *biases({**STRIDED, "g": 2}, {"x": X, "w": (6, 2, 3, 3)}, b=6),
    ],
    "identity-beside-concat": [
        *biases({"p": (1, 0, 1, 0), "d": (1, 1)}, {"x": X, "w": (3, 4, 3, 1), "before": (), "after": ()}, b=3),
        *biases(
            {"p": (1, 4, 1, 4), "d": (1, 2)}, {"x": X, "w": (3, 4, 3, 5), "before": ((2, 1, 9, 8),), "after": (X, X)}, b=3
        ),
    ],
    "identity-beside-sum": [
        *biases({**STRIDED}, {"t": X, "w": (6, 4, 3, 3), "x": (2, 6, 3, 9)}, b=6),
        *biases({**PLAIN}, {"t": X, "w": (6, 4, 1, 1), "x": (2, 6, 9, 8)}, b=6),
    ],
    "halve-groups": [
        *biases({**STRIDED, "g": 4}, {"x": (2, 12, 9, 8), "w": (8, 3, 3, 2)}, b=8),
        *biases({**PLAIN, "g": 2}, {"x": X, "w": (2, 2, 1, 1)}, b=2),
    ],
    "average-pool-into-1x1": [
        *biases({"s": (1, 2), "p": (1, 1, 1, 0), "d": (2, 1), "e": (1, 1)}, {"x": X, "w": (5, 4, 1, 1)}, b=5)
    ],
    "merge-convolutions": [
        *biases(PLAIN, {"x": X, "w1": (6, 4, 1, 1), "w2": (3, 4, 1, 1)}, b1=6, b2=3),
        *biases(STRIDED, {"x": X, "w1": (1, 4, 3, 2), "w2": (2, 4, 3, 2)}, b1=1, b2=2),
    ],
    "merge-branches": [
        *biases(
            {**STRIDED, "g1": 1, "g2": 2},
            {"x1": (2, 3, 9, 8), "x2": (2, 6, 9, 8), "w1": (2, 3, 3, 2), "w2": (4, 3, 3, 2), "before": (), "after": ()},
            b1=2, b2=4,
        ),
        *biases(
            {**PLAIN, "g1": 1, "g2": 1},
            {"x1": X, "x2": Y, "w1": (2, 4, 1, 1), "w2": (2, 4, 1, 1), "before": (X,), "after": (X, X)},
            b1=2, b2=2,
        ),
    ],
    "sum-of-convolutions": [
        *biases(STRIDED, {"x1": X, "x2": (2, 3, 9, 8), "w1": (5, 4, 3, 2), "w2": (5, 3, 3, 2)}, b1=5, b2=5)
    ],
    "sum-of-convolutions-of-one-input": [
        *biases({**STRIDED, "g": 2}, {"x": X, "w1": (6, 2, 3, 2), "w2": (6, 2, 3, 2)}, b1=6, b2=6)
    ],
    "fold-1x1-behind-convolution": [
        *biases({**STRIDED, "e": (1, 1)}, {"x": X, "w1": (5, 4, 3, 2), "w2": (3, 5, 1, 1)}, b1=5, b2=3)
    ],
    "fold-batch-norm": [
        *biases(
            {**STRIDED, "g": 2, "e": 1e-3},
            {"x": X, "w": (6, 2, 3, 2)} | dict.fromkeys(("scale", "shift", "mean", "variance"), (6,)),
            b=6,
        )
    ],
    "fold-scale": [
        *biases({**STRIDED, "g": 2}, {"x": X, "w": (6, 2, 3, 2), "c": (1, 6, 1, 1)}, b=6),
        *biases({**PLAIN, "g": 1}, {"x": X, "w": (6, 4, 3, 2), "c": (6, 1, 1)}, b=6),
    ],
    "fold-shift": [
        *biases({**STRIDED, "g": 2}, {"x": X, "w": (6, 2, 3, 2), "c": (1, 6, 1, 1)}, b=6),
        *biases({**PLAIN, "g": 1}, {"x": X, "w": (6, 4, 3, 2), "c": (6, 1, 1)}, b=6),
    ],
    "merge-products": [
        ({}, {"x": (5, 4), "w1": (4, 3), "w2": (4, 1)}),
        ({}, {"x": (4,), "w1": (4, 3), "w2": (4, 2)}),
        ({}, {"x": (2, 3, 5, 4), "w1": (4, 3), "w2": (4, 2)}),
    ],
    "merge-relus-of-concat": [
        ({"a": 1}, {"x1": X, "x2": (2, 1, 9, 8), "before": (), "after": ()}),
        ({"a": 0}, {"x1": (3, 2), "x2": (1, 2), "before": ((1, 2),), "after": ((2, 2), (1, 2))}),
    ],
    "products-associate": [
        ({}, {"x": (2, 5, 4), "v": (4, 3), "w": (3, 6)}),
        ({}, {"x": (4,), "v": (4, 3), "w": (3, 6)}),
    ],
    "products-distribute": [
        ({}, {"x1": (5, 4), "x2": (5, 4), "w": (4, 3)}),
        ({}, {"x1": (2, 5, 4), "x2": (2, 5, 4), "w": (2, 4, 3)}),
    ],
    "relu-behind-max-pool": [
        ({"k": (3, 2), "s": (2, 2), "p": (1, 1, 2, 0), "c": False}, {"x": X}),
        ({"k": (2, 2), "s": (2, 3), "p": (0, 1, 1, 1), "c": True}, {"x": X}),
    ],
    "concat-of-sums": [
        ({"a": 1}, {"x1": X, "y1": Y, "x2": (2, 1, 9, 8), "y2": (2, 1, 9, 8), "before": (), "after": (X,)}),
        ({"a": -1}, {"x1": (2, 3), "y1": (2, 3), "x2": (2, 1), "y2": (2, 1), "before": ((2, 5), (2, 1)), "after": ()}),
    ],
}  # fmt: skip


def _simplify() -> dict[str, list[Case]]:
    few = [(2, size, 3) for size in (1, 2, 4, 2)]
    around: dict[str, Any] = {"before": ((2, 5, 3),), "after": ((2, 1, 3), (2, 2, 3))}
    bare: dict[str, Any] = {"before": (), "after": ()}
    cases: dict[str, list[Case]] = {
        "identity": [({}, {"x": X})],
        "concat-of-one": [({"a": 1}, {"x": X})],
        "split-into-one": [({"a": 1, "n": (4,)}, {"x": X})],
        "sum-of-one": [({}, {"x": X})],
        "reshape-to-same": [({"s": (2, 0, 9, -1)}, {"x": X})],
        "flatten-of-matrix": [({"a": 1}, {"x": (3, 4)})],
        "slice-of-all": [({"b": (0,), "e": (99,), "a": (1,)}, {"x": X}), ({"b": (-4,), "e": (4,), "a": (-3,)}, {"x": X})],
        "first-slice-of-concat": [({"a": 1}, {"x": X, "rest": (Y, Y)}), ({"a": -1}, {"x": X, "rest": ()})],
        "last-slice-of-concat": [({"a": 1}, {"x": X, "rest": (Y, Y)}), ({"a": 1}, {"x": X, "rest": ()})],
        "shifts-of-split-into-2": [({"a": 2, "n": (1, 3)}, {"x": (2, 3, 4), "c1": (1,), "c2": (3,)})],
        "shifts-of-split-into-3": [({"a": 1, "n": (2, 1, 3)}, {"x": (2, 6), "c1": (2,), "c2": (1,), "c3": (3,)})],
        "relu-of-relu": [({}, {"x": X})],
        "concat-of-concat": [
            ({"a": 1}, {"x": few[0], "others": tuple(few[1:]), **around}),
            ({"a": 1}, {"x": X, "others": (), **bare}),
        ],
        "reshape-of-reshape": [({"s": (8, 72), "t": (2, -1, 8)}, {"x": X})],
        "flatten-of-reshape": [({"s": (8, 9, 8), "t": 2}, {"x": X})],
        "reshape-of-flatten": [({"s": 2, "t": (2, -1, 8)}, {"x": X})],
        "flatten-of-flatten": [({"s": 2, "t": 0}, {"x": X})],
    }  # fmt: skip
    for n in (2, 3, 4):
        shape, turned = tuple(range(2, 2 + n)), (*range(1, n), 0)
        parts = dict(zip(("x1", "x2", "x3", "x4"), few[:n], strict=False))
        sizes = tuple(size for _, size, _ in few[:n])
        x = (2, sum(sizes), 3)
        cases[f"transpose-by-identity-{n}d"] = [({}, {"x": shape})]
        cases[f"transpose-of-transpose-{n}d"] = [({"p": turned, "q": turned}, {"x": shape})]
        cases[f"concat-of-split-into-{n}"] = [({"a": 1, "n": sizes}, {"x": x, **each}) for each in (around, bare)]
        cases[f"split-of-concat-of-{n}"] = [({"a": 1}, parts), ({"a": -2}, parts)]
        cases[f"relus-of-concat-of-{n}"] = [({"a": 1}, parts)]
        cases[f"relus-of-split-into-{n}"] = [({"a": 1, "n": sizes}, {"x": x})]
        for m in (2, 3):
            for place in range(n):
                if n + m < 6:
                    outer = tuple(7 if index == place else 1 + index for index in range(n))
                    inner = (2, 5) if m == 2 else (1, 2, 4)
                    shapes = {"x": (2, sum(outer), 3)}
                    cases[f"split-of-part-{place + 1}-of-{n}-into-{m}"] = [({"a": 1, "s": outer, "t": inner}, shapes)]
    return cases


def _layouts() -> dict[str, list[Case]]:
    nhwc, window = (2, 9, 8, 4), {"k": (3, 2), "s": (2, 1), "p": (1, 1, 2, 0), "d": (1, 1), "c": True}
    turned, back = (0, 2, 3, 1), (0, 3, 1, 2)
    cases: dict[str, list[Case]] = {
        "conv-to-nhwc": biases(STRIDED, {"x": X, "w": (6, 4, 3, 2)}, b=6),
        "conv-to-nchw": biases(STRIDED, {"x": nhwc, "w": (6, 4, 3, 2)}, b=6),
        "relu-of-transposed": [({"p": back}, {"x": nhwc})],
        "clip-of-transposed": [({"p": back, "low": -0.5, "high": 2.0}, {"x": nhwc})],
        "sigmoid-of-transposed": [({"p": turned}, {"x": X})],
        "unary-of-transposed": [({"p": turned, "f": "tanh", "q": ()}, {"x": X})],
        "sum-of-transposed": [({"p": back}, {"x": nhwc, "y": (2, 1, 8, 1)})],
        "product-of-transposed": [({"p": back}, {"x": nhwc, "y": (2, 1, 8, 1)})],
        "sum-with-nchw": [({}, {"x": nhwc, "y": X})],
        "from-nhwc-and-back": [({}, {"x": nhwc})],
        "from-nchw-and-back": [({}, {"x": X})],
        "one-transpose-for-two": [({"p": back}, {"x": nhwc})],
        "images-of-one-pixel": [({}, {"x": (3, 1, 1, 5)})],
        "matmul-by-columns-on-the-right": [({}, {"x": (2, 3), "y": (4, 3)})],
        "matmul-by-columns-on-the-left": [({}, {"x": (3, 2), "y": (3, 4)})],
        "weights-of-product-by-columns": [({}, {"x": (2, 3), "w": (3, 4)})],
    }
    for way, x in (("of-nhwc", nhwc), ("of-nchw", X)):
        cases[f"conv-{way}"] = biases(STRIDED, {"x": x, "w": (6, 4, 3, 2)}, b=6)
        cases[f"max-pool-{way}"] = [(window, {"x": x})]
        cases[f"average-pool-{way}"] = [({**window, "i": include}, {"x": x}) for include in (True, False)]
        cases[f"global-average-pool-{way}"] = cases[f"global-max-pool-{way}"] = [({}, {"x": x})]
    for n in (2, 3, 4, 6):
        cases[f"concat-of-{n}-transposed"] = [
            ({"p": back, "a": 1}, {f"x{place + 1}": (2, 9, 8, 1 + place) for place in range(n)})
        ]
    for way in ("columns", "rows"):
        cases[f"gemm-by-{way}-on-the-right"] = biases(
            {"a": 2.0}, {"x": (2, 3), "y": (4, 3) if way == "columns" else (3, 4)}, c=4
        )
        cases[f"weights-by-{way}"] = biases({"a": 2.0}, {"x": (2, 3), "w": (3, 4) if way == "columns" else (4, 3)}, c=4)
        for of, y in (("", (3, 4)), ("-of-columns", (4, 3))):
            x = (3, 2) if way == "columns" else (2, 3)
            cases[f"gemm-by-{way}-on-the-left{of}"] = biases({"a": 2.0}, {"x": x, "y": y}, c=4)
    return cases


CASES = {"metaflow": METAFLOW, "simplify": _simplify(), "layouts": _layouts()}
RULES = [(name, rule) for name in CASES for rule in rule_set(name)]


@pytest.mark.parametrize(("name", "rule"), RULES, ids=[f"{name}-{rule.name}" for name, rule in RULES])
def test_both_sides_compute_the_same(name: str, rule: Rule) -> None:
    for attributes, shapes in CASES[name][rule.name]:
        instance = instantiate(rule, attributes, shapes)
        assert instance is not None, f"{attributes} {shapes}"
        compare(instance)


def compare(instance: Instance) -> None:
    """To the last bit where the field has all ops, else to what single precision holds: batch norms compute in it."""
    graphs = (instance.source, instance.target)
    random = np.random.default_rng(0)
    shapes = {name: instance.source.types[name].shape for name in instance.source.inputs}
    if is_exact_graph(*graphs):
        inputs = {name: random_elements(random, shape) for name, shape in shapes.items()}
        before, after = (evaluate_exact(graph, inputs) for graph in graphs)
        tolerance = 0.0
    else:
        inputs = {name: random.standard_normal(shape) for name, shape in shapes.items()}
        if "variance" in inputs:
            inputs["variance"] = np.abs(inputs["variance"])
        before, after = (evaluate_real(graph, inputs) for graph in graphs)
        tolerance = 2e-5
    for source, target in zip(instance.source.outputs, instance.target.outputs, strict=True):
        np.testing.assert_allclose(after[target], before[source], rtol=tolerance, atol=tolerance)


def test_metaflow_has_its_22() -> None:
    origins = [rule.origin for rule in rule_set("metaflow")]
    kinds = ("costs at first", "fusion", "algebraic identity")
    assert [sum(origin.startswith(f"MetaFlow, {kind}") for origin in origins) for kind in kinds] == [8, 10, 4]


def test_no_rule_ships_twice() -> None:
    rules = [rule for name in RULE_SETS.own() for rule in rule_set(name)]
    assert len({rule.hash for rule in rules}) == len(rules)


def test_simplifying_adds_no_op() -> None:
    assert all(len(rule.target) <= len(rule.source) for rule in rule_set("simplify"))


@pytest.mark.parametrize("name", ["metaflow", "simplify", "layouts"])
def test_rules_that_ship_are_trusted_as_they_are_written(name: str) -> None:
    used, without_proof = trusted(rule_set(name), False)
    assert not without_proof
    assert [rule.conditions for rule in used] == [rule.conditions for rule in rule_set(name)]


def test_queries_keys_and_values_become_one_product_with_its_bias() -> None:
    network = iossim.load("bert_layer", dtype="bf16")
    prices = iossim.cost_model("simulator", device="h100-sxm", precision="bf16", engine="graph")
    rewrite = Rewrite(rules_named(DEFAULT_RULES), budget=RewriteBudget(graphs=20))
    found = rewrite.apply(network, Setting(prices, "ios-both", SearchOptions()))
    graph = found.network.graph
    assert (1, 128, 3 * 768) in [graph.types[node.outputs[0]].shape for node in graph.of_kind["matmul"]]
    assert found.after_us < 0.95 * found.before_us, "the split of one product is in place"
