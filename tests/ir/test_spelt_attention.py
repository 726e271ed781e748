"""Attention that is spelt out is found however exporters write it, and what only looks like it is not."""

from __future__ import annotations

from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iossim.ir.attention import attentions_in, spelt_attention
from iossim.ir.builder import GraphBuilder
from iossim.ir.graph import Graph
from iossim.ir.ops.attention import Attention
from iossim.ir.ops.functions import Nary
from iossim.ir.ops.matmul import MatMul
from iossim.ir.ops.nary import Add, Mul
from iossim.ir.ops.reshape import Reshape, Transpose
from iossim.ir.ops.softmax import Softmax
from iossim.ir.ops.unary import Cast, Relu
from iossim.ir.types import DType
from iossim.models.passes.unit_fusion import unit_policy

BATCH, HEADS, QUERIES, KEYS, FEATURES = 2, 3, 4, 5, 6


class Spelling(NamedTuple):
    """How an exporter writes it: where it scales, whether heads are split, masked, and weighed in fp32."""

    scaled: str = "behind"
    splits: bool = True
    masked: bool = False
    widened: bool = False
    joins: bool = True


SPELLINGS = st.builds(Spelling, st.sampled_from(["behind", "divided", "before", "both", ""]), *[st.booleans()] * 4)


def spelt(how: Spelling) -> Graph:
    b = GraphBuilder("g")
    scale = b.constant("scale", (), value=0.5)

    def operand(name: str, tokens: int, permutation: tuple[int, ...]) -> str:
        x = b.input(name, (BATCH, tokens, HEADS * FEATURES) if how.splits else (BATCH, HEADS, tokens, FEATURES))
        if how.splits:
            return b.add(Transpose(permutation), b.add(Reshape((BATCH, tokens, HEADS, FEATURES)), x))
        return b.add(Transpose((0, 1, 3, 2)), x) if permutation[-1] == 1 else x

    q, k, v = operand("q", QUERIES, (0, 2, 1, 3)), operand("k", KEYS, (0, 2, 3, 1)), operand("v", KEYS, (0, 2, 1, 3))
    q = b.add(Mul(), q, scale) if how.scaled in ("before", "both") else q
    k = b.add(Mul(), k, scale) if how.scaled == "both" else k
    scores = b.add(MatMul(), q, k)
    scores = b.add(Mul(), scale, scores) if how.scaled == "behind" else scores
    scores = b.add(Nary("div"), scores, scale) if how.scaled == "divided" else scores
    scores = b.add(Add(), scores, b.input("mask", (BATCH, 1, QUERIES, KEYS))) if how.masked else scores
    weights = b.add(Softmax(-1), b.add(Cast(DType.FLOAT64), scores) if how.widened else scores)
    weights = b.add(Cast(DType.FLOAT32), weights) if how.widened else weights
    y = b.add(MatMul(), weights, v)
    if how.joins:
        y = b.add(Reshape((BATCH, QUERIES, HEADS * FEATURES)), b.add(Transpose((0, 2, 1, 3)), y))
    return b.graph([y])


@given(SPELLINGS)
def test_it_is_one_unit_however_it_is_spelt(how: Spelling) -> None:
    graph = spelt(how)
    ((name, found),) = attentions_in(graph, graph.nodes).items()
    shape = Attention().shape(found.types)
    assert shape == (BATCH, HEADS, HEADS, QUERIES, KEYS, FEATURES, FEATURES)
    assert len(found.types) == 3 + how.masked
    assert name == found.nodes[0].name
    assert len({node.name for node in found.nodes}) == len(found.nodes)
    (unit,) = unit_policy("fused")(graph)
    assert unit.kind == "Attention"
    assert len(unit.nodes) == len(graph.nodes)
    assert {node.name for node in graph.nodes} - {node.name for node in found.nodes} == {
        node.name for node in graph.of_kind.get("reshape", ())
    }


def broken(change: str) -> Graph:
    b = GraphBuilder("g")
    q, v = b.input("q", (2, 4, 6)), b.input("v", (2, 5, 6))
    k = b.constant("k", (2, 6, 5)) if change == "weights as keys" else b.input("k", (2, 6, 5))
    scores = b.add(MatMul(), q, k)
    if change == "relu":
        scores = b.add(Relu(), scores)
    if change == "factors":
        scores = b.add(Mul(), scores, b.input("factors", (5,)))
    if change == "two masks":
        scores = b.add(Add(), b.add(Add(), scores, b.input("m", (4, 5))), b.input("n", (4, 5)))
    weights = b.add(Softmax(1 if change == "axis" else -1), scores)
    y = b.add(MatMul(), weights, v)
    return b.graph([y, *([weights] if change == "read elsewhere" else [])])


def test_what_is_broken_is_otherwise_found() -> None:
    graph = broken("")
    assert spelt_attention(graph, graph.nodes[-1]) is not None


@pytest.mark.parametrize("change", ["weights as keys", "relu", "factors", "two masks", "axis", "read elsewhere"])
def test_what_looks_like_it_is_not(change: str) -> None:
    graph = broken(change)
    assert not attentions_in(graph, graph.nodes)
    assert "Attention" not in {unit.kind for unit in unit_policy("fused")(graph)}


def test_a_transpose_that_takes_features_apart_is_no_part() -> None:
    b = GraphBuilder("g")
    q, k, v = (b.input(name, (1, 2, 4, 4)) for name in "qkv")
    weights = b.add(Softmax(-1), b.add(MatMul(), b.add(Transpose((0, 1, 3, 2)), q), k))
    graph = b.graph([b.add(Transpose((0, 1, 3, 2)), b.add(MatMul(), weights, v))])
    (found,) = attentions_in(graph, graph.nodes).values()
    assert [node.op.kind for node in found.nodes] == ["matmul", "softmax", "matmul"]
