"""Ops of transformers, recurrent and quantised networks, and of everything else that torch computes, with their operands.

An operand is an array, or a shape of noise.
"""

from __future__ import annotations

from itertools import product

import numpy as np
from ml_dtypes import float8_e4m3fn, float8_e5m2, int4, uint4

from iossim.ir.op import Array, Op
from iossim.ir.ops import functions, reduce
from iossim.ir.ops.conv_transpose import ConvBackwardData, ConvBackwardFilter, ConvTranspose
from iossim.ir.ops.functions import Nary, Unary
from iossim.ir.ops.gather import Gather, GatherBackward, GatherElements, GatherND
from iossim.ir.ops.grid_sample import GridSample
from iossim.ir.ops.nary import PRelu, Where
from iossim.ir.ops.normalization import GroupNorm, InstanceNorm, LayerNorm, RmsNorm
from iossim.ir.ops.pool_backward import AveragePoolBackward, MaxPoolBackward
from iossim.ir.ops.quantize import (
    Dequantize,
    DequantizedMatMul,
    DynamicQuantize,
    IntegerConv,
    IntegerMatMul,
    Quantize,
    QuantizedConv,
    QuantizedMatMul,
    ScaledConv,
    ScaledMatMul,
)
from iossim.ir.ops.recurrent import Gru, Lstm, Rnn
from iossim.ir.ops.reduce import ArgExtreme, CumSum, Reduce, TopK
from iossim.ir.ops.reshape import DepthToSpace, Expand, Pad, SpaceToDepth, Tile
from iossim.ir.ops.resize import Resize
from iossim.ir.ops.softmax import Hardmax, LogSoftmax
from iossim.ir.ops.unary import Cast

Case = tuple[Op, list[tuple[int, ...] | Array]]

_RANDOM = np.random.default_rng(7)


def floats(*values: float) -> Array:
    return np.array(values, dtype=np.float32)


def whole(low: int, high: int, *shape: int, dtype: type = np.int64) -> Array:
    return _RANDOM.integers(low, high, shape).astype(dtype)


def fp8(*shape: int, dtype: type = float8_e4m3fn) -> Array:
    return (_RANDOM.standard_normal(shape) * 4).astype(dtype)


def truth(*shape: int) -> Array:
    return whole(0, 2, *shape).astype(bool)


def _unary(name: str) -> Case:
    function = functions.UNARY[name]
    operand: Array = np.linspace(-2.5, 2.5, 22, dtype=np.float32)  # halves, ones, and both sides of every limit
    if function.takes in ("whole", "truth"):
        operand = truth(5) if function.takes == "truth" else whole(-9, 9, 5)
    elif name in ("is_inf", "is_nan"):
        operand = floats(0, np.inf, -np.inf, np.nan)
    elif name == "acosh":
        operand = np.abs(operand) + np.float32(1)
    return Unary(name, tuple(usual for _, usual in function.parameters)), [operand]


def _nary(name: str) -> Case:
    function = functions.NARY[name]
    if name in ("and", "or", "xor"):
        return Nary(name), [truth(2, 3), truth(3)]
    if name.startswith("bitwise"):
        return Nary(name), [whole(0, 64, 2, 3), whole(0, 64, 3)]
    if name.startswith("shift"):
        return Nary(name), [whole(0, 64, 2, 3, dtype=np.uint8), whole(0, 3, 3, dtype=np.uint8)]
    if name == "pow":
        return Nary(name), [np.abs(_RANDOM.standard_normal((2, 3))).astype(np.float32), (3,)]
    shapes: list[tuple[int, ...] | Array] = [(2, 3), (3,), (2, 1)] if function.variadic else [(2, 3), (3,)]
    return Nary(name), shapes


SMALL = whole(-4, 4, 3, 4).astype(np.float32)  # with equal elements
RECURRENT = [(5, 2, 3), (1, 16, 3), (1, 16, 4)]

