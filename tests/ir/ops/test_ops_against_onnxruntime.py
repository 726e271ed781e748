"""Every op means what ONNX Runtime computes, infers what ONNX infers, and comes back from its ONNX spelling."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx_of_op import check_op as check
from onnx_of_op import onnx_of_op, run_onnxruntime, types_of

from iossim.base.errors import GraphError
from iossim.ir.op import Array, Op
from iossim.ir.ops.channels_last import (
    AveragePoolNhwc,
    ChannelsLast,
    ConvNhwc,
    GlobalAveragePoolNhwc,
    GlobalMaxPoolNhwc,
    MaxPoolNhwc,
)
from iossim.ir.ops.conv import Conv
from iossim.ir.ops.matmul import Gemm, MatMul
from iossim.ir.ops.nary import Add, Mul
from iossim.ir.ops.normalization import BatchNorm, LocalResponseNorm
from iossim.ir.ops.pool import AveragePool, GlobalAveragePool, GlobalMaxPool, MaxPool
from iossim.ir.ops.reshape import Flatten, Reshape, Transpose
from iossim.ir.ops.slice import Concat, Slice, Split
from iossim.ir.ops.softmax import Softmax
from iossim.ir.ops.unary import Clip, Identity, Relu, Sigmoid
from iossim.ir.types import TO_FIRST, TO_LAST, TensorType

SETTINGS = settings(max_examples=20, deadline=None)
OPSETS = st.sampled_from([9, 11, 13, 17, 21])
SEEDS = st.integers(0, 2**16)


def noise(seed: int, *shape: int) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


@st.composite
def windows(draw: st.DrawFn) -> tuple[list[tuple[int, ...]], tuple[int, ...], tuple[int, ...]]:
    """Kernel, strides and dilations, then pads below the kernel's extent, then an input size that they fit."""
    rank = draw(st.integers(1, 2))
    per_axis = [tuple(draw(st.integers(1, top)) for _ in range(rank)) for top in (4, 3, 2)]
    kernel, _, dilations = per_axis
    extent = [d * (k - 1) + 1 for k, d in zip(kernel, dilations, strict=True)]
    pads = tuple(draw(st.integers(0, min(2, k - 1))) for k in kernel + kernel)
    size = tuple(draw(st.integers(e, e + 5)) for e in extent)
    return per_axis, pads, size


@SETTINGS
@given(windows(), st.integers(1, 3), st.integers(1, 3), st.integers(1, 2), st.booleans(), OPSETS, SEEDS)
def test_conv(window, groups, per_group, filters_per_group, bias, opset, seed):
    (kernel, strides, dilations), pads, size = window
    x = noise(seed, 2, groups * per_group, *size)
    weight = noise(seed + 1, groups * filters_per_group, per_group, *kernel)
    inputs = [x, weight, *([noise(seed + 2, len(weight))] if bias else [])]
    check(Conv(strides, pads, dilations, groups), inputs, opset, range(1, len(inputs)))


@SETTINGS
@given(windows(), st.booleans(), st.sampled_from([10, 12, 22]), SEEDS)
def test_max_pool(window, ceil_mode, opset, seed):
    (kernel, strides, dilations), pads, size = window
    check(MaxPool(kernel, strides, pads, dilations, ceil_mode), [noise(seed, 2, 2, *size)], opset)


@SETTINGS
@given(windows(), st.booleans(), st.booleans(), st.sampled_from([19, 22]), SEEDS)
def test_average_pool(window, ceil_mode, include_pad, opset, seed):
    (kernel, strides, dilations), pads, size = window
    check(AveragePool(kernel, strides, pads, ceil_mode, include_pad, dilations), [noise(seed, 2, 2, *size)], opset)


@SETTINGS
@given(windows(), st.booleans(), st.sampled_from([7, 10, 11]), SEEDS)
def test_average_pool_before_dilation(window, include_pad, opset, seed):
    (kernel, strides, _), pads, size = window
    op = AveragePool(kernel, strides, pads, False, include_pad, (1,) * len(kernel))
    check(op, [noise(seed, 2, 2, *size)], opset)


@SETTINGS
@given(st.none() | st.just(-0.5), st.none() | st.just(0.75), OPSETS, SEEDS)
def test_clip(minimum, maximum, opset, seed):
    check(Clip(minimum, maximum), [noise(seed, 3, 4)], opset)


@st.composite
def broadcastable(draw: st.DrawFn, count: int) -> list[tuple[int, ...]]:
    """Shapes that broadcast against each other: each drops leading axes of one shape, and makes others ones."""
    full = draw(st.lists(st.integers(1, 4), min_size=1, max_size=4))
    shapes = []
    for _ in range(count):
        kept = full[draw(st.integers(0, len(full) - 1)) :]
        shapes.append(tuple(size if draw(st.booleans()) else 1 for size in kept))
    return shapes


@SETTINGS
@given(st.integers(1, 4).flatmap(broadcastable), OPSETS, SEEDS)
def test_add(shapes, opset, seed):
    check(Add(), [noise(seed + index, *shape) for index, shape in enumerate(shapes)], opset)


