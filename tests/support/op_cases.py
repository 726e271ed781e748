"""Cases of each op, its attributes and types of its operands: what NumPy computes is held to ONNX Runtime, torch and kernels."""

from itertools import product
from typing import Any, NamedTuple

import numpy as np
from ml_dtypes import float8_e4m3fn, float8_e5m2, int4, uint4

from iossim.ir.op import Array, Op
from iossim.ir.ops import functions, reduce
from iossim.ir.ops.attention import Attention
from iossim.ir.ops.channels_last import ConvNhwc
from iossim.ir.ops.conv_transpose import ConvBackwardData, ConvBackwardFilter, ConvTranspose
from iossim.ir.ops.functions import Nary, Unary
from iossim.ir.ops.gather import Gather, GatherBackward, GatherElements, GatherND
from iossim.ir.ops.grid_sample import GridSample
from iossim.ir.ops.grouped_matmul import GroupedMatMul
from iossim.ir.ops.matmul import Gemm, MatMul
from iossim.ir.ops.nary import Add, Mul, PRelu, Where
from iossim.ir.ops.normalization import BatchNorm, GroupNorm, InstanceNorm, LayerNorm, LocalResponseNorm, RmsNorm
from iossim.ir.ops.pool import AveragePool, GlobalAveragePool, GlobalMaxPool, MaxPool
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
from iossim.ir.ops.reshape import DepthToSpace, Expand, Flatten, Pad, Reshape, SpaceToDepth, Tile, Transpose
from iossim.ir.ops.resize import Resize
from iossim.ir.ops.slice import Concat, Split
from iossim.ir.ops.softmax import Hardmax, LogSoftmax, Softmax
from iossim.ir.ops.unary import Cast, Clip, Identity, Relu, Sigmoid


class OnnxCase(NamedTuple):
    """An op with its inputs, of which the last ``weights`` are constants of the model, in an operator set of ONNX."""

    op: Op
    opset: int
    inputs: list[Array]
    weights: int
    tolerance: float

    def __str__(self) -> str:
        return f"{getattr(self.op, 'function', self.op.kind)}-{self.opset}"


def noise(seed: int, *shape: int) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def whole(seed: int, low: int, high: int, dtype: type, *shape: int) -> Array:
    return np.random.default_rng(seed).integers(low, high, shape).astype(dtype)


def one(value: float, dtype: type) -> Array:
    return np.array(value, dtype=dtype)


def floats(*values: float) -> Array:
    return np.array(values, dtype=np.float32)


def fp8(*shape: int, dtype: type = float8_e4m3fn) -> Array:
    return (4 * noise(7, *shape)).astype(dtype)


def row(op: Op, opset: int, *inputs: Array | tuple[int, ...], weights: int = 0, tolerance: float = 2e-5) -> OnnxCase:
    """An op with its inputs, arrays or shapes of noise."""
    return OnnxCase(op, opset, arrays_of(inputs), weights, tolerance)


def arrays_of(operands: Any) -> list[Array]:
    """Arrays as they are, and of noise for shapes."""
    return [noise(index, *each) if isinstance(each, tuple) else each for index, each in enumerate(operands)]


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


#: Numbers that a function is defined for, where those are not all.
DOMAINS = {"acosh": (1, 9), "log": (0.25, 8.25), "sqrt": (0, 8), "acos": (-1, 1), "asin": (-1, 1), "atanh": (-0.9, 0.9)}


def unary(name: str) -> list[OnnxCase]:
    """A function with its usual parameters, and others; its numbers have halves and ones among them."""
    function = functions.UNARY[name]
    x = np.linspace(*DOMAINS.get(name, (-4, 4)), 33, dtype=np.float32)
    if function.takes == "truth":
        x = x > 0
    elif function.takes == "whole":
        x = x.astype(np.int32)
    elif name in ("is_inf", "is_nan"):
        x[:3] = np.inf, -np.inf, np.nan
    usual = tuple(each for _, each in function.parameters)
    others = tuple(float(str(np.float32(0.75 * each + 0.125))) for each in usual)
    tried = [usual] if function.makes_bool or not usual else [usual, others]
    return [row(Unary(name, each), {"swish": 24, "bitwise_not": 18}.get(name, 20), x) for each in tried]


