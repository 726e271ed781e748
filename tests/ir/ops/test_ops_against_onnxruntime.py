"""Every op means what ONNX Runtime computes, infers what ONNX infers, and comes back from its ONNX spelling.

ONNX's own cases (``tests/models/test_onnx_backend.py``) hold more of each operator; here are all attributes of each op.
"""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx_of_op import check_op, onnx_of_op, run_onnxruntime, types_of

from iossim.base.errors import GraphError
from iossim.ir.op import Array, Op
from iossim.ir.ops import functions, reduce
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
from iossim.ir.ops.functions import Nary, Unary
from iossim.ir.ops.gather import Gather, GatherElements, GatherND
from iossim.ir.ops.grid_sample import GridSample
from iossim.ir.ops.grouped_matmul import GroupedMatMul
from iossim.ir.ops.matmul import Gemm, MatMul
from iossim.ir.ops.nary import Add, Mul, PRelu, Where
from iossim.ir.ops.normalization import BatchNorm, GroupNorm, InstanceNorm, LayerNorm, LocalResponseNorm, RmsNorm
from iossim.ir.ops.pool import AveragePool, GlobalAveragePool, GlobalMaxPool, MaxPool
from iossim.ir.ops.quantize import (
    Dequantize,
    DynamicQuantize,
    IntegerConv,
    IntegerMatMul,
    Quantize,
    QuantizedConv,
    QuantizedMatMul,
)
from iossim.ir.ops.recurrent import Gru, Lstm, Rnn
from iossim.ir.ops.reduce import ArgExtreme, CumSum, Reduce, TopK
from iossim.ir.ops.reshape import DepthToSpace, Expand, Flatten, Pad, Reshape, SpaceToDepth, Tile, Transpose
from iossim.ir.ops.resize import Resize
from iossim.ir.ops.slice import Concat, Slice, Split
from iossim.ir.ops.softmax import Hardmax, LogSoftmax, Softmax
from iossim.ir.ops.unary import Cast, Clip, Identity, Relu, Sigmoid
from iossim.ir.types import TO_FIRST, TO_LAST, TensorType


def noise(seed: int, *shape: int) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def whole(seed: int, low: int, high: int, dtype: type, *shape: int) -> Array:
    return np.random.default_rng(seed).integers(low, high, shape).astype(dtype)


def one(value: float, dtype: type) -> Array:
    return np.array(value, dtype=dtype)


def row(op: Op, opset: int, *inputs: Array | tuple[int, ...], weights: int = 0, tolerance: float = 2e-5) -> Any:
    """An op with its inputs, arrays or shapes of noise, of which the last ``weights`` are constants of the model."""
    arrays = [noise(index, *each) if isinstance(each, tuple) else each for index, each in enumerate(inputs)]
    constants = range(len(arrays) - weights, len(arrays))
    return pytest.param(op, opset, arrays, constants, tolerance, id=f"{op.kind}-{opset}")


BOTH = (False, True)
#: Positive numbers of few values, so that there are equal ones.
FEW, POSITIVE = whole(0, 0, 4, np.float32, 3, 4, 5), np.abs(noise(0, 2, 3, 4)) + np.float32(0.1)
BYTES, SIGNED = whole(0, 0, 255, np.uint8, 2, 6, 7, 8), whole(1, -64, 64, np.int8, 4, 3, 3, 3)
#: Weights of 7 bits. Where a CPU has no VNNI, ONNX Runtime adds two products of 8 bits in 16, which saturates with more
#: (its documentation of quantisation, ``reduce_range``).
MATRICES = whole(0, 0, 255, np.uint8, 2, 3, 5), whole(1, -64, 64, np.int8, 5, 4)
ZEROS = [one(7, np.uint8), one(0, np.int8)]


def quantised_operands(x: Array, weight: Array, per_filter: bool = False) -> list[Array]:
    scale = np.array([0.01, 0.02, 0.03, 0.04], np.float32) if per_filter else one(0.02, np.float32)
    zero = np.zeros(4, weight.dtype) if per_filter else one(0, weight.dtype)
    return [x, one(0.05, np.float32), one(7, x.dtype), weight, scale, zero, one(0.4, np.float32), one(120, x.dtype)]


