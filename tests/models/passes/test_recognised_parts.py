"""Norms, rotations, masks, heads and functions as exporters write them, and what is none."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from iossim.backends.numpy_reference.execute import evaluate_graph
from iossim.execution.in_place import in_place_buffers
from iossim.ir.builder import GraphBuilder
from iossim.ir.graph import Graph
from iossim.ir.ops.functions import Nary, Unary
from iossim.ir.ops.matmul import Gemm, MatMul
from iossim.ir.ops.nary import Add, Mul
from iossim.ir.ops.normalization import InstanceNorm, LayerNorm, RmsNorm
from iossim.ir.ops.pool import GlobalAveragePool
from iossim.ir.ops.reduce import Reduce
from iossim.ir.ops.reshape import Reshape, Transpose
from iossim.ir.ops.slice import Concat, Slice, Split
from iossim.ir.ops.softmax import Softmax
from iossim.ir.ops.unary import Cast, Clip, Relu, Sigmoid
from iossim.ir.types import DType
from iossim.models.partition import network_of, retype
from iossim.models.passes.function_recognition import FunctionRecognition
from iossim.models.passes.norm_recognition import NormRecognition
from iossim.models.passes.pipeline import canonicalise
from iossim.models.passes.simplification import DeadOpElimination
from iossim.models.passes.softmax_recognition import MaskJoining
from iossim.models.passes.spelt_layers import FlatProductRecognition, PartialRotationRecognition, RotationRecognition
from iossim.models.passes.transpose_sinking import SplitHoisting, TransposeSinking
from iossim.models.passes.unit_fusion import unit_policy

SHAPE = (2, 3, 4, 8)


def number(b: GraphBuilder, value: float) -> str:
    return b.numbers(f"number {value}", np.float32(value))


def square(b: GraphBuilder, x: str) -> str:
    return b.add(Nary("pow"), x, number(b, 2.0))


def over_root(b: GraphBuilder, x: str, v: str) -> str:
    return b.add(Nary("div"), x, b.add(Unary("sqrt"), v))


WAYS: dict[str, Callable[[GraphBuilder, str, str], str]] = {
    "quotient": over_root,
    "reciprocal": lambda b, x, v: b.add(Mul(), b.add(Unary("reciprocal"), b.add(Unary("sqrt"), v)), x),
    "one over": lambda b, x, v: b.add(Mul(), x, b.add(Nary("div"), number(b, 1.0), b.add(Unary("sqrt"), v))),
    "power": lambda b, x, v: b.add(Mul(), x, b.add(Nary("pow"), v, number(b, -0.5))),
    "root as a power": lambda b, x, v: b.add(Nary("div"), x, b.add(Nary("pow"), v, number(b, 0.5))),
}


def spelt(
    *,
    mean: bool = True,
    axes: tuple[int, ...] = (-1,),
    squared: Callable[[GraphBuilder, str], str] = square,
    divided: Callable[[GraphBuilder, str, str], str] = over_root,
    scale: tuple[int, ...] = (8,),
    bias: bool = True,
    casts: bool = False,
    keepdims: bool = True,
    of: Callable[[GraphBuilder, str], str] = lambda b, x: x,
) -> Graph:
    """A norm by its parts; ``of`` makes what the squares are taken of."""
    b = GraphBuilder("norm")
    x = b.add(Relu(), b.input("x", SHAPE))
    value = b.add(Cast(DType.FLOAT32), x) if casts else x
    if mean:
        value = b.add(Nary("sub"), value, b.add(Reduce("mean", axes, True), value))
    total = b.add(Reduce("mean", axes, keepdims), squared(b, of(b, value)))
    normal = divided(b, value, b.add(Add(), number(b, 1e-3), total))
    y = b.add(Mul(), b.constant("scale", scale), b.add(Cast(DType.FLOAT32), normal) if casts else normal)
    y = b.add(Add(), y, b.constant("bias", scale)) if bias else y
    return b.graph([b.add(Relu(), y)])


def recognised(graph: Graph) -> Graph:
    after = DeadOpElimination().apply(NormRecognition().apply(graph))
    inputs = {"x": np.random.default_rng(1).standard_normal(graph.types["x"].shape).astype(np.float32)}
    before, now = evaluate_graph(graph, inputs), evaluate_graph(after, inputs)
    for name, array in before.items():
        np.testing.assert_allclose(now[name], array, rtol=1e-5, atol=1e-5)
    return after


@pytest.mark.parametrize("casts", [False, True])
@pytest.mark.parametrize("mean", [True, False])
@pytest.mark.parametrize("way", WAYS)
def test_a_norm_however_it_is_divided(way: str, mean: bool, casts: bool) -> None:
    after = recognised(spelt(mean=mean, divided=WAYS[way], casts=casts))
    op = LayerNorm(3, 1e-3) if mean else RmsNorm(3, 1e-3)
    assert [node.op for node in after.nodes] == [Relu(), op, *([] if mean else [Add()]), Relu()]


@pytest.mark.parametrize("term", ["difference", "sum"])
@pytest.mark.parametrize("pooled", [False, True])
def test_a_norm_by_a_factor_and_a_term(term: str, pooled: bool) -> None:
    """As Keras writes it; tf2onnx takes means of rows as those of images."""
    b = GraphBuilder("keras")
    x = b.add(Relu(), b.input("x", SHAPE[1:]))
    mean = GlobalAveragePool() if pooled else Reduce("mean", (2,), True)
    centre, scale, bias = b.add(mean, x), b.constant("scale", (1, 1, 8)), b.constant("bias", (8,))
    centred = b.add(Nary("sub"), x, centre)
    root = b.add(Unary("sqrt"), b.add(Add(), b.add(mean, b.add(Mul(), centred, centred)), number(b, 1e-3)))
    factor = b.add(Mul(), b.add(Unary("reciprocal"), root), scale)
    if term == "sum":
        shift = b.add(Add(), b.add(Mul(), b.add(Unary("neg"), centre), factor), bias)
    else:
        shift = b.add(Nary("sub"), bias, b.add(Mul(), centre, factor))
    after = recognised(b.graph([b.add(Relu(), b.add(Add(), b.add(Mul(), x, factor), shift))]))
    assert [node.op for node in after.nodes] == [Relu(), LayerNorm(2, 1e-3), Relu()]


@pytest.mark.parametrize("axes", [(3, 2), (-2, -1)])
@pytest.mark.parametrize("bias", [False, True])
def test_several_axes_and_squares_as_products(axes: tuple[int, ...], bias: bool) -> None:
    graph = spelt(axes=axes, squared=lambda b, x: b.add(Mul(), x, x), scale=(4, 8), bias=bias)
    (norm,) = recognised(graph).of_kind["layer_norm"]
    assert (norm.op.axis, len(norm.inputs)) == (2, 2 + bias)


@pytest.mark.parametrize(
    "graph",
    [
        pytest.param(spelt(axes=(1,), scale=(1, 1)), id="not the last axis"),
        pytest.param(spelt(scale=(4, 8)), id="a scale of more axes"),
        pytest.param(spelt(scale=(1,)), id="one scale"),
        pytest.param(spelt(squared=lambda b, x: b.add(Nary("pow"), x, number(b, 3.0))), id="cubes"),
        pytest.param(spelt(squared=lambda b, x: b.add(Mul(), x, b.add(Relu(), x))), id="other products"),
        pytest.param(spelt(of=lambda b, x: b.add(Relu(), x)), id="squares of something else"),
        pytest.param(spelt(divided=lambda b, x, v: b.add(Nary("div"), x, v)), id="no root"),
        pytest.param(
            spelt(divided=lambda b, x, v: over_root(b, b.add(Relu(), x), v)), id="a quotient of something else"
        ),
    ],
)
def test_what_is_no_norm_stays(graph: Graph) -> None:
    assert NormRecognition().apply(graph) is graph


@pytest.mark.parametrize(("leading", "size", "kind"), [(40, 8, "rms_norm"), (1, 2**33, "reduce")])
def test_a_norm_is_compared_by_few_values(leading: int, size: int, kind: str) -> None:
    """Samples of many axes, or of a row that no memory holds, were made whole."""
    b = GraphBuilder("norm")
    x = b.input("x", (*(1,) * leading, size))
    total = b.add(Add(), b.add(Reduce("mean", (-1,), True), square(b, x)), number(b, 1e-3))
    graph = b.graph([b.add(Mul(), b.constant("scale", (size,), value=1.0), over_root(b, x, total))])
    assert kind in NormRecognition().apply(graph).of_kind


HEADS = (1, 2, 5, 8)


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
    b = GraphBuilder("rotary")
    x = b.input("x", HEADS)
    kept, rotated = b.add(Mul(), x, b.constant("cosine", (5, 8))), turned(b, x)
    return b.graph([b.add(Add(), kept, b.add(Mul(), rotated, b.constant("sine", (5, 8))))])


@pytest.mark.parametrize("turned", [by_split, by_slices, in_three, interleaved, unbound])
def test_halves_are_turned_by_a_lookup(turned: Callable[[GraphBuilder, str], str]) -> None:
    graph = rotary(turned)
    after = canonicalise(graph)
    assert sorted(node.op.kind for node in after.nodes) == ["add", "gather", "mul", "mul", "mul"]
    x = np.random.default_rng(0).standard_normal(HEADS).astype(np.float32)
    (before,), (now,) = (evaluate_graph(each, {"x": x}).values() for each in (graph, after))
    np.testing.assert_array_equal(now, before)


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
    assert RotationRecognition().apply(graph) is graph


def partly_rotated(*, rest: int = 8, given: bool = False, swapped: bool = False) -> Graph:
    """The first eight of 16 features rotated by tables, ``given`` or constant; the others from ``rest`` on kept."""
    b = GraphBuilder("partly")
    x = b.input("x", (*HEADS[:3], 16))
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
    recognised = RotationRecognition().apply(partly_rotated(rest=9))
    assert PartialRotationRecognition().apply(recognised) is recognised


@pytest.mark.parametrize("axes", [(1,), (1, 2), (1, 2, 3), (2, 1), (3,)], ids=str)
def test_a_roll_is_one_lookup_along_neighbouring_axes(axes: tuple[int, ...]) -> None:
    b = GraphBuilder("rolled")
    x = b.input("x", HEADS)
    for axis in axes:
        x = b.add(Concat(axis), sliced(b, x, 1, HEADS[axis], axis=axis), sliced(b, x, 0, 1, axis=axis))
    graph = b.graph([b.add(Relu(), x)])
    after = canonicalise(graph)
    assert_equal_arrays(graph, after)
    kinds = Counter(node.op.kind for node in after.nodes)
    assert kinds["gather"] == 1 + (axes in [(1, 2, 3), (2, 1)])
    assert kinds["concat"] == kinds["slice"] == 0


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
    x = np.random.default_rng(0).standard_normal(ROWS).astype(np.float32)
    (before,), (now,) = (evaluate_graph(each, {"x": x}).values() for each in (graph, after))
    np.testing.assert_allclose(now, before, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("changed", [{"bias": (6, 6)}, {"restored": (3, 2, 6)}, {"twice": True}])
def test_products_of_other_rows_stay(changed: dict[str, Any]) -> None:
    graph = linear(**changed)
    assert FlatProductRecognition().apply(graph) is graph


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
    b = GraphBuilder("bloom")
    q, k, v = b.input("q", (6, 5, 8)), b.input("k", (6, 8, 7)), b.input("v", (6, 7, 8))
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
    b = GraphBuilder("chain")
    x = b.input("x", (4, 8))
    for _ in range(3000):
        x = b.add(Mul(), x, number(b, 1.5))
    graph = b.graph([b.add(Softmax(), x)])
    assert MaskJoining().apply(graph) is graph


def assert_equal_arrays(graph: Graph, other: Graph, tolerance: float = 0) -> None:
    generator = np.random.default_rng(0)
    inputs = {name: generator.standard_normal(graph.types[name].shape).astype(np.float32) for name in graph.inputs}
    (before,), (now,) = (evaluate_graph(each, inputs).values() for each in (graph, other))
    np.testing.assert_allclose(now, before, rtol=0, atol=tolerance)


@pytest.mark.parametrize("changed", [{"tables": (3, 4, 8)}, {"kept": True}, {"turned": False}])
def test_other_transposes_stay(changed: dict[str, Any]) -> None:
    """Tables of each head and token, heads that others read as they are, and what looks up no features."""
    graph = split_heads(**changed)
    recognised = RotationRecognition().apply(graph)
    assert TransposeSinking().apply(recognised) is recognised


def packed(
    by: str = "split",
    *,
    permutation: tuple[int, ...] = (2, 0, 3, 1, 4),
    rows: tuple[int, ...] = (2, 5, 48),
    kept: bool = False,
    mixed: bool = False,
) -> Graph:
    """The attention of two heads whose queries, keys and values are one product, transposed as a whole."""
    b = GraphBuilder("packed")
    x = b.input("x", rows)
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
    assert SplitHoisting().apply(graph) is graph


def gelu(b: GraphBuilder, x: str, factor: float = 0.5) -> str:
    error = b.add(Unary("erf"), b.add(Nary("div"), x, number(b, 2**0.5)))
    return b.add(Mul(), b.add(Mul(), x, b.add(Add(), error, number(b, 1.0))), number(b, factor))


def gelu_tanh(b: GraphBuilder, x: str) -> str:
    cube = b.add(Mul(), b.add(Nary("pow"), x, number(b, 3.0)), number(b, 0.044715))
    inner = b.add(Mul(), b.add(Add(), x, cube), number(b, (2 / np.pi) ** 0.5))
    return b.add(Mul(), b.add(Mul(), x, number(b, 0.5)), b.add(Add(), b.add(Unary("tanh"), inner), number(b, 1.0)))


def swish(b: GraphBuilder, x: str) -> str:
    return b.add(Mul(), x, b.add(Sigmoid(), x))


def quick_gelu(b: GraphBuilder, x: str) -> str:
    return b.add(Mul(), x, b.add(Sigmoid(), b.add(Mul(), x, number(b, 1.702))))


def hard_swish(b: GraphBuilder, x: str) -> str:
    clipped = b.add(Clip(0.0, 6.0), b.add(Add(), x, number(b, 3.0)))
    return b.add(Nary("div"), b.add(Mul(), x, clipped), number(b, 6.0))


def softplus(b: GraphBuilder, x: str) -> str:
    return b.add(Unary("log"), b.add(Add(), b.add(Unary("exp"), x), number(b, 1.0)))


def mish(b: GraphBuilder, x: str) -> str:
    return b.add(Mul(), x, b.add(Unary("tanh"), softplus(b, x)))


def softsign(b: GraphBuilder, x: str) -> str:
    return b.add(Nary("div"), x, b.add(Add(), b.add(Unary("abs"), x), number(b, 1.0)))


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
@pytest.mark.parametrize("function", [gelu, gelu_tanh, swish, quick_gelu, hard_swish, softplus, mish, softsign])
def test_a_function_in_several_ops_is_one(function: Callable[[GraphBuilder, str], str], dtype: str) -> None:
    b = GraphBuilder("function")
    graph = b.graph([b.add(Unary("neg"), function(b, b.add(Add(), b.input("x", ROWS), b.constant("bias", (8,)))))])
    retyped = retype(graph, DType(dtype))
    name = function.__name__.replace("quick_gelu", "swish")
    assert [node.op.operation for node in canonicalise(retyped).nodes] == ["add", name, "neg"]
    assert_equal_arrays(graph, canonicalise(graph), tolerance=1e-5)


@pytest.mark.parametrize(
    "other",
    [
        pytest.param(lambda b, x: gelu(b, x, 1 / 3), id="another factor"),
        pytest.param(lambda b, x: b.add(Mul(), x, b.add(Sigmoid(), b.input("y", ROWS))), id="two arguments"),
        pytest.param(lambda b, x: b.add(Mul(), x, b.add(Mul(), b.add(Sigmoid(), x), b.constant("c", (8,)))), id="a vector"),
        pytest.param(lambda b, x: b.add(Add(), b.add(Unary("tanh"), gate := b.add(Sigmoid(), x)), b.add(Mul(), x, gate)), id="read elsewhere"),
    ],
)  # fmt: skip
def test_other_functions_stay(other: Callable[[GraphBuilder, str], str]) -> None:
    b = GraphBuilder("function")
    graph = b.graph([other(b, b.input("x", ROWS))])
    assert FunctionRecognition().apply(graph) is graph


def grouped(
    *,
    scale: tuple[int, ...] | None = (6, 1, 1),
    bias: tuple[int, ...] | None = (1, 6, 1, 1),
    one: float = 1.0,
    back: tuple[int, ...] = (2, 6, 4, 5),
) -> Graph:
    b = GraphBuilder("grouped")
    x = b.add(Reshape((2, 3, 40)), b.input("x", (2, 6, 4, 5)))
    parameters = (b.constant("one", (3,), value=one), b.constant("zero", (3,), value=0.0))
    y = b.add(Reshape(back), b.add(InstanceNorm(1e-3), x, *parameters))
    y = y if scale is None else b.add(Mul(), y, b.constant("scale", scale))
    return b.graph([b.add(Relu(), y if bias is None else b.add(Add(), b.constant("bias", bias), y))])


@pytest.mark.parametrize("changed", [{}, {"scale": None}, {"bias": None}, {"scale": None, "bias": None}], ids=str)
def test_a_group_norm_of_reshapes_is_one_op(changed: dict[str, Any]) -> None:
    graph = grouped(**changed)
    after = canonicalise(graph)
    assert [node.op.kind for node in after.nodes] == ["group_norm", "relu"]
    assert_equal_arrays(graph, after, tolerance=1e-5)


@pytest.mark.parametrize("changed", [{"one": 2.0}, {"back": (2, 6, 5, 4)}, {"scale": (5,)}], ids=str)
def test_other_group_norms(changed: dict[str, Any]) -> None:
    """Factors of groups, and images of another shape, stay as they are; factors of columns are applied after the norm."""
    graph = grouped(**changed)
    kinds = [node.op.kind for node in canonicalise(graph).nodes]
    assert kinds[:3] == (
        ["group_norm", "mul", "add"] if "scale" in changed else ["reshape", "instance_norm", "reshape"]
    )
    assert_equal_arrays(graph, canonicalise(graph), tolerance=1e-5)


@pytest.mark.parametrize(("axis", "terms", "copies"), [(1, [2, 2, 2], 2), (-3, [2, 2, 2], 2), (2, [2, 3, 4], 0)])
def test_a_dense_block_adds_to_its_concat_of_channels(axis: int, terms: list[int], copies: int) -> None:
    b = GraphBuilder("dense")
    values = [b.add(Relu(), b.input("x", SHAPE))]
    made = values[0]
    for _ in terms:
        part = b.add(Slice((1,), (3,), (axis % 4,), (1,)), made)
        values.append(b.add(Sigmoid(), b.add(Relu(), part)))
        made = b.add(Concat(axis), *values)
    graph = b.graph([made, b.add(Concat(axis), values[1], values[0])])
    after = canonicalise(graph)
    assert [len(node.inputs) for node in after.of_kind["concat"]] == [*terms, 2]
    assert canonicalise(after).hash == after.hash
    assert sum(map(len, in_place_buffers(network_of(after, "dense")).moves.values())) == copies
    inputs = {"x": np.random.default_rng(1).standard_normal(SHAPE).astype(np.float32)}
    now = evaluate_graph(after, inputs)
    for name, array in evaluate_graph(graph, inputs).items():
        np.testing.assert_array_equal(now[name], array)
