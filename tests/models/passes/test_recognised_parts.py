"""Linear layers and attentions whose rows, masks and heads exporters reshape."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from graph_builders import builder_with
from spelt_parts import assert_equal_arrays, number

from iossim.ir.builder import GraphBuilder
from iossim.ir.graph import Graph
from iossim.ir.ops.matmul import Gemm, MatMul
from iossim.ir.ops.nary import Add, Mul
from iossim.ir.ops.reshape import Reshape, Transpose
from iossim.ir.ops.slice import Slice, Split
from iossim.ir.ops.softmax import Softmax
from iossim.ir.ops.unary import Relu
from iossim.models.passes.pipeline import canonicalise
from iossim.models.passes.softmax_recognition import mask_joining
from iossim.models.passes.spelt_layers import flat_product_recognition
from iossim.models.passes.transpose_sinking import split_hoisting
from iossim.models.passes.unit_fusion import unit_policy

ROWS = (2, 3, 8)


def linear(
    *, turned: bool = False, bias: tuple[int, ...] = (6,), restored: tuple[int, ...] = (2, 3, 6), twice: bool = False
) -> Graph:
    """A linear layer whose rows are flattened before it and restored after it."""
    b = GraphBuilder("linear")
    flat = b.add(Reshape((-1, 8)), b.add(Relu(), b.input("x", ROWS)))
    operands = flat, b.constant("w", (6, 8) if turned else (8, 6)), *([b.constant("b", bias)] if bias else [])
    y = b.add(Gemm(trans_b=turned), *operands)
    z = b.add(Add(), b.add(Reshape(restored), y), b.constant("residual", restored))
    return b.graph([z, b.add(Relu(), y)] if twice else [z])


@pytest.mark.parametrize("bias", [(), (6,)])
@pytest.mark.parametrize("turned", [False, True])
def test_flattened_rows_are_multiplied_as_they_are(turned: bool, bias: tuple[int, ...]) -> None:
    graph = linear(turned=turned, bias=bias)
    after = canonicalise(graph)
    assert [node.op.kind for node in after.nodes] == ["relu", "matmul", *(["add"] if bias else []), "add"]
    assert_equal_arrays(graph, after, tolerance=1e-5)


@pytest.mark.parametrize("changed", [{"bias": (6, 6)}, {"restored": (3, 2, 6)}, {"twice": True}])
def test_products_of_other_rows_stay(changed: dict[str, Any]) -> None:
    graph = linear(**changed)
    assert flat_product_recognition(graph) is graph


def test_rows_of_heads_are_multiplied_by_token() -> None:
    """GPT-2 by ``torch.onnx``: one reshape both joins the heads and flattens the rows."""
    b = GraphBuilder("heads")
    flat = b.add(Reshape((-1, 8)), b.add(Transpose((0, 2, 1, 3)), b.input("x", (2, 4, 3, 2))))
    y = b.add(Reshape((2, 3, 6)), b.add(Gemm(), flat, b.constant("w", (8, 6)), b.constant("b", (6,))))
    graph = b.graph([b.add(Add(), y, b.constant("residual", (2, 3, 6)))])
    after = canonicalise(graph)
    assert [node.op.kind for node in after.nodes] == ["transpose", "reshape", "matmul", "add", "add"]
    assert [unit.kind for unit in unit_policy("fused")(after)] == ["Transpose", "Matmul-Bias-Bias"]
    assert_equal_arrays(graph, after, tolerance=1e-5)


@pytest.mark.parametrize("is_masked", [True, False])
def test_heads_that_are_a_batch_are_joined_in_the_attention(is_masked: bool) -> None:
    """Attention by ``torch.bmm``."""
    b = GraphBuilder("heads")
    q, k, v = (b.add(Transpose((0, 2, 1, 3)), b.input(name, (2, 5, 4, 8))) for name in "qkv")
    q, k, v = (b.add(Reshape((8, 5, 8)), each) for each in (q, k, v))
    scores = b.add(MatMul(), q, b.add(Transpose((0, 2, 1)), k))
    if is_masked:
        scores = b.add(Add(), b.add(Reshape((2, 4, 5, 5)), scores), b.input("mask", (2, 1, 5, 5)))
        scores = b.add(Reshape((8, 5, 5)), scores)
    heads = b.add(Reshape((2, 4, 5, 8)), b.add(MatMul(), b.add(Softmax(), scores), v))
    graph = b.graph([b.add(Reshape((2, 5, 32)), b.add(Transpose((0, 2, 1, 3)), heads))])
    after = canonicalise(graph)
    assert [unit.kind for unit in unit_policy("fused")(after)] == ["Attention"]
    assert_equal_arrays(graph, after, tolerance=1e-6)
    assert canonicalise(after) is after


def windows(*, known: bool = True, reshaped: bool = True, back: bool = True) -> Graph:
    """Attention of three heads in four windows, with positions and a mask for each window, ``known`` or not."""
    b = GraphBuilder("windows")
    q, k, v = (b.input(name, (4, 3, 5, 8)) for name in "qkv")
    given = {"positions": (3, 5, 5), "seen": (1, 4, 1, 5, 5) if reshaped else (4, 1, 5, 5)}
    positions, seen = (b.constant(name, shape) if known else b.input(name, shape) for name, shape in given.items())
    scores = b.add(Mul(), b.add(MatMul(), q, b.add(Transpose((0, 1, 3, 2)), k)), number(b, 0.5))
    scores = b.add(Add(), positions, scores)
    scores = b.add(Add(), b.add(Reshape((1, 4, 3, 5, 5)), scores) if reshaped else scores, seen)
    weights = b.add(Softmax(), b.add(Reshape((4, 3, 5, 5)), scores) if back else scores)
    return b.graph([b.add(MatMul(), weights if back else b.add(Reshape((4, 3, 5, 5)), weights), v)])


@pytest.mark.parametrize("back", [True, False])
@pytest.mark.parametrize("reshaped", [True, False])
@pytest.mark.parametrize("known", [True, False])
def test_scores_are_summed_with_one_mask(known: bool, reshaped: bool, back: bool) -> None:
    graph = windows(known=known, reshaped=reshaped, back=back)
    after = canonicalise(graph)
    assert_equal_arrays(graph, after, tolerance=1e-6)
    kinds = Counter(unit.kind for unit in unit_policy("fused")(after))
    summed = {} if known else {"Add": 1} | ({"Expand": 1 + back} if reshaped else {})
    assert kinds == {"Attention": 1} | summed


@pytest.mark.parametrize("rows", [1, 5])
def test_positions_and_a_mask_of_reshaped_scores_are_one_mask(rows: int) -> None:
    """As in BLOOM, where the product has batch and heads in one axis."""
    b, q, k, v = builder_with("bloom", q=(6, 5, 8), k=(6, 8, 7), v=(6, 7, 8))
    scores = b.add(Add(), b.add(Mul(), b.add(MatMul(), q, k), number(b, 0.5)), b.input("positions", (6, rows, 7)))
    scores = b.add(Add(), b.add(Reshape((2, 3, 5, 7)), scores), b.input("mask", (2, 1, 5, 7)))
    graph = b.graph([b.add(MatMul(), b.add(Reshape((6, 5, 7)), b.add(Softmax(), scores)), v)])
    after = canonicalise(graph)
    assert_equal_arrays(graph, after, tolerance=1e-6)
    kinds = Counter(unit.kind for unit in unit_policy("fused")(after))
    assert kinds == {"Attention": 1, "Add": 1} | ({"Expand": 1} if rows == 1 else {})


@pytest.mark.parametrize(("scale", "is_attention"), [((3, 1, 1), True), ((1, 3, 1, 1), True), ((3, 5, 1), False)])
def test_scores_scaled_for_each_head_are_those_of_scaled_queries(scale: tuple[int, ...], is_attention: bool) -> None:
    """As in Swin Transformer V2."""
    b = GraphBuilder("cosine")
    q, k, v = (
        b.input(name, shape) for name, shape in {"q": (2, 3, 5, 8), "k": (2, 3, 8, 7), "v": (2, 3, 7, 8)}.items()
    )
    scores = b.add(Mul(), b.constant("scale", scale), b.add(MatMul(), q, k))
    weights = b.add(Softmax(), b.add(Add(), scores, b.input("mask", (1, 3, 5, 7))))
    graph = b.graph([b.add(MatMul(), weights, v)])
    after = canonicalise(graph)
    assert_equal_arrays(graph, after, tolerance=1e-5)
    assert ("Attention" in {unit.kind for unit in unit_policy("fused")(after)}) == is_attention


def test_a_long_chain_before_a_softmax_is_walked_a_few_ops_deep() -> None:
    b, x = builder_with("chain", x=(4, 8))
    for _ in range(3000):
        x = b.add(Mul(), x, number(b, 1.5))
    graph = b.graph([b.add(Softmax(), x)])
    assert mask_joining(graph) is graph


def packed(
    by: str = "split",
    *,
    permutation: tuple[int, ...] = (2, 0, 3, 1, 4),
    rows: tuple[int, ...] = (2, 5, 48),
    kept: bool = False,
    mixed: bool = False,
) -> Graph:
    """The attention of two heads whose queries, keys and values are one product, transposed as a whole."""
    b, x = builder_with("packed", x=rows)
    whole = b.add(Transpose(permutation), b.add(Reshape((2, 5, 3, 2, 8)), x))
    axis = permutation.index(2)
    if by == "split":
        parts = list(b.add_all(Split(axis, (1, 1, 1)), whole))
    else:
        parts = [b.add(Slice((index,), (index + 1,), (axis - 5,), (1,)), whole) for index in range(3)]
    shape = list(b.types[parts[0]].shape)
    if by != "unsqueezed":
        del shape[axis]
        parts = [b.add(Reshape(tuple(shape)), each) for each in parts]
    q, k, v = parts
    turned = (*range(len(shape) - 2), len(shape) - 1, len(shape) - 2)
    weights = b.add(Softmax(), b.add(MatMul(), q, b.add(Transpose(turned), k)))
    y = b.add(MatMul(), b.add(MatMul(), weights, b.constant("mix", (5, 5))) if mixed else weights, v)
    return b.graph([y, *([whole] if kept else [])])


@pytest.mark.parametrize("permutation", [(2, 0, 3, 1, 4), (0, 3, 2, 1, 4), (2, 3, 0, 1, 4)], ids=str)
@pytest.mark.parametrize("by", ["split", "slices", "unsqueezed"])
def test_queries_keys_and_values_are_parts_of_rows(by: str, permutation: tuple[int, ...]) -> None:
    graph = packed(by, permutation=permutation)
    after = canonicalise(graph)
    assert_equal_arrays(graph, after)
    parts = after.of_kind["split" if by == "split" else "slice"]
    assert {value for node in parts for value in node.inputs} == {"x"}
    kinds = Counter(unit.kind for unit in unit_policy("fused")(after))
    assert kinds == {"Attention": 1, **({"Split": 1} if by == "split" else {"Slice": 3})}


@pytest.mark.parametrize(
    "changed", [{"kept": True}, {"rows": (10, 48)}, {"mixed": True}, {"permutation": (2, 0, 3, 4, 1)}], ids=str
)
def test_other_splits_stay(changed: dict[str, Any]) -> None:
    """Heads that others read as they are, rows of another rank, weights that are mixed, features that are taken apart."""
    graph = packed(**changed)
    assert split_hoisting(graph) is graph