ROWS = [
    *(row(op, opset, 10 * noise(0, 2, 3, 4)) for op in (Relu(), Sigmoid(), Identity()) for opset in (9, 21)),
    *(row(op, opset, (2, 3, 4, 4)) for op in (GlobalAveragePool(), GlobalMaxPool()) for opset in (9, 21)),
    row(MaxPool((2, 2), (2, 2), (0, 0, 1, 1), ceil_mode=True), 22, (1, 1, 4, 4)),  # no window begins in the padding
    row(GlobalMaxPool(), 13, (2, 3, 5)),
    *(row(Flatten(axis), 13, (2, 3, 4)) for axis in range(4)),
    *(row(Reshape(shape), 13, (2, 3, 4)) for shape in ((24,), (4, 6), (2, 3, 4), (1, 4, 1, 6))),
    *(row(Transpose(order), 13, (2, 3, 4)) for order in ((0, 1, 2), (2, 0, 1), (1, 0, 2))),
    *(row(Clip(*ends), opset, (3, 4)) for ends in product((None, -0.5), (None, 0.75)) for opset in (9, 13)),
    *(row(Add(), opset, *shapes) for shapes in ([(2, 3)], [(2, 1), (3,), (4, 1, 1)]) for opset in (9, 13)),
    row(Add(), 21, whole(0, 0, 9, np.int64, 3), whole(1, 0, 9, np.int64, 2, 1)),
    row(Mul(), 9, (4, 1, 3), (2, 1)),
    *(row(Concat(axis), 13, *[(2, 3, 4)] * 3) for axis in range(3)),
    *(row(Split(axis, (1, 3, 2)), opset, (6, 6, 6)) for axis in range(3) for opset in (9, 13, 21)),
    *(row(Softmax(axis, opset < 13 and axis < 2), opset, (2, 3, 4)) for axis in range(3) for opset in (9, 13)),
    row(Softmax(1), 9, (3, 5, 1)),
    *(row(kind(axis), 13, (2, 3, 4)) for kind in (LogSoftmax, Hardmax) for axis in range(3)),
    *(row(kind(1, True), 11, (2, 3, 4)) for kind in (LogSoftmax, Hardmax)),
    *(row(Gemm(0.5, 1.0, a, b), 13, (4, 3) if a else (3, 4), (5, 4) if b else (4, 5)) for a in BOTH for b in BOTH),
    *(row(Gemm(-2.0, 0.25), 11, (3, 4), (4, 5), bias) for bias in ((5,), (1,), (1, 5), (3, 1), (3, 5))),
    *(row(MatMul(), 13, a, b) for a in ((4,), (3, 4), (2, 1, 3, 4)) for b in ((4,), (4, 5), (6, 4, 5))),
    *(row(GroupedMatMul(), opset, (7, 4), (len(ends), 4, 5), np.array(ends, dtype), weights=weights)
      for opset, ends, dtype, weights in (
          *((18, (2, 2, 6), np.int64, 0), (21, (0, 7), np.int32, 2)), (24, (0, 0, 0, 0), np.int64, 1), (19, (4,), np.int32, 0),
      )),
    *(row(BatchNorm(1e-3), 13, (2, 3, *[4] * rank), (3,), (3,), (3,), POSITIVE[0, :, 0], weights=4)
      for rank in range(3)),
    *(row(LocalResponseNorm(size, 0.1, 0.75, 2.0), 13, 5 * noise(0, 2, 7, 3, 3)) for size in (1, 3, 5)),
    *(row(LayerNorm(axis, 1e-4), 17, (2, 3, 4), *[(2, 3, 4)[axis:]] * 2, weights=2) for axis in range(3)),
    row(LayerNorm(1, 1e-4), 17, (2, 3, 4), (3, 4), weights=1),
    row(RmsNorm(1, 1e-4), 23, (2, 3, 4), (3, 4), weights=1),
    *(row(GroupNorm(groups, 1e-4), 21, (2, 6, 4, 4), (6,), (6,), weights=2, tolerance=1e-4) for groups in (1, 2, 6)),
    *(row(InstanceNorm(1e-4), 11, (2, 6, *[4] * rank), (6,), (6,), weights=2, tolerance=1e-4) for rank in (1, 2)),
    *(row(Reduce(name, (1,), keepdims), opset, POSITIVE)
      for name in reduce.FUNCTIONS for keepdims in BOTH for opset in (11, 13, 18)),
    *(row(Reduce("mean", axes), 18, POSITIVE) for axes in ((0,), (0, 2), (0, 1, 2))),
    *(row(ArgExtreme(axis, *flags), 13, FEW) for axis in range(3) for flags in product(BOTH, repeat=3)),
    *(row(TopK(count, axis, largest), 11, FEW) for count in (1, 3) for axis in range(3) for largest in BOTH),
    *(row(CumSum(axis, *flags), 14, (10 * noise(0, 2, 3, 4)).astype(dtype))
      for axis in range(3) for flags in product(BOTH, repeat=2) for dtype in (np.float32, np.int64)),
    *(row(Pad(pads, mode, 0.5 if mode == "constant" else 0.0), 10 if mode == "edge" else 19, (2, 3, 4))
      for mode in ("constant", "reflect", "edge", "wrap") for pads in ((0, 1, 2, 0, 2, 1), (0, 0, 3, 0, 1, 0))),
    row(Pad((0, 1, 2, 0, 2, 1), "constant", 0.5), 10, (2, 3, 4)),
    row(Pad((0, -1, 1, 0, 0, -2)), 13, (2, 3, 4)),
    *(row(Resize(*sizes, mode, coordinates), 19 if sizes[1] else 13, (1, 2, 5, 6), tolerance=1e-4)
      for sizes in (((1.0, 1.0, 2.0, 1.5), ()), ((), (1, 2, 7, 3)))
      for mode in ("nearest", "linear", "cubic")
      for coordinates in ("half_pixel", "asymmetric", "align_corners", "pytorch_half_pixel")),
    row(Resize((1.0, 1.0, 2.0, 3.0), (), "nearest", "asymmetric", "floor"), 13, (1, 2, 3, 4)),
    *(row(GridSample(*options), opset, x, (2, 4, 3, 2))
      for options in product(("linear", "nearest"), ("zeros", "border", "reflection"), BOTH)
      for x in ((2, 3, 5, 6), (2, 3, 1, 2)) for opset in (16, 20)),
    *(row(Gather(axis), 13, (3, 4, 5), whole(1, -3, 3, np.int64, *shape))
      for axis in range(3) for shape in ((), (2, 3))),
    *(row(GatherElements(axis), 13, (3, 4, 5), whole(1, -3, 3, np.int64, *shape))
      for axis, shape in enumerate(((6, 3, 4), (2, 6, 4), (2, 3, 6)))),
    *(row(GatherND(together), 13, (3, 4, 3), whole(1, -3, 3, np.int64, *(3, 4)[:together], 2, depth))
      for together in range(3) for depth in range(1 + (together == 0), 4 - together)),
    row(Expand((2, 1, 4)), 13, (3, 1)),
    row(Tile((2, 1, 3)), 13, (2, 3, 1)),
    *(row(DepthToSpace(2, columns_first), 13, (2, 8, 3, 2)) for columns_first in BOTH),
    row(SpaceToDepth(2), 13, (2, 3, 4, 6)),
    *(row(Cast(to), 13, np.array([0, -1.5, 2.5, 100, 0.25], np.float32) * (to != "uint8"))
      for to in ("fp64", "fp16", "int8", "uint8", "int32", "int64", "bool")),
    row(Where(), 13, noise(0, 3, 4) > 0, (3, 1), (2, 1, 4)),
    row(PRelu(), 13, (2, 3, 4), (3, 1)),
    row(Nary("div"), 14, np.array([7, -7, 7, -7, 6], np.int32), np.array([2, 2, -2, -2, 3], np.int32)),
    *(row(op, 13, x, np.abs(noise(1, *shape)) / 20 + np.float32(0.01), whole(2, 0, 9, dtype, *shape), weights=2)
      for dtype in (np.int8, np.uint8) for shape in ((), (3,))
      for op, x in ((Quantize(), noise(0, 2, 3, 4)), (Dequantize(), whole(0, 0, 100, dtype, 2, 3, 4)))),
    row(Quantize(), 13, np.array([np.nan, np.inf, -np.inf, 0], np.float32), np.float32(0.5), np.int8(3), weights=2),
    row(DynamicQuantize(), 11, (3, 4)),
    *(row(QuantizedConv((2, 1), (1, 0, 1, 1), (1, 1), 2), 13, *operands, *bias, weights=7 + len(bias), tolerance=1)
      for operands in (quantised_operands(BYTES, SIGNED, per_filter) for per_filter in BOTH)
      for bias in ([], [whole(2, -999, 999, np.int32, 4)])),
    row(QuantizedMatMul(), 10, *quantised_operands(*MATRICES), weights=7, tolerance=1),
    *(row(IntegerMatMul(), 10, *MATRICES, *zeros, weights=len(zeros))
      for zeros in ([], [one(7, np.uint8), one(2, np.int8)])),
    *(row(IntegerConv((2, 1), (1, 0, 1, 1), (1, 1), 2), 10, BYTES, SIGNED, *ZEROS[:count], weights=1 + count)
      for count in range(3)),
]  # fmt: skip


