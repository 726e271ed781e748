"""Attention and the gradients of a convolution: against ONNX Runtime, ONNX's reference, PyTorch, finite differences and a loop."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx.reference import ReferenceEvaluator
from onnx_models import write_onnx
from onnx_of_op import check_op, import_onnx, onnx_of_op, run_onnxruntime

from iossim.backends.numpy_reference.backend import evaluate_graph
from iossim.ir.op import Array, Op
from iossim.ir.ops.attention import Attention
from iossim.ir.ops.conv import Conv
from iossim.ir.ops.conv_transpose import ConvBackwardData, ConvBackwardFilter
from iossim.ir.ops.foreign import Foreign
from iossim.ir.types import TensorType

SIZES = st.integers(1, 5)


@st.composite
def attentions(draw: st.DrawFn) -> tuple[Attention, list[Array]]:
    """An op, and operands of it; every query sees a key, as ONNX Runtime makes something else of those that do not."""
    random = np.random.default_rng(draw(st.integers(0, 2**16)))
    batch, kv_heads, groups, queries, keys, features, value_features = draw(st.tuples(*[SIZES] * 7))
    heads = kv_heads * groups
    shapes = [
        (batch, heads, queries, features),
        (batch, kv_heads, keys, features),
        (batch, kv_heads, keys, value_features),
    ]
    flat = draw(st.booleans())
    if flat:
        shapes = [(shape[0], shape[2], shape[1] * shape[3]) for shape in shapes]
    inputs = [random.standard_normal(shape).astype(np.float32) for shape in shapes]
    if draw(st.booleans()):
        mask = random.standard_normal((queries, keys)).astype(np.float32)
        truth = mask > 0
        truth[:, 0] = True
        inputs.append(draw(st.sampled_from([mask, truth, mask[None, None]])))
    counts = (heads, kv_heads) if flat else (0, 0)
    scale, softcap = draw(st.sampled_from([0.0, 0.25])), draw(st.sampled_from([0.0, 2.0]))
    return Attention(*counts, scale, draw(st.booleans()), softcap), inputs


@settings(max_examples=60)
@given(attentions())
def test_it_means_what_onnx_says(given_: tuple[Attention, list[Array]]) -> None:
    op, inputs = given_
    check_op(op, inputs, 23)
    names = [f"x{place}" for place in range(len(inputs))]
    (expected,) = ReferenceEvaluator(onnx_of_op(op, inputs, 23)).run(None, dict(zip(names, inputs, strict=True)))
    (made,) = op.evaluate(inputs)
    np.testing.assert_allclose(made, expected, rtol=1e-4, atol=1e-5)
    types = [TensorType(each.shape) for each in inputs[:3]]
    batch, heads, queries, keys = op.shape(types).scores
    seen = sum(min(query + 1, keys) if op.is_causal else keys for query in range(queries))
    features = op.shape(types).features + op.shape(types).value_features
    assert op.multiply_adds(types, ()) == batch * heads * seen * features


def test_a_row_that_sees_nothing_is_zero_and_halves_are_weighed_in_fp32() -> None:
    q = np.full((1, 1, 2, 4), 100.0, dtype=np.float16)
    v = np.arange(8, dtype=np.float16).reshape(1, 1, 2, 4)
    seen = np.array([[False, False], [True, True]])
    (y,) = Attention(scale=1.0).evaluate([q, q, v, seen])
    assert y.dtype == np.float16
    assert y.tolist() == [[[[0.0] * 4, [2.0, 3.0, 4.0, 5.0]]]]


HEADS = dict.fromkeys("qkv", (1, 2, 3, 4))


def read(folder: Path, inputs: dict[str, tuple[int, ...]], node: str, opset: int = 23) -> Op:
    """The op of an attention in a file."""
    (found,) = import_onnx(write_onnx(folder / "m.onnx", node, inputs, opset=opset)).nodes
    return found.op


def test_what_the_op_says_is_read_and_all_else_stays_foreign(tmp_path: Path) -> None:
    flat = {"q": (1, 3, 8), "k": (1, 5, 4), "v": (1, 5, 4)}
    node = "y = Attention <q_num_heads=2, kv_num_heads=1, is_causal=1> (q, k, v)"
    assert read(tmp_path, flat, node) == Attention(2, 1, is_causal=True)
    for op in (
        read(tmp_path, {**HEADS, "past": (1, 2, 5, 4)}, "y, pk, pv, s = Attention (q, k, v, , past, past)"),
        read(tmp_path, {**HEADS, "short_mask": (3, 2)}, "y = Attention (q, k, v, short_mask)", 24),
        read(tmp_path, HEADS, "y = Attention <left_window_size=1> (q, k, v)", 25),
        read(tmp_path, HEADS, "y = Attention <softmax_precision=11> (q, k, v)"),
    ):
        assert isinstance(op, Foreign)


@pytest.mark.parametrize(
    ("shapes", "attributes", "mask"),
    [
        (
            {"q": (1, 3, 8), "k": (1, 3, 4), "v": (1, 3, 4), "past": (1, 1, 5, 4)},
            "<q_num_heads=2, kv_num_heads=1, is_causal=1>",
            "",
        ),
        (
            {"q": (1, 2, 1, 4), "k": (1, 2, 1, 4), "v": (1, 2, 1, 4), "past": (1, 2, 5, 4), "m": (1, 6)},
            "<scale=0.3>",
            "m",
        ),
    ],
)
def test_an_attention_after_its_cache_is_one_of_all_keys(
    shapes: dict[str, tuple[int, ...]], attributes: str, mask: str, tmp_path: Path
) -> None:
    node = f"y, pk, pv = Attention {attributes} (q, k, v, {mask}, past, past)"
    path = write_onnx(tmp_path / "m.onnx", node, shapes, output="y pk pv", opset=23)
    graph = import_onnx(path)
    assert [each.op.kind for each in graph.nodes].count("attention") == 1
    random = np.random.default_rng(0)
    inputs = {name: random.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
    expected = ReferenceEvaluator(str(path)).run(["y", "pk", "pv"], inputs)
    for made, array in zip(evaluate_graph(graph, inputs).values(), expected, strict=True):
        np.testing.assert_allclose(made, array, rtol=1e-5, atol=1e-5)


SETTINGS = settings(max_examples=25)


def whole(seed: int, *shape: int) -> Array:
    """Small whole numbers, whose sums are exact in any order."""
    return np.random.default_rng(seed).integers(-4, 5, shape).astype(np.float32)


@st.composite
def convolutions(draw: st.DrawFn) -> tuple[Conv, Array, Array, Array]:
    """A convolution with an input, a weight and a gradient of its output."""
    rank, groups = draw(st.integers(1, 2)), draw(st.integers(1, 2))
    kernel, strides, dilations = (tuple(draw(st.integers(1, top)) for _ in range(rank)) for top in (3, 3, 2))
    pads = tuple(draw(st.integers(0, k - 1)) for k in kernel + kernel)
    size = tuple(d * (k - 1) + 1 + draw(st.integers(0, 5)) for k, d in zip(kernel, dilations, strict=True))
    op = Conv(strides, pads, dilations, groups)
    x = whole(1, draw(st.integers(1, 3)), groups * draw(st.integers(1, 2)), *size)
    weight = whole(2, groups * draw(st.integers(1, 2)), x.shape[1] // groups, *kernel)
    (y,) = op.evaluate((x, weight))
    return op, x, weight, whole(3, *y.shape)


def gradients(op: Conv, x: Array, weight: Array) -> tuple[ConvBackwardData, ConvBackwardFilter]:
    shared = op.strides, op.pads, op.dilations, op.groups
    return ConvBackwardData(*shared, x.shape[2:]), ConvBackwardFilter(*shared, weight.shape[2:])


@SETTINGS
@given(convolutions())
def test_a_gradient_is_what_the_output_changes_by(given_op: tuple[Conv, Array, Array, Array]) -> None:
    op, x, weight, grad_output = given_op
    data, filters = gradients(op, x, weight)
    by_x, by_weight = np.zeros_like(x), np.zeros_like(weight)
    for made, array, operands in ((by_x, x, lambda one: (one, weight)), (by_weight, weight, lambda one: (x, one))):
        for place in np.ndindex(array.shape):
            one = np.zeros_like(array)
            one[place] = 1.0  # a convolution is linear, so that this is the derivative itself
            made[place] = np.sum(op.evaluate(operands(one))[0] * grad_output)
    np.testing.assert_array_equal(data.evaluate((grad_output, weight))[0], by_x, strict=True)
    np.testing.assert_array_equal(filters.evaluate((x, grad_output))[0], by_weight, strict=True)
    types = [TensorType(array.shape) for array in (x, weight, grad_output)]
    assert data.infer((types[2], types[1])) == (types[0],)
    assert filters.infer((types[0], types[2])) == (types[1],)
    multiply_adds = op.multiply_adds(types[:2], types[2:])
    assert data.multiply_adds((types[2], types[1]), types[:1]) == multiply_adds
    assert filters.multiply_adds((types[0], types[2]), types[1:2]) == multiply_adds


@SETTINGS
@given(convolutions(), st.sampled_from([11, 13, 21]))
def test_onnx_runtime_computes_what_is_written(given_op: tuple[Conv, Array, Array, Array], opset: int) -> None:
    op, x, weight, grad_output = given_op
    data, filters = gradients(op, x, weight)
    cases: list[tuple[Op, list[Array]]] = [
        (data, [grad_output, weight]),
        (filters, [x, grad_output]),
        (filters, [x, grad_output, weight]),
    ]
    for gradient, arrays in cases:
        model = onnx_of_op(gradient, arrays, opset)
        (made,) = run_onnxruntime(model, {f"x{index}": array for index, array in enumerate(arrays)})
        np.testing.assert_array_equal(made, gradient.evaluate(arrays)[0], strict=True)


def test_parts_of_a_batch_add_up_to_the_whole_bit_for_bit() -> None:
    random = np.random.default_rng(5)
    x, grad_output = (random.standard_normal(shape).astype(np.float32) for shape in ((7, 4, 9, 9), (7, 6, 5, 5)))
    op = ConvBackwardFilter((2, 2), (1, 1, 1, 1), (1, 1), 2, (3, 3))
    (expected,) = op.evaluate((x, grad_output))
    (total,) = op.evaluate((x[:3], grad_output[:3]))
    for begin, end in ((3, 5), (5, 7)):
        (total,) = op.evaluate((x[begin:end], grad_output[begin:end], total))
    np.testing.assert_array_equal(total, expected, strict=True)