@SETTINGS
@given(broadcastable(2), OPSETS, SEEDS)
def test_mul(shapes, opset, seed):
    check(Mul(), [noise(seed + index, *shape) for index, shape in enumerate(shapes)], opset)


@SETTINGS
@given(st.integers(0, 2), st.lists(st.integers(1, 3), min_size=1, max_size=3), OPSETS, SEEDS)
def test_concat(axis, sizes, opset, seed):
    shapes = [[size if other == axis else 2 for other in range(3)] for size in sizes]
    check(Concat(axis), [noise(seed + index, *shape) for index, shape in enumerate(shapes)], opset)


@SETTINGS
@given(st.integers(0, 2), st.lists(st.integers(1, 3), min_size=1, max_size=3), OPSETS, SEEDS)
def test_split(axis, sizes, opset, seed):
    shape = [sum(sizes) if other == axis else 2 for other in range(3)]
    check(Split(axis, tuple(sizes)), [noise(seed, *shape)], opset)


@SETTINGS
@given(
    st.lists(
        st.tuples(st.integers(0, 5), st.integers(1, 20), st.sampled_from([-3, -2, -1, 1, 2, 3]), st.booleans()),
        min_size=1,
        max_size=3,
    ),
    st.permutations(range(3)),
    st.sampled_from([10, 13, 21]),
    SEEDS,
)
def test_slice(parts, axes, opset, seed):
    """Slices that hold their first element, told from the front or the back, and end inside or beyond the axis."""
    x = noise(seed, 4, 5, 6)
    starts, ends, steps = [], [], []
    for (first, reach, step, from_back), axis in zip(parts, axes, strict=False):
        size = x.shape[axis]
        start = first % size
        end = start + (reach if step > 0 else -reach)
        starts.append(start - size if from_back else start)
        ends.append(end - size if end < 0 else end)
        steps.append(step)
    check(Slice(tuple(starts), tuple(ends), tuple(axes[: len(parts)]), tuple(steps)), [x], opset)


@SETTINGS
@given(st.integers(0, 2), OPSETS, st.sampled_from([(2, 3, 4), (3, 5, 1), (1, 7, 1)]), SEEDS)
def test_softmax(axis, opset, shape, seed):
    after = int(np.prod(shape[axis + 1 :]))
    check(Softmax(axis, opset < 13 and after > 1), [noise(seed, *shape)], opset)


def test_softmax_meanings_differ():
    x = noise(0, 2, 3, 4)
    (flattened,), (along,) = Softmax(1, True).evaluate([x]), Softmax(1).evaluate([x])
    np.testing.assert_allclose(flattened.sum(axis=(1, 2)), 1, rtol=1e-5)
    np.testing.assert_allclose(along.sum(axis=1), 1, rtol=1e-5)


@SETTINGS
@given(
    st.sampled_from([1.0, 0.5, -2.0]),
    st.sampled_from([1.0, 0.25]),
    st.booleans(),
    st.booleans(),
    st.none() | st.sampled_from([(5,), (1,), (1, 5), (3, 1), (3, 5)]),
    st.sampled_from([11, 13, 21]),
    SEEDS,
)
def test_gemm(alpha, beta, trans_a, trans_b, bias, opset, seed):
    a, b = noise(seed, 3, 4), noise(seed + 1, 4, 5)
    inputs = [a.T.copy() if trans_a else a, b.T.copy() if trans_b else b]
    if bias is not None:
        inputs.append(noise(seed + 2, *bias))
    check(Gemm(alpha, beta, trans_a, trans_b), inputs, opset)


@SETTINGS
@given(broadcastable(2), st.sampled_from([((), ()), ((3,), ()), ((), (5,)), ((3,), (5,))]), OPSETS, SEEDS)
def test_matmul(stacks, ends, opset, seed):
    (rows, columns), inner = ends, 4
    left = (*(stacks[0] if rows else ()), *rows, inner)
    right = (*(stacks[1] if columns else ()), inner, *columns)
    check(MatMul(), [noise(seed, *left), noise(seed + 1, *right)], opset)


PLAIN = (
    st.sampled_from([Relu(), Sigmoid(), Identity(), GlobalAveragePool(), GlobalMaxPool()]),
    st.builds(Flatten, st.integers(0, 3)),
    st.builds(Reshape, st.sampled_from([(24,), (4, 6), (2, 3, 4), (1, 4, 1, 6)])),
    st.builds(Transpose, st.permutations(range(3)).map(tuple)),
)


@pytest.mark.parametrize("ops", PLAIN)
@SETTINGS
@given(st.data(), OPSETS, SEEDS)
def test_ops_of_one_tensor(ops, data, opset, seed):
    rank = data.draw(st.integers(1, 3)) if ops is PLAIN[0] else 1
    check(data.draw(ops), [10 * noise(seed, 2, 3, *[4] * rank)], opset)


