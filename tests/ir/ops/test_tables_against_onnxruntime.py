"""Each function of the tables, each normalisation, reduction, recurrent and quantised op means what ONNX Runtime computes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx_of_op import check_op as check

from iossim.ir.op import Array, Op
from iossim.ir.ops import functions, reduce
from iossim.ir.ops.conv_transpose import ConvTranspose
from iossim.ir.ops.functions import Nary, Unary
from iossim.ir.ops.gather import Gather, GatherElements, GatherND
from iossim.ir.ops.nary import PRelu, Where
from iossim.ir.ops.normalization import GroupNorm, InstanceNorm, LayerNorm, RmsNorm
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
from iossim.ir.ops.reshape import DepthToSpace, Expand, Pad, SpaceToDepth, Tile
from iossim.ir.ops.resize import Resize
from iossim.ir.ops.softmax import Hardmax, LogSoftmax
from iossim.ir.ops.unary import Cast

SETTINGS = settings(max_examples=15, deadline=None)
SEEDS = st.integers(0, 2**16)


def noise(seed: int, *shape: int) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def whole(seed: int, low: int, high: int, dtype: type, *shape: int) -> Array:
    return np.random.default_rng(seed).integers(low, high, shape).astype(dtype)


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
    check(Unary(name, parameters), [x], opset)
    if parameters and not function.makes_bool:
        check(Unary(name, tuple(float(str(np.float32(0.75 * usual + 0.125))) for usual in parameters)), [x], opset)


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
    check(Nary(name), [a, b], 18)
    if function.variadic:
        check(Nary(name), [a, b, noise(3, 4)], 13)
        check(Nary(name), [a], 13)


def test_whole_numbers_are_divided_towards_zero() -> None:
    a, b = np.array([7, -7, 7, -7, 6], np.int32), np.array([2, 2, -2, -2, 3], np.int32)
    check(Nary("div"), [a, b], 14)


@SETTINGS
@given(st.sampled_from(sorted(reduce.FUNCTIONS)), st.sets(st.integers(0, 2), min_size=1), st.booleans(), SEEDS)
def test_reduce(name: str, axes: set[int], keepdims: bool, seed: int) -> None:
    x = np.abs(noise(seed, 2, 3, 4)) + 0.1
    for opset in (11, 13, 18):
        check(Reduce(name, tuple(sorted(axes)), keepdims), [x], opset)


@SETTINGS
@given(st.integers(0, 2), st.booleans(), st.booleans(), st.booleans(), SEEDS)
def test_places_of_extremes(axis: int, smallest: bool, keepdims: bool, last: bool, seed: int) -> None:
    check(ArgExtreme(axis, smallest, keepdims, last), [whole(seed, 0, 4, np.float32, 2, 3, 4)], 13)


@SETTINGS
@given(st.integers(1, 3), st.integers(0, 2), st.booleans(), SEEDS)
def test_top_k(count: int, axis: int, largest: bool, seed: int) -> None:
    check(TopK(count, axis, largest), [whole(seed, 0, 4, np.float32, 3, 4, 5)], 11)


@SETTINGS
@given(st.sampled_from([LogSoftmax, Hardmax]), st.integers(0, 2), st.booleans(), SEEDS)
def test_softmax_family(kind: type[Op], axis: int, flatten: bool, seed: int) -> None:
    check(kind(axis, flatten and axis < 2), [noise(seed, 2, 3, 4)], 11 if flatten and axis < 2 else 13)


@SETTINGS
@given(st.integers(0, 2), st.booleans(), SEEDS)
def test_layer_norm(axis: int, bias: bool, seed: int) -> None:
    x = noise(seed, 2, 3, 4)
    parameters = [noise(seed + 1 + index, *x.shape[axis:]) for index in range(1 + bias)]
    check(LayerNorm(axis, 1e-4), [x, *parameters], 17, range(1, 2 + bias))
    check(RmsNorm(axis, 1e-4), [x, parameters[0]], 23, [1])


@SETTINGS
@given(st.sampled_from([1, 2, 3, 6]), st.integers(1, 2), SEEDS)
def test_norms_of_channels(groups: int, rank: int, seed: int) -> None:
    inputs = [noise(seed, 2, 6, *[4] * rank), noise(seed + 1, 6), noise(seed + 2, 6)]
    check(GroupNorm(groups, 1e-4), inputs, 21, [1, 2], tolerance=1e-4)
    check(InstanceNorm(1e-4), inputs, 11, [1, 2], tolerance=1e-4)


@st.composite
def transposed(draw: st.DrawFn) -> tuple[ConvTranspose, list[Array]]:
    rank, groups, seed = draw(st.integers(1, 2)), draw(st.integers(1, 2)), draw(SEEDS)
    kernel = [draw(st.integers(1, 4)) for _ in range(rank)]
    strides = tuple(draw(st.integers(1, 3)) for _ in range(rank))
    dilations = tuple(draw(st.integers(1, 2)) for _ in range(rank))
    extra = tuple(draw(st.integers(0, stride - 1)) for stride in strides)
    pads = tuple(draw(st.integers(0, 1)) if min(kernel) > 1 else 0 for _ in range(2 * rank))
    x = noise(seed, 2, 2 * groups, *[draw(st.integers(2, 5)) for _ in range(rank)])
    inputs = [
        x,
        noise(seed + 1, 2 * groups, 3, *kernel),
        *([noise(seed + 2, 3 * groups)] if draw(st.booleans()) else []),
    ]
    return ConvTranspose(strides, pads, dilations, groups, extra), inputs


@SETTINGS
@given(transposed(), st.sampled_from([7, 11, 17]))
def test_conv_transpose(given_op: tuple[ConvTranspose, list[Array]], opset: int) -> None:
    op, inputs = given_op
    check(op, inputs, opset, range(1, len(inputs)))


@pytest.mark.parametrize("mode", ["constant", "reflect", "edge", "wrap"])
@pytest.mark.parametrize("pads", [(0, 1, 2, 0, 2, 1), (0, 0, 3, 0, 1, 0)])
def test_pad(mode: str, pads: tuple[int, ...]) -> None:
    check(Pad(pads, mode, 0.5 if mode == "constant" else 0.0), [noise(0, 2, 3, 4)], 19)
    if mode != "wrap":
        check(Pad(pads, mode, 0.5 if mode == "constant" else 0.0), [noise(0, 2, 3, 4)], 10)


def test_pad_takes_away_where_it_is_negative() -> None:
    check(Pad((0, -1, 1, 0, 0, -2)), [noise(0, 2, 3, 4)], 13)


@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
@pytest.mark.parametrize("coordinates", ["half_pixel", "asymmetric", "align_corners", "pytorch_half_pixel"])
def test_resize(mode: str, coordinates: str) -> None:
    x = noise(0, 1, 2, 5, 6)
    check(Resize((1.0, 1.0, 2.0, 1.5), (), mode, coordinates), [x], 13, tolerance=1e-4)
    check(Resize((), (1, 2, 7, 3), mode, coordinates), [x], 19, tolerance=1e-4)


def test_upsample_of_older_operator_sets() -> None:
    check(Resize((1.0, 1.0, 2.0, 3.0), (), "nearest", "asymmetric", "floor"), [noise(0, 1, 2, 3, 4)], 13)


@SETTINGS
@given(st.integers(0, 2), st.lists(st.integers(1, 3), max_size=2), SEEDS)
def test_gather(axis: int, shape: list[int], seed: int) -> None:
    data = noise(seed, 3, 4, 5)
    check(Gather(axis), [data, whole(seed, -3, 3, np.int64, *shape)], 13)


@SETTINGS
@given(st.integers(0, 2), SEEDS)
def test_gather_elements(axis: int, seed: int) -> None:
    shape = [2, 3, 4]
    shape[axis] = 6
    check(GatherElements(axis), [noise(seed, 3, 4, 5), whole(seed, -3, 3, np.int64, *shape)], 13)


@SETTINGS
@given(st.integers(0, 2), st.integers(1, 3), st.lists(st.integers(1, 3), max_size=2), SEEDS)
def test_gather_nd(batch_dims: int, depth: int, shape: list[int], seed: int) -> None:
    data = noise(seed, 3, 4, 3)
    depth = min(depth, data.ndim - batch_dims)
    # Every axis that an index may say a place on has three elements at least.
    indices = whole(seed, -3, 3, np.int64, *data.shape[:batch_dims], *shape, depth)
    check(GatherND(batch_dims), [data, indices], 13)


@SETTINGS
@given(st.integers(0, 2), st.booleans(), st.booleans(), st.sampled_from([np.float32, np.int32, np.int64]), SEEDS)
def test_cumsum(axis: int, exclusive: bool, reverse: bool, dtype: type, seed: int) -> None:
    x = (10 * noise(seed, 2, 3, 4)).astype(dtype)
    check(CumSum(axis, exclusive, reverse), [x], 14)


@pytest.mark.parametrize(
    ("op", "shape"),
    [
        (Expand((2, 1, 4)), (3, 1)),
        (Tile((2, 1, 3)), (2, 3, 1)),
        (DepthToSpace(2), (2, 8, 3, 2)),
        (DepthToSpace(2, True), (2, 8, 3, 2)),
        (SpaceToDepth(2), (2, 3, 4, 6)),
    ],
)
def test_movement(op: Op, shape: tuple[int, ...]) -> None:
    check(op, [noise(0, *shape)], 13)


@pytest.mark.parametrize("to", ["fp64", "fp16", "int8", "uint8", "int32", "int64", "bool"])
def test_cast(to: str) -> None:
    check(Cast(to), [np.array([0, -1.5, 2.5, 100, 0.25], np.float32) * (to != "uint8")], 13)


def test_where_and_prelu() -> None:
    check(Where(), [noise(0, 3, 4) > 0, noise(1, 3, 1), noise(2, 2, 1, 4)], 13)
    check(PRelu(), [noise(0, 2, 3, 4), noise(1, 3, 1)], 13)


RECURRENT = [
    (kind, direction, operands)
    for kind, most in (
        (Lstm, ("bias", "state", "cell", "peepholes")),
        (Gru, ("bias", "state")),
        (Rnn, ("bias", "state")),
    )
    for direction in ("forward", "reverse", "bidirectional")
    for operands in ((), ("bias",), most)
]


def operands_of(op: Lstm | Gru | Rnn, steps: int, batch: int, size: int) -> list[Array]:
    d, gates, h = op.directions, op.gates, op.hidden
    shapes: dict[str, Sequence[int]] = {
        "bias": (d, 2 * gates * h),
        "state": (d, batch, h),
        "cell": (d, batch, h),
        "peepholes": (d, 3 * h),
    }
    optional = [noise(5 + index, *shapes[name]) for index, name in enumerate(op.operands)]
    return [noise(0, steps, batch, size), noise(1, d, gates * h, size), noise(2, d, gates * h, h), *optional]


@pytest.mark.parametrize(("kind", "direction", "operands"), RECURRENT)
def test_recurrent(kind: type[Lstm | Gru | Rnn], direction: str, operands: tuple[str, ...]) -> None:
    op = kind(4, direction, False, operands)
    check(op, operands_of(op, 5, 2, 3), 14)


def test_gru_with_reset_after() -> None:
    op = Gru(4, "forward", False, ("bias",), True)
    check(op, operands_of(op, 5, 2, 3), 14)


@pytest.mark.parametrize("dtype", [np.int8, np.uint8])
@pytest.mark.parametrize("axis", [None, 1])
def test_quantize_and_back(dtype: type, axis: int | None) -> None:
    shape = () if axis is None else (3,)
    scale = np.abs(noise(1, *shape)) / 20 + np.float32(0.01)
    zero = whole(2, 0, 9, dtype, *shape)
    check(Quantize(), [noise(0, 2, 3, 4), scale, zero], 13, [1, 2])
    check(Dequantize(), [whole(0, 0, 100, dtype, 2, 3, 4), scale, zero], 13, [1, 2])


def test_dynamic_quantize() -> None:
    check(DynamicQuantize(), [noise(0, 3, 4)], 11)


def one(value: float, dtype: type) -> Array:
    return np.array(value, dtype=dtype)


#: Weights of 7 bits. Where a CPU has no VNNI, ONNX Runtime adds two products of 8 bits in 16, which saturates with more
#: (its documentation of quantisation, ``reduce_range``).
SEVEN_BITS = -64, 64


def quantised_operands(x: Array, weight: Array, per_filter: bool = False) -> list[Array]:
    scale = np.array([0.01, 0.02, 0.03, 0.04], np.float32) if per_filter else one(0.02, np.float32)
    zero = np.zeros(4, weight.dtype) if per_filter else one(0, weight.dtype)
    return [x, one(0.05, np.float32), one(7, x.dtype), weight, scale, zero, one(0.4, np.float32), one(120, x.dtype)]


@pytest.mark.parametrize("per_filter", [False, True])
@pytest.mark.parametrize("bias", [False, True])
def test_quantized_conv(per_filter: bool, bias: bool) -> None:
    inputs = quantised_operands(
        whole(0, 0, 255, np.uint8, 2, 6, 7, 8), whole(1, *SEVEN_BITS, np.int8, 4, 3, 3, 3), per_filter
    )
    inputs += [whole(2, -999, 999, np.int32, 4)] if bias else []
    check(QuantizedConv((2, 1), (1, 0, 1, 1), (1, 1), 2), inputs, 13, range(1, len(inputs)), tolerance=1)


def test_quantized_products() -> None:
    a, b = whole(0, 0, 255, np.uint8, 2, 3, 5), whole(1, *SEVEN_BITS, np.int8, 5, 4)
    check(QuantizedMatMul(), quantised_operands(a, b), 10, range(1, 8), tolerance=1)
    check(IntegerMatMul(), [a, b, one(7, np.uint8), one(2, np.int8)], 10, [1, 2, 3])
    check(IntegerMatMul(), [a, b], 10)


@pytest.mark.parametrize("zeros", [[], [one(7, np.uint8)], [one(7, np.uint8), one(0, np.int8)]])
def test_integer_conv(zeros: list[np.ndarray]) -> None:
    x, w = whole(0, 0, 255, np.uint8, 2, 6, 7, 8), whole(1, *SEVEN_BITS, np.int8, 4, 3, 3, 3)
    check(IntegerConv((2, 1), (1, 0, 1, 1), (1, 1), 2), [x, w, *zeros], 10, range(1, 2 + len(zeros)))
