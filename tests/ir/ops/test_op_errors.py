"""An op that cannot take its inputs says why, and counts its work where it can."""

import numpy as np
import pytest

from iossim.base.errors import GraphError
from iossim.ir.op import Op
from iossim.ir.ops.attention import Attention
from iossim.ir.ops.conv import Conv
from iossim.ir.ops.conv_transpose import ConvBackwardData, ConvBackwardFilter
from iossim.ir.ops.gather import GatherND
from iossim.ir.ops.matmul import Gemm, MatMul
from iossim.ir.ops.nary import Add, Mul
from iossim.ir.ops.normalization import BatchNorm, LocalResponseNorm
from iossim.ir.ops.pool import AveragePool, GlobalAveragePool, GlobalMaxPool, MaxPool
from iossim.ir.ops.reshape import Flatten, Reshape, Transpose
from iossim.ir.ops.slice import Concat, Slice, Split
from iossim.ir.ops.softmax import Softmax
from iossim.ir.ops.unary import Clip, Identity, Relu, Sigmoid
from iossim.ir.types import DType, TensorType

NO_PADS = (0, 0, 0, 0)
IMAGE, HEADS = (1, 3, 8, 8), (1, 2, 3, 4)
#: Operands of a gradient that makes fp32[1x4x7x7].
OUTPUT, FILTERS = (1, 4, 8, 8), (4, 2, 3, 3)


@pytest.mark.parametrize(
    ("op", "shapes", "reason"),
    [
        (Relu(), [], "takes x, not 0 inputs"),
        (Identity(), [(2,), (2,)], "takes x, not 2 inputs"),
        (Add(), [], "takes term and maybe terms, not 0 inputs"),
        (Add(), [(2, 3), (2, 4)], "fp32[2x3] and fp32[2x4] do not broadcast"),
        (Mul(), [(2, 3)], "takes a and b, not 1 inputs"),
        (Mul(), [(4, 1), (3, 2)], "do not broadcast"),
        (Concat(1), [(2, 3), (3, 3)], "fp32[2x3] and fp32[3x3] do not join along axis 1"),
        (Concat(2), [(2, 3)], "axis 2 is not one of a tensor with 2 dimensions"),
        (Concat(0), [(2, 3), (2,)], "do not join"),
        (MaxPool((2, 2), (1, 1), NO_PADS), [(1, 3, 8)], "does not have 2 spatial dimensions"),
        (MaxPool((2, 2), (1,), NO_PADS), [IMAGE], "attributes of different ranks"),
        (MaxPool((2, 0), (1, 1), NO_PADS), [IMAGE], "needs a positive kernel"),
        (AveragePool((2, 2), (1, 1), (0, -1, 0, 0)), [IMAGE], "needs padding that is not negative"),
        (AveragePool((2, 2), (1, 1), (2, 0, 0, 0)), [IMAGE], "its padding 2 is not below its window 2"),
        (GlobalAveragePool(), [(1, 3)], "has no spatial dimensions"),
        (Gemm(), [(2, 3), (4, 5)], "do not multiply: 3 is not 4"),
        (Gemm(trans_b=True), [(2, 3), (3, 5)], "do not multiply: 3 is not 5"),
        (Gemm(), [(2, 3, 1), (3, 5)], "multiplies matrices"),
        (Gemm(), [(2, 3), (3, 5), (2,)], "do not broadcast"),
        (Gemm(), [(1, 3), (3, 5), (2, 5)], "its bias fp32[2x5] does not broadcast to fp32[1x5]"),
        (MatMul(), [(2, 3), (4, 5)], "do not multiply: 3 is not 4"),
        (MatMul(), [(2, 4, 3), (3, 3, 5)], "do not broadcast"),
        (MatMul(), [(), (3,)], "multiplies matrices"),
        (Flatten(3), [(2, 3)], "axis 3 is not one of"),
        (Reshape((2, 2)), [(2, 3)], "fp32[2x3] does not fit the shape [2, 2]"),
        (Reshape((4, -1)), [(2, 3)], "does not fit the shape [4, -1]"),
        (Reshape((-1, -1)), [(2, 3)], "leaves more than one dimension open"),
        (Reshape((6, 1, 0)), [(2, 3)], "copies a dimension that its input fp32[2x3] does not have"),
        (Reshape((-2, 3)), [(2, 3)], "has a negative dimension"),
        (Transpose((0, 0)), [(2, 3)], "is not one of the axes"),
        (Split(1, (1, 1)), [(2, 3)], "sizes [1, 1] do not add up to dimension 1"),
        (Split(1, (3, 0)), [(2, 3)], "sizes [3, 0] are not all positive"),
        (Slice((0,), (1, 2), (0,), (1,)), [(2, 3)], "differ in number"),
        (Slice((0,), (1,), (0,), (0,)), [(2, 3)], "has a step of 0"),
        (Slice((0, 0), (1, 1), (0, -2), (1, 1)), [(2, 3)], "slices an axis twice"),
        (Softmax(2), [(2, 3)], "axis 2 is not one of"),
        (GatherND(0), [(2, 3), TensorType((1, 3), DType.INT64)], "int64[1x3] do not fit its data fp32[2x3]"),
        (BatchNorm(), [IMAGE], "not 1 inputs"),
        (BatchNorm(), [IMAGE, (3,), (3,), (4,), (3,)], "its mean fp32[4] does not have 3 values"),
        (LocalResponseNorm(0), [IMAGE], "sums over 0 channels"),
        (Conv((1, 1), NO_PADS), [IMAGE, (4, 2, 1, 1)], "has 3 channels, its weight takes 2"),
        (ConvBackwardData(input_size=(9, 9)), [OUTPUT, FILTERS], "which makes fp32[1x4x7x7], not"),
        (ConvBackwardData(input_size=(9,)), [OUTPUT, FILTERS], "a size for each of its 2"),
        (ConvBackwardData(), [OUTPUT], "not 1 inputs"),
        (ConvBackwardFilter(kernel_size=(3, 3)), [(1, 2, 9, 9), OUTPUT], "which makes fp32[1x4x7x7], not"),
        (ConvBackwardFilter(kernel_size=(2, 2)), [(1, 2, 9, 9), OUTPUT, FILTERS], "adds to fp32"),
        (ConvBackwardFilter(), [(2, 9, 9), OUTPUT], "does not have 2 spatial"),
        (Attention(), [HEADS] * 2, "not 2 inputs"),
        (Attention(), [(1, 3, 8)] * 3, "do not divide into 0 heads"),
        (Attention(3, 3), [(1, 3, 8)] * 3, "do not divide into 3 heads"),
        (Attention(), [(1, 3, 3, 4), HEADS, HEADS], "do not divide among 2 of keys"),
        (Attention(), [HEADS, (1, 2, 3, 5), HEADS], "queries have 4 features, keys 5"),
        (Attention(), [HEADS, HEADS, (1, 2, 5, 4)], "values 2 of 5"),
        (Attention(), [HEADS, (2, 2, 3, 4), HEADS], "batches of 1, 2 and 1"),
        (Attention(), [*[HEADS] * 3, (3, 2)], "do not broadcast"),
        (Attention(), [(3, 4)] * 3, "neither three nor four"),
    ],
)
def test_inputs_that_do_not_fit(op: Op, shapes: list[tuple[int, ...] | TensorType], reason: str) -> None:
    types = [shape if isinstance(shape, TensorType) else TensorType(shape) for shape in shapes]
    with pytest.raises(GraphError) as caught:
        op.infer(types)
    assert reason in str(caught.value)