@SETTINGS
@given(st.integers(0, 2), OPSETS, SEEDS)
def test_batch_norm(rank, opset, seed):
    x = noise(seed, 2, 3, *[4] * rank)
    scale, bias, mean = (noise(seed + index, 3) for index in (1, 2, 3))
    variance = np.abs(noise(seed + 4, 3)) + np.float32(0.1)
    epsilon = 1e-3
    check(BatchNorm(epsilon), [x, scale, bias, mean, variance], opset, range(1, 5))


@SETTINGS
@given(st.sampled_from([1, 3, 5]), st.integers(1, 7), OPSETS, SEEDS)
def test_local_response_norm(size, channels, opset, seed):
    x = 5 * noise(seed, 2, channels, 3, 3)
    check(LocalResponseNorm(size, 0.1, 0.75, 2.0), [x], opset)


@pytest.mark.parametrize(
    ("op", "shapes"),
    [
        (Relu(), [(3, 4)]),
        (Sigmoid(), [(3, 4)]),
        (Softmax(1), [(3, 4)]),
        (GlobalAveragePool(), [(1, 2, 40, 40)]),
        (AveragePool((3, 3), (1, 1), (1, 1, 1, 1)), [(1, 2, 5, 5)]),
        (MaxPool((3, 3), (1, 1), (1, 1, 1, 1)), [(1, 2, 5, 5)]),
        (Add(), [(3, 4), (4,)]),
        (Mul(), [(3, 4), (4,)]),
        (MatMul(), [(3, 64), (64, 2)]),
        (Gemm(), [(3, 64), (64, 2), (2,)]),
        (BatchNorm(), [(1, 3, 2, 2), (3,), (3,), (3,), (3,)]),
        (Conv((1, 1), (1, 1, 1, 1)), [(1, 8, 5, 5), (4, 8, 3, 3), (4,)]),
    ],
    ids=lambda value: value.kind if isinstance(value, Op) else "",
)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision_accumulates_in_fp32(op: Op, shapes, dtype):
    import ml_dtypes

    element = np.dtype(ml_dtypes.bfloat16 if dtype == "bfloat16" else np.float16)
    inputs = [np.abs(noise(index, *shape)).astype(element) for index, shape in enumerate(shapes)]
    (y,) = op.evaluate(inputs)
    (wide,) = op.evaluate([array.astype(np.float32) for array in inputs])
    (made,) = op.infer(types_of(inputs))
    assert y.dtype == element == made.dtype.numpy
    np.testing.assert_array_equal(y, wide.astype(element))


@pytest.mark.parametrize("op", [Add(), Mul()], ids=lambda op: op.kind)
def test_integers_stay_exact(op):
    big = np.array([2**40 + 1], dtype=np.int64)
    (y,) = op.evaluate([big, np.array([1], dtype=np.int64)])
    assert y.dtype == np.int64
    assert y[0] == 2**40 + (2 if isinstance(op, Add) else 1)


CASES = [
    (ConvNhwc((2, 1), (1, 0, 2, 1), (1, 2), 2), [(6, 2, 3, 2), (6,)]),
    (ConvNhwc(), [(3, 4, 1, 1)]),
    (MaxPoolNhwc((3, 2), (2, 1), (1, 0, 1, 1), (1, 2), True), []),
    (AveragePoolNhwc((3, 3), (2, 2), (1, 1, 0, 1), True, True), []),
    (GlobalAveragePoolNhwc(), []),
    (GlobalMaxPoolNhwc(), []),
]


@pytest.mark.parametrize(("op", "weights"), CASES, ids=lambda value: getattr(value, "kind", ""))
def test_what_they_compute(op: ChannelsLast, weights: list[tuple[int, ...]]) -> None:
    random = np.random.default_rng(0)
    inputs: list[Array] = [random.standard_normal(shape, np.float32) for shape in ((2, 9, 8, 4), *weights)]
    types = [TensorType(array.shape) for array in inputs]
    first = op.channels_first
    assert op.attributes() == first.attributes()
    (y,), (made,) = op.evaluate(inputs), op.infer(types)
    (expected,) = first.evaluate([inputs[0].transpose(TO_FIRST), *inputs[1:]])
    np.testing.assert_array_equal(y, expected.transpose(TO_LAST))
    assert made == TensorType(y.shape)
    by_first = [TensorType(inputs[0].transpose(TO_FIRST).shape), *types[1:]]
    assert op.work(types, [made]) == first.work(by_first, first.infer(by_first))
    constants = range(1, len(inputs))
    (ran,) = run_onnxruntime(onnx_of_op(op, inputs, 21, constants), {"x0": inputs[0]})
    np.testing.assert_allclose(ran, y, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("shape", [(2, 3, 4), (2, 3, 4, 5, 6)])
def test_images_have_two_dimensions(shape: tuple[int, ...]) -> None:
    with pytest.raises(GraphError, match="is no images of two dimensions"):
        GlobalMaxPoolNhwc().infer([TensorType(shape)])