@pytest.mark.parametrize(("op", "opset", "inputs", "constants", "tolerance"), ROWS)
def test_an_op_is_onnxs(op: Op, opset: int, inputs: list[Array], constants: range, tolerance: float) -> None:
    check_op(op, inputs, opset, constants, tolerance)


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


#: Numbers that a function is defined for, where those are not all.
DOMAINS = {"acosh": (1, 9), "log": (0.1, 9), "sqrt": (0, 9), "acos": (-1, 1), "asin": (-1, 1), "atanh": (-0.9, 0.9)}


@pytest.mark.parametrize("name", sorted(functions.UNARY))
def test_unary(name: str) -> None:
    function = functions.UNARY[name]
    low, high = DOMAINS.get(name, (-4, 4))
    x = np.random.default_rng(3).uniform(low, high, (2, 3, 5)).astype(np.float32)
    if function.takes == "truth":
        x = x > 0
    elif function.takes == "whole":
        x = x.astype(np.int32)
    elif name in ("is_inf", "is_nan"):
        x[0, 0, :3] = np.inf, -np.inf, np.nan
    parameters = tuple(usual for _, usual in function.parameters)
    opset = {"swish": 24, "bitwise_not": 18}.get(name, 20)
    check_op(Unary(name, parameters), [x], opset)
    if parameters and not function.makes_bool:
        check_op(Unary(name, tuple(float(str(np.float32(0.75 * usual + 0.125))) for usual in parameters)), [x], opset)


