"""Rotated features as exporters write them: halves, parts, rolls, and heads that are transposed before it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from graph_builders import builder_with
from spelt_parts import assert_equal_arrays, by_slices, negated, sliced

from iossim.ir.builder import GraphBuilder
from iossim.ir.graph import Graph
from iossim.ir.ops.matmul import MatMul
from iossim.ir.ops.nary import Add, Mul
from iossim.ir.ops.reshape import Reshape, Transpose
from iossim.ir.ops.slice import Concat, Slice, Split
from iossim.ir.ops.unary import Relu
from iossim.models.passes.pipeline import canonicalise
from iossim.models.passes.spelt_layers import partial_rotation_recognition, rotation_recognition
from iossim.models.passes.transpose_sinking import transpose_sinking

HEADS = (1, 2, 5, 8)


def by_split(b: GraphBuilder, x: str) -> str:
    first, second = b.add_all(Split(3, (4, 4)), x)
    return b.add(Concat(3), negated(b, second), first)


def in_three(b: GraphBuilder, x: str) -> str:
    return b.add(Concat(-1), sliced(b, x, 6, 8), negated(b, sliced(b, x, 0, 3)), sliced(b, x, 3, 6))


def interleaved(b: GraphBuilder, x: str) -> str:
    odd, even = (b.add(Slice((begin,), (8,), (3,), (2,)), x) for begin in (1, 0))
    return stacked(b, negated(b, odd), even)


def unbound(b: GraphBuilder, x: str) -> str:
    real, imaginary = b.add_all(Split(-1, (1, 1)), b.add(Reshape((*HEADS[:3], 4, 2)), x))
    return stacked(b, negated(b, b.add(Reshape((*HEADS[:3], 4)), imaginary)), b.add(Reshape((*HEADS[:3], 4)), real))


def stacked(b: GraphBuilder, *parts: str) -> str:
    columns = [b.add(Reshape((*HEADS[:3], 4, 1)), part) for part in parts]
    return b.add(Reshape(HEADS), b.add(Concat(-1), *columns))


def rotary(turned: Callable[[GraphBuilder, str], str]) -> Graph:
    b, x = builder_with("rotary", x=HEADS)
    kept, rotated = b.add(Mul(), x, b.constant("cosine", (5, 8))), turned(b, x)
    return b.graph([b.add(Add(), kept, b.add(Mul(), rotated, b.constant("sine", (5, 8))))])


@pytest.mark.parametrize("turned", [by_split, by_slices, in_three, interleaved, unbound])
def test_halves_are_turned_by_a_lookup(turned: Callable[[GraphBuilder, str], str]) -> None:
    graph = rotary(turned)
    after = canonicalise(graph)
    assert sorted(node.op.kind for node in after.nodes) == ["add", "gather", "mul", "mul", "mul"]
    assert_equal_arrays(graph, after)


@pytest.mark.parametrize(
    "turned",
    [
        pytest.param(lambda b, x: b.add(Concat(-1), sliced(b, x, 0, 3), sliced(b, x, 3, 8)), id="in order"),
        pytest.param(lambda b, x: b.add(Concat(-1), negated(b, sliced(b, x, 0, 4)), sliced(b, x, 0, 4)), id="twice"),
        pytest.param(lambda b, x: b.add(Concat(-1), negated(b, sliced(b, negated(b, x), 4, 8)), sliced(b, x, 0, 4)), id="of two"),
    ],
)  # fmt: skip
def test_other_concats_stay(turned: Callable[[GraphBuilder, str], str]) -> None:
    graph = rotary(turned)
    assert rotation_recognition(graph) is graph


def partly_rotated(*, rest: int = 8, given: bool = False, swapped: bool = False) -> Graph:
    """The first eight of 16 features rotated by tables, ``given`` or constant; the others from ``rest`` on kept."""
    b, x = builder_with("partly", x=(*HEADS[:3], 16))
    first = sliced(b, x, 0, 8)
    cosine, sine = (b.input(name, (5, 8)) if given else b.constant(name, (5, 8)) for name in ("cosine", "sine"))
    terms = [b.add(Mul(), first, cosine), b.add(Mul(), sine, by_slices(b, first))]
    rotated = b.add(Add(), *(reversed(terms) if swapped else terms))
    return b.graph([b.add(Relu(), b.add(Concat(-1), rotated, sliced(b, x, rest, 16)))])


@pytest.mark.parametrize("given", [False, True])
@pytest.mark.parametrize("swapped", [False, True])
def test_a_part_is_rotated_with_the_rest(swapped: bool, given: bool) -> None:
    graph = partly_rotated(swapped=swapped, given=given)
    after = canonicalise(graph)
    tables = ["mul", "concat", "concat"] if given else []
    assert Counter(node.op.kind for node in after.nodes) == Counter(["gather", "mul", "mul", "add", "relu", *tables])
    assert_equal_arrays(graph, after)


def test_a_part_and_other_features_are_rotated_apart() -> None:
    recognised = rotation_recognition(partly_rotated(rest=9))
    assert partial_rotation_recognition(recognised) is recognised


@pytest.mark.parametrize("axes", [(1,), (1, 2), (1, 2, 3), (2, 1), (3,)], ids=str)
def test_a_roll_is_one_lookup_along_neighbouring_axes(axes: tuple[int, ...]) -> None:
    b, x = builder_with("rolled", x=HEADS)
    for axis in axes:
        x = b.add(Concat(axis), sliced(b, x, 1, HEADS[axis], axis=axis), sliced(b, x, 0, 1, axis=axis))
    graph = b.graph([b.add(Relu(), x)])
    after = canonicalise(graph)
    assert_equal_arrays(graph, after)
    kinds = Counter(node.op.kind for node in after.nodes)
    assert kinds["gather"] == 1 + (axes in [(1, 2, 3), (2, 1)])
    assert kinds["concat"] == kinds["slice"] == 0


def split_heads(
    tables: tuple[int, ...] = (4, 8), *, given: bool = False, kept: bool = False, turned: bool = True
) -> Graph:
    """Rows split into three heads, which are transposed and then rotated by tables of this shape, ``given`` or constant."""
    b = GraphBuilder("rotary")
    heads = b.add(Reshape((2, 4, 3, 8)), b.input("x", (2, 4, 24)))
    x = b.add(Transpose((0, 2, 1, 3)), heads)
    cosine, sine = (b.input(name, tables) if given else b.constant(name, tables) for name in ("cosine", "sine"))
    rotated = b.add(Mul(), by_slices(b, x) if turned else b.add(Relu(), x), sine)
    y = b.add(Add(), b.add(Mul(), x, cosine), rotated)
    return b.graph(
        [b.add(MatMul(), y, b.constant("w", (8, 8))), *([b.add(Transpose((0, 1, 3, 2)), x)] if kept else [])]
    )


@pytest.mark.parametrize("given", [False, True])
@pytest.mark.parametrize("tables", [(), (8,), (4, 8), (1, 1, 4, 8), (2, 1, 4, 8), (3, 1, 8)], ids=str)
def test_heads_are_transposed_after_their_rotation(tables: tuple[int, ...], given: bool) -> None:
    graph = split_heads(tables, given=given)
    after = canonicalise(graph)
    assert [node.op.kind for node in after.nodes][-2:] == ["transpose", "matmul"]
    assert len(after.of_kind["transpose"]) == 1
    assert_equal_arrays(graph, after)


@pytest.mark.parametrize("changed", [{"tables": (3, 4, 8)}, {"kept": True}, {"turned": False}])
def test_other_transposes_stay(changed: dict[str, Any]) -> None:
    """Tables of each head and token, heads that others read as they are, and what looks up no features."""
    graph = split_heads(**changed)
    recognised = rotation_recognition(graph)
    assert transpose_sinking(recognised) is recognised