def test_mixed_element_types_do_not_fit() -> None:
    for op in (Add(), Mul(), Concat(0), MatMul(), Gemm()):
        with pytest.raises(GraphError):
            op.infer([TensorType((2, 2)), TensorType((2, 2), DType.INT64)])


@pytest.mark.parametrize(
    ("op", "shapes", "flops"),
    [
        (Conv(), [IMAGE, (4, 3, 1, 1)], 2 * 4 * 3 * 64),
        (Conv(), [IMAGE, (4, 3, 1, 1), (4,)], 2 * 4 * 3 * 64 + 4 * 64),
        (Relu(), [IMAGE], 192),
        (Clip(0.0, 6.0), [IMAGE], 384),
        (Clip(None, 6.0), [IMAGE], 192),
        (Sigmoid(), [IMAGE], 4 * 192),
        (Add(), [(2, 3), (2, 3), (3,)], 12),
        (Add(), [(2, 3)], 0),
        (Mul(), [(2, 1), (1, 3)], 6),
        (MaxPool((2, 2), (2, 2), NO_PADS), [IMAGE], 3 * 16 * 3),
        (AveragePool((2, 2), (2, 2), NO_PADS), [IMAGE], 3 * 16 * 4),
        (GlobalAveragePool(), [IMAGE], 192),
        (GlobalMaxPool(), [IMAGE], 192),
        (Gemm(), [(2, 3), (3, 5)], 2 * 2 * 3 * 5),
        (Gemm(trans_a=True), [(3, 2), (3, 5), (5,)], 2 * 2 * 3 * 5 + 10),
        (MatMul(), [(4, 2, 3), (3, 5)], 4 * 2 * 2 * 3 * 5),
        (BatchNorm(), [IMAGE, (3,), (3,), (3,), (3,)], 2 * 192),
        (LocalResponseNorm(5), [IMAGE], 14 * 192),
        (Softmax(1), [(2, 3)], 30),
        (Concat(1), [IMAGE, IMAGE], 0),
        (Reshape((192,)), [IMAGE], 0),
    ],
)
def test_work(op: Op, shapes, flops):
    inputs = [TensorType(shape) for shape in shapes]
    outputs = op.infer(inputs)
    work = op.work(inputs, outputs)
    assert work.flops == flops
    assert work.bytes == sum(value.bytes for value in (*inputs, *outputs))


def test_open_dimensions_of_a_reshape_are_resolved() -> None:
    x = np.arange(12.0).reshape(2, 3, 2)
    for op in (Reshape((2, -1)), Reshape((0, 6)), Reshape((0, 0, -1)), Reshape((3, 2, 2))):
        (made,) = op.infer([TensorType(x.shape, DType.FLOAT64)])
        (y,) = op.evaluate([x])
        assert y.shape == made.shape
