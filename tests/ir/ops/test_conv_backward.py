"""The gradients of a convolution: against finite differences, ONNX Runtime and PyTorch, and the parts of a batch against the whole."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx_of_op import onnx_of_op, run_onnxruntime

from iossim.base.errors import GraphError
from iossim.ir.op import Array, Op
from iossim.ir.ops.conv import Conv
from iossim.ir.ops.conv_transpose import ConvBackwardData, ConvBackwardFilter
from iossim.ir.types import TensorType

SETTINGS = settings(max_examples=25, deadline=None)


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


@pytest.mark.torch
@SETTINGS
@given(convolutions())
def test_they_are_the_gradients_of_torch(given_op: tuple[Conv, Array, Array, Array]) -> None:
    torch = pytest.importorskip("torch", reason="needs PyTorch; pip install 'iossim[torch]'")

    op, x, weight, grad_output = given_op
    data, filters = gradients(op, x, weight)
    rank = len(op.strides)
    before, behind = op.pads[:rank], op.pads[rank:]
    tensors = [torch.tensor(array, requires_grad=True) for array in (x, weight)]
    around = [amount for pair in zip(before[::-1], behind[::-1], strict=True) for amount in pair]
    convolve = (torch.nn.functional.conv1d, torch.nn.functional.conv2d)[rank - 1]
    padded = torch.nn.functional.pad(tensors[0], around)
    y = convolve(padded, tensors[1], None, op.strides, 0, op.dilations, op.groups)
    y.backward(torch.tensor(grad_output))
    np.testing.assert_array_equal(data.evaluate((grad_output, weight))[0], tensors[0].grad.numpy())
    np.testing.assert_array_equal(filters.evaluate((x, grad_output))[0], tensors[1].grad.numpy())


def test_parts_of_a_batch_add_up_to_the_whole_bit_for_bit() -> None:
    random = np.random.default_rng(5)
    x, grad_output = (random.standard_normal(shape).astype(np.float32) for shape in ((7, 4, 9, 9), (7, 6, 5, 5)))
    op = ConvBackwardFilter((2, 2), (1, 1, 1, 1), (1, 1), 2, (3, 3))
    (expected,) = op.evaluate((x, grad_output))
    (total,) = op.evaluate((x[:3], grad_output[:3]))
    for begin, end in ((3, 5), (5, 7)):
        (total,) = op.evaluate((x[begin:end], grad_output[begin:end], total))
    np.testing.assert_array_equal(total, expected, strict=True)


@pytest.mark.parametrize(
    ("op", "shapes", "reason"),
    [
        (ConvBackwardData(input_size=(9, 9)), [(1, 4, 8, 8), (4, 2, 3, 3)], "which makes fp32\\[1x4x7x7\\], not"),
        (ConvBackwardData(input_size=(9,)), [(1, 4, 8, 8), (4, 2, 3, 3)], "a size for each of its 2"),
        (ConvBackwardData(), [(1, 4, 8, 8)], "not 1 inputs"),
        (ConvBackwardFilter(kernel_size=(3, 3)), [(1, 2, 9, 9), (1, 4, 8, 8)], "which makes fp32\\[1x4x7x7\\], not"),
        (ConvBackwardFilter(kernel_size=(2, 2)), [(1, 2, 9, 9), (1, 4, 8, 8), (4, 2, 3, 3)], "adds to fp32"),
        (ConvBackwardFilter(), [(2, 9, 9), (1, 4, 8, 8)], "does not have 2 spatial"),
    ],
)
def test_operands_that_are_of_no_convolution_are_refused(op: Op, shapes: list[tuple[int, ...]], reason: str) -> None:
    with pytest.raises(GraphError, match=reason):
        op.infer([TensorType(shape) for shape in shapes])
