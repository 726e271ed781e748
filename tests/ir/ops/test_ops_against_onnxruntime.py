"""Every op means what ONNX Runtime computes, infers what ONNX infers, and comes back from its ONNX spelling.

ONNX's own cases (``tests/models/test_onnx_backend.py``) hold more of each operator; here are all attributes of each op.
"""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx_of_op import check_op, onnx_of_op, run_onnxruntime, types_of
from op_cases import ONNX_CASES, OnnxCase, noise, row

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
from iossim.ir.ops.conv_transpose import ConvTranspose
from iossim.ir.ops.matmul import Gemm, MatMul
from iossim.ir.ops.nary import Add, Mul
from iossim.ir.ops.normalization import BatchNorm
from iossim.ir.ops.pool import AveragePool, GlobalAveragePool, MaxPool
from iossim.ir.ops.quantize import Quantize
from iossim.ir.ops.slice import Slice
from iossim.ir.ops.softmax import Softmax
from iossim.ir.ops.unary import Relu, Sigmoid
from iossim.ir.types import TO_FIRST, TO_LAST, TensorType

#: Not a number is the least in NumPy and ONNX Runtime; torch says nothing of it.
NAN = row(Quantize(), 13, np.array([np.nan, np.inf, -np.inf, 0], np.float32), np.float32(0.5), np.int8(3), weights=2)


@pytest.mark.parametrize("case", [*ONNX_CASES, NAN], ids=str)
def test_an_op_is_onnxs(case: OnnxCase) -> None:
    constants = range(len(case.inputs) - case.weights, len(case.inputs))
    check_op(case.op, case.inputs, case.opset, constants, case.tolerance)


SETTINGS = settings(max_examples=20)


@st.composite
def windows(draw: st.DrawFn) -> tuple[tuple[Any, ...], tuple[int, ...], tuple[int, ...]]:
    """Kernel, strides and dilations, then pads below the kernel's extent, then an input size that they fit."""
    rank = draw(st.integers(1, 2))
    per_axis = tuple(tuple(draw(st.integers(1, top)) for _ in range(rank)) for top in (4, 3, 2))
    kernel, _, dilations = per_axis
    extent = [d * (k - 1) + 1 for k, d in zip(kernel, dilations, strict=True)]
    pads = tuple(draw(st.integers(0, min(2, k - 1))) for k in kernel + kernel)
    return per_axis, pads, tuple(draw(st.integers(e, e + 5)) for e in extent)


@SETTINGS
@given(windows(), st.integers(1, 3), st.integers(1, 3), st.integers(1, 2), st.booleans(), st.sampled_from([9, 13, 21]))
def test_conv(window, groups, per_group, filters_per_group, bias, opset):
    (kernel, strides, dilations), pads, size = window
    weight = noise(1, groups * filters_per_group, per_group, *kernel)
    inputs = [noise(0, 2, groups * per_group, *size), weight, *([noise(2, len(weight))] if bias else [])]
    check_op(Conv(strides, pads, dilations, groups), inputs, opset, range(1, len(inputs)))


@SETTINGS
@given(windows(), st.integers(1, 2), st.booleans(), st.booleans(), st.sampled_from([7, 11, 17]))
def test_conv_transpose(window, groups, extends, bias, opset):
    (kernel, strides, dilations), _, size = window
    pads = (int(min(kernel) > 1),) * 2 * len(kernel)
    extra = tuple(stride - 1 if extends else 0 for stride in strides)
    inputs = [
        noise(0, 2, 2 * groups, *size),
        noise(1, 2 * groups, 3, *kernel),
        *([noise(2, 3 * groups)] if bias else []),
    ]
    check_op(ConvTranspose(strides, pads, dilations, groups, extra), inputs, opset, range(1, len(inputs)))


@SETTINGS
@given(windows(), st.booleans(), st.booleans())
def test_pooling(window, ceil_mode, include_pad):
    (kernel, strides, dilations), pads, size = window
    x = noise(0, 2, 2, *size)
    for opset in (10, 22):
        check_op(MaxPool(kernel, strides, pads, dilations, ceil_mode), [x], opset)
    for opset in (19, 22):
        check_op(AveragePool(kernel, strides, pads, ceil_mode, include_pad, dilations), [x], opset)
    check_op(AveragePool(kernel, strides, pads, False, include_pad, (1,) * len(kernel)), [x], 7)


PARTS = st.tuples(st.integers(0, 5), st.integers(1, 20), st.sampled_from([-3, -2, -1, 1, 2, 3]), st.booleans())


@SETTINGS
@given(st.lists(PARTS, min_size=1, max_size=3), st.permutations(range(3)), st.sampled_from([10, 21]))
def test_slice(parts, axes, opset):
    """Slices that hold their first element, told from the front or the back, and end inside or beyond the axis."""
    x = noise(0, 4, 5, 6)
    starts, ends, steps = [], [], []
    for (first, reach, step, from_back), axis in zip(parts, axes, strict=False):
        size = x.shape[axis]
        start = first % size
        end = start + (reach if step > 0 else -reach)
        starts.append(start - size if from_back else start)
        ends.append(end - size if end < 0 else end)
        steps.append(step)
    check_op(Slice(tuple(starts), tuple(ends), tuple(axes[: len(parts)]), tuple(steps)), [x], opset)


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


CHANNELS_LAST = [
    (ConvNhwc((2, 1), (1, 0, 2, 1), (1, 2), 2), [(6, 2, 3, 2), (6,)]),
    (ConvNhwc(), [(3, 4, 1, 1)]),
    (MaxPoolNhwc((3, 2), (2, 1), (1, 0, 1, 1), (1, 2), True), []),
    (AveragePoolNhwc((3, 3), (2, 2), (1, 1, 0, 1), True, True), []),
    (GlobalAveragePoolNhwc(), []),
    (GlobalMaxPoolNhwc(), []),
]


@pytest.mark.parametrize(("op", "weights"), CHANNELS_LAST, ids=lambda value: getattr(value, "kind", ""))
def test_channels_last_computes_what_channels_first_does(op: ChannelsLast, weights: list[tuple[int, ...]]) -> None:
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
