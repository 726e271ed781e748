"""Rotated halves as exporters write them, and what is none."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from iossim.backends.numpy_reference.execute import evaluate_graph
from iossim.ir.builder import GraphBuilder
from iossim.ir.graph import Graph
from iossim.ir.ops.functions import Unary
from iossim.ir.ops.nary import Add, Mul
from iossim.ir.ops.slice import Concat, Slice, Split
from iossim.models.passes.pipeline import canonicalise
from iossim.models.passes.rotations import RotationRecognition

SHAPE = (1, 2, 5, 8)


def sliced(b: GraphBuilder, x: str, begin: int, end: int, axis: int = -1) -> str:
    return b.add(Slice((begin,), (end,), (axis,), (1,)), x)


def negated(b: GraphBuilder, x: str) -> str:
    return b.add(Unary("neg"), x)


def by_split(b: GraphBuilder, x: str) -> str:
    first, second = b.add_all(Split(3, (4, 4)), x)
    return b.add(Concat(3), negated(b, second), first)


def by_slices(b: GraphBuilder, x: str) -> str:
    return b.add(Concat(-1), negated(b, sliced(b, x, -4, 1 << 31)), sliced(b, x, 0, 4))


def in_three(b: GraphBuilder, x: str) -> str:
    return b.add(Concat(-1), sliced(b, x, 6, 8), negated(b, sliced(b, x, 0, 3)), sliced(b, x, 3, 6))


def graph_of(turned: Callable[[GraphBuilder, str], str]) -> Graph:
    b = GraphBuilder("rotary")
    x = b.input("x", SHAPE)
    kept, rotated = b.add(Mul(), x, b.constant("cosine", (5, 8))), turned(b, x)
    return b.graph([b.add(Add(), kept, b.add(Mul(), rotated, b.constant("sine", (5, 8))))])


@pytest.mark.parametrize("turned", [by_split, by_slices, in_three])
def test_halves_are_turned_by_a_lookup(turned: Callable[[GraphBuilder, str], str]) -> None:
    graph = graph_of(turned)
    after = canonicalise(graph)
    assert sorted(node.op.kind for node in after.nodes) == ["add", "gather", "mul", "mul", "mul"]
    x = np.random.default_rng(0).standard_normal(SHAPE).astype(np.float32)
    (before,), (now,) = (evaluate_graph(each, {"x": x}).values() for each in (graph, after))
    np.testing.assert_array_equal(now, before)


@pytest.mark.parametrize(
    "turned",
    [
        pytest.param(lambda b, x: b.add(Concat(-1), sliced(b, x, 4, 8), sliced(b, x, 0, 4)), id="nothing negated"),
        pytest.param(lambda b, x: b.add(Concat(-1), negated(b, sliced(b, x, 0, 4)), sliced(b, x, 0, 4)), id="twice"),
        pytest.param(lambda b, x: b.add(Concat(-1), negated(b, sliced(b, negated(b, x), 4, 8)), sliced(b, x, 0, 4)), id="of two"),
        pytest.param(
            lambda b, x: b.add(Concat(2), negated(b, sliced(b, x, 2, 5, axis=2)), sliced(b, x, 0, 2, axis=2)), id="rows"
        ),
    ],
)  # fmt: skip
def test_other_concats_stay(turned: Callable[[GraphBuilder, str], str]) -> None:
    graph = graph_of(turned)
    assert RotationRecognition().apply(graph) is graph
