"""Passes keep what a graph computes: on random graphs, and case by case where they must hold back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from iossim.backends.numpy_reference.backend import evaluate_graph
from iossim.base.errors import GraphError
from iossim.ir.builder import GraphBuilder
from iossim.ir.constants import ArrayConstant, Constant, SeededConstant
from iossim.ir.graph import Graph, Node
from iossim.ir.op import Array, Op
from iossim.ir.ops.conv import Conv
from iossim.ir.ops.functions import Nary
from iossim.ir.ops.gather import Gather, GatherND
from iossim.ir.ops.matmul import MatMul
from iossim.ir.ops.nary import Add, Mul
from iossim.ir.ops.normalization import BatchNorm
from iossim.ir.ops.pool import MaxPool
from iossim.ir.ops.reduce import Reduce
from iossim.ir.ops.reshape import Expand, Pad, Reshape, Transpose
from iossim.ir.ops.slice import Concat, Slice, Split
from iossim.ir.ops.softmax import Softmax
from iossim.ir.ops.unary import Clip, Identity, Relu
from iossim.ir.types import DType, Precision, TensorType
from iossim.models.partition import retype
from iossim.models.passes.batch_norms import batch_norm_folding, layer_scale_folding, pad_folding
from iossim.models.passes.graph_pass import Pass
from iossim.models.passes.pipeline import canonicalise
from iossim.models.passes.simplification import (
    common_subexpression_elimination,
    constant_folding,
    dead_op_elimination,
    expand_elimination,
    gather_slicing,
    identity_elimination,
)
from iossim.models.passes.transpose_sinking import reduction_hoisting

SHAPE = (2, 4, 5, 5)
Nodes = Sequence[tuple[str, Op, str]]
X = {"x": TensorType(SHAPE)}


@dataclass(frozen=True)
class Untouchable(Constant):
    """A weight that must not be loaded."""

    type: TensorType

    def load(self) -> Array:
        raise AssertionError("loaded too early")


def constant(name: str, *shape: int) -> SeededConstant:
    return SeededConstant(TensorType(shape), name)


def positive(name: str, *shape: int) -> ArrayConstant:
    return ArrayConstant(np.abs(constant(name, *shape).load()) + np.float32(0.5))


def graph_of(
    nodes: Nodes, constants: Mapping[str, Constant], outputs: str = "y", inputs: Mapping[str, TensorType] = X
) -> Graph:
    """A graph from (output, op, inputs), each op named like its first output."""
    made = [Node(out.split()[0], op, tuple(read.split()), tuple(out.split())) for out, op, read in nodes]
    return Graph.create(inputs, outputs.split(), made, constants)


NORM = {
    "scale": positive("scale", 4),
    "shift": constant("shift", 4),
    "mean": constant("mean", 4),
    "variance": positive("variance", 4),
}
CONV = {"w": constant("w", 4, 4, 3, 3), "b": constant("b", 4)}
PADDED = Conv((1, 1), (1, 1, 1, 1))


@st.composite
def graphs(draw: st.DrawFn) -> Graph:
    """Random chains and diamonds of everything that passes touch; all values have one shape."""
    constants: dict[str, Constant] = {
        **NORM,
        **CONV,
        "per_channel": constant("per_channel", 4, 1, 1),
        "one": positive("one", 1),
        "per_row": constant("per_row", 5, 1),
        "in_order": ArrayConstant(np.array([0, 1, -2, 3])),
    }
    values = ["x"]
    nodes: list[Node] = []
    for index in range(draw(st.integers(1, 12))):
        x, y = draw(st.sampled_from(values[-3:])), draw(st.sampled_from(values))
        side = draw(st.sampled_from(["per_channel", "one", "per_row"]))
        op, inputs = draw(
            st.sampled_from(
                [
                    (PADDED, (x, "w", "b")),
                    (PADDED, (x, "w")),
                    (PADDED, (x, "made_weight", "b")),
                    (BatchNorm(), (x, "scale", "shift", "mean", "variance")),
                    (Mul(), (x, side)),
                    (Mul(), (side, x)),
                    (Add(), (x, side)),
                    (Add(), (x, y)),
                    (Identity(), (x,)),
                    (Relu(), (x,)),
                    (Concat(1), (x,)),
                    (Reshape(SHAPE), (x,)),
                    (Expand(SHAPE), (x,)),
                    (Transpose((0, 1, 3, 2)), (x,)),
                    (Slice((-1,), (-6,), (3,), (-1,)), (x,)),
                    (Slice((0,), (9,), (2,), (1,)), (x,)),
                    (Gather(1), (x, "in_order")),
                ]
            )
        )
        nodes.append(Node(f"op{index}", op, inputs, (f"v{index}",)))
        values.append(f"v{index}")
    nodes.append(Node("weights", Mul(), ("w", "one"), ("made_weight",)))
    others = draw(st.lists(st.sampled_from([*values, "made_weight"]), max_size=2, unique=True))
    outputs = dict.fromkeys([values[-1], *others])
    return Graph.create(X, outputs, nodes, constants)


def outputs_of(graph: Graph) -> dict[str, Array]:
    x = np.random.default_rng(3).standard_normal(SHAPE).astype(graph.types["x"].dtype.numpy)
    return evaluate_graph(graph, {"x": x})


def assert_equal(graph: Graph, other: Graph, tolerance: float) -> None:
    before, after = outputs_of(graph), outputs_of(other)
    assert list(before) == list(after)
    for name, array in before.items():
        assert array.dtype == after[name].dtype
        scale = np.max(np.abs(array))
        np.testing.assert_allclose(after[name], array, rtol=0, atol=tolerance * scale)


EXACT = [
    constant_folding, dead_op_elimination, expand_elimination, gather_slicing, identity_elimination,
    common_subexpression_elimination
]  # fmt: skip


@given(graphs())
@pytest.mark.parametrize("each", EXACT, ids=lambda one: type(one).__name__)
def test_exact_passes_keep_outputs_to_the_last_bit(each: Pass, graph: Graph) -> None:
    assert_equal(graph, each(graph), 0)


@settings(max_examples=40)
@given(graphs())
def test_folding_and_the_standard_passes_keep_outputs_up_to_rounding(graph: Graph) -> None:
    """The latter are a fixed point."""
    assert_equal(graph, batch_norm_folding(graph), 2e-5)
    canonical = canonicalise(graph)
    assert_equal(graph, canonical, 2e-5)
    assert canonicalise(canonical) is canonical


def test_constants_fold_through_ops_of_several_outputs_and_are_not_loaded():
    weights = {"w": Untouchable(TensorType((8, 4, 3, 3))), "b": Untouchable(TensorType((4,)))}
    nodes = [("w1 w2", Split(0, (4, 4)), "w"), ("sum", Add(), "w1 w2"), ("y", PADDED, "x sum b")]
    graph = constant_folding(graph_of(nodes, weights))
    assert [node.name for node in graph.nodes] == ["y"]
    assert graph.constants["sum"].type == TensorType((4, 4, 3, 3))


def test_batch_norm_folds_into_a_convolution_without_loading_weights():
    constants = {name: Untouchable(value.type) for name, value in {**CONV, **NORM}.items()}
    nodes = [("a", PADDED, "x w b"), ("y", BatchNorm(), "a scale shift mean variance")]
    (node,) = batch_norm_folding(graph_of(nodes, constants)).nodes
    assert (node.name, node.outputs, node.op) == ("a", ("y",), PADDED)


NORMED = ("n", BatchNorm(), "a scale shift mean variance")


@pytest.mark.parametrize(
    ("nodes", "kept"),
    [
        ([("a", PADDED, "x w"), NORMED, ("m", Mul(), "n c"), ("y", Add(), "c m")], ["conv"]),
        # Convolutions that share a weight keep their own.
        ([("a", PADDED, "x w"), ("u", PADDED, "x w"), NORMED, ("y", Add(), "u n")], ["conv", "conv", "add"]),
    ],
)
def test_a_norm_a_product_and_a_sum_fold_into_one_convolution(nodes: Nodes, kept: list[str]) -> None:
    graph = graph_of(nodes, {**CONV, **NORM, "c": constant("c", 1, 4, 1, 1)})
    folded = batch_norm_folding(graph)
    assert [node.op.kind for node in folded.nodes] == kept
    assert_equal(graph, folded, 1e-5)


@pytest.mark.parametrize(
    ("nodes", "outputs"),
    [
        ([("a", PADDED, "x w"), NORMED, ("y", Add(), "a n")], "y"),  # the convolution has another reader
        ([("a", PADDED, "x w"), NORMED, ("y", Relu(), "n")], "y a"),  # it is an output of the graph
        ([("a", Relu(), "x"), NORMED, ("y", Relu(), "n")], "y"),  # there is no convolution
        ([("a", PADDED, "x x_weight"), NORMED, ("y", Relu(), "n")], "y"),  # its weight is computed at run time
        ([("a", PADDED, "x w"), ("n", BatchNorm(), "a v shift mean variance"), ("y", Relu(), "n")], "y"),  # its scale
        ([("a", PADDED, "x w"), ("n", Mul(), "a a"), ("y", Relu(), "n")], "y"),  # no scale, but a square
        ([("a", PADDED, "x w"), ("n", Mul(), "a per_row"), ("y", Relu(), "n")], "y"),  # not one number a channel
        ([("a", PADDED, "x w"), ("n", Add(), "a wide"), ("y", Relu(), "n")], "y"),  # broadcasts the convolution
    ],
)
def test_batch_norm_stays_where_folding_would_change_something(nodes, outputs):
    inputs = {**X, "x_weight": TensorType((4, 4, 3, 3)), "v": TensorType((4,))}
    constants = {**CONV, **NORM, "per_row": constant("r", 5, 1), "wide": constant("wide", 3, 1, 4, 1, 1)}
    graph = graph_of(nodes, constants, outputs, inputs)
    assert batch_norm_folding(graph) is graph


def padded(*sides: int, **options: Any) -> Pad:
    return Pad((0, 0, *sides[:2], 0, 0, *sides[2:]), **options)


POOL, FEW = MaxPool((4, 4), (2, 2), (0, 0, 0, 1)), Clip(0.0, 6.0)


@pytest.mark.parametrize(
    ("nodes", "kept"),
    [
        ([("p", padded(0, 1, 2, 0), "x"), ("y", PADDED, "p w b")], [Conv((1, 1), (1, 2, 3, 1))]),
        ([("r", Relu(), "x"), ("p", padded(1, 1, 1, 0), "r"), ("y", POOL, "p")], [Relu(), replace(POOL, pads=(1, 1, 1, 1))]),
        ([("r", FEW, "x"), ("p", padded(1, 0, 0, 0), "r"), ("y", POOL, "p")], [FEW, replace(POOL, pads=(1, 0, 0, 1))]),
        ([("p", padded(1, 1, 1, 0), "x"), ("y", POOL, "p")], None),  # zero is the largest of some negative numbers
        ([("r", Relu(), "x"), ("p", padded(3, 0, 0, 0), "r"), ("y", POOL, "p")], None),  # wide padding
        ([("r", Relu(), "x"), ("p", padded(1, 0, 0, 0), "r"), ("y", replace(POOL, ceil_mode=True), "p")], None),
        ([("p", padded(1, 1, 1, 1, value=1.0), "x"), ("y", PADDED, "p w")], None),
        ([("p", padded(1, 1, 1, 1, mode="edge"), "x"), ("y", PADDED, "p w")], None),
        ([("p", padded(-1, 1, 1, 1), "x"), ("y", PADDED, "p w")], None),
        ([("p", Pad((0, 2, 0, 0, 0, 2, 0, 0)), "x"), ("y", replace(PADDED, groups=2), "p w")], None),  # channels
        ([("p", padded(1, 1, 1, 1), "x"), ("c", PADDED, "p w"), ("y", Concat(2), "p c")], None),
        ([("p", padded(1, 1, 1, 1), "x"), ("y", Relu(), "p")], None),
    ],
)  # fmt: skip
def test_zeros_around_images_are_padding(nodes: Nodes, kept: list[Op] | None) -> None:
    graph = graph_of(nodes, CONV, "y")
    after = pad_folding(graph)
    assert after is graph if kept is None else [node.op for node in after.nodes] == kept
    assert_equal(graph, after, 1e-5)


@pytest.mark.parametrize(
    ("permutation", "axes", "before"),
    [((0, 2, 3, 1), (1, -2), (2, 3)), ((0, 2, 3, 1), (3,), (1,)), ((2, 3, 0, 1), (0, 1), (2, 3)), ((0, 2, 3, 1), (1,), None)],
)  # fmt: skip
@pytest.mark.parametrize("keepdims", [True, False])
def test_axes_are_reduced_before_a_transpose(
    permutation: tuple[int, ...], axes: tuple[int, ...], before: tuple[int, ...] | None, keepdims: bool
) -> None:
    reduction = Reduce("mean", axes, keepdims)
    graph = graph_of([("a", Transpose(permutation), "x"), ("y", reduction, "a")], {})
    after = dead_op_elimination(reduction_hoisting(graph))
    assert next(node.op for node in after.nodes) == (Reduce("mean", before) if before else Transpose(permutation))
    assert_equal(graph, after, 1e-6)


@pytest.mark.parametrize(
    ("first", "axis", "second", "kept"),
    [
        ((0, 2, 3, 1), 3, (0, 3, 1, 2), ["softmax"]),
        ((0, 3, 1, 2), 1, (0, 2, 1, 3), ["transpose", "softmax"]),
        ((0, 2, 1, 3), -1, (0, 1, 3, 2), ["transpose", "softmax"]),
    ],
)
def test_a_softmax_takes_the_axis_that_was_turned_to_its_place(
    first: tuple[int, ...], axis: int, second: tuple[int, ...], kept: list[str]
) -> None:
    """``softmax(dim=1)`` below operator set 13."""
    graph = graph_of([("a", Transpose(first), "x"), ("b", Softmax(axis), "a"), ("y", Transpose(second), "b")], {})
    after = canonicalise(graph)
    assert [node.op.kind for node in after.nodes] == kept
    assert_equal(graph, after, 1e-6)


@pytest.mark.parametrize(
    ("nodes", "outputs", "kept"),
    [
        ([("a", Identity(), "x"), ("y", Relu(), "a")], "y", ["relu"]),
        ([("a", Relu(), "x"), ("y", Identity(), "a")], "y", ["relu"]),  # relu takes the name y over
        ([("a", Relu(), "x"), ("y", Identity(), "a"), ("z", Relu(), "a")], "y z", ["relu", "relu"]),
        ([("a", Relu(), "x"), ("y", Identity(), "a"), ("z", Identity(), "a")], "y z", ["relu", "identity"]),
        ([("a", Relu(), "x"), ("y", Identity(), "a")], "a y", ["relu", "identity"]),
        ([("y", Identity(), "x")], "y", ["identity"]),
        ([("y", Identity(), "w")], "y", ["identity"]),
        ([("a", Identity(), "x"), ("b1", Identity(), "a"), ("y", Relu(), "b1")], "y", ["relu"]),
        ([("a", Transpose((0, 1, 2, 3)), "x"), ("y", Relu(), "a")], "y", ["relu"]),
        ([("a", Transpose((0, 1, 3, 2)), "x"), ("y", Relu(), "a")], "y", ["transpose", "relu"]),
        ([("a", Reshape((2, 100)), "x"), ("y", Relu(), "a")], "y", ["reshape", "relu"]),
        (
            [("a", Reshape((2, 100)), "x"), ("c", Reshape((2, 10, 10)), "a"), ("y", Reshape(SHAPE), "c")],
            "y a c",
            ["reshape"] * 3,
        ),
        ([("r", Relu(), "x"), ("a", Reshape((200,)), "r"), ("y", Reshape(SHAPE), "a")], "y", ["relu", "reshape"]),
        ([("a", Mul(), "x one"), ("y", Relu(), "a")], "y", ["relu"]),
        ([("a", Mul(), "one x"), ("y", Nary("div"), "a one")], "y", ["identity"]),
        ([("a", Mul(), "x two"), ("y", Nary("div"), "one a")], "y", ["mul", "nary"]),
        ([("a", Mul(), "x ones"), ("y", Relu(), "a")], "y", ["mul", "relu"]),
        ([("a", Mul(), "x deep"), ("y", Relu(), "a")], "y", ["mul", "relu"]),
        ([("a", Add(), "zero x"), ("y", Relu(), "a")], "y", ["relu"]),
        ([("a", Add(), "x bias"), ("y", Relu(), "a")], "y", ["add", "relu"]),
    ],
)
def test_identities_go_and_outputs_keep_their_names(nodes, outputs, kept):
    numbers = {"one": np.ones(()), "two": np.full((), 2), "ones": np.ones((3, 1, 1, 1, 1)), "deep": np.ones((1,) * 5)}
    numbers |= {"zero": np.zeros(()), "bias": np.zeros(1)}
    constants = {name: ArrayConstant(array.astype(np.float32)) for name, array in numbers.items()}
    graph = graph_of(nodes, {**CONV, **constants}, outputs)
    after = identity_elimination(graph)
    assert [node.op.kind for node in after.nodes] == kept
    assert after.outputs == graph.outputs
    assert_equal(graph, after, 0)


def test_a_transpose_of_axes_of_one_element_moves_nothing():
    inputs = {"x": TensorType((1, 6, 1, 4))}
    nodes = [("a", Transpose((1, 2, 0, 3)), "x"), ("y", Transpose((3, 1, 2, 0)), "a")]
    after = identity_elimination(graph_of(nodes, {}, inputs=inputs))
    assert [node.op for node in after.nodes] == [Reshape((6, 1, 1, 4)), Transpose((3, 1, 2, 0))]


def test_element_wise_ops_read_what_an_expand_repeats():
    one = Slice((0, 0), (1, 1), (2, 3), (1, 1))
    nodes = [
        ("z", one, "x"), ("a", Expand((2, 4, 5, 5)), "z"), ("b", Mul(), "x a"), ("c", Add(), "a a"),
        ("d", Concat(1), "a b c"),
    ]  # fmt: skip
    graph = graph_of(nodes, {}, "d")
    after = expand_elimination(graph)
    assert [node.inputs for node in after.nodes[2:]] == [("x", "z"), ("a", "a"), ("a", "b", "c")]
    assert_equal(graph, after, 0)


ROWS = np.stack(np.meshgrid([0, 1], [0, -3, 2, -1], indexing="ij"), -1)


@pytest.mark.parametrize(
    ("picks", "picked", "made"),
    [
        (Gather(-3), -1, [Slice((3,), (4,), (1,), (1,)), Reshape((2, 5, 5))]),
        (Gather(-3), [2, -1], [Slice((2,), (4,), (1,), (1,))]),
        (Gather(-3), [1, 3], None),
        (Gather(-3), [1, 0], None),
        (Gather(-3), [[0, 2]], None),
        (Gather(-3), [[[1], [2]]], [Slice((1,), (3,), (1,), (1,)), Reshape((2, 1, 2, 1, 5, 5))]),
        (Gather(-3), [3, 4], None),
        (GatherND(0), ROWS, ["reshape", "slice", "reshape"]),
        (GatherND(0), [[[1, 0]], [[1, 1]]], ["reshape", "slice", "reshape"]),
        (GatherND(0), [[1], [0]], None),
        (GatherND(0), [[0, 0], [0, 2]], None),
    ],
)
def test_neighbours_are_picked_by_a_slice(picks: Op, picked: object, made: list[Any] | None) -> None:
    graph = graph_of([("y", picks, "x i")], {"i": ArrayConstant(np.array(picked))})
    after = gather_slicing(graph)
    if made is None:
        assert after is graph
    else:
        assert [node.op if isinstance(picks, Gather) else node.op.kind for node in after.nodes] == made
        assert_equal(graph, after, 0)


def test_what_is_computed_twice_is_computed_once():
    constants = {
        **CONV,
        "filled": ArrayConstant(CONV["w"].load()),
        "scalar": positive("scalar", 1),
        "same": ArrayConstant(positive("scalar", 1).load()),
        "other": constant("other", 1),
        "large": Untouchable(TensorType((4, 4, 300, 300))),
        "larger": Untouchable(TensorType((4, 4, 300, 300))),
        "alone": Untouchable(TensorType((2, 4, 5, 5))),
    }
    nodes = [
        ("n0", PADDED, "x w b"),
        ("n1", PADDED, "x w b"),
        ("n2", PADDED, "x filled b"),  # weights of layers that hold the same, as fills do
        ("n3", Mul(), "n0 scalar"),
        ("n4", Mul(), "n1 same"),
        ("n5", Mul(), "n0 other"),
        ("n6", Add(), "x alone"),
        ("e", Identity(), "large"),
        ("f", Identity(), "larger"),
        ("y", Add(), "n3 n4 n5 n2 n6"),
        ("z", Mul(), "n0 scalar"),
    ]
    graph = graph_of(nodes, constants, "y z e f")
    after = common_subexpression_elimination(graph)
    assert [(node.name, node.inputs) for node in after.nodes if node.op.kind != "identity"] == [
        ("n0", ("x", "w", "b")),
        ("n2", ("x", "filled", "b")),
        ("n3", ("n0", "scalar")),
        ("n5", ("n0", "other")),
        ("n6", ("x", "alone")),
        ("y", ("n3", "n3", "n5", "n2", "n6")),
        ("z", ("n0", "scalar")),  # an output keeps its name
    ]


def test_an_input_may_be_called_what_the_type_of_a_constant_is():
    b = GraphBuilder("g")
    x, constant, other = b.input("x", (1, 4)), b.constant("c", (1, 4)), b.input("fp32[1x4]", (1, 4))
    assert other == str(b.types[constant])
    graph = b.graph([b.add(Add(), b.add(Add(), x, constant), b.add(Add(), x, other))])
    assert common_subexpression_elimination(graph) is graph


def test_dead_ops_go():
    nodes = [("a", Relu(), "x"), ("dead", Relu(), "a"), ("deader", Add(), "dead a"), ("y", Relu(), "a")]
    assert [node.name for node in dead_op_elimination(graph_of(nodes, {})).nodes] == ["a", "y"]


@pytest.mark.parametrize("dtype", [DType.FLOAT16, DType.BFLOAT16])
def test_retyped_graphs_compute_the_same_up_to_rounding(dtype):
    graph = graph_of([("a", PADDED, "x w b"), ("y", Relu(), "a")], CONV)
    half = retype(graph, dtype)
    assert {value.dtype for value in half.types.values()} == {dtype}
    expected, made = outputs_of(graph)["y"], outputs_of(half)["y"]
    assert made.dtype == dtype.numpy
    np.testing.assert_allclose(made.astype(np.float32), expected, atol=0.05 * np.abs(expected).max())


@pytest.mark.parametrize("dtype", [DType.FLOAT16, DType.BFLOAT16])
def test_a_mask_of_the_least_number_stays_finite_in_16_bits(dtype):
    """A softmax made NaN of infinities alone, where all keys are hidden."""
    least = np.float32(np.finfo(np.float32).min)
    constants = {"mask": ArrayConstant(np.array([least, -np.inf, 1], np.float32)), "one": ArrayConstant(least)}
    graph = graph_of([("a", Add(), "x mask"), ("y", Add(), "a one")], constants, inputs={"x": TensorType((3,))})
    found = [retype(graph, dtype).constants[name].load().astype(np.float64) for name in ("mask", "one")]
    assert np.isfinite(found[0]).tolist() == [True, False, True]
    assert found[1] == found[0][0] < -65503


def test_int8_is_for_pricing_only():
    graph = graph_of([("y", PADDED, "x w b")], CONV)
    narrow = retype(graph, DType.INT8)
    assert graph.work(graph.nodes[0]).bytes == 4 * narrow.work(narrow.nodes[0]).bytes
    with pytest.raises(GraphError, match="can be scheduled and priced, not executed"):
        narrow.constants["w"].load()


def test_retype_leaves_integers_and_graphs_that_fit_alone():
    inputs = {**X, "i": TensorType((3,), DType.INT64)}
    graph = graph_of([("y", Relu(), "x"), ("j", Identity(), "i")], {}, "y j", inputs)
    assert retype(graph, Precision.TF32.storage) is graph
    assert retype(graph, DType.FLOAT16).types["j"].dtype is DType.INT64


SCALE = {
    name: SeededConstant(TensorType(shape), name)
    for name, shape in {"m": (5, 5), "b": (5,), "s": (5,), "t": (5, 1), "u": ()}.items()
}
ROW = Slice((0, 0, 0), (1, 1, 1), (0, 1, 2), (1, 1, 1))
PRODUCT, BIAS = ("p", MatMul(), "x m"), ("q", Add(), "b p")


@pytest.mark.parametrize(
    ("nodes", "kept"),
    [
        ([PRODUCT, ("y", Mul(), "p s")], ["matmul"]),
        ([PRODUCT, BIAS, ("y", Mul(), "s q")], ["matmul", "add"]),
        ([PRODUCT, BIAS, ("y", Mul(), "q u")], ["matmul", "add"]),
        ([PRODUCT, ("y", Mul(), "p t")], ["matmul", "mul"]),
        ([PRODUCT, ("r", Add(), "p t"), ("y", Mul(), "r s")], ["matmul", "add", "mul"]),
        ([("p", MatMul(), "x x"), ("y", Mul(), "p s")], ["matmul", "mul"]),
        ([PRODUCT, ("r", ROW, "x"), ("y", Mul(), "p r")], ["matmul", "slice", "mul"]),
        ([PRODUCT, ("r", Mul(), "p s"), ("y", Add(), "r p")], ["matmul", "mul", "add"]),
    ],
)  # fmt: skip
def test_a_factor_for_each_column_is_folded_into_the_product_before_it(nodes: Nodes, kept: list[str]) -> None:
    graph = graph_of(nodes, SCALE)
    after = layer_scale_folding(graph)
    assert [node.op.kind for node in after.nodes] == kept
    assert_equal(graph, after, 2e-6)