def nary(name: str) -> list[OnnxCase]:
    a, b = noise(1, 2, 3, 4), noise(2, 3, 1)
    if name in ("and", "or", "xor"):
        a, b = a > 0, b > 0
    elif name.startswith(("bitwise", "shift")):
        a, b = whole(1, 0, 99, np.uint8, 2, 3, 4), whole(2, 0, 7, np.uint8, 3, 1)
    elif name == "mod":
        a, b = whole(1, -9, 9, np.int64, 2, 3, 4), whole(2, 1, 7, np.int64, 3, 1)
    elif name == "pow":
        a, b = np.abs(a), whole(2, -2, 3, np.int32, 3, 1)
    more = ([a, b, noise(3, 4)], [a]) if functions.NARY[name].variadic else ()
    return [row(Nary(name), 18, a, b), *(row(Nary(name), 13, *each) for each in more)]


def recurrent(direction: str) -> list[OnnxCase]:
    every = ((Lstm, ("bias", "state", "cell", "peepholes")), (Gru, ("bias", "state")), (Rnn, ("bias", "state")))
    ops: list[Any] = [kind(4, direction, False, given) for kind, most in every for given in ((), ("bias",), most)]
    found = []
    for op in [*ops, Gru(4, direction, False, ("bias",), True)]:
        d, g = op.directions, op.gates
        shapes = {"bias": (d, 8 * g), "state": (d, 2, 4), "cell": (d, 2, 4), "peepholes": (d, 12)}
        optional = [noise(5 + index, *shapes[name]) for index, name in enumerate(op.operands)]
        found.append(row(op, 14, (5, 2, 3), (d, 4 * g, 3), (d, 4 * g, 4), *optional))
    return found


#: Cases that ONNX Runtime computes, too.
ONNX_CASES = [
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
    row(DynamicQuantize(), 11, (3, 4)),
    *(row(QuantizedConv((2, 1), (1, 0, 1, 1), (1, 1), 2), 13, *operands, *bias, weights=7 + len(bias), tolerance=1)
      for operands in (quantised_operands(BYTES, SIGNED, per_filter) for per_filter in BOTH)
      for bias in ([], [whole(2, -999, 999, np.int32, 4)])),
    row(QuantizedMatMul(), 10, *quantised_operands(*MATRICES), weights=7, tolerance=1),
    *(row(IntegerMatMul(), 10, *MATRICES, *zeros, weights=len(zeros))
      for zeros in ([], [one(7, np.uint8), one(2, np.int8)])),
    *(row(IntegerConv((2, 1), (1, 0, 1, 1), (1, 1), 2), 10, BYTES, SIGNED, *ZEROS[:count], weights=1 + count)
      for count in range(3)),
    *(case for name in sorted(functions.UNARY) for case in unary(name)),
    *(case for name in sorted(functions.NARY) for case in nary(name)),
    *(case for direction in ("forward", "reverse", "bidirectional") for case in recurrent(direction)),
]  # fmt: skip