@pytest.mark.parametrize("name", sorted(functions.NARY))
def test_nary(name: str) -> None:
    function = functions.NARY[name]
    a, b = noise(1, 2, 3, 4), noise(2, 3, 1)
    if name in ("and", "or", "xor"):
        a, b = a > 0, b > 0
    elif name.startswith(("bitwise", "shift")):
        a, b = whole(1, 0, 99, np.uint32, 2, 3, 4), whole(2, 0, 7, np.uint32, 3, 1)
    elif name == "mod":
        a, b = whole(1, -9, 9, np.int64, 2, 3, 4), whole(2, 1, 7, np.int64, 3, 1)
    elif name == "pow":
        a, b = np.abs(a), whole(2, -2, 3, np.int32, 3, 1)
    check_op(Nary(name), [a, b], 18)
    if function.variadic:
        check_op(Nary(name), [a, b, noise(3, 4)], 13)
        check_op(Nary(name), [a], 13)


@pytest.mark.parametrize(
    ("kind", "operands"),
    [(Lstm, ("bias", "state", "cell", "peepholes")), (Gru, ("bias", "state")), (Rnn, ("bias", "state"))],
)
@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
def test_recurrent(kind: type[Lstm | Gru | Rnn], operands: tuple[str, ...], direction: str) -> None:
    ops = [kind(4, direction, False, given) for given in ((), ("bias",), operands)]
    for op in [*ops, Gru(4, direction, False, ("bias",), True)]:
        d, g = op.directions, op.gates
        shapes = {"bias": (d, 8 * g), "state": (d, 2, 4), "cell": (d, 2, 4), "peepholes": (d, 12)}
        optional = [noise(5 + index, *shapes[name]) for index, name in enumerate(op.operands)]
        check_op(op, [noise(0, 5, 2, 3), noise(1, d, 4 * g, 3), noise(2, d, 4 * g, 4), *optional], 14)


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