MORE_CASES: list[Case] = [
    *map(_unary, functions.UNARY),
    (Unary("is_inf", (1, 0)), [floats(0, np.inf, -np.inf)]),
    (Unary("is_inf", (0, 1)), [floats(0, np.inf, -np.inf)]),
    (Unary("is_inf", (0, 0)), [floats(0, np.inf, -np.inf)]),
    (Unary("hard_sigmoid", (1 / 6, 0.5)), [(3, 9)]),
    (Unary("swish", (1.7,)), [(3, 4)]),
    (Unary("elu", (0.3,)), [(3, 4)]),
    (Unary("neg"), [whole(-9, 9, 4)]),
    *map(_nary, functions.NARY),
    (Nary("div"), [whole(-9, 9, 2, 5), whole(1, 4, 5)]),
    (Nary("mod"), [whole(-9, 9, 2, 5), whole(1, 4, 5)]),
    (Nary("fmod"), [whole(-9, 9, 2, 5), whole(1, 4, 5)]),
    (Nary("equal"), [whole(0, 2, 2, 5), whole(0, 2, 5)]),
    (Nary("pow"), [(2, 3), np.array(2, dtype=np.int64)]),
    (Nary("pow"), [whole(-3, 4, 2, 3), np.array(3, dtype=np.int64)]),
    (Nary("max"), [(4,)]),
    *((Reduce(name, (0, -1), keep), [np.abs(SMALL) + 1]) for name in reduce.FUNCTIONS for keep in (True, False)),
    (Reduce("sum", ()), [(2, 3)]),
    (Reduce("product", (2, 0), False), [(2, 3, 4)]),
    (Reduce("sum", (1,)), [whole(-9, 9, 2, 3, dtype=np.int32)]),
    (Reduce("max", (1,), False), [whole(-9, 9, 2, 3)]),
    (ArgExtreme(1), [SMALL]),
    (ArgExtreme(-1, True, False), [SMALL]),
    (ArgExtreme(0, False, False, True), [SMALL]),
    (ArgExtreme(1, True, True, True), [whole(0, 3, 2, 6)]),
    (TopK(3), [SMALL]),
    (TopK(2, 0, False), [SMALL]),
    (Cast("int32"), [floats(-2.7, -0.5, 0.5, 2.7)]),
    (Cast("bool"), [floats(0, -0.1, 3)]),
    (Cast("fp32"), [truth(2, 3)]),
    (Cast("fp16"), [(2, 3)]),
    (Where(), [truth(2, 3), (2, 3), (3,)]),
    (Expand((2, 1, 4)), [(3, 1)]),
    (Tile((2, 1, 3)), [(2, 3, 1)]),
    (Gather(0), [(5, 3), np.array([[0, -1], [4, 2]])]),
    (Gather(-1), [(2, 5, 3), np.array(1, dtype=np.int32)]),
    (GatherBackward(0, 5), [(2, 2, 3), np.array([[0, -1], [4, 0]])]),
    (GatherBackward(1, 5), [(2, 3), np.array(-2, dtype=np.int32)]),
    (GatherElements(1), [(3, 4), np.array([[0, -1], [3, 2]], dtype=np.int32)]),
    (GatherElements(0), [whole(0, 9, 3, 4), np.array([[0, -1, 2, 1]])]),
    (GatherND(), [(3, 4, 5), np.array([[0, -1], [2, 1]])]),
    (GatherND(), [truth(3, 4), np.array([[[0, 3]], [[-3, 1]]])]),
    (GatherND(1), [(2, 4, 5), np.array([[[0], [-1], [2]], [[3], [1], [-4]]])]),
    (GatherND(2), [(2, 3, 5), whole(-5, 4, 2, 3, 1)]),
    (CumSum(1), [(3, 4)]),
    (CumSum(0, True, True), [(3, 4)]),
    (CumSum(-1, True), [whole(0, 9, 2, 3, dtype=np.int32)]),
    (CumSum(1, False, True), [whole(0, 9, 2, 3)]),
    (Pad((0, 1, 0, 2), "constant", 1.5), [(2, 3)]),
    (Pad((0, -1, 1, 2), "constant", 3), [whole(0, 9, 2, 3)]),
    (Pad((1, 0), "constant", 1), [truth(3)]),
    *(
        (Pad(pads, mode), [(2, 3, 4, 5)])
        for mode in ("reflect", "edge", "wrap")
        for pads in [(0, 0, 1, 2, 0, 0, 3, 0), (1, 0, -1, 0, 0, 2, 2, 1)]
    ),
    (Pad((2, 0, 0, 1), "edge"), [whole(0, 9, 2, 3)]),
    (PRelu(), [(2, 3, 4), (3, 1)]),
    (PRelu(), [(2, 3, 4), (4,)]),
    (PRelu(), [(2, 3, 4), (1,)]),
    (PRelu(True), [(2, 3, 4, 4), (3,)]),
    (PRelu(), [whole(-9, 9, 2, 3), whole(1, 4, 3)]),
    (DepthToSpace(2), [(1, 12, 2, 3)]),
    (DepthToSpace(2, True), [(1, 12, 2, 3)]),
    (SpaceToDepth(3), [(2, 2, 6, 3)]),
    (SpaceToDepth(3, True), [(2, 2, 6, 3)]),
    (LayerNorm(-1), [(2, 3, 4), (4,), (4,)]),
    (LayerNorm(1, 1e-2), [(2, 3, 4), (3, 4)]),
    (LayerNorm(1), [(2, 3, 4), (4,), (3, 1)]),
    (LayerNorm(2), [(2, 3, 4), (1,)]),
    (RmsNorm(-1), [(2, 3, 4), (4,)]),
    (RmsNorm(1), [(2, 3, 4), (3, 1)]),
    (InstanceNorm(), [(2, 3, 4, 5), (3,), (3,)]),
    (InstanceNorm(1e-2), [(1, 3, 1), (3,), (3,)]),
    (GroupNorm(2), [(2, 4, 3, 3), (4,), (4,)]),
    (GroupNorm(4), [(1, 4, 1), (4,), (4,)]),
    (LogSoftmax(1), [(2, 3, 4)]),
    (LogSoftmax(1, True), [(2, 3, 4)]),
    (Hardmax(-1), [SMALL]),
    (Hardmax(1, True), [(2, 3, 4)]),
    (ConvTranspose((2, 2), (1, 1, 1, 1), (1, 1), 1, (1, 1)), [(2, 3, 4, 5), (3, 2, 3, 3), (2,)]),
    (ConvTranspose((2,), (1, 0), (2,), 2, (0,)), [(1, 4, 5), (4, 3, 3), (6,)]),
    (ConvTranspose((1, 1), (0, 2, 1, 0), (1, 1), 1, (0, 3)), [(1, 2, 4, 4), (2, 2, 3, 3)]),
    (ConvBackwardData((2, 2), (1, 1, 1, 1), (1, 1), 1, (8, 9)), [(2, 3, 4, 5), (3, 2, 3, 3)]),
    (ConvBackwardData((1, 3), (0, 2, 1, 1), (2, 1), 2, (8, 9)), [(2, 4, 5, 4), (4, 1, 3, 2)]),
    (ConvBackwardFilter((2, 2), (1, 1, 1, 1), (1, 1), 1, (3, 3)), [(2, 2, 8, 9), (2, 3, 4, 5)]),
    (ConvBackwardFilter((1, 3), (0, 2, 1, 1), (2, 1), 2, (3, 2)), [(2, 2, 8, 9), (2, 4, 5, 4), (4, 1, 3, 2)]),
    (MaxPoolBackward((3, 3), (2, 2), (1, 1, 1, 1)), [(2, 3, 8, 7), (2, 3, 4, 4)]),
    (MaxPoolBackward((2, 3), (3, 2), (0, 1, 1, 0), (2, 1), True), [(1, 2, 9, 8), (1, 2, 3, 4)]),
    (MaxPoolBackward((2,), (3,), (0, 0), (1,)), [(1, 2, 9), (1, 2, 3)]),
    (AveragePoolBackward((3, 3), (2, 2), (1, 1, 1, 1), input_size=(8, 7)), [(2, 3, 4, 4)]),
    (AveragePoolBackward((2, 3), (3, 2), (0, 1, 1, 0), True, True, (2, 1), (9, 8)), [(1, 2, 3, 4)]),
    (ConvTranspose((2, 1, 1), (0,) * 6, (1, 1, 1), 1, (0, 0, 0)), [(1, 2, 2, 2, 2), (2, 1, 2, 2, 2)]),
    *((GridSample(*options), [(2, 3, 5, 6), (2, 4, 3, 2)])
      for options in product(("linear", "nearest"), ("zeros", "border", "reflection"), (False, True))),
    (Resize((1, 1, 2, 3), mode="nearest", coordinates="asymmetric", rounding="floor"), [(1, 2, 3, 4)]),
    (Resize((1, 1, 2.0, 2.0)), [(1, 2, 3, 4)]),
    (Resize((), (1, 2, 7, 3), rounding="round_prefer_ceil"), [(1, 2, 3, 4)]),
    (Resize((1, 1, 2.5), mode="linear"), [(1, 2, 5)]),
    (Resize((), (1, 2, 5, 9), mode="linear", coordinates="align_corners"), [(1, 2, 3, 4)]),
    (Resize((), (1, 2, 4, 3), mode="linear", coordinates="pytorch_half_pixel"), [(1, 2, 9, 7)]),
    (Resize((1, 1, 2, 2, 2), mode="linear"), [(1, 1, 2, 3, 2)]),
    (Resize((1, 1, 1.7, 2), mode="cubic"), [(1, 2, 5, 4)]),
    (Resize((2, 1, 2, 2)), [(1, 2, 3, 4)]),
    (Resize((1, 1, 2, 2, 2), mode="cubic", exclude_outside=True), [(1, 2, 3, 4, 4)]),
    (Resize((1, 1, 0.5, 0.5), mode="linear", antialias=True), [(1, 2, 4, 4)]),
    (Lstm(4), RECURRENT),
    (Lstm(4, "bidirectional", False, ("bias", "state", "cell")), [
        (5, 2, 3), (2, 16, 3), (2, 16, 4), (2, 32), (2, 2, 4), (2, 2, 4)
    ]),
    (Lstm(4, "reverse", True, ("bias", "state", "cell")), [
        (2, 5, 3), (1, 16, 3), (1, 16, 4), (1, 32), (2, 1, 4), (2, 1, 4)
    ]),
    (Gru(4, "bidirectional", False, ("bias",), True), [(5, 2, 3), (2, 12, 3), (2, 12, 4), (2, 24)]),
    (Gru(4, "reverse", True, ("state",), True), [(2, 5, 3), (1, 12, 3), (1, 12, 4), (2, 1, 4)]),
    (Rnn(4, "forward", False, ("bias",)), [(5, 2, 3), (1, 4, 3), (1, 4, 4), (1, 8)]),
    (Quantize(), [(3, 4), np.array(0.02, np.float32), np.array(3, np.int8)]),
    (Quantize(0), [(3, 4), floats(0.5, 0.1, 0.02), whole(0, 9, 3, dtype=np.uint8)]),
    (Quantize(), [np.arange(-3, 4, dtype=np.float32) / 2, floats(1)]),
    (Dequantize(-1), [whole(-99, 99, 2, 3, dtype=np.int8), floats(0.5, 0.1, 2), whole(-9, 9, 3, dtype=np.int8)]),
    (Dequantize(), [whole(-999, 999, 2, 3, dtype=np.int32), np.array(0.3, np.float32)]),
    (Dequantize(0, 2), [whole(0, 255, 3, 4, dtype=np.uint8), (2, 4), whole(0, 255, 2, 4, dtype=np.uint8)]),
    (DequantizedMatMul(3), [(2, 3, 4), whole(-8, 8, 4, 5, dtype=int4), (2, 5)]),
    (DequantizedMatMul(3), [(3, 4), whole(0, 16, 4, 5, dtype=uint4), (2, 5), whole(0, 16, 2, 5, dtype=uint4)]),
    (DequantizedMatMul(4), [(3, 8), whole(-8, 8, 8, 5, dtype=int4), np.full((2, 5), 0.1, np.float32)]),
    (Cast("fp8_e5m2"), [np.linspace(-9e4, 9e4, 37, dtype=np.float32)]),
    (Quantize(0), [(3, 4), floats(0.5, 0.1, 0.001), np.zeros(3, float8_e4m3fn)]),
    (Dequantize(-1), [fp8(2, 3), floats(0.5, 0.1, 2), np.zeros(3, float8_e4m3fn)]),
    (DequantizedMatMul(3), [(2, 3, 4), fp8(4, 5), (2, 5)]),
    (ScaledMatMul(), [fp8(2, 3, 4, dtype=float8_e5m2), floats(0.1), fp8(4, 5), floats(0.1, 0.2, 0.3, 0.4, 0.5)]),
    (ScaledMatMul(), [fp8(2, 3, 4), floats(0.1), fp8(2, 4, 3), np.array(0.3, np.float32)]),
    (ScaledConv((2, 1), (1, 0, 1, 1), (1, 1), 2), [fp8(2, 4, 7, 8), floats(0.1), fp8(4, 2, 3, 3), floats(0.1, 0.2, 0.3, 0.4), (4,)]),
    (DynamicQuantize(), [(3, 4)]),
    (DynamicQuantize(), [np.zeros((2, 2), np.float32)]),
    (QuantizedConv((1, 1), (1,) * 4, (1, 1), 2), [
        whole(0, 255, 1, 4, 5, 5, dtype=np.uint8), np.array(0.03, np.float32), np.array(128, np.uint8),
        whole(-99, 99, 4, 2, 3, 3, dtype=np.int8), floats(0.01, 0.02, 0.005, 0.01), np.zeros(4, np.int8),
        np.array(0.9, np.float32), np.array(5, np.int8), whole(-999, 999, 4, dtype=np.int32),
    ]),
    (QuantizedMatMul(), [
        whole(0, 255, 2, 3, 4, dtype=np.uint8), np.array(0.03, np.float32), np.array(128, np.uint8),
        whole(-99, 99, 4, 5, dtype=np.int8), floats(0.01), np.array([3], np.int8),
        np.array(0.2, np.float32), np.array(100, np.uint8),
    ]),
    (IntegerConv((2, 1), (1, 0, 1, 1), (1, 1), 2), [whole(0, 255, 2, 6, 7, 8, dtype=np.uint8), whole(-99, 99, 4, 3, 3, 3, dtype=np.int8), np.array(9, np.uint8), whole(-3, 3, 4, dtype=np.int8)]),
    (IntegerConv(), [whole(-99, 99, 2, 6, 7, 8, dtype=np.int8), whole(-99, 99, 4, 6, 1, 1, dtype=np.int8)]),
    (IntegerMatMul(), [whole(0, 255, 3, 4, dtype=np.uint8), whole(-99, 99, 4, 5, dtype=np.int8), np.array(9, np.uint8)]),
    (IntegerMatMul(), [whole(-99, 99, 3, 4, dtype=np.int8), whole(-99, 99, 4, dtype=np.int8)]),
]  # fmt: skip
