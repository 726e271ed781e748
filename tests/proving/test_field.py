"""Evaluation over the prime field: exact, and true to what activations keep."""

from __future__ import annotations

import numpy as np
import pytest

from iossim.ir.graph import Graph, Node
from iossim.ir.op import Op
from iossim.ir.types import DType, TensorType
from iossim.proving.refute import PRIME, evaluate_exact, evaluate_op, in_field, is_exact, random_elements

X = random_elements(np.random.default_rng(0), (2, 3, 50))


def made(kind: str, *inputs: np.ndarray, **attributes: object) -> np.ndarray:
    return evaluate_op(Op.from_attributes(kind, attributes), inputs)[0]


def test_products_are_those_of_whole_numbers() -> None:
    random = np.random.default_rng(1)
    x, w = random_elements(random, (1, 4, 6, 5)), random_elements(random, (6, 2, 3, 3))
    found = made("conv", x, w, groups=2, pads=(1, 0, 1, 2), strides=(2, 1))
    exact = Op.from_attributes("conv", {"groups": 2, "pads": (1, 0, 1, 2), "strides": (2, 1)})
    whole = exact.evaluate([x.astype(np.int64), w.astype(np.int64)])[0] % PRIME
    assert (found == whole).all()
    a, b, c = (random_elements(random, shape) for shape in ((3, 40), (40, 5), (5,)))
    doubled = made("gemm", a, b, c, alpha=0.5, beta=2.0)
    whole = (a.astype(np.int64) @ b.astype(np.int64) * pow(2, -1, PRIME) + 2 * c.astype(np.int64)) % PRIME
    assert (doubled == whole).all()


def test_fractions_go_with_sums_and_products() -> None:
    a, b = np.array([0.75, -2.5, 3.0, 0.1]), np.array([0.5, 0.25, -7.0, 0.0])
    assert (in_field(a + b) == np.mod(in_field(a) + in_field(b), PRIME)).all()
    assert (in_field(a * b) == np.mod(in_field(a) * in_field(b), PRIME)).all()


def test_what_activations_keep() -> None:
    relu = made("relu", X)
    assert 0.3 < (relu == 0).mean() < 0.7
    assert (made("relu", relu) == relu).all()
    assert (made("clip", X, minimum=0.0) == relu).all()
    minus = np.mod(-X, PRIME)
    assert (np.mod(relu - made("relu", minus), PRIME) == X).all()
    assert (np.mod(relu + made("relu", minus), PRIME) == made("unary", X, function="abs")).all()
    six = made("clip", X, minimum=0.0, maximum=6.0)
    assert (made("clip", six, minimum=0.0, maximum=6.0) == six).all()
    assert (made("relu", six) == six).all()


@pytest.mark.parametrize("kind", ["sigmoid", "unary"])
def test_other_functions_look_random(kind: str) -> None:
    attributes = {"function": "tanh"} if kind == "unary" else {}
    y = made(kind, X, **attributes)
    assert (y == made(kind, X.copy(), **attributes)).all()
    assert len(np.unique(y)) > 290
    assert y[0, 0, 0] == made(kind, X[:1, :1, :1], **attributes)


def test_what_the_field_has_not() -> None:
    assert not is_exact(Op.from_attributes("softmax", {}))
    assert not is_exact(Op.from_attributes("unary", {"function": "floor"}))
    assert not is_exact(Op.from_attributes("nary", {"function": "div"}))
    assert is_exact(Op.from_attributes("nary", {"function": "sub"}))


def test_graphs() -> None:
    x = TensorType((2, 3), DType.FLOAT64)
    graph = Graph.create(
        {"x": x, "y": x},
        ["z"],
        [
            Node("a", Op.from_attributes("add", {}), ("x", "y"), ("s",)),
            Node("b", Op.from_attributes("mul", {}), ("s", "s"), ("z",)),
        ],
        {},
    )
    whole = np.full((2, 3), PRIME - 1.0)
    assert (evaluate_exact(graph, {"x": whole, "y": whole})["z"] == 4).all()