#: Cases that it does not compute, or in one way of several: gradients, other element types and broadcasts.
_OTHERS: list[tuple[Op, list[Any]]] = [
    (Clip(0.5, -0.5), [(3, 4)]),
    (Attention(scale=0.5), [(2, 4, 3, 8), (2, 2, 5, 8), (2, 2, 5, 6), (3, 5)]),
    (Attention(4, 2, is_causal=True), [(2, 3, 16), (2, 5, 8), (2, 5, 8)]),
    (ConvNhwc((1, 2), (0, 1, 2, 1), (2, 1), 2), [(2, 9, 8, 4), (6, 2, 3, 2), (6,)]),
    *((LocalResponseNorm(size, 0.3, 0.5, 1.0), [shape]) for size, shape in ((4, (2, 7, 3)), (2, (2, 7)))),
    *((Unary("is_inf", signs), [floats(0, np.inf, -np.inf)]) for signs in ((1, 0), (0, 1), (0, 0))),
    (Unary("hard_sigmoid", (1 / 6, 0.5)), [(3, 9)]),
    (Unary("neg"), [whole(0, -9, 9, np.int64, 4)]),
    (Unary("acos"), [floats(-2, 0, 2)]),
    *((Nary(name), [whole(0, -9, 9, np.int64, 2, 5), whole(1, 1, 4, np.int64, 5)]) for name in ("div", "fmod", "equal")),
    (Nary("pow"), [POSITIVE, (4,)]),
    (Nary("pow"), [whole(0, -3, 4, np.int64, 2, 3), np.array(3)]),
    (Reduce("sum", ()), [(2, 3)]),
    (Reduce("sum", (1,)), [whole(0, -9, 9, np.int32, 2, 3)]),
    (Reduce("product", (2, 0), False), [(2, 3, 4)]),
    (Reduce("max", (1,), False), [whole(0, -9, 9, np.int64, 2, 3)]),
    (ArgExtreme(1, True, True, True), [whole(0, 0, 3, np.int64, 2, 6)]),
    (GatherBackward(0, 5), [(2, 2, 3), np.array([[0, -1], [4, 0]])]),
    (GatherBackward(1, 5), [(2, 3), np.array(-2, dtype=np.int32)]),
    (GatherND(), [POSITIVE[0] > 1, np.array([[[0, 3]], [[-3, 1]]])]),
    (CumSum(-1, True), [whole(0, 0, 9, np.int32, 2, 3)]),
    (Pad((0, -1, 1, 2), "constant", 3), [whole(0, 0, 9, np.int64, 2, 3)]),
    (Pad((1, 0), "constant", 1), [floats(0, 1, 1) > 0]),
    *((Pad((1, 0, -1, 0, 0, 2, 2, 1), mode), [(2, 3, 4, 5)]) for mode in ("reflect", "edge", "wrap")),
    (PRelu(), [(2, 3, 4), (4,)]),
    (PRelu(), [whole(0, -9, 9, np.int64, 2, 3), whole(1, 1, 4, np.int64, 3)]),
    (PRelu(True), [(2, 3, 4, 4), (3,)]),
    *((DepthToSpace(2, columns_first), [(1, 12, 2, 3)]) for columns_first in BOTH),
    (SpaceToDepth(3, True), [(2, 2, 6, 3)]),
    (LayerNorm(1), [(2, 3, 4), (4,), (3, 1)]),
    (RmsNorm(1), [(2, 3, 4), (3, 1)]),
    (InstanceNorm(1e-2), [(1, 3, 1), (3,), (3,)]),
    (ConvTranspose((2, 2), (1, 1, 1, 1), (1, 1), 1, (1, 1)), [(2, 3, 4, 5), (3, 2, 3, 3), (2,)]),
    (ConvTranspose((2,), (1, 0), (2,), 2, (0,)), [(1, 4, 5), (4, 3, 3), (6,)]),
    (AveragePool((2, 2), (1, 1), (1, 0, 1, 0), False, False, (2, 1)), [(1, 3, 6, 5)]),
    (ConvTranspose((1, 1), (0, 2, 1, 0), (1, 1), 1, (0, 3)), [(1, 2, 4, 4), (2, 2, 3, 3)]),
    (ConvTranspose((2, 1, 1), (0,) * 6, (1, 1, 1), 1, (0, 0, 0)), [(1, 2, 2, 2, 2), (2, 1, 2, 2, 2)]),
    (ConvBackwardData((2, 2), (1, 1, 1, 1), (1, 1), 1, (8, 9)), [(2, 3, 4, 5), (3, 2, 3, 3)]),
    (ConvBackwardData((1, 3), (0, 2, 1, 1), (2, 1), 2, (8, 9)), [(2, 4, 5, 4), (4, 1, 3, 2)]),
    (ConvBackwardFilter((2, 2), (1, 1, 1, 1), (1, 1), 1, (3, 3)), [(2, 2, 8, 9), (2, 3, 4, 5)]),
    (ConvBackwardFilter((1, 3), (0, 2, 1, 1), (2, 1), 2, (3, 2)), [(2, 2, 8, 9), (2, 4, 5, 4), (4, 1, 3, 2)]),
    (MaxPoolBackward((3, 3), (2, 2), (1, 1, 1, 1)), [(2, 3, 8, 7), (2, 3, 4, 4)]),
    (MaxPoolBackward((2, 3), (3, 2), (0, 1, 1, 0), (2, 1), True), [(1, 2, 9, 8), (1, 2, 3, 4)]),
    (MaxPoolBackward((2,), (3,), (0, 0), (1,)), [(1, 2, 9), (1, 2, 3)]),
    (AveragePoolBackward((3, 3), (2, 2), (1, 1, 1, 1), input_size=(8, 7)), [(2, 3, 4, 4)]),
    (AveragePoolBackward((2, 3), (3, 2), (0, 1, 1, 0), True, True, (2, 1), (9, 8)), [(1, 2, 3, 4)]),
    (Resize((1, 1, 2.5), mode="linear"), [(1, 2, 5)]),
    (Resize((1, 1, 2, 2, 2), mode="linear"), [(1, 1, 2, 3, 2)]),
    (Resize((2, 1, 2, 2)), [(1, 2, 3, 4)]),
    (Resize((1, 1, 2, 2, 2), mode="cubic", exclude_outside=True), [(1, 2, 3, 4, 4)]),
    (Resize((1, 1, 0.5, 0.5), mode="linear", antialias=True), [(1, 2, 4, 4)]),
    (Lstm(4, "bidirectional", False, ("bias", "state", "cell")), [(5, 2, 3), (2, 16, 3), (2, 16, 4), (2, 32), (2, 2, 4), (2, 2, 4)]),
    (Lstm(4, "reverse", True, ("bias", "state", "cell")), [(2, 5, 3), (1, 16, 3), (1, 16, 4), (1, 32), (2, 1, 4), (2, 1, 4)]),
    (Gru(4, "reverse", True, ("state",), True), [(2, 5, 3), (1, 12, 3), (1, 12, 4), (2, 1, 4)]),
    (Quantize(0), [(3, 4), floats(0.5, 0.1, 0.02), whole(0, 0, 9, np.uint8, 3)]),
    (Quantize(0), [(3, 4), floats(0.5, 0.1, 0.001), np.zeros(3, float8_e4m3fn)]),
    (Quantize(), [np.arange(-3, 4, dtype=np.float32) / 2, floats(1)]),
    (Dequantize(), [whole(0, -999, 999, np.int32, 2, 3), np.array(0.3, np.float32)]),
    (Dequantize(0, 2), [whole(0, 0, 255, np.uint8, 3, 4), (2, 4), whole(1, 0, 255, np.uint8, 2, 4)]),
    (Dequantize(-1), [fp8(2, 3), floats(0.5, 0.1, 2), np.zeros(3, float8_e4m3fn)]),
    (DequantizedMatMul(3), [(2, 3, 4), whole(0, -8, 8, int4, 4, 5), (2, 5)]),
    (DequantizedMatMul(3), [(3, 4), whole(0, 0, 16, uint4, 4, 5), (2, 5), whole(1, 0, 16, uint4, 2, 5)]),
    (DequantizedMatMul(4), [(3, 8), whole(0, -8, 8, int4, 8, 5), np.full((2, 5), 0.1, np.float32)]),
    (DequantizedMatMul(3), [(2, 3, 4), fp8(4, 5), (2, 5)]),
    (Cast("fp8_e5m2"), [np.linspace(-9e4, 9e4, 37, dtype=np.float32)]),
    (Cast("fp32"), [POSITIVE > 1]),
    (ScaledMatMul(), [fp8(2, 3, 4, dtype=float8_e5m2), floats(0.1), fp8(4, 5), floats(0.1, 0.2, 0.3, 0.4, 0.5)]),
    (ScaledMatMul(), [fp8(2, 3, 4), floats(0.1), fp8(2, 4, 3), np.array(0.3, np.float32)]),
    (ScaledConv((2, 1), (1, 0, 1, 1), (1, 1), 2), [fp8(2, 4, 7, 8), floats(0.1), fp8(4, 2, 3, 3), floats(0.1, 0.2, 0.3, 0.4), (4,)]),
    (DynamicQuantize(), [np.zeros((2, 2), np.float32)]),
    (IntegerConv(), [SIGNED, SIGNED[:, :, :1, :1]]),
    (IntegerMatMul(), [whole(0, -99, 99, np.int8, 3, 4), whole(1, -99, 99, np.int8, 4)]),
]  # fmt: skip

#: Every kind but those that only ONNX computes, each op with its operands.
CASES = [*((case.op, case.inputs) for case in ONNX_CASES), *((op, arrays_of(operands)) for op, operands in _OTHERS)]
